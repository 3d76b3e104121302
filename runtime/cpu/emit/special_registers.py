"""Special registers (`%tid.x`, `%laneid`, `%clock`, …) as values of a warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ptxgen.runtime.cpu.native.ir import lanes_of, vec
from ptxgen.runtime.cpu.native.layout import CTA, GANG, LAUNCH, WARP

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.emit.values import Values

_I32, _I64 = vec("i32"), vec("i64")
_CLOCK_STEP = 100  # cycles that a read of the clock adds: deterministic, and loops that wait for a time end
_ENVIRONMENT = {"%envreg1": 32, "%envreg2": 0}
_CONSTANT_MASKS = {
    "%lanemask_eq": [1 << n for n in range(32)],
    "%lanemask_lt": [(1 << n) - 1 for n in range(32)],
    "%lanemask_le": [(2 << n) - 1 for n in range(32)],
    "%lanemask_ge": [0xFFFFFFFF ^ ((1 << n) - 1) for n in range(32)],
    "%lanemask_gt": [0xFFFFFFFF ^ ((2 << n) - 1) for n in range(32)],
}


def special_register(e: Values, name: str) -> tuple[str, str]:
    """(value, vector type) of a special register; `IsaError` for one that does not exist here."""
    base, _, axis = name.partition(".")
    if axis in ("x", "y", "z") and base in _BY_AXIS:
        return _BY_AXIS[base](e, axis), _I32
    if axis == "w" and base in _BY_AXIS:  # what a fourth dimension would have
        return ("splat (i32 1)" if base.startswith("%n") or base == "%cluster_nctaid" else "zeroinitializer"), _I32
    if name in _CONSTANT_MASKS:
        return "<" + ", ".join(f"i32 {m}" for m in _CONSTANT_MASKS[name]) + ">", _I32
    if name in _SIMPLE:
        return _SIMPLE[name](e), _I32
    if name in _ENVIRONMENT:
        return _workspace(e, _ENVIRONMENT[name]), _I32
    if name.startswith("%envreg"):
        return "zeroinitializer", _I32
    if name == "%current_graph_exec":
        return "zeroinitializer", _I64
    if name in ("%clock64", "%globaltimer", "%gridid"):
        value = e.c.load("i64", e.launch, LAUNCH["grid_id"]) if name == "%gridid" else _ticks(e)
        return e.c.spread("i64", value), _I64
    if name in ("%clock", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"):
        ticks = _ticks(e)
        if name.endswith("hi"):
            ticks = e.c(f"lshr i64 {ticks}, 32")
        return e.c.spread("i32", e.c(f"trunc i64 {ticks} to i32")), _I32
    raise e.error(f"special register {name} is not supported by the CPU executor")


def _workspace(e: Values, shift: int) -> str:
    """Half of the address of what a cooperative launch's `grid.sync()` counts in; every launch here is one."""
    address = e.c(f"ptrtoint ptr {e.c.at(e.launch, LAUNCH['workspace'])} to i64")
    return e.c.spread("i32", e.c(f"trunc i64 {e.c(f'lshr i64 {address}, {shift}')} to i32"))


def _scalar(e: Values, pointer: str, offset: int) -> str:
    return e.c.spread("i32", e.c.load("i32", pointer, offset))


def _gang_count(e: Values, axis: str) -> str:
    grid, cluster = (e.c.load("i32", e.launch, LAUNCH[f"{what}_{axis}"]) for what in ("grid", "cluster"))
    return e.c.spread("i32", e.c(f"udiv i32 {grid}, {cluster}"))


def _in_cluster(e: Values, axis: str) -> str:
    here, extent = e.c.load("i32", e.cta, CTA["id_" + axis]), e.c.load("i32", e.launch, LAUNCH["cluster_" + axis])
    return e.c.spread("i32", e.c(f"urem i32 {here}, {extent}"))


def _ticks(e: Values) -> str:
    now = e.c(f"add i64 {e.c.load('i64', '%w', WARP['clock'])}, {_CLOCK_STEP}")
    e.c.store("i64", now, "%w", WARP["clock"])
    return now


_BY_AXIS: dict[str, Callable[[Values, str], str]] = {
    "%tid": lambda e, axis: e.c.load(_I32, "%w", WARP["tid_" + axis], align=64),
    "%ntid": lambda e, axis: _scalar(e, e.launch, LAUNCH["block_" + axis]),
    "%ctaid": lambda e, axis: _scalar(e, e.cta, CTA["id_" + axis]),
    "%nctaid": lambda e, axis: _scalar(e, e.launch, LAUNCH["grid_" + axis]),
    "%clusterid": lambda e, axis: _scalar(e, e.c.load("ptr", e.cta, CTA["gang"]), GANG["id_" + axis]),
    "%nclusterid": _gang_count,
    "%cluster_ctaid": _in_cluster,
    "%cluster_nctaid": lambda e, axis: _scalar(e, e.launch, LAUNCH["cluster_" + axis]),
}
_SIMPLE: dict[str, Callable[[Values], str]] = {
    "%laneid": lambda e: lanes_of("i32", 1),
    "WARP_SZ": lambda e: "splat (i32 32)",
    "%warpid": lambda e: _scalar(e, "%w", WARP["id"]),
    "%nwarpid": lambda e: _scalar(e, e.launch, LAUNCH["warps"]),
    "%smid": lambda e: "zeroinitializer",
    "%nsmid": lambda e: "splat (i32 1)",
    "%cluster_ctarank": lambda e: _scalar(e, e.cta, CTA["rank"]),
    "%cluster_nctarank": lambda e: _scalar(e, e.c.load("ptr", e.cta, CTA["gang"]), GANG["count"]),
    "%dynamic_smem_size": lambda e: _scalar(e, e.launch, LAUNCH["dynamic_shared"]),
    "%total_smem_size": lambda e: _scalar(e, e.launch, LAUNCH["shared_bytes"]),
    "%aggr_smem_size": lambda e: _scalar(e, e.launch, LAUNCH["shared_bytes"]),
}
