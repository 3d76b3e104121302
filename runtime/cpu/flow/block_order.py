"""Edges, order and liveness of a flow's blocks.

The order decides which lanes wait for which: the lowest ready block runs first, so every block must come before what
its lanes may meet again at. That is a topological order in which each loop is contiguous (its exits come after all of
it), and in which a called function comes before everything of its callers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from ptxgen.errors import IsaError

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.flow.blocks import Block, Op
    from ptxgen.runtime.cpu.flow.flow_base import FlowBase

T = TypeVar("T")
MOST_LOOKS = 1_000_000  # at blocks of loops, once for every loop around them
MOST_WAYS = 100_000  # on from jumps; LLVM takes some ten microseconds for each

_NO_FALL_THROUGH = frozenset({"ret", "exit", "$go", "$back", "brx"})


def link(flow: FlowBase) -> None:
    """Set each block's successors."""
    table = {block.key: block for called in flow.functions.values() for block in called.blocks}
    ways = 0
    for called in flow.functions.values():
        for block in called.blocks:
            last = block.ops[-1] if block.ops else None
            if last and last.words[0] == "$back":
                last.targets = tuple(called.sites)
            ways += len(last.targets) if last else 0
            if last and ways > MOST_WAYS:
                said = f"an entry with more than {MOST_WAYS:,} ways of brx.idx and of returns to calls, all together,"
                raise IsaError(flow.where(last.line, said))
            targets = [table[key] for key in last.targets] if last else []
            falls = last is None or last.guard is not None or last.words[0] not in (*_NO_FALL_THROUGH, "bra")
            if falls and block.next is not None:
                targets.append(block.next)
            block.successors = list(dict.fromkeys(targets))


def number(flow: FlowBase) -> list[Block]:
    """The reachable blocks in order, numbered from 1."""
    ordered: list[Block] = []
    for name in _callees_first(flow):
        called = flow.functions[name]
        inside = {id(b) for b in called.blocks}
        edges = {id(b): [] for b in called.blocks}  # type: dict[int, list[Block]]
        for block in called.blocks:
            if block.ops and block.ops[-1].words[0] == "$go" and block.next is not None:
                edges[id(block)] = [block.next]  # a call comes back
            else:
                edges[id(block)] = [s for s in block.successors if id(s) in inside]
        ordered += _loops_contiguous(flow, [called.blocks[0]], edges, {id(b) for b in called.blocks})
    for rank, block in enumerate(ordered, 1):
        block.number = rank
    return ordered


def _callees_first(flow: FlowBase) -> list[str]:
    done: list[str] = []
    begun: set[str] = set()  # of a recursion, the function that is met first comes last

    def visit(name: str) -> None:
        if name in begun:
            return
        begun.add(name)
        for callee in sorted(flow.functions[name].calls):
            visit(callee)
        done.append(name)

    visit(flow.entry.name)
    return done


def _loops_contiguous(
    flow: FlowBase, roots: list[Block], edges: dict[int, list[Block]], allowed: set[int]
) -> list[Block]:
    """Topological order of the strongly connected parts; inside a part, again, without the edges back to its heads."""
    result: list[Block] = []
    looked = 0
    levels = [(edges, _parts(roots, edges, allowed))]
    while levels:
        edges, parts = levels[-1]
        part, heads = next(parts, ([], []))
        if len(part) > 1:
            looked += len(part)
            if looked > MOST_LOOKS:
                said = f"loops that nest so deeply that their order takes more than {MOST_LOOKS:,} looks at blocks,"
                raise IsaError(flow.where(next((op.line for b in part for op in b.ops), 0), said))
            ids, head_ids = {id(b) for b in part}, {id(h) for h in heads}
            inner = {i: [s for s in edges[i] if id(s) in ids and id(s) not in head_ids] for i in ids}
            levels.append((inner, _parts(heads, inner, ids)))
        elif part:
            result.append(part[0])
        else:
            levels.pop()
    return result


def _parts(
    roots: list[Block], edges: dict[int, list[Block]], allowed: set[int]
) -> Iterator[tuple[list[Block], list[Block]]]:
    """Strongly connected parts in topological order, and the blocks of each at which it is entered."""
    parts = components(roots, edges, allowed)
    if len(parts) == len(allowed):  # no loop among them
        yield from ((part, part) for part in parts)
        return
    part_of = {id(b): number for number, part in enumerate(parts) for b in part}
    entered = {id(b) for b in roots}
    for source in allowed:
        number = part_of.get(source, -1)
        entered.update(id(s) for s in edges[source] if part_of.get(id(s), -1) != number)
    for part in parts:
        yield part, [b for b in part if id(b) in entered] or [part[0]]


