"""The nodes of parsed PTX, and how each prints. The parser makes them; checks, goldens and the executor read them.

Nodes are plain slotted values (mutable only so that making them is cheap: treat them as constants).
`line` is the 1-based line of the source text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ptxgen.lines.sources import in_brackets, lines_of, origin
from ptxgen.nodes.operand import Address, Group, Immediate, Negated, Operand, Pair, Register, Symbol, Vector


@dataclass(slots=True)
class Guard:
    """`@%p` or `@!%p`."""

    register: str
    negated: bool = False

    def __str__(self) -> str:
        return f"@{'!' if self.negated else ''}{self.register}"


@dataclass(slots=True)
class Instruction:
    """One instruction. `opcode` has every modifier: `ld.global.nc.v4.u32`."""

    opcode: str
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None
    line: int = 0

    def __str__(self) -> str:
        guard = f"{self.guard} " if self.guard else ""
        operands = " " + ", ".join(map(str, self.operands)) if self.operands else ""
        return f"{guard}{self.opcode}{operands};"


@dataclass(slots=True)
class Label:
    """`$loop:`; `name` without the colon."""

    name: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.name}:"


@dataclass(slots=True)
class Variable:
    """A declaration in any state space, registers and parameters included.

    `dims` are the array extents (`(0,)` for an unsized extern array, `()` for a scalar); `vector` is 0, 2, 4 or 8;
    `count` is n of `%r<n>` (the registers `%r0` … `%r(n-1)`), else 0; `init` is the initialiser's items, flat;
    `attributes` keeps words such as `.ptr .global .align 16` of a parameter, as written.
    """

    space: str
    type: str
    name: str
    dims: tuple[int, ...] = ()
    align: int = 0
    vector: int = 0
    count: int = 0
    init: tuple[Operand, ...] | None = None
    linkage: tuple[str, ...] = ()
    attributes: str = ""
    line: int = 0

    def declaration(self) -> str:
        """The declaration without `;` (a parameter stands in a list)."""
        words = [f".{w}" for w in self.linkage] + [f".{self.space}"]
        if self.align:
            words.append(f".align {self.align}")
        if self.vector:
            words.append(f".v{self.vector}")
        words.append(f".{self.type}")
        if self.attributes:
            words.append(self.attributes)
        name = self.name + (f"<{self.count}>" if self.count else "")
        name += "".join(f"[{d}]" if d else "[]" for d in self.dims)
        text = " ".join([*words, name])
        if self.init is None:
            return text
        return f"{text} = {_nested(self.init, self.dims)}"

    def __str__(self) -> str:
        return self.declaration() + ";"


def _nested(items: tuple[Operand, ...], dims: tuple[int, ...]) -> str:
    """An initialiser's flat items in braces, one level for every extent."""
    if not dims:
        return ", ".join(map(str, items))
    size = 1
    for extent in dims[1:]:
        size *= extent
    rows = range(0, len(items), size)
    return "{" + ", ".join(_nested(items[row : row + size], dims[1:]) for row in rows) + "}"


@dataclass(slots=True)
class Directive:
    """`.pragma "…"`, `.file`, `.loc`, `.section`, `.alias`, `.branchtargets`, …: `text` is all after the name."""

    name: str
    text: str = ""
    line: int = 0

    def __str__(self) -> str:
        tail = "" if self.name in ("loc", "file", "section") else ";"
        return f".{self.name} {self.text}".rstrip() + tail


@dataclass(slots=True)
class Scope:
    """`{ … }` inside a body; registers and labels declared in it are local to it."""

    items: tuple[Statement, ...]
    line: int = 0

    def __str__(self) -> str:
        return "{\n" + "\n".join(map(str, self.items)) + "\n}"


Statement = Instruction | Label | Variable | Directive | Scope


def flat(body: Iterable[Statement]) -> Iterator[Instruction | Label | Variable | Directive]:
    """The statements of a body and of the scopes in it, in their order."""
    for statement in body:
        if isinstance(statement, Scope):
            yield from flat(statement.items)
        else:
            yield statement


def instructions(body: Iterable[Statement]) -> Iterator[Instruction]:
    """The instructions of a body and of the scopes in it, in their order."""
    return (statement for statement in flat(body) if isinstance(statement, Instruction))


def written(item: Instruction) -> list[str]:
    """The registers that an instruction may write."""
    first = item.operands[0] if item.operands else None
    if isinstance(first, Register):
        return [first.name]
    return _in_braces(first) if first is not None else []


def _in_braces(operand: Operand) -> list[str]:
    """The registers of a destination in braces, or with a predicate beside it."""
    items = getattr(operand, "items", None) or [getattr(operand, side, None) for side in ("first", "second")]
    return [item.name for item in items if isinstance(item, Register)]


