"""What a fragment's instructions work on: registers and arrays of them, variables, addresses, immediates.

Values only name things; `ptxgen.builder` declares them and checks their types.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True, slots=True)
class Reg:
    """A register. `str()` gives `%name`; `reg[16]` is the address `[%reg+16]`; `~pred` negates a predicate."""

    name: str
    type: str

    def __getitem__(self, offset: int) -> Addr:
        return Addr(self, offset)

    def __invert__(self) -> Not:
        if self.type != "pred":
            raise TypeError(f"~%{self.name}: only a predicate can be negated (got a .{self.type} register)")
        return Not(self)

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Not:
    """A negated predicate, as a guard or a source operand."""

    reg: Reg

    def __invert__(self) -> Reg:
        return self.reg

    def __str__(self) -> str:
        return f"!{self.reg}"


class RegArray(Sequence[Reg]):
    """`%acc<8>`: registers %acc0 … %acc7. An index gives one, a slice a tuple of them (printed in braces)."""

    __slots__ = ("name", "regs", "type")

    def __init__(self, name: str, type: str, count: int) -> None:
        self.name, self.type = name, type
        self.regs = tuple(Reg(f"{name}{i}", type) for i in range(count))

    def __len__(self) -> int:
        return len(self.regs)

    def __iter__(self) -> Iterator[Reg]:
        return iter(self.regs)

    @overload
    def __getitem__(self, index: int) -> Reg: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Reg, ...]: ...
    def __getitem__(self, index: int | slice) -> Reg | tuple[Reg, ...]:
        return self.regs[index]


@dataclass(frozen=True, slots=True)
class Shared:
    """A variable in shared memory. As an operand it is its address; `var[16]` is `[var+16]`."""

    name: str
    bytes: int
    align: int = 16
    dynamic: bool = False

    def __getitem__(self, offset: int) -> Addr:
        return Addr(self, offset)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Table:
    """Global memory that comes with the module: constants, or `room` bytes to write, at a multiple of 128.

    As an operand it is its address.
    """

    name: str
    type: str
    values: tuple[int | float, ...]
    room: int = 0

    def __getitem__(self, offset: int) -> Addr:
        return Addr(self, offset)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Addr:
    """A memory operand: base and a constant byte offset. `coordinates` only for tensor copies."""

    base: Reg | Shared | Table | str
    offset: int = 0
    coordinates: tuple[Reg | int, ...] = ()

    def __str__(self) -> str:
        inner = f"{self.base}+{self.offset}" if self.offset else str(self.base)
        if self.coordinates:
            inner += ", {" + ", ".join(map(str, self.coordinates)) + "}"
        return f"[{inner}]"


@dataclass(frozen=True, slots=True)
class Or:
    """`%d|%p`: a destination with a second, predicate destination."""

    first: Reg
    second: Reg

    def __str__(self) -> str:
        return f"{self.first}|{self.second}"


class Sink:
    """`_`: a result that is discarded."""

    def __str__(self) -> str:
        return "_"


SINK = Sink()


def immediate(value: float, type: str) -> str:
    """The literal of a Python number in a slot of a PTX type: floats by bit pattern, bit patterns (an untyped slot,
    more than a byte or negative) in hexadecimal, other integers in decimal."""
    if type == "f64" or (type == "b64" and isinstance(value, float)):
        return "0d" + struct.pack(">d", float(value)).hex().upper()
    if isinstance(value, float) or type == "f32":
        return "0f" + struct.pack(">f", float(value)).hex().upper()
    if type in _BIT_PATTERNS and not 0 <= value < 256:
        return f"0x{int(value) & ((1 << _BIT_PATTERNS[type]) - 1):X}"
    return str(value)


_BIT_PATTERNS = {"b16": 16, "b32": 32, "b64": 64}
