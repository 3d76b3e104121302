"""Rows: integer and floating-point arithmetic, extended precision, packed and half precision."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

INT = "T=u16|u32|u64|s16|s32|s64"
RND = "rn|rz|rm|rp"
HALF = "T=f16|f16x2"
BHALF = "T=bf16|bf16x2"
_X2 = "8.0 sm_90"

_INTEGER: dict[str, tuple[Row, ...]] = {
    "Integer Arithmetic Instructions: add": (
        Row(f"add {INT}", "=T T T"),
        Row("add sat s32", "=s32 s32 s32", loose=True),
        Row("add T=u16x2|s16x2", "=T T:r T:r", _X2),
    ),
    "Integer Arithmetic Instructions: sub": (
        Row(f"sub {INT}", "=T T T"),
        Row("sub sat s32", "=s32 s32 s32", loose=True),
    ),
    "Integer Arithmetic Instructions: mul": (
        Row(f"mul hi|lo {INT}", "=T T T"),
        Row("mul wide u16", "=u32 u16 u16"),
        Row("mul wide s16", "=s32 s16 s16"),
        Row("mul wide u32", "=u64 u32 u32"),
        Row("mul wide s32", "=s64 s32 s32"),
    ),
    "Integer Arithmetic Instructions: mad": (
        Row(f"mad hi|lo {INT}", "=T T T T"),
        Row("mad hi sat s32", "=s32 s32 s32 s32"),
        Row("mad wide u16", "=u32 u16 u16 u32"),
        Row("mad wide s16", "=s32 s16 s16 s32"),
        Row("mad wide u32", "=u64 u32 u32 u64"),
        Row("mad wide s32", "=s64 s32 s32 s64"),
    ),
    "Integer Arithmetic Instructions: mul24": (Row("mul24 hi|lo T=u32|s32", "=T T T"),),
    "Integer Arithmetic Instructions: mad24": (
        Row("mad24 hi|lo T=u32|s32", "=T T T T"),
        Row("mad24 hi sat s32", "=s32 s32 s32 s32"),
    ),
    "Integer Arithmetic Instructions: sad": (Row(f"sad {INT}", "=T T T T"),),
    "Integer Arithmetic Instructions: div": (Row(f"div {INT}", "=T T T"),),
    "Integer Arithmetic Instructions: rem": (Row(f"rem {INT}", "=T T T"),),
    "Integer Arithmetic Instructions: abs": (Row("abs T=s16|s32|s64", "=T T"),),
    "Integer Arithmetic Instructions: neg": (Row("neg T=s16|s32|s64", "=T T"),),
    "Integer Arithmetic Instructions: min": (
        Row(f"min {INT}", "=T T T"),
        Row("min T=u16x2|s16x2", "=T T:r T:r", _X2),
        Row("min relu s16x2", "=s16x2 s16x2:r s16x2:r", _X2),
        Row("min relu s32", "=s32 s32 s32", _X2),
    ),
    "Integer Arithmetic Instructions: max": (
        Row(f"max {INT}", "=T T T"),
        Row("max T=u16x2|s16x2", "=T T:r T:r", _X2),
        Row("max relu s16x2", "=s16x2 s16x2:r s16x2:r", _X2),
        Row("max relu s32", "=s32 s32 s32", _X2),
    ),
    "Integer Arithmetic Instructions: popc": (Row("popc T=b32|b64", "=u32 T"),),
    "Integer Arithmetic Instructions: clz": (Row("clz T=b32|b64", "=u32 T"),),
    "Integer Arithmetic Instructions: bfind": (Row("bfind shiftamt? T=u32|u64|s32|s64", "=u32 T"),),
    "Integer Arithmetic Instructions: fns": (Row("fns b32", "=b32 b32 b32 s32"),),
    "Integer Arithmetic Instructions: brev": (Row("brev T=b32|b64", "=T T"),),
    "Integer Arithmetic Instructions: bfe": (Row("bfe T=u32|u64|s32|s64", "=T T u32@0..255 u32@0..255"),),
    "Integer Arithmetic Instructions: bfi": (Row("bfi T=b32|b64", "=T T T u32@0..255 u32@0..255"),),
    "Integer Arithmetic Instructions: szext": (Row("szext clamp|wrap T=u32|s32", "=T T u32", "7.6"),),
    "Integer Arithmetic Instructions: bmsk": (Row("bmsk clamp|wrap b32", "=u32 u32 u32", "7.6"),),
    "Integer Arithmetic Instructions: dp4a": (
        Row("dp4a u32 u32", "=u32 u32 u32 u32"),
        Row("dp4a s32 B=u32|s32", "=s32 s32 B s32"),
        Row("dp4a u32 s32", "=s32 u32 s32 s32"),
    ),
    "Integer Arithmetic Instructions: dp2a": (
        Row("dp2a lo|hi u32 u32", "=u32 u32 u32 u32"),
        Row("dp2a lo|hi s32 B=u32|s32", "=s32 s32 B s32"),
        Row("dp2a lo|hi u32 s32", "=s32 u32 s32 s32"),
    ),
    "Extended-Precision Integer Arithmetic Instructions: add.cc": (Row("add cc T=u32|s32|u64|s64", "=T T T"),),
    "Extended-Precision Integer Arithmetic Instructions: addc": (Row("addc cc? T=u32|s32|u64|s64", "=T T T"),),
    "Extended-Precision Integer Arithmetic Instructions: sub.cc": (Row("sub cc T=u32|s32|u64|s64", "=T T T"),),
    "Extended-Precision Integer Arithmetic Instructions: subc": (Row("subc cc? T=u32|s32|u64|s64", "=T T T"),),
    "Extended-Precision Integer Arithmetic Instructions: mad.cc": (
        Row("mad hi|lo cc T=u32|s32|u64|s64", "=T T T T"),
    ),
    "Extended-Precision Integer Arithmetic Instructions: madc": (
        Row("madc hi|lo cc? T=u32|s32|u64|s64", "=T T T T"),
    ),
}  # fmt: skip

# Mixed precision: f16 or bf16 operands into an f32 sum.
_MIXED = "8.6 sm_100"


def _sum(name: str) -> tuple[Row, ...]:
    return (
        Row(f"{name} {RND}? ftz? sat? f32", "=f32 f32 f32", loose=True),
        Row(f"{name} {RND}? f64", "=f64 f64 f64"),
        Row(f"{name} {RND}? ftz? f32x2", "=f32x2 f32x2:r f32x2:r", "8.6 sm_100"),
    )


def _least(name: str) -> tuple[Row, ...]:
    raises = "NaN=7.0,sm_80 xorsign=7.2,sm_86"
    return (
        Row(f"{name} ftz? f32", "=f32 f32 f32 / {8.8,sm_100}=f32 f32 f32 f32"),
        Row(f"{name} ftz? NaN f32", "=f32 f32 f32 / {8.8,sm_100}=f32 f32 f32 f32", raises=raises),
        Row(f"{name} ftz? NaN? xorsign abs f32", "=f32 f32 f32", raises=raises),
        Row(f"{name} ftz? NaN? abs f32", "=f32 f32 f32 f32", "8.8 sm_100"),
        Row(f"{name} f64", "=f64 f64 f64"),
        Row(f"{name} ftz? NaN? {HALF}", "=T T:r T:r", "7.0 sm_80"),
        Row(f"{name} ftz? NaN? xorsign abs {HALF}", "=T T:r T:r", "7.2 sm_86"),
        Row(f"{name} NaN? {BHALF}", "=T T:r T:r", "7.0 sm_80"),
        Row(f"{name} NaN? xorsign abs {BHALF}", "=T T:r T:r", "7.2 sm_86"),
    )


def _half_sum(name: str) -> tuple[Row, ...]:
    return (
        Row(f"{name} rn? ftz? sat? {HALF}", "=T T:r T:r", loose=True),
        Row(f"{name} rn? {BHALF}", "=T T:r T:r", "7.8 sm_90"),
    )


def _mixed_sum(name: str) -> Row:
    return Row(f"{name} {RND}? sat? f32 A=f16|bf16", "=f32 A:r f32", _MIXED)


_FLOAT: dict[str, tuple[Row, ...]] = {
    "Floating-Point Instructions: testp": (
        Row("testp finite|infinite|number|notanumber|normal|subnormal T=f32|f64", "=pred T"),
    ),
    "Floating-Point Instructions: copysign": (Row("copysign T=f32|f64", "=T T T"),),
    "Floating-Point Instructions: add": (*_sum("add"), _mixed_sum("add")),
    "Floating-Point Instructions: sub": (*_sum("sub"), _mixed_sum("sub")),
    "Floating-Point Instructions: mul": _sum("mul"),
    "Floating-Point Instructions: fma": (
        Row(f"fma {RND} ftz? sat? f32", "=f32 f32 f32 f32", loose=True),
        Row(f"fma {RND} f64", "=f64 f64 f64 f64"),
        Row(f"fma {RND} ftz? f32x2", "=f32x2 f32x2:r f32x2:r f32x2:r", "8.6 sm_100"),
        Row(f"fma {RND} sat? f32 A=f16|bf16", "=f32 A:r A:r f32", _MIXED),
    ),
    "Floating-Point Instructions: mad": (
        Row(f"mad {RND} ftz? sat? f32", "=f32 f32 f32 f32"),
        Row(f"mad {RND} f64", "=f64 f64 f64 f64"),
    ),
    "Floating-Point Instructions: div": (
        Row(f"div approx|full|{RND} ftz? f32", "=f32 f32 f32"),
        Row(f"div {RND} f64", "=f64 f64 f64"),
    ),
    "Floating-Point Instructions: abs": (Row("abs ftz? f32", "=f32 f32"), Row("abs f64", "=f64 f64")),
    "Floating-Point Instructions: neg": (Row("neg ftz? f32", "=f32 f32"), Row("neg f64", "=f64 f64")),
    "Floating-Point Instructions: min": _least("min"),
    "Floating-Point Instructions: max": _least("max"),
    "Floating-Point Instructions: rcp": (
        Row(f"rcp approx|{RND} ftz? f32", "=f32 f32"),
        Row(f"rcp {RND} f64", "=f64 f64"),
        Row("rcp approx ftz f64", "=f64 f64"),
    ),
    "Floating-Point Instructions: sqrt": (
        Row(f"sqrt approx|{RND} ftz? f32", "=f32 f32"),
        Row(f"sqrt {RND} f64", "=f64 f64"),
    ),
    "Floating-Point Instructions: rsqrt": (
        Row("rsqrt approx ftz? f32", "=f32 f32"),
        Row("rsqrt approx ftz? f64", "=f64 f64"),
    ),
    "Floating-Point Instructions: sin": (Row("sin approx ftz? f32", "=f32 f32"),),
    "Floating-Point Instructions: cos": (Row("cos approx ftz? f32", "=f32 f32"),),
    "Floating-Point Instructions: lg2": (Row("lg2 approx ftz? f32", "=f32 f32"),),
    "Floating-Point Instructions: ex2": (Row("ex2 approx ftz? f32", "=f32 f32"),),
    "Floating-Point Instructions: tanh": (Row("tanh approx f32", "=f32 f32", "7.0 sm_75"),),
    "Half Precision Floating-Point Instructions: add": _half_sum("add"),
    "Half Precision Floating-Point Instructions: sub": _half_sum("sub"),
    "Half Precision Floating-Point Instructions: mul": _half_sum("mul"),
    "Half Precision Floating-Point Instructions: fma": (
        Row(f"fma rn ftz? sat? {HALF}", "=T T:r T:r T:r"),
        Row(f"fma rn ftz? relu {HALF}", "=T T:r T:r T:r", "7.0 sm_80"),
        Row(f"fma rn relu? {BHALF}", "=T T:r T:r T:r", "7.0 sm_80"),
        Row("fma rn oob relu? T=f16|f16x2|bf16|bf16x2", "=T T:r T:r T:r", "8.1 sm_90"),
    ),
    "Half Precision Floating-Point Instructions: neg": (
        Row(f"neg ftz? {HALF}", "=T T:r"),
        Row(f"neg {BHALF}", "=T T:r", "7.0 sm_80"),
    ),
    "Half Precision Floating-Point Instructions: abs": (
        Row(f"abs ftz? {HALF}", "=T T:r", "6.5"),
        Row(f"abs {BHALF}", "=T T:r", "7.0 sm_80"),
    ),
    "Half Precision Floating-Point Instructions: tanh": (
        Row(f"tanh approx {HALF}", "=T T:r", "7.0 sm_75"),
        Row(f"tanh approx {BHALF}", "=T T:r", "7.8 sm_90"),
    ),
    "Half Precision Floating-Point Instructions: ex2": (
        Row(f"ex2 approx {HALF}", "=T T:r", "7.0 sm_75"),
        Row(f"ex2 approx ftz {BHALF}", "=T T:r", "7.8 sm_90"),
    ),
}

SECTIONS: dict[str, tuple[Row, ...]] = {**_INTEGER, **_FLOAT}