@dataclass(slots=True)
class Function:
    """An `.entry` or `.func`. `body` is None for a declaration. `performance` holds `maxntid`, `minnctapersm`,
    `reqntid`, `maxnreg`, `reqnctapercluster`, `explicitcluster`, … with their numbers."""

    kind: str
    name: str
    params: tuple[Variable, ...] = ()
    returns: tuple[Variable, ...] = ()
    body: tuple[Statement, ...] | None = None
    performance: dict[str, tuple[int, ...]] = field(default_factory=dict)
    linkage: tuple[str, ...] = ()
    noreturn: bool = False
    line: int = 0

    @property
    def title(self) -> str:
        """`kernel k`, `function f`."""
        return f"{'kernel' if self.kind == 'entry' else 'function'} {self.name}"

    def __str__(self) -> str:
        head = " ".join([f".{w}" for w in self.linkage] + [f".{self.kind}"])
        if self.returns:
            head += " (" + ", ".join(p.declaration() for p in self.returns) + ")"
        head += f" {self.name}"
        if self.params:
            head += "(\n" + ",\n".join("    " + p.declaration() for p in self.params) + "\n)"
        else:
            head += "()"
        if self.noreturn:
            head += " .noreturn"
        for name, numbers in self.performance.items():
            head += f"\n.{name} {', '.join(map(str, numbers))}".rstrip()
        if self.body is None:
            return head + ";"
        return head + "\n{\n" + "\n".join(map(str, self.body)) + "\n}"


_LONGEST = 400  # characters of a line that a finding shows


def finding(source: str, file: str, about: str, line: int, what: str) -> str:
    """The one form of everything that is found in a text: `about, origin, FILE:LINE: what | the line's text`."""
    lines = lines_of(source)
    places = ", ".join(str(part) for part in (about, origin(source, line), f"{file}:{line}") if part)
    text = _cut(lines[line - 1].strip()) if 0 < line <= len(lines) else "end of text"
    shown = f" | {text}" if source else ""  # a module of nodes that were never text has none
    return f"{places}: {_cut(what, 3 * _LONGEST)}{shown}"


def _cut(text: str, most: int = _LONGEST) -> str:
    """A text without the middle of what is too long to be read."""
    return text if len(text) <= most else f"{text[: most - 50]} … {text[-40:]}"


@dataclass(slots=True)
class Module:
    """A whole text. `version` is (8, 0); `targets` are the words of `.target` (`("sm_90a", "debug")`).

    `about` says what the text is, in findings: `kernel rope (templates/rope.ptx.j2)`.
    """

    version: tuple[int, int]
    targets: tuple[str, ...]
    address_size: int
    items: tuple[Function | Variable | Directive, ...]
    source: str = ""
    file: str = "<ptx>"
    about: str = ""
    _functions: dict[str, Function] | None = field(default=None, init=False, repr=False, compare=False)
    _numbers: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def functions(self) -> dict[str, Function]:
        """Functions by name; a definition wins over a declaration. Not to be changed."""
        if self._functions is None:
            found: dict[str, Function] = {}
            for item in self.items:
                if isinstance(item, Function) and (item.name not in found or item.body is not None):
                    found[item.name] = item
            self._functions = found
            self._numbers = {name: number for number, name in enumerate(found)}
        return self._functions

    def number_of(self, function: str) -> int:
        """The place of a function among `functions`. `KeyError` for a name that is none."""
        return self._numbers[function] if self.functions else -1

    @property
    def entries(self) -> dict[str, Function]:
        """The `.entry` functions by name."""
        return {name: f for name, f in self.functions.items() if f.kind == "entry"}

    def finding(self, line: int, what: str, function: Function | None = None) -> str:
        """What is wrong in a line: `kernel K (templates/x.ptx.j2), FILE:LINE: what | the line's text`."""
        return finding(self.source, self.file, self.about or (function.title if function else ""), line, what)

    def refusal(self, line: int, what: str, text: str = "") -> str:
        """Why an executor cannot run a line: `FILE:LINE: what: the line's text [origin]`; `text` where it has none."""
        shown = self.source_line(line) or text
        return f"{self.file}:{line}: {what}{f': {shown}' if shown else ''}{in_brackets(origin(self.source, line))}"

    def line_of(self, directive: str) -> int:
        """The line that `.version` or `.target` stands in."""
        before, found, _ = self.source.partition(directive)
        return before.count("\n") + 1 if found else 0

    def source_line(self, line: int) -> str:
        """Text of a 1-based source line, stripped; empty when unknown."""
        lines = lines_of(self.source)
        return _cut(lines[line - 1].strip()) if 0 < line <= len(lines) else ""

    def __str__(self) -> str:
        head = f".version {self.version[0]}.{self.version[1]}\n.target {', '.join(self.targets)}\n"
        return head + f".address_size {self.address_size}\n" + "\n".join(map(str, self.items)) + "\n"


__all__ = [
    "Address", "Directive", "Function", "Group", "Guard", "Immediate", "Instruction", "Label", "Module", "Negated",
    "Operand", "Pair", "Register", "Scope", "Statement", "Symbol", "Variable", "Vector", "finding", "written",
]  # fmt: skip
