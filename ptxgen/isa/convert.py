"""Rows: conversions between numbers, every rounding and saturation, narrow and packed floats included."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_INTS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_INT = "|".join(_INTS)
_IRND = "rni|rzi|rmi|rpi"
_FRND = "rn|rz|rm|rp"
_BF16 = "7.8 sm_90"
_FP8 = "8.1 sm_89 / 7.8 sm_90"
_F16_PAIR = "7.0 sm_80"
_SATFINITE = "satfinite=8.1,sm_80"
_NARROW = "8.6 sm_100f|sm_110f|sm_120f"
_STOCHASTIC = "8.7 sm_100a|sm_103a"


def _saturating() -> tuple[Row, ...]:
    """Integer to integer with `.sat`: only where the result cannot hold every value of the source."""

    def holds(result: str, source: str) -> bool:
        wider = int(result[1:]) > int(source[1:]) or (result[0] == source[0] and result[1:] == source[1:])
        return wider and (result[0] == "s" or source[0] == "u")

    sources = {result: [each for each in _INTS if not holds(result, each)] for result in _INTS}
    return tuple(Row(f"cvt sat {result} A={'|'.join(each)}", f"=~{result} ~A") for result, each in sources.items())


_NUMBERS = (
    Row(f"cvt D={_INT} A={_INT}", "=~D ~A"),
    *_saturating(),
    Row(f"cvt {_IRND} ftz? sat? D={_INT} f32", "=~D ~f32"),
    Row(f"cvt {_IRND} sat? D={_INT} f16", "=~D ~f16:r"),
    Row(f"cvt {_IRND} sat? D={_INT} f64", "=~D ~f64"),
    Row(f"cvt {_IRND} D={_INT} bf16", "=D bf16:r", _BF16),
    Row(f"cvt {_FRND} sat? D=f16|f32|f64 A={_INT}", "=~D ~A"),
    Row(f"cvt {_FRND} bf16 A={_INT}", "=bf16 A", _BF16),
    Row(f"cvt {_FRND} ftz? sat? f32 f64", "=~f32 ~f64"),
    Row(f"cvt {_FRND} sat? f16 f64", "=~f16 ~f64"),
    Row(f"cvt {_FRND} ftz? sat? f16 f32", "=~f16 ~f32"),
    Row(f"cvt {_FRND}? bf16 f16", "=bf16 f16:r", _BF16),
    Row(f"cvt {_FRND} bf16 f64", "=bf16 f64", _BF16),
    Row("cvt rm|rp bf16 f32", "=bf16 f32", _BF16),
    Row(f"cvt {_FRND} f16 bf16", "=f16 bf16:r", _BF16),
    Row("cvt ftz? sat? f32 f16", "=~f32 ~f16:r"),
    Row("cvt sat? f64 f16", "=~f64 ~f16:r"),
    Row("cvt ftz? sat? f64 f32", "=~f64 ~f32"),
    Row("cvt ftz? f32 bf16", "=f32 bf16:r", "7.1 sm_80", "ftz=7.8,sm_90"),
    Row("cvt f64 bf16", "=f64 bf16:r", _BF16),
    Row(f"cvt {_IRND}? ftz? sat? f32 f32", "=~f32 ~f32"),
    Row(f"cvt {_IRND}? sat? f16 f16", "=~f16 ~f16:r"),
    Row(f"cvt {_IRND}? sat? f64 f64", "=~f64 ~f64"),
    Row(f"cvt {_IRND} bf16 bf16", "=bf16 bf16:r", _BF16),
)

_HALVES = (
    Row("cvt rn|rz satfinite f16 f32", "=~f16 ~f32", "8.1", loose=True),
    Row("cvt rn|rz relu satfinite? f16 f32", "=~f16 ~f32", _F16_PAIR, _SATFINITE, loose=True),
    Row("cvt rn|rz relu? satfinite? f16x2 f32", "=f16x2 f32 f32", _F16_PAIR, _SATFINITE, loose=True),
    Row("cvt rn|rz relu? satfinite? bf16 f32", "=bf16 f32", _F16_PAIR, _SATFINITE, loose=True),
    Row("cvt rn|rz relu? satfinite? bf16x2 f32", "=bf16x2 f32 f32", _F16_PAIR, _SATFINITE, loose=True),
    Row("cvt rs relu? satfinite? D=f16x2|bf16x2 f32", "=D f32 f32 rbits:r", _STOCHASTIC, loose=True),
    Row("cvt rna satfinite? tf32 f32", "=tf32 f32", _F16_PAIR, _SATFINITE),
    Row("cvt rn|rz satfinite? relu? tf32 f32", "=tf32 f32", _BF16, "satfinite=8.6,sm_100"),
)

_PACKED = (
    Row("cvt rn satfinite relu? D=e4m3x2|e5m2x2 f32", "=D f32 f32", _FP8, loose=True),
    Row("cvt rn satfinite relu? D=e4m3x2|e5m2x2 f16x2", "=D f16x2:r", _FP8, loose=True),
    Row("cvt rn relu? f16x2 A=e4m3x2|e5m2x2", "=f16x2 A:r", _FP8),
    Row("cvt rn satfinite relu? D=e2m3x2|e3m2x2|e2m1x2 f32", "=D f32 f32", _NARROW, loose=True),
    Row("cvt rn relu? f16x2 A=e2m3x2|e3m2x2|e2m1x2", "=f16x2 A:r", _NARROW),
    Row("cvt rs relu? satfinite D=e4m3x4|e5m2x4|e2m3x4|e3m2x4|e2m1x4 f32", "=D f32*4 rbits:r", _STOCHASTIC,
        loose=True),
    Row("cvt rz|rp satfinite? ue8m0x2 f32", "=ue8m0x2 f32 f32", _NARROW),
    Row("cvt rz|rp satfinite? ue8m0x2 bf16x2", "=ue8m0x2 bf16x2:r", _NARROW),
    Row("cvt rn bf16x2 ue8m0x2", "=bf16x2 ue8m0x2:r", _NARROW),
)  # fmt: skip

_INTO_ONE = (
    Row("cvt pack sat u16|s16 s32", "=u32 s32 s32", "6.5 sm_72"),
    Row("cvt pack sat u2|s2|u4|s4|u8|s8 s32 b32", "=u32 s32 s32 u32", "6.5 sm_72",
        "u2=6.5,sm_75 s2=6.5,sm_75 u4=6.5,sm_75 s4=6.5,sm_75"),
)  # fmt: skip

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Data Movement and Conversion Instructions: cvt": _NUMBERS + _HALVES + _PACKED,
    "Data Movement and Conversion Instructions: cvt.pack": _INTO_ONE,
}
