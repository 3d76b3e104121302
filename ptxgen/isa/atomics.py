"""Rows: atom, red and multimem, scalar, packed and vector; red.async and st.async."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_SCOPE = "cta|cluster|gpu|sys"
_SPACE = "S=global|shared|shared::cta|shared::cluster"
_HINT = "H=L2::cache_hint?"
_SYNC = "Parallel Synchronization and Communication Instructions: "
_OPS: tuple[tuple[str, str], ...] = (
    ("and|or|xor", "b32|b64"),
    ("add", "u32|s32|u64|s64|f32|f64"),
    ("inc|dec", "u32"),
    ("min|max", "u32|s32|u64|s64"),
)  # fmt: skip


def _atomic(name: str, sem: str, dest: str) -> list[Row]:
    """Rows of atom (`dest` is `=T:r_`) or red (`dest` is empty)."""
    head = f"{name} {sem}? {_SCOPE}? {_SPACE}?"
    vector = f"{name} {sem}? {_SCOPE}? S=global?"
    wide = dest.replace("T:r_", "T:r_*V")
    rows = [Row(f"{head} {ops} {_HINT} T={types}", f"{dest} [S] T (H)b64:r", loose=True) for ops, types in _OPS]
    rows += [
        Row(f"{head} add noftz {_HINT} T=f16x2", f"{dest} [S] T:r (H)b64:r", "6.2", loose=True),
        Row(f"{head} add noftz {_HINT} T=f16", f"{dest} [S] T:r (H)b64:r", "6.3", loose=True),
        Row(f"{head} add noftz {_HINT} T=bf16|bf16x2", f"{dest} [S] T:r (H)b64:r", "7.8 sm_90", loose=True),
        Row(f"{vector} add {_HINT} V=v2|v4 T=f32", f"{wide} [S] T*V (H)b64:r", "8.1 sm_90", loose=True),
        Row(f"{vector} add|min|max noftz {_HINT} V=v2|v4|v8 T=f16|bf16", f"{wide} [S] T*V (H)b64:r", "8.1 sm_90",
            loose=True),
        Row(f"{vector} add|min|max noftz {_HINT} V=v2|v4 T=f16x2|bf16x2", f"{wide} [S] T*V (H)b64:r", "8.1 sm_90",
            loose=True),
    ]  # fmt: skip
    return rows


_ATOM_HEAD = f"atom relaxed|acquire|release|acq_rel? {_SCOPE}? {_SPACE}?"
_RED_ASYNC = "red async relaxed cluster S=shared::cluster? mbarrier::complete_tx::bytes"
_MM = "S=global?"

SECTIONS: dict[str, tuple[Row, ...]] = {
    f"{_SYNC}atom": (
        *_atomic("atom", "relaxed|acquire|release|acq_rel", "=T:r_"),
        Row(f"{_ATOM_HEAD} exch {_HINT} T=b32|b64", "=T:r_ [S] T (H)b64:r", loose=True),
        Row(f"{_ATOM_HEAD} exch {_HINT} T=b128", "=T:r_ [S] T:r (H)b64:r", "8.3 sm_90", loose=True),
        Row(f"{_ATOM_HEAD} cas {_HINT} T=b32|b64", "=T:r_ [S] T T (H)b64:r", loose=True),
        Row(f"{_ATOM_HEAD} cas T=b16", "=T:r_ [S] T T", "6.3", loose=True),
        Row(f"{_ATOM_HEAD} cas T=b128", "=T:r_ [S] T:r T:r", "8.3 sm_90", loose=True),
    ),
    f"{_SYNC}red": tuple(_atomic("red", "relaxed|release", "")),
    f"{_SYNC}red.async": (
        Row(f"{_RED_ASYNC} inc|dec T=u32", "[S] T [S]", "8.1 sm_90"),
        Row(f"{_RED_ASYNC} min|max T=u32|s32", "[S] T [S]", "8.1 sm_90"),
        Row(f"{_RED_ASYNC} and|or|xor T=b32", "[S] T [S]", "8.1 sm_90"),
        Row(f"{_RED_ASYNC} add T=u32|s32|u64", "[S] T [S]", "8.1 sm_90"),
        Row("red async mmio? release gpu|sys S=global? add T=u32|s32|u64|s64", "[S] T", "8.7 sm_100"),
    ),
    f"{_SYNC}multimem": (
        Row(f"multimem ld_reduce weak {_MM} min|max|add T=u32|s32|u64", "=T [S]", "8.1 sm_90"),
    ),
    "Data Movement and Conversion Instructions: st.async": (
        Row("st async weak? S=shared::cluster? mbarrier::complete_tx::bytes V=v2? T=b32|u32|s32|f32|b64|u64|s64|f64",
            "[S] T:ri*V [S]", "8.1 sm_90"),
        Row("st async weak? S=shared::cluster? mbarrier::complete_tx::bytes V=v4 T=b32|u32|s32|f32",
            "[S] T:ri*V [S]", "8.1 sm_90"),
        Row("st async mmio? release gpu|sys S=global? T=b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64",
            "[S] ~T", "8.7 sm_100"),
    ),
    "Data Movement and Conversion Instructions: st.bulk": (
        Row("st bulk weak? S=shared::cta?", "[S] u64 u64:i", "8.6 sm_100"),
    ),
}  # fmt: skip
