"""Rows: conversions, every rounding and saturation, narrow floats and address spaces included."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_INT = "u8|u16|u32|u64|s8|s16|s32|s64"
_IRND = "rni|rzi|rmi|rpi"
_FRND = "rn|rz|rm|rp"
_BF16_INT = "7.8 sm_90"
_FAMILY8 = "sm_89"
_FAMILY4 = "8.6 sm_100a|sm_101a|sm_120a"
_ARCH_RS = "8.7 sm_100a|sm_103a"

_NUMBERS = (
    Row(f"cvt sat? D={_INT} A={_INT}", "=~D ~A"),
    Row(f"cvt {_IRND} ftz? sat? D={_INT} f32", "=~D ~f32"),
    Row(f"cvt {_IRND} sat? D={_INT} A=f16|f64", "=~D ~A"),
    Row(f"cvt {_IRND} ftz? sat? D={_INT} f16", "=~D ~f16"),
    Row(f"cvt {_IRND} sat? D={_INT} bf16", "=~D bf16:r", _BF16_INT),
    Row(f"cvt {_FRND} ftz? sat? f32 A={_INT}", "=~f32 ~A"),
    Row(f"cvt {_FRND} sat? D=f16|f64 A={_INT}", "=~D ~A"),
    Row(f"cvt {_FRND} sat? bf16 A={_INT}", "=bf16 ~A", _BF16_INT),
    Row(f"cvt {_FRND} ftz? sat? f32 f64", "=~f32 ~f64"),
    Row(f"cvt {_FRND} sat? f16 f64", "=~f16 ~f64"),
    Row(f"cvt {_FRND} bf16 f64", "=bf16 ~f64", _BF16_INT),
    Row(f"cvt {_FRND} bf16 f16", "=bf16 ~f16:r", _BF16_INT),
    Row(f"cvt {_FRND} ftz? sat? f16 f32", "=~f16 ~f32"),
    Row(f"cvt {_FRND} f16 bf16", "=~f16 bf16:r", _BF16_INT),
    Row("cvt ftz? sat? f32 f16", "=~f32 ~f16:r"),
    Row("cvt sat? f64 f16", "=~f64 ~f16:r"),
    Row("cvt ftz? sat? f64 f32", "=~f64 ~f32"),
    Row("cvt ftz? f32 bf16", "=~f32 bf16:r", "7.1 sm_80"),
    Row("cvt f64 bf16", "=~f64 bf16:r", _BF16_INT),
    Row(f"cvt {_IRND}? ftz? sat? f32 f32", "=~f32 ~f32"),
    Row(f"cvt {_IRND}? sat? T=f16|f64 T", "=~T ~T"),
    Row(f"cvt {_IRND}? sat? f16 f16", "=~f16 ~f16:r"),
    Row(f"cvt {_IRND}? sat? f64 f64", "=~f64 ~f64"),
    Row(f"cvt {_IRND} bf16 bf16", "=bf16 bf16:r", _BF16_INT),
)

_NARROW = (
    Row("cvt rn|rz relu? satfinite? f16 f32", "=~f16 ~f32", "7.0 sm_80", "satfinite=8.1,sm_80", loose=True),
    Row("cvt rn|rz relu? satfinite? f16x2 f32", "=f16x2 f32 f32", "7.0 sm_80", "satfinite=8.1,sm_80", loose=True),
    Row("cvt rn|rz relu? satfinite? bf16 f32", "=bf16 ~f32", "7.0 sm_80", "satfinite=8.1,sm_80", loose=True),
    Row("cvt rn|rz relu? satfinite? bf16x2 f32", "=bf16x2 f32 f32", "7.0 sm_80", "satfinite=8.1,sm_80", loose=True),
    Row("cvt rna satfinite? tf32 f32", "=tf32 f32", "7.0 sm_80", "satfinite=8.1,sm_89"),
    Row("cvt rn|rz satfinite? relu? tf32 f32", "=tf32 f32", "7.8 sm_90", "satfinite=8.6,sm_100"),
    Row("cvt rn satfinite relu? D=e4m3x2|e5m2x2 f32", "=D f32 f32", "7.8 sm_89", loose=True),
    Row("cvt rn satfinite relu? D=e4m3x2|e5m2x2 f16x2", "=D f16x2:r", "7.8 sm_89", loose=True),
    Row("cvt rn relu? f16x2 A=e4m3x2|e5m2x2", "=f16x2 A:r", "7.8 sm_89"),
)

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Data Movement and Conversion Instructions: cvt": _NUMBERS + _NARROW,
}
