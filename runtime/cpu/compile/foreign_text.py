"""Foreign text before it runs: refused at once where it is no PTX, and entry by entry for forms that it lacks.

A newer or rarer instruction in one entry says nothing against the others, so it is left out of the module's check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from ptxgen import checks, nodes
from ptxgen.errors import IsaError
from ptxgen.foreign import notes
from ptxgen.isa import lookup
from ptxgen.parser.limits import MOST_FINDINGS

_REFUSED_BY_NAME = {
    **dict.fromkeys(("tex", "tld4", "txq", "istypep"), "textures"),
    **dict.fromkeys(("suld", "sust", "sured", "suq"), "surfaces"),
    **dict.fromkeys(("tcgen05",), "tensor memory's instructions (tcgen05)"),
}  # fmt: skip
_SPARSE = re.compile(r"(mma|wgmma\.mma_async)\.sp\b")
_NAME = re.compile(r"[\w$%]+")


def noted(module: nodes.Module) -> str:
    """What to warn of where the text is for versions or architectures that the table does not have, else nothing."""
    return "\n".join(notes(module))


def verify(module: nodes.Module) -> dict[str, str]:
    """Why an entry of a module in the table's notation (`foreign.canonical`) cannot run, for those that hold, or reach,
    a form that the table lacks.

    Raises `IsaError` with every finding where anything else is wrong with the text.
    """
    line = module.line_of(".address_size")  # 0 where it is left out, which assemblers take for 64
    if line and module.address_size != 64:
        raise IsaError(module.finding(line, f".address_size: must be 64 (got {module.address_size})"))
    try:
        checks.check(module)
    except IsaError as wrong:
        every = {f.name: list(islice(_unknown(module, f), MOST_FINDINGS)) for f in _defined(module)}
        unknown = {name: found for name, found in every.items() if found}
        if not unknown:
            raise
        try:
            checks.check(_known_part(module))
        except IsaError:
            raise wrong from None
        return dict(_refused(module, unknown))
    return {}


def _defined(module: nodes.Module) -> Iterator[nodes.Function]:
    return (f for f in module.items if isinstance(f, nodes.Function) and f.body is not None)


def _unknown(module: nodes.Module, function: nodes.Function) -> Iterator[str]:
    for instruction in nodes.instructions(function.body or ()):
        if said := _why_unknown(instruction.opcode):
            yield module.finding(instruction.line, said, function)


def _why_unknown(opcode: str) -> str:
    try:
        lookup(opcode)
    except IsaError as error:
        name = opcode.partition(".")[0]
        what = "products of sparse matrices" if _SPARSE.match(opcode) else _REFUSED_BY_NAME.get(name)
        return f"{opcode}: {what} are not supported by the CPU executor" if what else str(error)
    return ""


def _known_part(module: nodes.Module) -> nodes.Module:
    """The module without the instructions whose forms are unknown."""

    def kept(items: Iterable[nodes.Statement]) -> tuple[nodes.Statement, ...]:
        return tuple(
            replace(item, items=kept(item.items)) if isinstance(item, nodes.Scope) else item
            for item in items
            if not (isinstance(item, nodes.Instruction) and _why_unknown(item.opcode))
        )

    items = tuple(
        replace(item, body=kept(item.body)) if isinstance(item, nodes.Function) and item.body is not None else item
        for item in module.items
    )
    return replace(module, items=items)


def _refused(module: nodes.Module, unknown: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Entries that hold such forms, or name what does: by a call, by an address, in a table of pointers."""
    texts = {item.name: str(item) for item in module.items if isinstance(item, nodes.Variable)}
    texts |= {function.name: str(function) for function in _defined(module)}
    named = {name: {*_NAME.findall(text)} & texts.keys() for name, text in texts.items()}
    for entry in module.entries:
        reached, todo = {entry}, [entry]
        while todo:
            found = named.get(todo.pop(), set()) - reached
            reached |= found
            todo += found
        said = [line for name, lines in unknown.items() if name in reached for line in lines]
        if said:
            yield entry, "\n".join([f"entry {entry} cannot run here:", *said])
