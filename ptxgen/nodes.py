"""The nodes of parsed PTX, and how each prints. The parser makes them; checks, goldens and the executor read them.

Nodes are plain slotted values (mutable only so that making them is cheap: treat them as constants).
`line` is the 1-based line of the source text.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field


@dataclass(slots=True)
class Register:
    """`%acc3`, `%tid.x`, `%p1`; `_` is the sink."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True)
class Immediate:
    """A literal as written: `-7`, `0x1F`, `4096U`, `0f3F800000`, `0d…`, `1.5`."""

    text: str

    @property
    def is_float(self) -> bool:
        low = self.text.lower().lstrip("-")
        return low[:2] in ("0f", "0d") or (not low.startswith("0x") and any(c in low for c in ".e"))

    @property
    def value(self) -> int | float:
        """The number; `0f`/`0d` literals by their bit pattern."""
        low = self.text.lower()
        sign, body = (-1, low[1:]) if low.startswith("-") else (1, low)
        if body.startswith("0f"):
            return sign * float(struct.unpack(">f", bytes.fromhex(body[2:]))[0])
        if body.startswith("0d"):
            return sign * float(struct.unpack(">d", bytes.fromhex(body[2:]))[0])
        if self.is_float:
            return sign * float(body)
        body = body.rstrip("u")
        if body.startswith("0x"):
            return sign * int(body, 16)
        if body.startswith("0b"):
            return sign * int(body, 2)
        return sign * int(body, 8 if len(body) > 1 and body.startswith("0") else 10)

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Symbol:
    """A variable, function or label used by name; `offset` in bytes (`buf+16`)."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset}" if self.offset else self.name


@dataclass(slots=True)
class Address:
    """`[%ptr+16]`, `[buf]`, `[128]`; bulk tensor copies add coordinates: `[%map, {%x, %y}]`.

    `unified` is the qualifier of a load behind the bracket: `[%ptr].unified`.
    """

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: Vector | None = None
    unified: bool = False

    def __str__(self) -> str:
        inner = str(self.base)
        if self.offset:
            inner += f"+{self.offset}"
        if self.coordinates is not None:
            inner += f", {self.coordinates}"
        return f"[{inner}].unified" if self.unified else f"[{inner}]"


@dataclass(slots=True)
class Vector:
    """`{%a, %b}`."""

    items: tuple[Operand, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.items)) + "}"


@dataclass(slots=True)
class Negated:
    """`!%p` as a source operand."""

    operand: Register

    def __str__(self) -> str:
        return f"!{self.operand}"


@dataclass(slots=True)
class Pair:
    """`%d|%p`: a destination with a second, predicate destination."""

    first: Register
    second: Register

    def __str__(self) -> str:
        return f"{self.first}|{self.second}"


@dataclass(slots=True)
class Group:
    """`(%a, %b)`: results or arguments of a call."""

    items: tuple[Operand, ...]

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.items)) + ")"


Operand = Register | Immediate | Symbol | Address | Vector | Negated | Pair | Group


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


@dataclass(slots=True)
class Module:
    """A whole text. `version` is (8, 0); `targets` are the words of `.target` (`("sm_90a", "debug")`)."""

    version: tuple[int, int]
    targets: tuple[str, ...]
    address_size: int
    items: tuple[Function | Variable | Directive, ...]
    source: str = ""
    file: str = "<ptx>"

    @property
    def functions(self) -> dict[str, Function]:
        """Functions by name; a definition wins over a declaration."""
        found: dict[str, Function] = {}
        for item in self.items:
            if isinstance(item, Function) and (item.name not in found or item.body is not None):
                found[item.name] = item
        return found

    @property
    def entries(self) -> dict[str, Function]:
        """The `.entry` functions by name."""
        return {name: f for name, f in self.functions.items() if f.kind == "entry"}

    def source_line(self, line: int) -> str:
        """Text of a 1-based source line, stripped; empty when unknown."""
        lines = self.source.splitlines()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def __str__(self) -> str:
        head = f".version {self.version[0]}.{self.version[1]}\n.target {', '.join(self.targets)}\n"
        return head + f".address_size {self.address_size}\n" + "\n".join(map(str, self.items)) + "\n"
