"""The nodes of operands, and how each prints. `nodes.py` has the statements around them, and gives these out too.

Nodes are plain slotted values (mutable only so that making them is cheap: treat them as constants).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass


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
