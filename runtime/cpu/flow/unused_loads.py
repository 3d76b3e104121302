"""Loads whose values come to nothing: no store, address, guard or branch depends on them, in all lanes or in some; and
those whose values may come to nothing, as a choice between values stands before all that depends on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ptxgen.runtime.cpu.flow.blocks import Block, Op
from ptxgen.runtime.cpu.flow.symbols import Reg


def unused_loads(blocks: list[Block]) -> frozenset[Op]:
    """Those of which no path uses a value, not even through arithmetic."""
    loads = [op for block in blocks for op in block.ops if op.words[0] == "ld"]
    return _unneeded(blocks, loads, lambda op: frozenset())


def _unneeded(blocks: list[Block], loads: list[Op], dropped: Callable[[Op], frozenset[int]]) -> frozenset[Op]:
    """Those of `loads` whose values nothing needs, where an instruction does without what it `dropped`."""
    if not loads:
        return frozenset()
    needed: dict[int, int] = {id(block): 0 for block in blocks}  # bit sets of registers, before each block
    used: set[Op] = set()
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            now = 0
            for successor in block.successors:
                now |= needed[id(successor)]
            for op in reversed(block.ops):
                now = _before(op, now, used, dropped(op))
            if now != needed[id(block)]:
                needed[id(block)] = now
                changed = True
    return frozenset(op for op in loads if op not in used)


def _before(op: Op, needed: int, used: set[Op], dropped: frozenset[int]) -> int:
    """The registers that are needed before an instruction, from those behind it; what it may drop it does not need."""
    wanted = any(needed >> reg.index & 1 for reg in op.writes)
    if op.words[0] == "ld" and wanted:
        used.add(op)
    if op.pure and not wanted:
        return needed
    if op.guard is None:
        for reg in op.writes:
            needed &= ~(1 << reg.index)
    for reg in op.reads:
        if reg.index not in dropped:
            needed |= 1 << reg.index
    return needed


def droppable_loads(blocks: list[Block]) -> frozenset[Op]:
    """Loads of shared memory whose values matter only where they are chosen: every way to a store, an address, a guard
    or a branch leads through `selp`, or through an `and` or `or` of predicates, which the other side may decide."""
    return _unneeded(blocks, [op for block in blocks for op in block.ops if _may_be_dropped(op)], _chosen)


def _may_be_dropped(op: Op) -> bool:
    return op.words[:2] == ("ld", "shared") and not {"volatile", "relaxed", "acquire"} & set(op.words)


def _chosen(op: Op) -> frozenset[int]:
    """The registers that an instruction reads of which it may drop the value."""
    if op.words[0] == "selp":
        return frozenset(reg.index for reg in op.reads if reg.bits > 1 and reg is not op.guard)
    if op.words in (("and", "pred"), ("or", "pred")) or (op.words[0] == "setp" and {"and", "or"} & set(op.words)):
        return frozenset(reg.index for reg in op.reads if reg is not op.guard)
    return frozenset()


def split_loads(blocks: list[Block]) -> tuple[frozenset[Op], frozenset[Op]]:
    """Makes two of each load of memory whose value counts under one guard only: for the lanes in which it counts, and
    for those in which it does not.

    `ld %r, [%a]; add %s, %r, 1; @%p st [%a], %s` (all lanes load, one stores) reads nothing in the lanes without %p.
    """
    counting, idle = [], []
    for block in blocks:
        for place in reversed(range(len(block.ops))):
            op = block.ops[place]
            splits = op.words[0] == "ld" and op.words[1] != "param" and op.guard is None
            guard = _only_under(block, place) if splits else None
            if guard is None:
                continue
            reg, negated = guard
            reads = [*op.reads, reg]
            used = replace(op, guard=reg, negated=negated, reads=reads)
            rest = replace(op, guard=reg, negated=not negated, reads=[*reads])
            block.ops[place : place + 1] = [used, rest]
            counting.append(used)
            idle.append(rest)
    return frozenset(counting), frozenset(idle)


def _only_under(block: Block, place: int) -> tuple[Reg, bool] | None:
    """The guard under which everything happens that a load's value matters for; None where there is not one."""
    known = {reg.index for reg in block.ops[place].writes}
    written: set[int] = set(known)
    found: tuple[Reg, bool] | None = None
    for op in block.ops[place + 1 :]:
        if any(reg.index in known for reg in op.reads):
            if op.guard is not None:
                guard = (op.guard, op.negated)
                if op.guard.index in written or (found is not None and found != guard):
                    return None
                found = guard
            elif not op.pure:
                return None
            known.update(reg.index for reg in op.writes)
        elif op.guard is None:
            known.difference_update(reg.index for reg in op.writes)
        written.update(reg.index for reg in op.writes)
    return None if any(block.live_out >> index & 1 for index in known) else found
