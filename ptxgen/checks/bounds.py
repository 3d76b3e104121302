"""Largest values of 32-bit registers, followed through a function's flow: branches, loops, guards, rewritten registers.

Values are unsigned: a negative number counts as one of 2³¹ or more. Owns no rule about what may not be large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ptxgen.checks.comparisons import Facts, Less, facts_of, mentions, side_of
from ptxgen.checks.largest import ANY, HALF, LOADED, RULES, SPECIAL
from ptxgen.nodes import Guard, Immediate, Instruction, Label, Operand, Register, Symbol, written

_WIDEN_AFTER = 3  # rounds of a loop before what still grows counts as unbounded
_NARROWINGS = 2


@dataclass(frozen=True, slots=True)
class Bound:
    """A register's largest value, and the instruction that it comes from where nothing limits it."""

    largest: int
    since: Instruction | None = None


@dataclass(slots=True)
class State:
    """What is known before an instruction: bounds of registers, and what predicates say of them."""

    bounds: dict[str, Bound] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)

    def copy(self) -> State:
        return State(dict(self.bounds), dict(self.facts))

    def meet(self, other: State) -> bool:
        """Join with what is known on another way here; whether anything changed."""
        changed = False
        for name, bound in other.bounds.items():
            mine = self.bounds.get(name)
            if mine is None or bound.largest > mine.largest:
                self.bounds[name] = bound
                changed = True
        for name in [n for n, f in self.facts.items() if other.facts.get(n) != f]:
            del self.facts[name]
            changed = True
        return changed


