"""Rows: loads and stores with cache operators, eviction priorities, scopes and vectors."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_SHARED = "shared|shared::cta|shared::cluster"
_TYPES = "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
_SHAPES = (f"T={_TYPES}", f"V=v2 T={_TYPES}", "V=v4 T=b8|b16|b32|u8|u16|u32|s8|s16|s32|f32")
_QUADWORD = "T=b128"
_256_BITS = ("V=v4 T=b64|u64|s64|f64", "V=v8 T=b32|u32|s32|f32")
_L1 = "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
_L2 = "L2::evict_normal|L2::evict_first|L2::evict_last"
_FETCH = "L2::64B|L2::128B|L2::256B"
_HINT = "H=L2::cache_hint?"
_SCOPE = "cta|cluster|gpu|sys"
_EVICTS = " ".join(f"{word}=7.4" for word in _L1.split("|"))
_RAISES = f"{_EVICTS} L2::64B=7.4,sm_75 L2::128B=7.4,sm_75 L2::256B=7.4,sm_80 param::entry=8.3 param::func=8.3"

_LOADS = (
    f"ld weak? S=global|{_SHARED}|local|const|param|param::entry|param::func? ca|cg|cs|lu|cv?",
    f"ld weak? S=global? ca|cg|cs|lu|cv? {_HINT} {_FETCH}?",
    f"ld weak? S=global? {_L1} {_HINT} {_FETCH}?",
    f"ld volatile S={_SHARED}",
    f"ld volatile S=global? {_FETCH}?",
    f"ld relaxed|acquire {_SCOPE} S={_SHARED}",
    f"ld relaxed|acquire {_SCOPE} S=global? {_L1}? {_HINT} {_FETCH}?",
    f"ld S=global ca|cg|cs? nc {_HINT} {_FETCH}?",
    f"ld S=global nc {_L1} {_HINT} {_FETCH}?",
)
_STORES = (
    f"st weak? S=global|{_SHARED}|local|param|param::func? wb|cg|cs|wt?",
    f"st weak? S=global? wb|cg|cs|wt? {_HINT}",
    f"st weak? S=global? {_L1} {_HINT}",
    f"st volatile S=global|{_SHARED}?",
    f"st relaxed|release {_SCOPE} S={_SHARED}",
    f"st relaxed|release {_SCOPE} S=global? {_L1}? {_HINT}",
)


def _rows(heads: tuple[str, ...], wide_heads: tuple[str, ...], operands: str) -> tuple[Row, ...]:
    rows = [Row(f"{head} {shape}", operands, raises=_RAISES, loose=True) for shape in _SHAPES for head in heads]
    rows += [Row(f"{head} {_QUADWORD}", operands, "8.3", f"{_RAISES} sys=8.4", loose=True) for head in heads]
    for shape in _256_BITS:
        rows += [Row(f"{head} {shape}", operands, "8.8 sm_100", _RAISES, loose=True) for head in wide_heads]
    return tuple(rows)


_WIDE_LOADS = (
    f"ld weak? S=global? {_L1}? {_L2}? {_HINT} {_FETCH}?",
    f"ld S=global nc {_L1}? {_L2}? {_HINT} {_FETCH}?",
)
_WIDE_STORES = (f"st weak? S=global? {_L1}? {_L2}? {_HINT}",)

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Data Movement and Conversion Instructions: ld": (
        *_rows(_LOADS, _WIDE_LOADS, "=~T*V [S] (H)u64:r"),
        Row(f"ld mmio relaxed sys S=global? T={_TYPES}", "=~T [S]", "8.2"),
        Row("ld mmio relaxed sys S=global? T=b128", "=T [S]", "8.4"),
    ),
    "Data Movement and Conversion Instructions: st": (
        *_rows(_STORES, _WIDE_STORES, "[S] ~T:ri*V (H)u64:r"),
        Row(f"st mmio relaxed sys S=global? T={_TYPES}", "[S] ~T", "8.2"),
        Row("st mmio relaxed sys S=global? T=b128", "[S] T:r", "8.4"),
    ),
    "Data Movement and Conversion Instructions: ldu": (
        *(Row(f"ldu S=global? {shape}", "=~T*V [S]") for shape in _SHAPES),
    ),
}
