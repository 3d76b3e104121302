"""cp.async with its groups, cp.async.bulk and its reductions, st.async, red.async.

When copies land is decided in `support/async_copy.py`.
"""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.load_store import address, space_of
from ptxgen.runtime.cpu.emit.families.mbarrier import each_lane, shared_window
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec
from ptxgen.runtime.cpu.native.layout import WARP

_I32, _I64 = vec("i32"), vec("i64")
_BULK_REMARK = "size and addresses must be multiples of 16, and the mbarrier initialised"
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def _wide(e: Emitter, operand: Source) -> str:
    return e.c(f"zext {_I32} {e.src(operand, 'u32')} to {_I64}")


def _global(e: Emitter, operand: Source) -> str:
    if not isinstance(operand, nodes.Address):
        raise e.error(f"operand {operand}: must be an address")
    addresses, offset = address(e, operand, "global")
    return e.c(f"add {_I64} {addresses}, {splat('i64', offset)}") if offset else addresses


# -- cp.async ----------------------------------------------------------------------------------------------------------


@emits("cp.async.ca", "cp.async.cg", outputs=0)
def cp_async(e: Emitter, op: Op) -> None:
    """Shared memory gets 4, 8 or 16 bytes of each lane; with src-size the rest is zero, with ignore-src all of it."""
    operands = list(op.operands)
    if "L2::cache_hint" in op.words:
        operands.pop()
    size = int(operands[2].value) if isinstance(operands[2], nodes.Immediate) else 0
    if size not in (4, 8, 16):
        raise e.error(f"operand {operands[2]}: must be 4, 8 or 16 bytes")
    whole = splat("i64", size)
    read = whole
    if len(operands) > 3:
        last = operands[3]
        reg = e.reg(last)
        if isinstance(last, nodes.Negated) or (reg is not None and reg.bits == 1):
            read = e.c(f"select {vec('i1')} {e.lanes(e.pred(last))}, {_I64} zeroinitializer, {_I64} {whole}")
        else:
            read = e.c(f"call {_I64} @llvm.umin.v32i64({_I64} {_wide(e, last)}, {_I64} {whole})")
    columns = [(shared_window(e, operands[0]), "i64"), (_global(e, operands[1]), "i64"), (whole, "i64"), (read, "i64")]
    each_lane(e, columns, f"call void @async.copy(ptr %w, i32 {e.new_site()}, i32 {e.new_site()}, ARGS)")


@emits("cp.async.commit_group", outputs=0)
def commit_group(e: Emitter, op: Op) -> None:
    """What the lanes have begun since their last commit is a group."""
    _commit(e, WARP["copy_group"])


def _commit(e: Emitter, counters: int) -> None:
    if e.check:
        now = e.c.load(_I32, "%w", counters, align=4)
        more = e.c(f"zext {vec('i1')} {e.exec_vector()} to {_I32}")
        e.c.store(_I32, e.c(f"add {_I32} {now}, {more}"), "%w", counters, align=4)


@emits("cp.async.wait_group", outputs=0)
def wait_group(e: Emitter, op: Op) -> None:
    """All but the last n groups of the lanes have landed."""
    _land(e, _number(e, op.operands[0]))


def _number(e: Emitter, operand: Source) -> int:
    if not isinstance(operand, nodes.Immediate):
        raise e.error(f"operand {operand}: must be a number")
    return int(operand.value)


@emits("cp.async.wait_all", outputs=0)
def wait_all(e: Emitter, op: Op) -> None:
    """Everything that the lanes have begun has landed."""
    _land(e, -1)


def _land(e: Emitter, keep: int, what: str = "land_groups") -> None:
    if e.check:
        e.c.do(f"call void @async.{what}(ptr %w, i32 {e.exec_mask()}, i32 {keep})")


@emits("cp.async.mbarrier.arrive", outputs=0)
def arrive_on_copies(e: Emitter, op: Op) -> None:
    """The mbarrier gets an arrival of each lane when its copies have landed; without .noinc one that was not due."""
    _land(e, -1)
    site = e.new_site("an mbarrier must be initialised, and take no more arrivals than are due")
    arrivals = splat("i64", 1) if "noinc" in op.words else "zeroinitializer"
    columns = [(shared_window(e, op.operands[0], space_of(op.words)), "i64"), (arrivals, "i64"),
               ("zeroinitializer", "i64"), ("zeroinitializer", "i64")]  # fmt: skip
    each_lane(e, columns, f"call i64 @mbarrier.update(ptr %w, i32 {site}, ARGS)", "i64")


# -- cp.async.bulk -----------------------------------------------------------------------------------------------------


