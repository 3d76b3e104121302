"""Reductions over the lanes of a warp, the warps of a CTA and the CTAs of a cluster; every thread gets the same bits.

Straight-line parts are fragments; the macro `reduce` of flow.ptx.j2 places them between the barriers they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms.convert import RUN, scratch
from ptxgen.isa import type_bits

WARP = 32
_FULL = -1  # the mask of all lanes
_REDUX = ("add", "min", "max")


def halves(lanes: int) -> tuple[int, ...]:
    """The distances that reduce over groups of `lanes`, a power of two, the largest first."""
    return tuple(1 << bit for bit in reversed(range(lanes.bit_length() - 1)))


def over_lanes(
    b: Builder,
    operation: str,
    values: Reg | Sequence[Reg],
    distances: Iterable[int | Reg] = (16, 8, 4, 2, 1),
    other: Reg | None = None,
) -> None:
    """Combine each value with that of the lane at each distance, by an opcode such as `"add.f32"` or `"max.u64"`.

    Distances 1, 2, … n / 2 in any order reduce over groups of n lanes. All lanes of the warp take part. `other`: the
    register that a neighbour's value comes to (by default one of the kernel's own for this); 32-bit values only.
    """
    each = (values,) if isinstance(values, Reg) else values
    for distance in distances:
        for value in each:
            b.note(f"%{value.name}, with the lane at distance {distance}", after=RUN)
            _exchange(b, operation, value, distance, other)


def _exchange(b: Builder, operation: str, value: Reg, distance: int | Reg, other: Reg | None) -> None:
    if type_bits(value.type) == WARP:
        theirs = other or scratch(b, f"lane_{value.type}", value.type)
        b.op("shfl.sync.bfly.b32", theirs, value, distance, 31, _FULL)
    else:
        theirs = scratch(b, f"lane_{value.type}", value.type)
        low, high = scratch(b, "lane_low", "b32"), scratch(b, "lane_high", "b32")
        b.op("mov.b64", (low, high), value)
        b.op("shfl.sync.bfly.b32", low, low, distance, 31, _FULL)
        b.op("shfl.sync.bfly.b32", high, high, distance, 31, _FULL)
        b.op("mov.b64", theirs, (low, high))
    b.op(operation, value, value, theirs)


def over_warp(b: Builder, operation: str, values: Reg | Sequence[Reg]) -> None:
    """Reduce over the warp: by one instruction where the target has it (32-bit integers, sm_80), else `over_lanes`."""
    for value in (values,) if isinstance(values, Reg) else values:
        word, _, type = operation.partition(".")
        if type in ("u32", "s32") and word in _REDUX and b.target.includes_any(("sm_80",)):
            b.op(f"redux.sync.{operation}", value, value, _FULL)
        else:
            over_lanes(b, operation, value)


class Reduction(NamedTuple):
    """What the macro `reduce` places: a warp's part, the CTA's with a barrier before it, then the cluster's.

    `repeats`: it stands in a loop, so no thread may write the next parts before all have read these.
    """

    leave: Fragment
    collect: Fragment | None = None
    send: Fragment | None = None
    receive: Fragment | None = None
    repeats: bool = False


def over_cta(
    b: Builder,
    name: str,
    operation: str,
    values: Sequence[Reg],
    thread: Reg,
    warps: int,
    *,
    cluster: int = 1,
    repeats: bool = False,
) -> Reduction:
    """Reduce values of one type over a CTA of `warps` warps, then over `cluster` CTAs; the template knows it as `name`.

    Builds fragments `<name>_leave`, and where they are needed `_collect`, `_send`, `_receive`; every part is combined
    in the order of warps and ranks, so that all threads get the same bits. `thread`: its number in the CTA. Before the
    first send every CTA of the cluster must run: the template begins with `cluster_arrive()` and has `cluster_wait()`
    before the reduction.
    """
    with b.fragment(f"{name}_leave", f"reduce over the warp{', and publish its part' if warps > 1 else ''}") as leave:
        over_warp(b, operation, values)
        if warps > 1:
            slots = _Slots(b, f"{name}_warps", values, warps)
            lane = b.op("and.b32", scratch(b, "reduce_lane", "u32"), thread, WARP - 1)
            first = b.op("setp.eq.u32", scratch(b, "reduce_first", "pred"), lane, 0)
            warp = b.op("shr.u32", scratch(b, "reduce_warp", "u32"), thread, 5)
            slots.store(slots.address(scratch(b, "reduce_at", "u32"), warp), "shared", first)
    collect = send = receive = None
    if warps > 1:
        with b.fragment(f"{name}_collect", "read the parts of all warps, and combine them in order") as collect:
            slots.combine(operation)
    if cluster > 1:
        ranks = _Slots(b, f"{name}_ranks", values, cluster)
        with b.fragment(f"{name}_send") as send:
            b.note(f"thread t < {cluster} gives this CTA's part to CTA t of the cluster")
            sends = b.op("setp.lt.u32", scratch(b, "reduce_sends", "pred"), thread, cluster)
            rank = b.op("mov.u32", scratch(b, "reduce_rank", "u32"), b.special("cluster_ctarank"))
            at = ranks.address(scratch(b, "reduce_at", "u32"), rank)
            b.op("mapa.shared::cluster.u32", at, at, thread, pred=sends)
            ranks.store(at, "shared::cluster", sends)
        with b.fragment(f"{name}_receive", "read the parts of all CTAs, and combine them in order") as receive:
            ranks.combine(operation)
    for part in filter(None, (leave, collect, send, receive)):
        part.form = f"{{{{ reduce({name}) }}}}"
    reduction = Reduction(leave, collect, send, receive, repeats)
    b.expose(**{name: reduction})
    return reduction


class _Slots:
    """Shared memory for the parts of every value, `count` of each, side by side."""

    def __init__(self, b: Builder, name: str, values: Sequence[Reg], count: int) -> None:
        self.b, self.values, self.count = b, values, count
        self.bytes = type_bits(values[0].type) // 8
        self.stride = -(-count * self.bytes // 16) * 16  # of a value
        self.memory: Shared = b.shared(name, self.stride * len(values))
        self.parts = b.array(f"{name}_part", values[0].type, count)

    def address(self, at: Reg, index: Reg) -> Reg:
        """Of part number `index` of the first value."""
        self.b.op("mov.u32", at, self.memory)
        self.b.op("mad.lo.u32", at, index, self.bytes, at)
        return at

    def store(self, at: Reg, space: str, pred: Reg) -> None:
        for i, value in enumerate(self.values):
            self.b.op(f"st.{space}.{value.type}", at[i * self.stride], value, pred=pred)

    def combine(self, operation: str) -> None:
        """Read all parts of every value, and combine them in their order."""
        b, type = self.b, self.values[0].type
        most = 16 // self.bytes
        for i, value in enumerate(self.values):
            for first in range(0, self.count, most):
                some = self.parts[first : min(first + most, self.count)]
                for at, length in _powers(len(some)):
                    offset = i * self.stride + (first + at) * self.bytes
                    vector = f".v{length}" if length > 1 else ""
                    target = some[at : at + length] if length > 1 else some[at]
                    b.op(f"ld.shared{vector}.{type}", target, self.memory[offset])
            b.op(f"mov.{type}", value, self.parts[0])
            for part in self.parts[1:]:
                b.op(operation, value, value, part)


def _powers(count: int) -> list[tuple[int, int]]:
    """`count` ≤ 4 as (first, length) of accesses of 4, 2 and 1."""
    return {1: [(0, 1)], 2: [(0, 2)], 3: [(0, 2), (2, 1)], 4: [(0, 4)]}[count]
