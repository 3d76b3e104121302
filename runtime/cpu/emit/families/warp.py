"""Between the lanes of a warp: shfl, vote, match, redux, activemask, elect."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.llvm_types import vector_of
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import lanes_of, splat, vec
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT

_I32 = vec("i32")


def gather_members(e: Emitter, operand: Source) -> str:
    """Wait for the lanes of a member mask; the mask in every lane. A lane outside its own mask is a finding."""
    if isinstance(operand, nodes.Immediate):
        number = int(operand.value) & 0xFFFFFFFF
        e.converge(str(number))
        if number != 0xFFFFFFFF:
            outsiders = e.c(f"and i32 {e.mask}, {~number & 0xFFFFFFFF}")
            e.fault_if(outsiders, FAULT_ASSERT, remark="the executing lane is not in its member mask")
        return splat("i32", number)
    members = e.src(operand, "b32")
    e.converge_each(members)
    own = "<" + ", ".join(f"i32 {1 << n}" for n in range(32)) + ">"
    outside = e.c(f"icmp eq {_I32} {e.c(f'and {_I32} {members}, {own}')}, zeroinitializer")
    outsiders = e.c(f"and i32 {e.mask}, {e.bits(outside)}")
    e.fault_if(outsiders, FAULT_ASSERT, remark="the executing lane is not in its member mask")
    return members


@emits("shfl", converges=True, pure=True)
def shfl(e: Emitter, op: Op) -> None:
    """d|p = the value of another lane (PTX ISA, "shfl.sync"); p: whether that lane is in the segment."""
    if op.words[1] != "sync":
        raise e.unsupported()
    mode = op.words[2]
    target = op.operands[0]
    with e.reading(carries=False):
        gather_members(e, op.operands[4])
    value = e.src(op.operands[1], "b32")
    there = e.defined.take() if e.defined else None
    if e.check:  # what a lane that takes no part would give is undefined (PTX ISA): here a NaN
        value = e.c(f"select {vec('i1')} {e.mask_vector()}, {_I32} {value}, {_I32} {splat('i32', -1)}")
    index, inside = _source_lane(e, mode, op.operands[2], op.operands[3])  # 32 and more: outside of the segment
    result = _from_lanes(e, value, index)
    if isinstance(target, nodes.Pair):
        inside = inside or e.c(f"icmp ult {_I32} {index}, {splat('i32', 32)}")
        e.dst_pred(target.second, e.bits(inside))
        target = target.first
    if e.defined and there is not None:  # a lane's value is as defined as in the lane that it comes from
        absent = e.c(f"xor i32 {e.mask}, -1")
        known = e.c(f"sext {vec('i1')} {e.lanes(e.c(f'or i32 {there}, {absent}'))} to {_I32}")
        e.defined.add(e.bits(e.c(f"icmp ne {_I32} {_from_lanes(e, known, index)}, zeroinitializer")))
    e.dst(target, result, "b32")


def _from_lanes(e: Emitter, value: str, index: str) -> str:
    """Lane n gets what lane `index[n]` has."""
    if index.startswith("<"):
        return e.c(f"shufflevector {_I32} {value}, {_I32} poison, {_I32} {index}")
    return e.c(f"call {_I32} @permute({_I32} {value}, {_I32} {index})")


def _source_lane(e: Emitter, mode: str, b: Source, c: Source) -> tuple[str, str]:
    """(lane to read, <32 x i1> whether it is in the segment, if that is known here)."""
    if isinstance(b, nodes.Immediate) and isinstance(c, nodes.Immediate):
        return _constant_lanes(mode, int(b.value), int(c.value))
    operands = ", ".join(f"{_I32} {e.src(operand, 'b32')}" for operand in (b, c))
    return e.c(f"call {_I32} @shuffle.{mode}({operands})"), ""


def _constant_lanes(mode: str, b: int, c: int) -> tuple[str, str]:
    by, clamp, segment = b & 31, c & 31, c >> 8 & 31
    sources, flags = [], []
    for lane in range(32):
        lowest = lane & segment
        highest = lowest | (clamp & ~segment & 31)
        found = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": lowest | (by & ~segment & 31)}[mode]
        inside = found >= highest if mode == "up" else found <= highest
        sources.append(found if inside else lane)
        flags.append(inside)
    lanes = "<" + ", ".join(f"i32 {n}" for n in sources) + ">"
    return lanes, "<" + ", ".join(f"i1 {'true' if f else 'false'}" for f in flags) + ">"


@emits("vote", converges=True)
def vote(e: Emitter, op: Op) -> None:
    """all, any, uni or ballot of a predicate over the members."""
    mode, kind = op.words[2], op.words[-1]
    if op.words[1] != "sync":
        raise e.unsupported()
    members = gather_members(e, op.operands[2])
    held = e.c(f"and i32 {e.pred(op.operands[1])}, {e.mask}")
    everyone = e.c(f"and {_I32} {members}, {e.c.spread('i32', e.mask)}")
    true_lanes = e.c(f"and {_I32} {members}, {e.c.spread('i32', held)}")
    if kind == "b32":
        e.dst(op.operands[0], true_lanes, "b32")
        return
    every = e.c(f"icmp eq {_I32} {true_lanes}, {everyone}")
    none = e.c(f"icmp eq {_I32} {true_lanes}, zeroinitializer")
    result = {
        "all": lambda: every,
        "any": lambda: e.c(f"xor {vec('i1')} {none}, {splat('i1', 'true')}"),
        "uni": lambda: e.c(f"or {vec('i1')} {every}, {none}"),
    }[mode]()
    e.dst_pred(op.operands[0], e.bits(result))


@emits("match", converges=True)
def match(e: Emitter, op: Op) -> None:
    """any: the members with the same value; all: the members if they all have it, else zero (and p)."""
    mode, kind = op.words[1], op.words[-1]
    members = gather_members(e, op.operands[2])
    vector = vector_of(kind)
    value = e.src(op.operands[1], kind)
    same = e.c(f"call {_I32} @match.b{bits_of(kind)}({vector} {value}, i32 {e.mask})")
    mine = e.c(f"and {_I32} {same}, {members}")
    target = op.operands[0]
    if mode == "any":
        e.dst(target, mine, "b32")
        return
    here = e.c(f"and {_I32} {members}, {e.c.spread('i32', e.mask)}")
    every = e.c(f"icmp eq {_I32} {mine}, {here}")
    if isinstance(target, nodes.Pair):
        e.dst_pred(target.second, e.bits(every))
        target = target.first
    e.dst(target, e.c(f"select {vec('i1')} {every}, {_I32} {mine}, {_I32} zeroinitializer"), "b32")


@emits("redux", converges=True)
def redux(e: Emitter, op: Op) -> None:
    """add, min, max, and, or, xor over the members, in every one of them."""
    operator, kind = op.words[2], op.words[-1]
    members = gather_members(e, op.operands[2])
    value = e.src(op.operands[1], kind)
    if kind == "f32":
        operator += ".nan" if "NaN" in op.words else ""
        operator += ".abs" if "abs" in op.words else ""
        value = e.cast(value, vector_of("f32"), _I32)
    name = f"redux.{operator}.{kind}"
    e.dst(op.operands[0], e.c(f"call {_I32} @{name}({_I32} {value}, {_I32} {members}, i32 {e.mask})"), "b32")


@emits("activemask")
def activemask(e: Emitter, op: Op) -> None:
    """The lanes that execute this now."""
    e.dst(op.operands[0], e.c.spread("i32", e.exec_mask()), "b32")


@emits("elect", converges=True)
def elect(e: Emitter, op: Op) -> None:
    """p holds in the lowest member; d is its number in all members."""
    target = op.operands[0]
    members = gather_members(e, op.operands[1])
    lowest = e.c(f"call {_I32} @llvm.cttz.v32i32({_I32} {members}, i1 false)")
    chosen = e.bits(e.c(f"icmp eq {_I32} {lowest}, {lanes_of('i32', 1)}"))
    assert isinstance(target, nodes.Pair)
    e.dst_pred(target.second, chosen)
    e.dst(target.first, lowest, "b32")
