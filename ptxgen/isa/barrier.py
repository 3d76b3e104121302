"""Rows: CTA and warp barriers, fences, proxies, mbarrier."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_SCOPE = "cta|cluster|gpu|sys"

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Parallel Synchronization and Communication Instructions: bar": (
        Row("bar cta? sync", "u32 u32?", raises="cta=7.8"),
        Row("bar cta? arrive", "u32 u32", raises="cta=7.8"),
        Row("bar cta? red popc u32", "=u32 u32 pred / =u32 u32 u32 pred", raises="cta=7.8"),
        Row("bar cta? red and|or pred", "=pred u32 pred / =pred u32 u32 pred", raises="cta=7.8"),
        Row("barrier cta? sync aligned?", "u32 u32?", raises="cta=7.8"),
        Row("barrier cta? arrive aligned?", "u32 u32", raises="cta=7.8"),
        Row("barrier cta? red popc aligned? u32", "=u32 u32 pred / =u32 u32 u32 pred", raises="cta=7.8"),
        Row("barrier cta? red and|or aligned? pred", "=pred u32 pred / =pred u32 u32 pred", raises="cta=7.8"),
    ),
    "Parallel Synchronization and Communication Instructions: bar.warp.sync": (Row("bar warp sync", "u32"),),
    "Parallel Synchronization and Communication Instructions: membar": (Row("membar cta|gl|sys", ""),),
    "Parallel Synchronization and Communication Instructions: fence": (
        Row(f"fence acq_rel|sc {_SCOPE}", "", loose=True),
    ),
}  # fmt: skip
