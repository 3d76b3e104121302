"""mbarrier.* on objects in shared memory, this CTA's or another's of the cluster."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.check.late_lanes import LATE_LANE
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.load_store import address, space_of
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.native.layout import PARK_MBARRIER, SHARED_WINDOW, WINDOW_SHIFT
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT
from ptxgen.runtime.cpu.support.mbarrier import COUNT_MASK, PARITY_SHIFT, PENDING_SHIFT

_I64 = vec("i64")
_REMARK = "an mbarrier must be initialised, and take no more arrivals than are due"


def shared_window(e: Emitter, operand: Source, space: str = "shared") -> str:
    """A shared-memory operand as window offsets, `<32 x i64>`; generic addresses lose their window."""
    if not isinstance(operand, nodes.Address):
        raise e.error(f"operand {operand}: must be an address")
    addresses, offset = address(e, operand, space)
    if space == "shared":
        addresses = e.c(f"zext {vec('i32')} {addresses} to {_I64}")
    if offset:
        addresses = e.c(f"add {_I64} {addresses}, {splat('i64', offset)}")
    if space != "shared":
        window = e.c(f"lshr {_I64} {addresses}, {splat('i64', WINDOW_SHIFT)}")
        is_shared = e.c(f"icmp eq {_I64} {window}, {splat('i64', SHARED_WINDOW >> WINDOW_SHIFT)}")
        inner = e.c(f"and {_I64} {addresses}, {splat('i64', SHARED_WINDOW - 1)}")
        addresses = e.c(f"select {vec('i1')} {is_shared}, {_I64} {inner}, {_I64} zeroinitializer")
    return addresses


def each_lane(e: Emitter, columns: list[tuple[str, str]], call: str, result: str = "", mask: str | None = None) -> str:
    """Emit `call(lane, one value of each column …)` for every executing lane; columns are (vector, element type).

    With `result` (an element type) the calls' values are gathered, and the vector is returned.
    """
    slots = []
    for value, element in columns:
        slot = e.c.var(vec(element), align=64)
        e.c.store(vec(element), value, slot, align=64)
        slots.append((slot, element))
    gathered = e.c.var(vec(result), align=64) if result else ""
    if result:
        e.c.store(vec(result), "zeroinitializer", gathered, align=64)
    with e.c.each_bit(mask or e.exec_mask()) as lane:
        values = [(el, e.c.load(el, e.c(f"getelementptr {el}, ptr {slot}, i32 {lane}"))) for slot, el in slots]
        arguments = ", ".join([f"i32 {lane}", *(f"{el} {value}" for el, value in values)])
        text = call.replace("ARGS", arguments)
        if result:
            e.c.store(result, e.c(text), e.c(f"getelementptr {result}, ptr {gathered}, i32 {lane}"))
        else:
            e.c.do(text)
    return e.c.load(vec(result), gathered, align=64) if result else ""


def _place(e: Emitter, op: Op, operand: Source) -> str:
    return shared_window(e, operand, space_of(op.words))


@emits("mbarrier.init", outputs=0)
def init(e: Emitter, op: Op) -> None:
    """A phase of `count` arrivals begins."""
    columns = [(_place(e, op, op.operands[0]), "i64"), (e.src(op.operands[1], "u32"), "i32")]
    each_lane(e, columns, f"call void @mbarrier.init(ptr %w, i32 {e.new_site('count must be 1 … 2^20 - 1')}, ARGS)")


@emits("mbarrier.inval", outputs=0)
def invalidate(e: Emitter, op: Op) -> None:
    """The mbarrier is gone, and its bytes may hold anything."""
    places = _place(e, op, op.operands[0])
    each_lane(e, [(places, "i64")], f"call void @mbarrier.inval(ptr %w, i32 {e.new_site(_REMARK)}, ARGS)")


@emits("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(e: Emitter, op: Op) -> None:
    """state = [a] before; `count` arrivals (1), with expect_tx more transactions due, with arrive_drop for good."""
    operands = list(op.operands)
    target = None if isinstance(operands[0], nodes.Address) else operands.pop(0)
    one = splat("i64", 1)
    amount = e.c(f"zext {vec('i32')} {e.src(operands[1], 'u32')} to {_I64}") if len(operands) > 1 else one
    count, due = (one, amount) if "expect_tx" in op.words else (amount, "zeroinitializer")
    dropped = count if op.words[1] == "arrive_drop" else "zeroinitializer"
    if e.waits:
        e.c.do(f"call void @late_lanes.arrive(ptr %w, i32 {e.exec_mask()})")
    columns = [(_place(e, op, operands[0]), "i64"), (count, "i64"), (due, "i64"), (dropped, "i64")]
    call = f"call i64 @mbarrier.update(ptr %w, i32 {e.new_site(_REMARK)}, ARGS)"
    before = each_lane(e, columns, call, "i64")
    if "noComplete" in op.words:
        pending = e.c(f"lshr {_I64} {before}, {splat('i64', PENDING_SHIFT)}")
        left = e.c(f"and {_I64} {pending}, {splat('i64', COUNT_MASK)}")
        ends = e.c(f"and i32 {e.bits(e.c(f'icmp eq {_I64} {left}, {count}'))}, {e.exec_mask()}")
        e.fault_if(ends, FAULT_ASSERT, remark="a .noComplete arrival must not end the phase")
    if target is not None:
        e.dst(target, before, "b64")


@emits("mbarrier.expect_tx", "mbarrier.complete_tx", outputs=0)
def transactions(e: Emitter, op: Op) -> None:
    """More transactions become due, or have happened."""
    amount = e.c(f"zext {vec('i32')} {e.src(op.operands[1], 'u32')} to {_I64}")
    if op.words[1] == "complete_tx":
        amount = e.c(f"sub {_I64} zeroinitializer, {amount}")
    columns = [(_place(e, op, op.operands[0]), "i64"), ("zeroinitializer", "i64"), (amount, "i64"),
               ("zeroinitializer", "i64")]  # fmt: skip
    each_lane(e, columns, f"call i64 @mbarrier.update(ptr %w, i32 {e.new_site(_REMARK)}, ARGS)", "i64")


@emits("mbarrier.pending_count")
def pending_count(e: Emitter, op: Op) -> None:
    """Arrivals that were still due in a state."""
    moved = e.c(f"lshr {_I64} {e.src(op.operands[1], 'b64')}, {splat('i64', PENDING_SHIFT)}")
    count = e.c(f"and {_I64} {moved}, {splat('i64', COUNT_MASK)}")
    e.dst(op.operands[0], e.c(f"trunc {_I64} {count} to {vec('i32')}"), "u32")


def _tested(e: Emitter, op: Op) -> tuple[str, str]:
    """(i32 of lanes whose phase is over, window offsets of the objects)."""
    places = _place(e, op, op.operands[1])
    if "parity" in op.words:
        parity = e.src(op.operands[2], "u32")
    else:
        moved = e.c(f"lshr {_I64} {e.src(op.operands[2], 'b64')}, {splat('i64', PARITY_SHIFT)}")
        parity = e.c(f"trunc {_I64} {moved} to {vec('i32')}")
    call = f"call i32 @mbarrier.passed(ptr %w, i32 {e.new_site(_REMARK)}, ARGS)"
    over = each_lane(e, [(places, "i64"), (parity, "i32")], call, "i32")
    return e.bits(e.c(f"icmp ne {vec('i32')} {over}, zeroinitializer")), places


@emits("mbarrier.test_wait")
def test_wait(e: Emitter, op: Op) -> None:
    """p: whether the phase is over."""
    e.dst_pred(op.operands[0], _tested(e, op)[0])


@emits("mbarrier.try_wait", retries=True)
def try_wait(e: Emitter, op: Op) -> None:
    """p: whether the phase is over; here it waits as long as it takes, so p always holds."""
    ready, places = _tested(e, op)
    late = e.c(f"and i32 {e.mask}, {e.c(f'xor i32 {ready}, -1')}")
    place = e.first_lane(places, "i64", late)
    host = e.c(f"call ptr @resolve.shared(ptr %w, i32 {e.site()}, i32 0, i64 {place}, i64 8)")
    e.wait_here(ready, PARK_MBARRIER, "0", e.c(f"ptrtoint ptr {host} to i64"))
    e.dst_pred(op.operands[0], "-1")
    if e.waits:
        first = e.first_lane(places, "i64", e.mask)
        equal = e.bits(e.c(f"icmp eq {_I64} {places}, {e.c.spread('i64', first)}"))
        bar = e.c(f"call ptr @resolve.shared(ptr %w, i32 {e.site()}, i32 0, i64 {first}, i64 8)")
        here = e.c(f"and i32 {e.mask}, {equal}")
        e.c.do(f"call void @late_lanes.wait(ptr %w, i32 {e.new_site(LATE_LANE)}, ptr {bar}, i32 {here})")
