"""Rows (64-bit addressing): address conversion, addresses in clusters, prefetch, cache policies, the stack."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_MOVE = "Data Movement and Conversion Instructions: "
_SPACES = "global|shared|shared::cta|shared::cluster|local|const|param"
_FRACTION = "L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged"

SECTIONS: dict[str, tuple[Row, ...]] = {
    f"{_MOVE}cvta": (
        Row(f"cvta {_SPACES} u64", "=u64 u64:rs", raises="param=7.7"),
        Row(f"cvta to {_SPACES} u64", "=u64 u64:rs", raises="param=7.7"),
    ),
    f"{_MOVE}isspacep": (
        Row(f"isspacep {_SPACES}", "=pred u64:r", raises="param=7.7"),
        Row("isspacep param::entry", "=pred u64:r", "8.3"),
    ),
    f"{_MOVE}mapa": (
        Row("mapa shared::cluster T=u32|u64", "=T T:rs u32", "7.8 sm_90"),
        Row("mapa u64", "=u64 u64:rs u32", "7.8 sm_90"),
    ),
    f"{_MOVE}getctarank": (
        Row("getctarank shared::cluster T=u32|u64", "=u32 T:rs", "7.8 sm_90"),
        Row("getctarank u64", "=u32 u64:rs", "7.8 sm_90"),
    ),
    f"{_MOVE}prefetch": (
        Row("prefetch S=global|local? L1|L2", "[S]"),
        Row("prefetch S=global L2::evict_last|L2::evict_normal", "[S]", "7.4 sm_80"),
        Row("prefetchu L1", "[]"),
        Row("prefetch S=const|param? tensormap", "[S]", "8.0 sm_90"),
    ),
    f"{_MOVE}applypriority": (
        Row("applypriority S=global? L2::evict_normal", "[S] u32:i@128", "7.4 sm_80"),
    ),
    f"{_MOVE}discard": (Row("discard S=global? L2", "[S] u32:i@128", "7.4 sm_80"),),
    f"{_MOVE}createpolicy": (
        Row(f"createpolicy fractional {_FRACTION} L2::evict_first|L2::evict_unchanged? b64", "=u64 f32?", "7.4 sm_80"),
        Row(f"createpolicy range S=global? {_FRACTION} L2::evict_first|L2::evict_unchanged? b64", "=u64 [S] u32 u32",
            "7.4 sm_80"),
        Row("createpolicy cvt L2 b64", "=u64 u64", "7.4 sm_80"),
    ),
    "Stack Manipulation Instructions: stacksave": (Row("stacksave T=u32|u64", "=T", "7.3"),),
    "Stack Manipulation Instructions: stackrestore": (Row("stackrestore T=u32|u64", "T:r", "7.3"),),
    "Stack Manipulation Instructions: alloca": (Row("alloca T=u32|u64", "=T T u32:i?", "7.3"),),
}  # fmt: skip