def components(roots: list[T], edges: dict[int, list[T]], allowed: set[int]) -> list[list[T]]:
    """Strongly connected components reachable from the roots, in topological order (Tarjan, iterative). `edges` and
    `allowed` go by `id`."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[T] = []
    found: list[list[T]] = []
    for root in roots:
        if id(root) in index:
            continue
        work = [(root, iter(edges[id(root)]))]
        index[id(root)] = low[id(root)] = len(index)
        stack.append(root)
        on_stack.add(id(root))
        while work:
            block, successors = work[-1]
            for successor in successors:
                key = id(successor)
                if key not in allowed:
                    continue
                if key not in index:
                    index[key] = low[key] = len(index)
                    stack.append(successor)
                    on_stack.add(key)
                    work.append((successor, iter(edges[key])))
                    break
                if key in on_stack:
                    low[id(block)] = min(low[id(block)], index[key])
            else:
                work.pop()
                if work:
                    parent = id(work[-1][0])
                    low[parent] = min(low[parent], low[id(block)])
                if low[id(block)] == index[id(block)]:
                    part = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(id(member))
                        part.append(member)
                        if member is block:
                            break
                    found.append(part[::-1])
    return found[::-1]


def liveness(blocks: list[Block], registers: int, entry: Block, unsure: frozenset[Op] = frozenset()) -> int:
    """Set `live_out` (backwards) and `defined_in` (forwards) of every block. What instructions of `unsure` write may be
    as undefined as if nothing was written.

    Returns the bit set of registers that some block may read before every path has written them.
    """
    live_in = _backwards(blocks)
    _forwards(blocks, (1 << registers) - 1, entry, unsure)
    loose = 0
    for block in blocks:
        loose |= live_in[id(block)] & ~block.defined_in
    return loose


def live_before(block: Block) -> int:
    """The registers whose values a block, or what comes after it, may read; its `live_out` must be set."""
    use, kill = _uses_and_kills(block)
    return use | block.live_out & ~kill


def _uses_and_kills(block: Block) -> tuple[int, int]:
    use = kill = 0
    for op in block.ops:
        for reg in op.reads:
            use |= (1 << reg.index) & ~kill
        for reg in op.writes:
            if op.guard is None:
                kill |= 1 << reg.index
            else:
                use |= (1 << reg.index) & ~kill  # lanes whose guard is false keep the old value
    return use, kill


def _backwards(blocks: list[Block]) -> dict[int, int]:
    summary = {id(block): _uses_and_kills(block) for block in blocks}
    live_in = {key: use for key, (use, _) in summary.items()}
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out = 0
            for successor in block.successors:
                out |= live_in[id(successor)]
            block.live_out = out
            use, kill = summary[id(block)]
            now = use | (out & ~kill)
            if now != live_in[id(block)]:
                live_in[id(block)] = now
                changed = True
    return live_in


def _defined_after(block: Block, unsure: frozenset[Op]) -> int:
    """Registers surely written once the block is over; what is computed from an unwritten register is unwritten."""
    defined = block.defined_in
    for op in block.ops:
        unwritten = any(not defined >> reg.index & 1 for reg in op.reads if reg is not op.guard)
        taints = op in unsure or (op.pure and unwritten)
        for reg in op.writes:
            if taints:
                defined &= ~(1 << reg.index)
            elif op.guard is None:
                defined |= 1 << reg.index
    return defined


def _forwards(blocks: list[Block], everything: int, entry: Block, unsure: frozenset[Op]) -> None:
    before: dict[int, list[Block]] = {id(b): [] for b in blocks}
    for block in blocks:
        for successor in block.successors:
            before[id(successor)].append(block)
    for block in blocks:
        block.defined_in = everything if before[id(block)] and block is not entry else 0
    after = {id(block): _defined_after(block, unsure) for block in blocks}
    changed = True
    while changed:
        changed = False
        for block in blocks:
            now = block.defined_in
            for previous in before[id(block)]:
                now &= after[id(previous)]
            if now != block.defined_in:
                block.defined_in = now
                after[id(block)] = _defined_after(block, unsure)
                changed = True