@emits("cp.async.bulk", outputs=0)
def bulk(e: Emitter, op: Op) -> None:
    """Contiguous bytes between global and shared memory: multiples of 16, aligned to 16."""
    spaces = [w for w in op.words if w.partition("::")[0] in ("shared", "global")]
    operands = list(op.operands)
    if "L2::cache_hint" in op.words:
        operands.pop()
    multicast = operands.pop() if "multicast::cluster" in op.words else None
    by_mbarrier = "mbarrier::complete_tx::bytes" in op.words
    if len(spaces) != 2 or (not by_mbarrier and "bulk_group" not in op.words):
        raise e.unsupported()
    target, source = (
        _global(e, operand) if space == "global" else shared_window(e, operand)
        for operand, space in zip(operands[:2], spaces, strict=True)
    )
    if not by_mbarrier and len(operands) > 3:
        raise e.unsupported()  # a byte mask
    bar = shared_window(e, operands[3]) if by_mbarrier else "zeroinitializer"
    ranks = _I32 + " zeroinitializer"
    if multicast is not None:
        ranks = f"{_I32} " + e.c(f"and {_I32} {e.src(multicast, 'b32')}, {splat('i32', 0xFFFF)}")
    to, from_ = (space.partition("::")[0] for space in spaces)
    columns = [(target, "i64"), (source, "i64"), (_wide(e, operands[2]), "i64"), (bar, "i64"),
               (ranks.removeprefix(_I32 + " "), "i32")]  # fmt: skip
    sites = ", ".join(f"i32 {e.new_site(_BULK_REMARK)}" for _ in range(2))
    each_lane(e, columns, f"call void @bulk.{to}.{from_}.{'tx' if by_mbarrier else 'group'}(ptr %w, {sites}, ARGS)")


@emits("cp.reduce.async.bulk", outputs=0)
def bulk_reduce(e: Emitter, op: Op) -> None:
    """Elements of shared memory are combined with others of the cluster's shared memory, or of global memory."""
    spaces = [w for w in op.words if w.partition("::")[0] in ("shared", "global")]
    operation = next((w for w in op.words[3:] if w in _REDUCTIONS), "")
    if len(spaces) != 2 or not operation or "cp_mask" in op.words:
        raise e.unsupported()
    by_mbarrier = "mbarrier::complete_tx::bytes" in op.words
    to = spaces[0].partition("::")[0]
    target = _global(e, op.operands[0]) if to == "global" else shared_window(e, op.operands[0])
    bar = shared_window(e, op.operands[3]) if by_mbarrier else "zeroinitializer"
    source, size = shared_window(e, op.operands[1]), _wide(e, op.operands[2])
    columns = [(target, "i64"), (source, "i64"), (size, "i64"), (bar, "i64")]
    sites = ", ".join(f"i32 {e.new_site(_BULK_REMARK)}" for _ in range(2))
    completion = "tx" if by_mbarrier else "group"
    each_lane(e, columns, f"call void @bulk_reduce.{to}.{operation}.{op.words[-1]}.{completion}(ptr %w, {sites}, ARGS)")


@emits("cp.async.bulk.commit_group", outputs=0)
def bulk_commit(e: Emitter, op: Op) -> None:
    """The lanes' bulk copies out of shared memory since their last commit are a group."""
    _commit(e, WARP["bulk_group"])


@emits("cp.async.bulk.wait_group", outputs=0)
def bulk_wait(e: Emitter, op: Op) -> None:
    """All but the last n bulk groups of the lanes are done; `.read`, which frees the source only, waits as long."""
    _land(e, _number(e, op.operands[0]), "land_out")


@emits("cp.async.bulk.prefetch", outputs=0)
def bulk_prefetch(e: Emitter, op: Op) -> None:
    """A hint: nothing to do."""


# -- st.async and red.async --------------------------------------------------------------------------------------------


@emits("st.async", outputs=0)
def st_async(e: Emitter, op: Op) -> None:
    """Store to shared memory of the cluster, completing on an mbarrier of the same CTA."""
    _async_store(e, op, "store")


@emits("red.async", outputs=0)
def red_async(e: Emitter, op: Op) -> None:
    """Reduce into shared memory of the cluster, completing on an mbarrier of the same CTA."""
    operator = op.words[-2]
    if operator not in ("inc", "dec", "min", "max", "add", "and", "or", "xor"):
        raise e.unsupported()
    _async_store(e, op, operator)


def _async_store(e: Emitter, op: Op, operator: str) -> None:
    kind = op.words[-1]
    bits = bits_of(kind)
    value = op.operands[1]
    items = list(value.items) if isinstance(value, nodes.Vector) else [value]
    columns = [(shared_window(e, op.operands[0]), "i64"), (shared_window(e, op.operands[2]), "i64")]
    columns += [(e.src(item, f"b{bits}"), f"i{bits}") for item in items]
    remark = "the mbarrier must be initialised"
    sites = ", ".join(f"i32 {e.new_site(remark)}" for _ in range(2))
    name = f"async_store.{operator}.{kind}.v{len(items)}"
    each_lane(e, columns, f"call void @{name}(ptr %w, {sites}, ARGS)")
