"""Where lanes show that they have gone past an aligned barrier for which others of their warp still wait. Check mode's.

From the first block that all ways from a barrier to the exit lead through, and from which no way leads back to it, a
lane cannot come to the barrier any more. It should have met the others there, unless this is its early return: so a
write of memory tells, and behind a loop any step, if writes follow for some lanes. (A branch around all that is left of
a kernel is the same PTX as an early return.)
"""

from __future__ import annotations

from ptxgen.runtime.cpu.flow.block_order import components
from ptxgen.runtime.cpu.flow.blocks import Block, Op

_WRITES = frozenset({"st", "stmatrix", "atom", "red", "cp", "mbarrier", "$printf"})
_OF_THE_LANE = frozenset({
    "local", "param", "wait_group", "commit_group", "wait_all", "prefetch", "test_wait", "try_wait", "pending_count",
})  # fmt: skip
_EXIT = 0  # a number that no block has: where `ret` and `exit` lead


def is_aligned(words: tuple[str, ...]) -> bool:
    """Whether an opcode is of a barrier that all lanes of a warp must execute together."""
    return (words[0] == "bar" and words[1] != "warp") or (words[0] == "barrier" and "aligned" in words)


def past_barriers(blocks: list[Block], first: Block, function: dict[int, str]) -> dict[Op, tuple[Block, ...]]:
    """By instructions, the blocks of barriers at which no lane of the warp may wait then."""
    barriers = [b for b in blocks if b.ops and is_aligned(b.ops[0].words) and "wait" not in b.ops[0].words]
    if not barriers:
        return {}
    graph = _Graph(blocks, first, function)
    past: dict[Op, list[Block]] = {}
    for barrier in barriers:
        for op in graph.past(barrier):
            past.setdefault(op, []).append(barrier)
    return {op: tuple(found) for op, found in past.items()}


class _Graph:
    """The blocks of a flow by number, with what is asked of all barriers alike."""

    def __init__(self, blocks: list[Block], first: Block, function: dict[int, str]) -> None:
        self.blocks, self.function = blocks, function | {_EXIT: ""}
        self.after: list[list[int]] = [[] for _ in range(len(blocks) + 1)]
        for block in blocks:
            ends = not block.successors or any(op.words[0] in ("ret", "exit") for op in block.ops[-1:])
            self.after[block.number] = [s.number for s in block.successors] + [_EXIT] * ends
        before: list[list[int]] = [[] for _ in self.after]
        for source, targets in enumerate(self.after):
            for target in targets:
                before[target].append(source)
        self.order = _postorder(first.number, self.after)[::-1]  # dominators come first
        self.dominator = _dominators(self.order, before)
        self.join = _dominators(_postorder(_EXIT, before)[::-1], self.after)
        self.part: dict[int, int] = {}  # loops have parts of their own
        self.loops: set[int] = set()
        parts = components([first], {id(b): b.successors for b in blocks}, {id(b) for b in blocks})
        for number, part in enumerate(parts):
            self.part |= dict.fromkeys((b.number for b in part), number)
            if len(part) > 1 or part[0] in part[0].successors:
                self.loops.add(number)
        self.writes = {b.number: _writes(b) for b in blocks}

    def past(self, barrier: Block) -> list[Op]:
        """Instructions behind a barrier that lanes may come to while others wait there, without those that a lane comes
        to behind another of them only."""
        part = self.part.get(barrier.number, -1)  # behind a call that never comes back it has none
        again = part in self.loops
        if part < 0 or (not again and self._has(_EXIT, barrier.number)):  # every lane executes it, and once
            return []
        join = self.join[barrier.number]
        while join > _EXIT and self.part[join] == part:
            join = self.join[join]
        behind = self._reached(join) - {_EXIT} if join > _EXIT else set()
        found: list[Op] = []
        passed = set() if again else {barrier.number}  # dominated by what makes a look here idle
        if again and self._leads_to_writes(join, barrier):
            found.append(self.blocks[join - 1].ops[0])
            passed.add(join)
        for number in self.order:
            if self.dominator[number] in passed:
                passed.add(number)
            elif number in behind and number not in passed and self.writes[number]:
                found += self.writes[number]
                if self.writes[number][-1].guard is None:
                    passed.add(number)
        return found

    def _leads_to_writes(self, join: int, barrier: Block) -> bool:
        """Whether the way out of the barrier's loop is more than a return: some lanes write behind it, before the
        function of both is left. (What a caller makes of a return is no sign: it may ask for errors.)"""
        if join <= _EXIT or self.function[join] != self.function[barrier.number]:
            return False
        here = {n for n in self._reached(join) if self.function[n] == self.function[join]}
        first = self.blocks[join - 1].ops[:1]
        return any(self.writes[n] for n in here) and bool(first) and first[0].guard is None

    def _has(self, number: int, wanted: int) -> bool:
        """Whether every way to a block leads through the other."""
        while number not in (wanted, self.dominator[number], -1):
            number = self.dominator[number]
        return number == wanted

    def _reached(self, start: int) -> set[int]:
        seen, todo = {start}, [start]
        while todo:
            fresh = set(self.after[todo.pop()]) - seen
            seen |= fresh
            todo += fresh
        return seen


def _writes(block: Block) -> list[Op]:
    """The block's writes of memory that others see, up to the first that all of its lanes execute."""
    found = []
    for op in block.ops:
        if op.words[0] in _WRITES and not _OF_THE_LANE & set(op.words):
            found.append(op)
            if op.guard is None:
                break
    return found


def _dominators(order: list[int], before: list[list[int]]) -> list[int]:
    """The immediate dominator of every node, the first one's its own; −1 where that does not lead to a node.

    `order` is reverse post-order. Cooper, Harvey, Kennedy: "A Simple, Fast Dominance Algorithm" (2001).
    """
    rank = {node: n for n, node in enumerate(order)}
    found = [-1] * len(before)
    found[order[0]] = order[0]
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            new = -1
            for other in before[node]:
                if found[other] >= 0:
                    new = other if new < 0 else _common(found, rank, new, other)
            if new != found[node]:
                found[node], changed = new, True
    return found


def _common(found: list[int], rank: dict[int, int], a: int, b: int) -> int:
    while a != b:
        while rank[a] > rank[b]:
            a = found[a]
        while rank[b] > rank[a]:
            b = found[b]
    return a


def _postorder(root: int, after: list[list[int]]) -> list[int]:
    done, seen, work = [], {root}, [(root, iter(after[root]))]
    while work:
        node, rest = work[-1]
        for target in rest:
            if target not in seen:
                seen.add(target)
                work.append((target, iter(after[target])))
                break
        else:
            done.append(node)
            work.pop()
    return done
