"""Declarations of variables, registers and parameters: their texts to `Variable` nodes."""

from __future__ import annotations

import re
from math import prod

from ptxgen.errors import IsaError, brief
from ptxgen.nodes import Immediate, Operand, Variable, Vector
from ptxgen.parser.limits import MOST_PARAMETERS, bytes_of, whole, within
from ptxgen.parser.operand import evaluate, parse_operand, split_operands

SPACES = frozenset({"reg", "sreg", "const", "global", "local", "param", "shared", "tex"})
LINKAGE = frozenset({"visible", "extern", "weak", "common"})
_WORD = re.compile(
    r"\s*(?:(\.attribute\s*\([^)]*\))|\.(align|ptr)\b\s*(\d*)|\.([\w:]+)(\[\d+\])?)",
)
_DECLARATOR = re.compile(r"([\w$%]+)\s*(?:<\s*(\d+)\s*>)?\s*((?:\[[^\]]*\]\s*)*)", re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+([\w$%]+)(?:<(\d+)>)?")


def parse_variables(text: str, line: int) -> list[Variable]:
    """The variables of one declaration statement (without `;`): one a name. Raises `IsaError`."""
    simple = _REGISTERS.fullmatch(text)
    if simple:
        return [within(Variable("reg", simple[1], simple[2], count=whole(simple[3] or "0", simple[2]), line=line))]
    head, names = _head(text)
    return [_declared(head, part, line) for part in _declarators(names)]


def parse_parameters(text: str, line: int) -> tuple[Variable, ...]:
    """The parameters of a function's parenthesised list (without the parentheses)."""
    parts = split_operands(text)
    if len(parts) > MOST_PARAMETERS:
        raise IsaError(f"parameters: at most {MOST_PARAMETERS:,} bytes (got {len(parts):,} parameters)")
    found: list[Variable] = []
    place = 0
    for part in parts:
        begin = text.find(part, place)
        line += text.count("\n", place, begin)
        place = begin
        found += parse_variables(part, line)
    total = sum(bytes_of(each) for each in found if each.space == "param")
    if total > MOST_PARAMETERS:
        raise IsaError(f"parameters: at most {MOST_PARAMETERS:,} bytes (got {total:,})")
    return tuple(found)


class _Head:
    """The words before the names of a declaration."""

    def __init__(self) -> None:
        self.linkage: list[str] = []
        self.space = ""
        self.type = ""
        self.align = 0
        self.vector = 0
        self.attributes: list[str] = []


def _head(text: str) -> tuple[_Head, str]:
    head, at = _Head(), 0
    while match := _WORD.match(text, at):
        attribute, keyed, number, word, bank = match.groups()
        at = match.end()
        if attribute:
            head.attributes.append(attribute)
        elif keyed == "ptr" or (head.attributes and keyed == "align"):
            head.attributes.append(f".{keyed} {number}".rstrip())
        elif keyed == "align":
            head.align = whole(number or "0", ".align")
            if not head.align:
                got = number or text[at:].strip().partition(" ")[0][:20]
                raise IsaError(f".align: needs a number of bytes (got {got!r})")
        elif head.attributes and head.type:
            head.attributes.append(f".{word}")
        elif word in LINKAGE:
            head.linkage.append(word)
        elif word in SPACES and not head.space:
            head.space = word + (bank or "")
        elif re.fullmatch(r"v\d", word):
            head.vector = int(word[1:])
        elif not head.type:
            head.type = word
        else:
            raise IsaError(f"unknown word .{word} in a declaration")
    if not head.space or not head.type:
        raise IsaError("a declaration needs a state space and a type")
    return head, text[at:].strip()


def _declarators(names: str) -> list[str]:
    parts = split_operands(names)
    if not parts or not all(parts):
        raise IsaError("a declaration needs a name")
    return parts


def _declared(head: _Head, text: str, line: int) -> Variable:
    name, equals, value = (part.strip() for part in text.partition("="))
    match = _DECLARATOR.fullmatch(name)
    if match is None:
        raise IsaError(f"not a declaration of a name: {brief(text)}")
    extents = [inner.strip() for inner in re.findall(r"\[([^\]]*)\]", match[3])] if match[3] else ()
    dims = tuple(evaluate(inner) if inner else 0 for inner in extents)
    init = None
    if equals:
        within(Variable(head.space, head.type, match[1], dims))  # before rows are filled up
        node = parse_operand(value)
        if dims[:1] == (0,) and isinstance(node, Vector):
            dims = (len(node.items), *dims[1:])
        init = _flat(node, dims)
        room = prod(dims) * max(head.vector, 1)
        if len(init) > room:
            raise IsaError(f"{match[1]}: has {room:,} elements, and more are initialised (got {len(init):,})")
    attributes = " ".join(head.attributes)
    return within(Variable(
        head.space, head.type, match[1], dims, head.align, head.vector, whole(match[2] or "0", match[1]), init,
        tuple(head.linkage), attributes, line,
    ))  # fmt: skip


_ZERO = Immediate("0")


def _flat(value: Operand, dims: tuple[int, ...]) -> tuple[Operand, ...]:
    """The items of an initialiser in memory order; inner rows that are short are filled with zeros."""
    if not isinstance(value, Vector):
        return (value,)
    if len(dims) < 2:
        return value.items
    size = 1
    for extent in dims[1:]:
        size *= extent
    rows = (_flat(row, dims[1:]) for row in value.items)
    return tuple(item for row in rows for item in (*row, *[_ZERO] * (size - len(row))))
