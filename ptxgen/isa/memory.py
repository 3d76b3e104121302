"""Rows: loads and stores with cache operators, eviction priorities, scopes and vectors."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_SPACE = "S=global|shared|shared::cta|shared::cluster|local|const|param|param::entry|param::func"
_STORE_SPACE = "S=global|shared|shared::cta|shared::cluster|local|param|param::func"
_SCALAR = "T=b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f16|f32|f64|b128"
_PAIR = "V=v2 T=b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f16|f32|f64"
_QUAD = "V=v4 T=b8|b16|b32|u8|u16|u32|s8|s16|s32|f16|f32"
_WIDE4 = "V=v4 T=b64|u64|s64|f64"
_WIDE8 = "V=v8 T=b32|u32|s32|f32"
_NARROW = (_SCALAR, _PAIR, _QUAD)
_WIDE = (_WIDE4, _WIDE8)
_L1 = "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
_L2 = "L2::evict_normal|L2::evict_first|L2::evict_last"
_FETCH = "L2::64B|L2::128B|L2::256B"
_SCOPE = "cta|cluster|gpu|sys"
_EVICTS = " ".join(f"{word}=7.4" for word in _L1.split("|"))
_RAISES = f"{_EVICTS} L2::64B=7.4,sm_75 L2::128B=7.4,sm_75 L2::256B=7.4,sm_80 param::entry=8.3 param::func=8.3"
_256_BITS = "8.8 sm_100"


def _loads() -> list[Row]:
    rows = []
    tail = f"H=L2::cache_hint? {_FETCH}?"
    for shape in _NARROW:
        for head in (
            f"ld weak? {_SPACE}? ca|cg|cs|lu|cv? {tail}",
            f"ld weak? {_SPACE}? {_L1} {tail}",
            f"ld volatile {_SPACE}? {_FETCH}?",
            f"ld relaxed|acquire {_SCOPE} {_SPACE}? {_L1}? {tail}",
            f"ld S=global ca|cg|cs? nc {tail}",
            f"ld S=global nc {_L1} {tail}",
        ):
            rows.append(Row(f"{head} {shape}", "=~T:r_*V [S] (H)b64:r", raises=_RAISES, loose=True))
    for shape in _WIDE:
        for head in (f"ld weak? S=global {_L1}? {_L2}? {tail}", f"ld S=global nc {_L1}? {_L2}? {tail}"):
            rows.append(Row(f"{head} {shape}", "=~T:r_*V [S] (H)b64:r", _256_BITS, _RAISES, loose=True))
    rows.append(Row(f"ld mmio relaxed sys S=global? {_SCALAR}", "=~T:r_ [S]", "8.2"))
    return rows


def _stores() -> list[Row]:
    rows = []
    for shape in _NARROW:
        for head in (
            f"st weak? {_STORE_SPACE}? wb|cg|cs|wt? H=L2::cache_hint?",
            f"st weak? {_STORE_SPACE}? {_L1} H=L2::cache_hint?",
            f"st volatile {_STORE_SPACE}?",
            f"st relaxed|release {_SCOPE} {_STORE_SPACE}? {_L1}? H=L2::cache_hint?",
        ):
            rows.append(Row(f"{head} {shape}", "[S] ~T:ri*V (H)b64:r", raises=_RAISES, loose=True))
    for shape in _WIDE:
        head = f"st weak? S=global {_L1}? {_L2}? H=L2::cache_hint?"
        rows.append(Row(f"{head} {shape}", "[S] ~T:ri*V (H)b64:r", _256_BITS, _RAISES, loose=True))
    rows.append(Row(f"st mmio relaxed sys S=global? {_SCALAR}", "[S] ~T", "8.2"))
    return rows


SECTIONS: dict[str, tuple[Row, ...]] = {
    "Data Movement and Conversion Instructions: ld": tuple(_loads()),
    "Data Movement and Conversion Instructions: st": tuple(_stores()),
    "Data Movement and Conversion Instructions: ldu": (
        Row(f"ldu S=global? {_PAIR}", "=~T:r_*V [S]"),
        Row(f"ldu S=global? {_QUAD}", "=~T:r_*V [S]"),
        Row("ldu S=global? T=b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64", "=~T:r_ [S]"),
    ),
}
