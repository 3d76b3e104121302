"""bar, barrier.cta and bar.warp: lanes of a CTA wait for each other. Cluster barriers have a family of their own."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.warp import gather_members
from ptxgen.runtime.cpu.flow.aligned_barriers import is_aligned
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.native.ir import vec
from ptxgen.runtime.cpu.native.layout import WARP
from ptxgen.runtime.cpu.support.faults import FAULT_OPERAND

_WAITS, _ALIGNED = 1, 2
_TWICE = "the warp has arrived at this barrier before, and the others have not yet: it must count once each time"
_WANTED = {"popc": 4, "and": 8, "or": 12}


def meet(e: Emitter, op: Op) -> None:
    """An aligned barrier is executed by all lanes of a warp together: the first wait here for the others."""
    if is_aligned(op.words):
        e.converge("-1")


def _arrive(e: Emitter, op: Op, number: object, count: object, flags: int, predicate: str = "0") -> None:
    """Emit the arrival of the block's lanes; they go on, or wait, at the next block."""
    site = e.new_site(_TWICE)
    e.spill()
    e.c.do(
        f"call void @barrier.arrive(ptr %w, i32 {number}, i32 {count}, i32 {e.mask}, i32 {predicate}, "
        f"i32 {e.resume_block()}, i32 {site}, i32 {flags})"
    )
    e.to_dispatch()


def _number_and_count(e: Emitter, op: Op, operands: tuple[object, ...]) -> tuple[str, str]:
    """Barrier id and thread count (0 where none is given), checked: 0 … 15, and a multiple of the warp size."""
    number = e.uniform(operands[0], "u32", "the barrier differs between lanes") if operands else "0"  # type: ignore[arg-type]
    count = e.uniform(operands[1], "u32", "the thread count differs between lanes") if len(operands) > 1 else "0"  # type: ignore[arg-type]
    if number.isdigit():
        if int(number) > 15:
            raise e.error(f"operand {operands[0]}: barriers are 0 … 15")
    else:
        outside = e.c(f"icmp ugt i32 {number}, 15")
        e.fault_if(e.c(f"select i1 {outside}, i32 {e.mask}, i32 0"), FAULT_OPERAND, remark="barriers are 0 … 15")
        number = e.c(f"and i32 {number}, 15")
    return number, count


@emits("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync", outputs=0, blocks=True, converges=True)
def sync(e: Emitter, op: Op) -> None:
    """Wait until the expected number of threads has arrived."""
    meet(e, op)
    number, count = _number_and_count(e, op, op.operands)
    _arrive(e, op, number, count, _WAITS | (_ALIGNED if is_aligned(op.words) else 0))


@emits("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive", outputs=0, blocks=True, converges=True)
def arrive(e: Emitter, op: Op) -> None:
    """Count as arrived without waiting."""
    meet(e, op)
    number, count = _number_and_count(e, op, op.operands)
    _arrive(e, op, number, count, _ALIGNED if is_aligned(op.words) else 0)


@emits("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", outputs=1, blocks=True, result=True, converges=True)
def reduce(e: Emitter, op: Op) -> None:
    """As sync, with a reduction of a predicate over all threads."""
    meet(e, op)
    operands = op.operands[1:]
    number, count = _number_and_count(e, op, operands[:-1])
    wanted = next(_WANTED[w] for w in op.words if w in _WANTED)
    flags = _WAITS | (_ALIGNED if is_aligned(op.words) else 0) | wanted
    _arrive(e, op, number, count, flags, e.pred(operands[-1]))


@emits("wake.bar.red", "wake.bar.cta.red", "wake.barrier.red", "wake.barrier.cta.red")
def reduced(e: Emitter, op: Op) -> None:
    """The reduction's result, once the lanes wake."""
    value = e.c.load(vec("i32"), "%w", WARP["wake"], align=64)
    if op.words[-1] == "pred":
        e.dst_pred(op.operands[0], e.bits(e.c(f"icmp ne {vec('i32')} {value}, zeroinitializer")))
    else:
        e.dst(op.operands[0], value, "u32")


@emits("bar.warp", outputs=0, converges=True)
def warp_sync(e: Emitter, op: Op) -> None:
    """Wait for the lanes of a mask; their accesses of memory are ordered then."""
    mask = op.operands[0]
    if isinstance(mask, nodes.Immediate) and int(mask.value) & 0xFFFFFFFF == 0xFFFFFFFF:
        e.converge_whole()
        return
    members = gather_members(e, op.operands[0])
    if e.check:
        e.c.do(f"call void @turns.meet(ptr %w, i32 {e.mask}, {vec('i32')} {members})")
