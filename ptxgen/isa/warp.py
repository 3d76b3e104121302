"""Rows: shuffles, votes, match, warp reductions, election, active masks."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Data Movement and Conversion Instructions: shfl.sync": (
        Row("shfl sync up|down|bfly|idx b32", "=b32:rp b32 b32 b32 b32", loose=True),
    ),
    "Parallel Synchronization and Communication Instructions: vote.sync": (
        Row("vote sync all|any|uni pred", "=pred pred b32"),
        Row("vote sync ballot b32", "=b32 pred b32"),
    ),
    "Parallel Synchronization and Communication Instructions: match.sync": (
        Row("match any sync T=b32|b64", "=b32 T b32"),
        Row("match all sync T=b32|b64", "=b32:rp T b32"),
    ),
    "Parallel Synchronization and Communication Instructions: activemask": (Row("activemask b32", "=b32", "6.2"),),
    "Parallel Synchronization and Communication Instructions: redux.sync": (
        Row("redux sync add|min|max T=u32|s32", "=T T:r b32", "7.0 sm_80"),
        Row("redux sync and|or|xor b32", "=b32 b32:r b32", "7.0 sm_80"),
        Row("redux sync min|max abs? NaN? f32", "=f32 f32:r b32", "8.6 sm_100a|sm_100f"),
    ),
    "Parallel Synchronization and Communication Instructions: elect.sync": (
        Row("elect sync", "=b32:p_ b32", "8.0 sm_90"),
    ),
}  # fmt: skip