class Flow:
    """The states of a function body. `limits` adds largest values of special registers."""

    def __init__(self, items: Sequence[Instruction | Label], limits: Mapping[str, int]) -> None:
        self.special = {**SPECIAL, **limits}
        self.blocks = _blocks(items)
        self._compared = _compared(items)
        self.entries: list[State | None] = [None] * len(self.blocks)
        self._labels = {name: i for i, block in enumerate(self.blocks) for name in block.labels}
        self._rewritten, self._proper = self._loops()
        self._settle()

    def visit_block(self, number: int) -> Iterator[tuple[Instruction, State]]:
        """The instructions of a block that can be reached, with what is known where each runs: its guard holds."""
        entry = self.entries[number]
        if entry is None:
            return
        state = entry.copy()
        for item in self.blocks[number].items:
            yield item, self._guarded(state, item.guard)
            self._step(state, item)

    def successors(self, number: int) -> list[tuple[int, Guard | None]]:
        """The blocks that may follow one, each with the guard that holds there."""
        block, follows = self.blocks[number], []
        last = block.items[-1] if block.items else None
        words = last.opcode.split(".") if last else [""]
        if last and words[0] == "bra":
            target = last.operands[0]
            if isinstance(target, Symbol) and target.name in self._labels:
                follows.append((self._labels[target.name], last.guard))
        ends = words[0] in ("bra", "brx", "ret", "exit", "trap")
        if number + 1 < len(self.blocks) and not (last and ends and last.guard is None):
            guard = last.guard if last and ends and last.guard else None
            follows.append((number + 1, Guard(guard.register, not guard.negated) if guard else None))
        return follows

    def bound(self, state: State, operand: Operand) -> Bound:
        """The largest value of an operand."""
        if isinstance(operand, Immediate):
            value = operand.value
            return Bound(int(value) if isinstance(value, int) and 0 <= value <= ANY else ANY)
        if isinstance(operand, Register):
            return state.bounds.get(operand.name) or Bound(self.special.get(operand.name, ANY))
        return Bound(ANY)

    # -- the fixed point ----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        self.entries[0] = State()
        never: frozenset[str] = frozenset()
        visits = [0] * len(self.blocks)
        waiting = [0]
        while waiting:
            number = waiting.pop(0)
            visits[number] += 1
            for follower, state in self._leave(number):
                entry = self.entries[follower]
                if entry is None:
                    self.entries[follower] = state
                else:
                    late = visits[follower] >= _WIDEN_AFTER
                    if not _join(entry, state, self._rewritten.get(follower, never) if late else never):
                        continue
                if follower not in waiting:
                    waiting.append(follower)
        for _ in range(_NARROWINGS):
            self._narrow()

    def _loops(self) -> tuple[dict[int, frozenset[str]], set[tuple[int, int]]]:
        """For every block that is branched back to, the registers that are written from there to a branch back; and the
        branches back whose loop is entered at its head alone."""
        edges = [(number, to) for number in range(len(self.blocks)) for to, _ in self.successors(number)]
        rewritten: dict[int, frozenset[str]] = {}
        proper: set[tuple[int, int]] = set()
        for last, head in edges:
            if head <= last:
                inside = (item for block in self.blocks[head : last + 1] for item in block.items)
                names = {name for item in inside for name in written(item)}
                rewritten[head] = rewritten.get(head, frozenset()) | names
                if not any(head < to <= last and not head <= number <= last for number, to in edges):
                    proper.add((last, head))
        return rewritten, proper

    def _narrow(self) -> None:
        """Make every entry anew from what leaves the blocks before it: a loop's widened counter gets back the bound of
        the compare that ends it."""
        made: list[State | None] = [State(), *[None] * (len(self.blocks) - 1)]
        for number, entry in enumerate(self.entries):
            for follower, state in self._leave(number) if entry is not None else ():
                known = made[follower]
                if known is None:
                    made[follower] = state
                else:
                    known.meet(state)
        self.entries = made

    def _leave(self, number: int) -> list[tuple[int, State]]:
        entry = self.entries[number]
        assert entry is not None
        state = entry.copy()
        for item in self.blocks[number].items:
            self._step(state, item)
        leaves = []
        for follower, guard in self.successors(number):
            after = self._guarded(state, guard).copy()
            if (number, follower) in self._proper:  # what the loop does not write is as it was at its head
                inside = self._rewritten[follower]
                after.bounds = {name: bound for name, bound in after.bounds.items() if name in inside}
            leaves.append((follower, after))
        return leaves

    # -- one instruction ----------------------------------------------------------------------------------------------

    def _guarded(self, state: State, guard: Guard | None) -> State:
        """What is known where a guard holds."""
        if guard is None or guard.register not in state.facts:
            return state
        narrowed = state.copy()
        for fact in state.facts[guard.register][1 if guard.negated else 0]:
            self._apply(narrowed, fact)
        return narrowed

    def _apply(self, state: State, fact: Less) -> None:
        """Lower the bound of the smaller side to that of the larger."""
        if isinstance(fact.low, int):
            return
        low, high = (self._value(state, side) for side in (fact.low, fact.high))
        if fact.signed:
            if low >= HALF:  # it may be negative
                return
            high = min(high, HALF - 1)
        most = high if fact.equal else max(high - 1, 0)
        if most < low:
            state.bounds[fact.low] = Bound(most)

    def _value(self, state: State, side: str | int) -> int:
        if isinstance(side, int):
            return side if 0 <= side <= ANY else ANY
        known = state.bounds.get(side)
        return known.largest if known else self.special.get(side, ANY)

    def _step(self, state: State, item: Instruction) -> None:
        """Take an instruction's results into account."""
        if not item.operands or not isinstance(item.operands[0], Register):
            for name in written(item):  # in braces, or a pair
                self._write(state, name, Bound(ANY, item), item.guard)
            return
        name = item.operands[0].name
        inside = self._guarded(state, item.guard)
        facts = facts_of(item, inside.facts)
        bound = self._result(inside, item)
        self._write(state, name, bound, item.guard)
        if facts is not None and item.guard is None and not mentions(facts, name):
            state.facts[name] = facts

    def _write(self, state: State, name: str, bound: Bound, guard: Guard | None) -> None:
        before = state.bounds.get(name)
        if guard is not None and before is not None and before.largest > bound.largest:
            bound = before
        state.bounds[name] = bound
        state.facts.pop(name, None)
        if name not in self._compared:  # most registers: no fact mentions them
            return
        for predicate in [p for p, facts in state.facts.items() if mentions(facts, name)]:
            del state.facts[predicate]

    def _result(self, state: State, item: Instruction) -> Bound:
        sources = item.operands[1:]
        rule = RULES.get(item.opcode)
        if rule is None:
            return Bound(LOADED.get(item.opcode.rpartition(".")[2], ANY) if item.opcode[:3] == "ld." else ANY, item)
        bounds = [self.bound(state, source) for source in sources]
        largest = rule([b.largest for b in bounds], [isinstance(s, Immediate) for s in sources])
        if item.opcode == "sub.u32" and self._below(state, item):
            largest = bounds[0].largest - (bounds[1].largest if isinstance(sources[1], Immediate) else 0)
        if largest <= ANY:
            source = next((b.since for b in bounds if b.since is not None and b.largest == ANY), None)
            return Bound(largest, source or item)
        return Bound(ANY, next((b.since for b in bounds if b.since is not None and b.largest == ANY), None) or item)

    def _below(self, state: State, item: Instruction) -> bool:
        """Whether the guard of a subtraction says that it does not pass below zero."""
        if item.guard is None or item.guard.register not in state.facts:
            return False
        low, high = (side_of(source) for source in (item.operands[2], item.operands[1]))
        facts = state.facts[item.guard.register][1 if item.guard.negated else 0]
        return any(not fact.signed and fact.low == low and fact.high == high for fact in facts)


@dataclass(slots=True)
class _Block:
    labels: list[str]
    items: list[Instruction]


def _blocks(items: Sequence[Instruction | Label]) -> list[_Block]:
    """Straight pieces: each begins at labels or after a branch."""
    blocks = [_Block([], [])]
    for item in items:
        if isinstance(item, Label):
            if blocks[-1].items:
                blocks.append(_Block([], []))
            blocks[-1].labels.append(item.name)
            continue
        blocks[-1].items.append(item)
        if item.opcode.split(".")[0] in ("bra", "brx", "ret", "exit", "trap"):
            blocks.append(_Block([], []))
    return blocks


def _compared(items: Sequence[Instruction | Label]) -> set[str | int | None]:
    """The sides of all comparisons, of which facts are made."""
    tests = (item for item in items if isinstance(item, Instruction) and item.opcode.startswith("setp."))
    return {side_of(operand) for item in tests for operand in item.operands[1:3]}


def _join(entry: State, state: State, loop: frozenset[str]) -> bool:
    """Join a way into a block; registers of `loop` that still grow may be anything. Whether anything changed."""
    grew = {n for n in loop if n in entry.bounds and n in state.bounds
            and state.bounds[n].largest > entry.bounds[n].largest}  # fmt: skip
    changed = entry.meet(state)
    for name in grew:
        entry.bounds[name] = Bound(ANY, entry.bounds[name].since)
    return changed
