"""Names of PTX: registers, variables, labels and functions, and their scopes. Owns no code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.nodes.scoped import among

TYPE_BITS = {
    "pred": 1, "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32, "u32": 32,
    "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "tf32": 32, "b64": 64, "u64": 64,
    "s64": 64, "f64": 64, "b128": 128, "e4m3": 8, "e5m2": 8, "e4m3x2": 16, "e5m2x2": 16,
}  # fmt: skip


@dataclass(slots=True, eq=False)
class Reg:
    """A register of the entry or of a function it calls; `index` is unique in the entry."""

    index: int
    name: str
    bits: int
    type: str


@dataclass(slots=True, eq=False)
class Var:
    """A variable. `offset` is its place in the shared or local window or in the parameter block; for global and
    const variables `symbol` is its number in the table of addresses. A `.param` variable of a call is `words`. In a
    function that may call itself `frame` holds where the activation's local memory begins, and `offset` counts from
    there."""

    name: str
    space: str
    type: str
    size: int
    align: int
    offset: int = 0
    symbol: int = -1
    words: list[Reg] = field(default_factory=list)
    frame: Reg | None = None


@dataclass(slots=True, eq=False)
class Code:
    """A label (`block key`), or a table of them: then `name` is theirs, and `targets` are their keys once known."""

    name: str
    key: tuple[int, str] = (0, "")
    targets: tuple[tuple[int, str], ...] | None = None


Named = Reg | Var | Code


class Scope:
    """Names of one `{ … }`, with those around it. A register of `%r<n>` is made when it is first asked for."""

    __slots__ = ("counted", "names", "number", "outer")

    def __init__(self, outer: Scope | None, number: int) -> None:
        self.names: dict[str, Named] = {}
        self.counted: dict[str, tuple[int, Callable[[str], Reg]]] = {}  # stem of %r<n> -> n, what makes one
        self.outer = outer
        self.number = number

    def find(self, name: str) -> Named | None:
        """The meaning of a name, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            if scope.counted:
                make = among(scope.counted, name)
                if make is not None:
                    made = scope.names[name] = make(name)
                    return made
            scope = scope.outer
        return None


_OPAQUE = ("texref", "samplerref", "surfref")
_ADDRESS = re.compile(r"(?:generic\(([\w$]+)\)|(0[xX][fF0]+)[uU]?\(([\w$]+)\)|([\w$%]+))(?:\+(\d+))?")


class Pointed(NamedTuple):
    """An address in an initialiser: `name + offset`, of which `mask` (0: all) takes one byte."""

    name: str
    offset: int
    mask: int


def pointed(item: nodes.Symbol) -> Pointed | None:
    """What `x+4`, `generic(x)+4` or `0xff00(x)` stands for; None for anything else."""
    match = _ADDRESS.fullmatch(item.name)
    if match is None:
        return None
    generic, mask, masked, plain, offset = match.groups()
    return Pointed(generic or masked or plain, item.offset + int(offset or 0), int(mask, 16) if mask else 0)


def unsupported(variable: nodes.Variable) -> str:
    """Why code that names a variable of the module cannot run here; nothing where it can."""
    if variable.type in _OPAQUE:
        return f"a .{variable.type} variable"
    step = bits_of(variable.type, variable.line) // 8
    for item in variable.init or ():
        if isinstance(item, nodes.Symbol):
            found = pointed(item)
            if found is None or (found.mask and (step != 1 or found.mask.bit_count() != 8)):
                return f"initialiser {item}"
            if not found.mask and step != 8:
                return f"initialiser {item}, an address in {8 * step} bits,"
    return ""


def variable_bytes(variable: nodes.Variable) -> int:
    """Size of a declaration in bytes; 0 for an unsized array."""
    if variable.type in _OPAQUE:
        raise IsaError(f"line {variable.line}: .{variable.type} variables are not supported by the CPU executor")
    count = max(variable.vector, 1)
    for extent in variable.dims:
        count *= extent
    return count * bits_of(variable.type, variable.line) // 8


def variable_align(variable: nodes.Variable) -> int:
    """Alignment of a declaration: as stated, else natural."""
    return variable.align or max(1, bits_of(variable.type, variable.line) // 8 * max(variable.vector, 1))


def bits_of(kind: str, line: int = 0) -> int:
    """Bits of a PTX type."""
    bits = TYPE_BITS.get(kind)
    if bits is None:
        where = f"line {line}: " if line else ""
        raise IsaError(f"{where}type .{kind} is not supported by the CPU executor")
    return bits


def round_up(value: int, step: int) -> int:
    """The next multiple of `step`."""
    return (value + step - 1) // step * step
