"""Clusters: mapa, getctarank, barrier.cluster; and griddepcontrol.

The window address of another CTA's shared memory carries its rank, plus one, above the offset (`layout.RANK_SHIFT`).
"""

from __future__ import annotations

from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.native.layout import CTA, GANG, LAUNCH, PARK_CLUSTER, RANK_SHIFT, RELEASE, WARP
from ptxgen.runtime.cpu.support.faults import FAULT_OPERAND

_RANK_MASK = 0xFF << RANK_SHIFT


@emits("mapa")
def mapa(e: Emitter, op: Op) -> None:
    """d = the address a, in the shared memory of CTA b of the cluster."""
    kind = op.words[-1]
    bits = 32 if kind == "u32" else 64
    wide = vec(f"i{bits}")
    a, rank = e.src(op.operands[1], kind), e.src(op.operands[2], "u32")
    count = e.c.spread("i32", e.c.load("i32", e.c.load("ptr", e.cta, CTA["gang"]), GANG["count"]))
    outside = e.bits(e.c(f"icmp uge {vec('i32')} {rank}, {count}"))
    e.fault_if(e.c(f"and i32 {outside}, {e.exec_mask()}"), FAULT_OPERAND, remark="the cluster has no CTA of that rank")
    plus_one = e.c(f"add {vec('i32')} {rank}, {splat('i32', 1)}")
    field = e.c(f"shl {vec('i32')} {plus_one}, {splat('i32', RANK_SHIFT)}")
    if bits == 64:
        field = e.c(f"zext {vec('i32')} {field} to {wide}")
    inner = e.c(f"and {wide} {a}, {splat(f'i{bits}', ~_RANK_MASK & ((1 << bits) - 1))}")
    e.dst(op.operands[0], e.c(f"or {wide} {inner}, {field}"), kind)


@emits("getctarank")
def getctarank(e: Emitter, op: Op) -> None:
    """d = the rank of the CTA whose shared memory holds the address."""
    element = "i32" if op.words[-1] == "u32" else "i64"
    moved = e.c(f"lshr {vec(element)} {e.src(op.operands[1], op.words[-1])}, {splat(element, RANK_SHIFT)}")
    field = e.c(f"and {vec(element)} {moved}, {splat(element, 0xFF)}")
    if element == "i64":
        field = e.c(f"trunc {vec('i64')} {field} to {vec('i32')}")
    own = e.c.spread("i32", e.c.load("i32", e.cta, CTA["rank"]))
    is_own = e.c(f"icmp eq {vec('i32')} {field}, zeroinitializer")
    less = e.c(f"sub {vec('i32')} {field}, {splat('i32', 1)}")
    e.dst(op.operands[0], e.c(f"select {vec('i1')} {is_own}, {vec('i32')} {own}, {vec('i32')} {less}"), "u32")


@emits("barrier.cluster.arrive", outputs=0, converges=True)
def cluster_arrive(e: Emitter, op: Op) -> None:
    """Count the lanes as arrived in the cluster barrier's present phase."""
    if "aligned" in op.words:
        e.converge("-1")
    how = 0 if "relaxed" in op.words else RELEASE
    e.c.do(f"call void @cluster.arrive(ptr %w, i32 {e.exec_mask()}, i32 {how})")


@emits("barrier.cluster.wait", outputs=0, retries=True)
def cluster_wait(e: Emitter, op: Op) -> None:
    """Wait until the phase in which these lanes arrived is over."""
    if "aligned" in op.words:
        e.converge("-1")
    ready = e.c(f"call i32 @cluster.passed(ptr %w, i32 {e.mask})")
    e.wait_here(ready, PARK_CLUSTER, "0", "0")


@emits("griddepcontrol", outputs=0)
def grid_dependency(e: Emitter, op: Op) -> None:
    """Grids run one after the other here; check mode wants the wait before what the grid before has written."""
    if e.check and "wait" in op.words:
        now = e.c.load("i32", e.launch, LAUNCH["generation"])
        e.c.store("i32", now, "%w", WARP["before"])
