"""Rules for ptxgen's own text, beyond what PTX demands: 64-bit addresses, no 32-bit products in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.checks.largest import ANY, HALF, RULES, SPECIAL
from ptxgen.nodes import Address, Immediate, Instruction, Label, Operand, Register, written

if TYPE_CHECKING:  # few texts have something to follow
    from ptxgen.checks.bounds import Bound, Flow, State

Finding = tuple[int, str]

_GLOBAL_WORDS = frozenset({"ld", "st", "atom", "red", "cp", "prefetch", "prefetchu"})
_PRODUCTS = frozenset({"mul.lo.s32", "mul.lo.u32", "mad.lo.s32", "mad.lo.u32"})
_CARRIES = ("add.", "sub.", "mov.", "cvt.", "mul.", "mad.", "shl.", "cvta.", "selp.")


def narrow_addresses(items: list[Instruction | Label], limits: Mapping[str, int]) -> Iterator[Finding]:
    """No 32-bit product that may pass 2³¹ is widened into a global address.

    Largest values are followed as `bounds` has it: through loops, guards and registers that are written several times;
    loaded values count as 2³²−1. A product that may reach 2³¹ marks its register; cvt, mul.wide, mad.wide, selp and
    64-bit additions carry the mark; a global access through a marked register is the finding, which says how large the
    factors may be, and since where. `limits` adds largest values of special registers.
    """
    if not _may_be_large(items, limits):  # most texts: nothing to follow
        return
    from ptxgen.checks.bounds import Flow

    flow = Flow(items, limits)
    found: dict[int, Finding] = {}  # by the product's line: one finding each, at the first access
    for item, _, marks in _marked(flow):
        for base in _global_bases(item) if marks else ():
            if base in marks:
                found.setdefault(marks[base].item.line, (item.line, marks[base].reason()))
    yield from sorted(found.values())


def _may_be_large(items: list[Instruction | Label], limits: Mapping[str, int]) -> bool:
    """Whether a global address may hold a product that may pass 2³¹, for all that registers written once say, in
    whatever order instructions run: a quick look that misses none."""
    largest = {**SPECIAL, **limits}
    own = [item for item in items if isinstance(item, Instruction) and item.operands]
    writes = Counter(name for item in own for name in written(item))
    marked: set[str] = set()
    for item in own:
        first, rule = item.operands[0], RULES.get(item.opcode)
        if rule is not None and isinstance(first, Register):
            sources = item.operands[1:]
            value = rule([_quick(largest, s) for s in sources], [isinstance(s, Immediate) for s in sources])
            if value >= HALF:
                if item.opcode in _PRODUCTS:
                    marked.add(first.name)
            elif writes[first.name] == 1:
                largest[first.name] = value
    return bool(marked) and _reaches_an_address(own, marked)


def _reaches_an_address(items: Iterable[Instruction], marked: set[str]) -> bool:
    """Whether a global address may hold the value of a marked register, in whatever order instructions run."""
    carriers = [
        (item.operands[0].name, {s.name for s in item.operands[1:] if isinstance(s, Register)})
        for item in items if item.opcode.startswith(_CARRIES) and isinstance(item.operands[0], Register)
    ]  # fmt: skip
    while new := {name for name, sources in carriers if name not in marked and not marked.isdisjoint(sources)}:
        marked = marked | new
    return any(base in marked for item in items for base in _global_bases(item))


def _quick(largest: Mapping[str, int], operand: Operand) -> int:
    if isinstance(operand, Register):
        return largest.get(operand.name, ANY)
    value = operand.value if isinstance(operand, Immediate) else None
    return value if isinstance(value, int) and value >= 0 else ANY


class _Mark(NamedTuple):
    """A product that may be large, and what was known of its factors there."""

    item: Instruction
    factors: tuple[Bound, Bound]

    def reason(self) -> str:
        """Why an address that holds the product is refused, and what to do."""
        factors = self.item.operands[1:3]
        said = [self._factor(*factor) for factor in zip(factors, self.factors, strict=True)]
        worst = max(range(2), key=lambda i: (isinstance(factors[i], Register), self.factors[i].largest))
        word = f"{'mad' if self.item.opcode.startswith('mad') else 'mul'}.wide.{self.item.opcode[-3:]}"
        return (f"the address holds line {self.item.line}'s 32-bit product; multiply in 64 bits ({word} of the same "
                f"factors, into a 64-bit register), or bound {factors[worst]} before it (min, and, rem, or a compare "
                f"that guards it): {' and '.join(said)}, so the product may pass 2^31")  # fmt: skip

    def _factor(self, operand: Operand, bound: Bound) -> str:
        if isinstance(operand, Immediate):
            return f"{operand} is a number"
        if bound.largest < ANY:
            return f"{operand} is at most {bound.largest}"
        since = f" since line {bound.since.line} ({bound.since})" if bound.since is not None else ""
        return f"{operand} may be anything up to 2^32-1{since}"


Marks = dict[str, _Mark]


def _marked(flow: Flow) -> Iterator[tuple[Instruction, State, Marks]]:
    """Every instruction with the marks that its registers may carry there, on any way to it."""
    entries: list[Marks] = [{} for _ in flow.blocks]
    changed = True
    while changed:
        changed = False
        for number, entry in enumerate(flow.entries):
            if entry is None:
                continue
            marks = dict(entries[number])
            for item, state in flow.visit_block(number):
                _follow(flow, item, state, marks)
            for follower, _ in flow.successors(number):
                new = {name: mark for name, mark in marks.items() if name not in entries[follower]}
                entries[follower].update(new)
                changed = changed or bool(new)
    for number, entry in enumerate(flow.entries):
        if entry is None:
            continue
        marks = dict(entries[number])
        for item, state in flow.visit_block(number):
            yield item, state, marks
            _follow(flow, item, state, marks)


def _follow(flow: Flow, item: Instruction, state: State, marks: Marks) -> None:
    """Take an instruction's result into account."""
    operands = item.operands
    if not operands or not isinstance(operands[0], Register):
        return
    mark = None
    if item.opcode.startswith(_CARRIES):
        mark = next((marks[s.name] for s in operands[1:] if isinstance(s, Register) and s.name in marks), None)
    if mark is None and item.opcode in _PRODUCTS:
        factors = (flow.bound(state, operands[1]), flow.bound(state, operands[2]))
        added = flow.bound(state, operands[3]).largest if len(operands) > 3 else 0
        if factors[0].largest * factors[1].largest + added >= HALF:
            mark = _Mark(item, factors)
    if mark is not None:
        marks[operands[0].name] = mark
    elif item.guard is None:
        marks.pop(operands[0].name, None)


def _global_bases(item: Instruction) -> list[str]:
    """The registers that global addresses of this instruction begin with."""
    words = item.opcode.split(".")
    if words[0] not in _GLOBAL_WORDS or "global" not in words:
        return []
    spaces = [word for word in words if word.partition("::")[0] in ("global", "shared")]
    addresses = [operand.base for operand in item.operands if isinstance(operand, Address)]
    pairs = zip(spaces, addresses, strict=False)  # a copy names its spaces in the operands' order
    return [base.name for space, base in pairs if space == "global" and isinstance(base, Register)]
