"""Loads whose values come to nothing: no store, address, guard or branch depends on them, in all lanes or in some; and
those whose values may come to nothing, as a choice between values stands before all that depends on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    begins: dict[int, _Behind] = {}  # what counts from the first instruction on of a block that another was cut from
    cut_from = {id(block.next) for block in blocks if block.cut}
    for block in reversed(blocks):
        behind = (begins.get(id(block.next)) if block.cut else None) or _Behind(block.live_out)
        for place in reversed(range(len(block.ops))):
            op = block.ops[place]
            splits = op.words[0] == "ld" and op.words[1] != "param" and op.guard is None
            guard = behind.only_guard(op) if splits else None
            if guard is None:
                behind.step(op)
                continue
            reg, negated = guard
            reads = [*op.reads, reg]
            used = replace(op, guard=reg, negated=negated, reads=reads)
            rest = replace(op, guard=reg, negated=not negated, reads=[*reads])
            block.ops[place : place + 1] = [used, rest]
            behind.step(rest)
            behind.step(used)
            counting.append(used)
            idle.append(rest)
        if id(block) in cut_from:
            begins[id(block)] = behind
    return frozenset(counting), frozenset(idle)


_Guard = tuple[Reg, bool]
_ANYWAY = None  # in the place of a guard: a value counts in all lanes


class _Behind:
    """What counts behind a place in a block, from its end on: registers under one guard, or in any case.

    A guard that is written behind the place is none that a load before it could have.
    """

    def __init__(self, live_out: int) -> None:
        self.live_out = live_out
        self.written: set[int] = set()
        self.counts: dict[int, _Guard | None] = {}
        self.under: dict[int, set[int]] = {}  # by a guard's register: what counts under it

    def only_guard(self, load: Op) -> _Guard | None:
        """The guard under which everything happens that a load's value matters for; None where there is not one."""
        counts, guard = self._of(load.writes)
        return None if not counts or guard is None or guard[0] in load.writes else guard

    def step(self, op: Op) -> None:
        """To the place before an instruction."""
        counts, guard = self._of(op.writes)
        if op.guard is not None:
            counts, guard = True, _joined((op.guard, op.negated), guard) if counts else (op.guard, op.negated)
        elif not op.pure:
            counts, guard = True, _ANYWAY
        for reg in op.writes:
            for other in self.under.pop(reg.index, ()):
                self.counts[other] = _ANYWAY
        if op.guard is None:
            for reg in op.writes:
                self._set(reg.index, False, _ANYWAY)
        if guard is not None and guard[0] in op.writes:
            guard = _ANYWAY
        for reg in op.reads if counts else ():
            own = _ANYWAY if op.guard is not None and reg.index == op.guard.index else guard
            before, said = self._of([reg])
            self._set(reg.index, True, _joined(own, said) if before else own)

    def _of(self, regs: Iterable[Reg]) -> tuple[bool, _Guard | None]:
        """(whether the values of these registers count, the guard under which)."""
        found: list[_Guard | None] = []
        for reg in regs:
            if reg.index in self.counts:
                found.append(self.counts[reg.index])
            elif reg.index not in self.written and self.live_out >> reg.index & 1:
                found.append(_ANYWAY)
        if not found:
            return False, _ANYWAY
        guard = found[0]
        for other in found[1:]:
            guard = _joined(guard, other)
        return True, guard

    def _set(self, index: int, counts: bool, guard: _Guard | None) -> None:
        self.written.add(index)
        before = self.counts.pop(index, None)
        if before is not None and before[0].index in self.under:
            self.under[before[0].index].discard(index)
        if counts:
            self.counts[index] = guard
            if guard is not None:
                self.under.setdefault(guard[0].index, set()).add(index)


def _joined(one: _Guard | None, other: _Guard | None) -> _Guard | None:
    return one if one == other else _ANYWAY
