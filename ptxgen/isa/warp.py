"""Rows: shuffles, votes, match, warp reductions, election, active masks."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

# Masks, lanes and the like are integers, whatever the type of the value that travels.
SECTIONS: dict[str, tuple[Row, ...]] = {
    "Data Movement and Conversion Instructions: shfl.sync": (
        Row("shfl sync up|down|bfly|idx b32", "=b32:rp b32 u32 u32 u32"),
    ),
    "Parallel Synchronization and Communication Instructions: vote.sync": (
        Row("vote sync all|any|uni pred", "=pred pred u32"),
        Row("vote sync ballot b32", "=u32 pred u32"),
    ),
    "Parallel Synchronization and Communication Instructions: match.sync": (
        Row("match any sync b32", "=u32 u32 u32"),
        Row("match any sync b64", "=u32 u64 u32"),
        Row("match all sync b32", "=u32:rp_ u32 u32"),
        Row("match all sync b64", "=u32:rp_ u64 u32"),
    ),
    "Parallel Synchronization and Communication Instructions: activemask": (Row("activemask b32", "=u32", "6.2"),),
    "Parallel Synchronization and Communication Instructions: redux.sync": (
        Row("redux sync add|min|max T=u32|s32", "=T T u32", "7.0 sm_80"),
        Row("redux sync and|or|xor b32", "=u32 u32 u32", "7.0 sm_80"),
        Row("redux sync min|max abs? NaN? f32", "=f32 f32 u32", "8.6 sm_100f"),
    ),
    "Parallel Synchronization and Communication Instructions: elect.sync": (
        Row("elect sync", "=u32:p_ u32", "8.0 sm_90"),
    ),
}  # fmt: skip
