"""Rows: atom, red and multimem, scalar, packed and vector; red.async and st.async."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_SCOPE = "cta|cluster|gpu|sys"
_SHARED = "shared|shared::cta|shared::cluster"
_HINT = "H=L2::cache_hint?"
_SYNC = "Parallel Synchronization and Communication Instructions: "
_OPS: tuple[tuple[str, str], ...] = (
    ("and|or|xor", "b32|b64"),
    ("add", "u32|s32|u64|f32|f64"),
    ("inc|dec", "u32"),
    ("min|max", "u32|s32|u64|s64"),
)  # fmt: skip


def _atomic(name: str, sem: str, dest: str) -> list[Row]:
    """Rows of atom (`dest` is `=T:r_`) or red (`dest` is empty). Cache hints belong to global memory alone."""
    scoped = f"{name} {sem}? {_SCOPE}?"
    wide = dest.replace("T:r_", "T:r_*V")
    rows = []
    for place, hint in ((f"S={_SHARED}", ""), ("S=global?", _HINT)):
        head = f"{scoped} {place}"
        rows += [Row(f"{head} {ops} {hint} T={types}", f"{dest} [S] T (H)u64:r", loose=True) for ops, types in _OPS]
        rows += [
            Row(f"{head} add noftz {hint} T={types}", f"{dest} [S] T:r (H)u64:r", since, loose=True)
            for types, since in (("f16x2", "6.2"), ("f16", "6.3"), ("bf16|bf16x2", "7.8 sm_90"))
        ]
    head = f"{scoped} S=global?"
    rows += [
        Row(f"{head} {ops} {_HINT} V={vector} T={types}", f"{wide} [S] T*V (H)u64:r", "8.1 sm_90", loose=True)
        for ops, vector, types in (
            ("add", "v2|v4", "f32"),
            ("add|min|max noftz", "v2|v4|v8", "f16|bf16"),
            ("add|min|max noftz", "v2|v4", "f16x2|bf16x2"),
        )
    ]
    return rows


_ATOM = f"atom relaxed|acquire|release|acq_rel? {_SCOPE}?"
_RED_ASYNC = "red async relaxed cluster S=shared::cluster? mbarrier::complete_tx::bytes"
_MMIO = "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
_MM = "S=global?"


def _multimem() -> tuple[Row, ...]:
    ops = (("min|max", "u32|s32|u64|s64"), ("add", "u32|s32|u64"), ("and|or|xor", "b32|b64"))
    store = "b32|b64|u32|u64|s32|s64|f32|f64"
    # what `st` and `red add` have of vectors: types, and the values
    vectors = (("V=v2|v4 T=f32", "T*V"), ("V=v2|v4|v8 T=f16|bf16", "T*V"), ("V=v2|v4? T=f16x2|bf16x2", "T:r*V"))
    rows: list[Row] = []
    for sem in ("weak?", f"relaxed|acquire {_SCOPE}"):
        head = f"multimem ld_reduce {sem} {_MM}"
        rows += [Row(f"{head} {op} T={types}", "=T [S]", "8.1 sm_90") for op, types in ops]
        rows += [
            Row(f"{head} add T=f32|f64", "=T [S]", "8.1 sm_90"),
            Row(f"{head} add V=v2|v4 T=f32", "=T*V [S]", "8.1 sm_90"),
            Row(f"{head} min|max|add V=v2|v4|v8 T=f16|bf16", "=T*V [S]", "8.1 sm_90"),
            Row(f"{head} min|max|add V=v2|v4? T=f16x2|bf16x2", "=T*V [S]", "8.1 sm_90"),
            Row(f"{head} add acc::f32 V=v2|v4|v8 T=f16|bf16", "=T*V [S]", "8.2 sm_90"),
            Row(f"{head} add acc::f32 V=v2|v4? T=f16x2|bf16x2", "=T*V [S]", "8.2 sm_90"),
        ]
    for sem in ("weak?", f"relaxed|release {_SCOPE}"):
        head = f"multimem st {sem} {_MM}"
        rows.append(Row(f"{head} T={store}", "[S] T", "8.1 sm_90"))
        rows += [Row(f"{head} {types}", f"[S] {values}", "8.1 sm_90") for types, values in vectors]
    for sem in ("", f"relaxed|release {_SCOPE}"):
        head = f"multimem red {sem} {_MM}"
        rows += [Row(f"{head} {op} T={types}", "[S] T", "8.1 sm_90") for op, types in ops]
        rows.append(Row(f"{head} add T=f32|f64", "[S] T", "8.1 sm_90"))
        rows += [Row(f"{head} add {types}", f"[S] {values}", "8.1 sm_90") for types, values in vectors]
    return tuple(rows)


SECTIONS: dict[str, tuple[Row, ...]] = {
    f"{_SYNC}atom": (
        *_atomic("atom", "relaxed|acquire|release|acq_rel", "=T:r_"),
        Row(f"{_ATOM} S={_SHARED} exch T=b32|b64", "=T:r_ [S] T", loose=True),
        Row(f"{_ATOM} S=global? exch {_HINT} T=b32|b64", "=T:r_ [S] T (H)u64:r", loose=True),
        Row(f"{_ATOM} S={_SHARED} exch T=b128", "=T:r_ [S] T:r", "8.3 sm_90", "sys=8.4", loose=True),
        Row(f"{_ATOM} S=global? exch {_HINT} T=b128", "=T:r_ [S] T:r (H)u64:r", "8.3 sm_90", "sys=8.4", loose=True),
        Row(f"{_ATOM} S=global|{_SHARED}? cas T=b32|b64", "=T:r_ [S] T T", loose=True),
        Row(f"{_ATOM} S=global|{_SHARED}? cas T=b16", "=T:r_ [S] T T", "6.3", loose=True),
        Row(f"{_ATOM} S=global|{_SHARED}? cas T=b128", "=T:r_ [S] T:r T:r", "8.3 sm_90", "sys=8.4", loose=True),
    ),
    f"{_SYNC}red": tuple(_atomic("red", "relaxed|release", "")),
    f"{_SYNC}red.async": (
        Row(f"{_RED_ASYNC} inc|dec T=u32", "[S] T [S]", "8.1 sm_90"),
        Row(f"{_RED_ASYNC} min|max T=u32|s32", "[S] T [S]", "8.1 sm_90"),
        Row(f"{_RED_ASYNC} and|or|xor T=b32", "[S] T [S]", "8.1 sm_90"),
        Row(f"{_RED_ASYNC} add T=u32|s32|u64", "[S] T [S]", "8.1 sm_90"),
        Row("red async release gpu|sys S=global? add T=u32|s32|u64|s64", "[S] T", "8.7 sm_100"),
        Row("red async mmio release sys S=global? add T=u32|s32|u64|s64", "[S] T", "8.7 sm_100"),
    ),
    f"{_SYNC}multimem": _multimem(),
    "Data Movement and Conversion Instructions: st.async": (
        Row("st async weak? S=shared::cluster? mbarrier::complete_tx::bytes V=v2? T=b32|u32|s32|f32|b64|u64|s64|f64",
            "[S] T:ri*V [S]", "8.1 sm_90"),
        Row("st async weak? S=shared::cluster? mbarrier::complete_tx::bytes V=v4 T=b32|u32|s32|f32",
            "[S] T:ri*V [S]", "8.1 sm_90"),
        Row(f"st async release gpu|sys S=global? T={_MMIO}", "[S] T", "8.7 sm_100"),
        Row(f"st async mmio release sys S=global? T={_MMIO}", "[S] T", "8.7 sm_100"),
    ),
    "Data Movement and Conversion Instructions: st.bulk": (
        Row("st bulk weak? S=shared::cta?", "[S] u64@0../8 u64:i@0", "8.6 sm_100"),
    ),
}  # fmt: skip
