"""Loads whose values come to nothing: no store, address, guard or branch depends on them."""

from __future__ import annotations

from ptxgen.runtime.cpu.flow.blocks import Block, Op


def unused_loads(blocks: list[Block]) -> frozenset[Op]:
    """Those of which no path uses a value, not even through arithmetic."""
    loads = [op for block in blocks for op in block.ops if op.words[0] == "ld"]
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
                now = _before(op, now, used)
            if now != needed[id(block)]:
                needed[id(block)] = now
                changed = True
    return frozenset(op for op in loads if op not in used)


def _before(op: Op, needed: int, used: set[Op]) -> int:
    """The registers that are needed before an instruction, from those behind it."""
    wanted = any(needed >> reg.index & 1 for reg in op.writes)
    if op.words[0] == "ld" and wanted:
        used.add(op)
    if op.pure and not wanted:
        return needed
    if op.guard is None:
        for reg in op.writes:
            needed &= ~(1 << reg.index)
    for reg in op.reads:
        needed |= 1 << reg.index
    return needed
