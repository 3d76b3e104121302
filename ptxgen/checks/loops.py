"""Rules for loops in ptxgen's own text: their form, and that what is built as a turn of a loop stands in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ptxgen.checks.access import registers_of
from ptxgen.nodes import Instruction, Label, Symbol, written

Finding = tuple[int, str]


def backward_branches(items: list[Instruction | Label]) -> Iterator[Finding]:
    """A loop ends in a predicated branch back; an unpredicated one is refused."""
    seen: set[str] = set()
    for item in items:
        if isinstance(item, Label):
            seen.add(item.name)
        elif item.guard is None and item.opcode in ("bra", "bra.uni") and isinstance(item.operands[0], Symbol):
            target = item.operands[0].name
            if target in seen:
                yield item.line, f"branch back to {target} is not predicated; a loop is a guarded do-while"


def lone_turns(items: list[Instruction | Label], loops: Mapping[str, str]) -> Iterator[Finding]:
    """What is built as a turn of a loop stands in one: a loop around the line that sets the predicate asks whether
    there is another turn, or some instruction reads the predicate. `loops`: how a template places it, by predicate."""
    labels = {item.name: at for at, item in enumerate(items) if isinstance(item, Label)}
    spans: list[range] = []  # of loops
    asked: set[str] = set()
    taken: set[str] = set()
    sets: dict[str, list[int]] = {name: [] for name in loops}
    for at, item in enumerate(items):
        if isinstance(item, Label):
            continue
        branch = item.opcode.split(".")[0] == "bra"
        target = item.operands[0] if branch else None
        if isinstance(target, Symbol) and labels.get(target.name, at) < at:
            spans.append(range(labels[target.name], at))
        if item.guard is not None:
            (asked if branch else taken).add(item.guard.register)
        for name in sets.keys() & written(item):
            sets[name].append(at)
        taken.update(name for operand in item.operands[1:] for name in registers_of(operand))
    for name, places in sets.items():
        inside = name in asked and any(at in span for at in places for span in spans)
        if places and name not in taken and not inside:
            yield items[places[0]].line, f"no loop around it asks {name}, so there is one turn; place {loops[name]}"
