"""Check mode: which bytes of a result are defined, of the instructions that only move bytes. Emits masks of lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ptxgen import nodes
from ptxgen.runtime.cpu.flow.symbols import Reg, bits_of

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.emit.definedness import DefinedLanes
    from ptxgen.runtime.cpu.flow.flow import Source

Planes = tuple[str, ...]  # for each byte of a register, the lanes in which it is defined, as an i32
ALL = "-1"


def bytes_of_result(d: DefinedLanes, reg: Reg) -> Planes | None:
    """The bytes of a register that the present instruction writes, from those that it reads; None: not by byte."""
    words = d.e.op.words
    rule = _RULES.get(words[0])
    return None if rule is None or len(words) != _WORDS.get(words[0], 2) else rule(d, reg)


def _source(d: DefinedLanes, operand: Source, count: int) -> Planes | None:
    """`count` bytes of a source, from its lowest on."""
    if isinstance(operand, nodes.Immediate):
        return (ALL,) * count
    reg = d.e.reg(operand)
    if reg is None or reg.bits < 8 * count:
        return None
    return (d.planes(reg) or (ALL,) * count)[:count]


def _prmt(d: DefinedLanes, reg: Reg) -> Planes | None:
    _, a, b, selector = d.e.op.operands
    low, high = _source(d, a, 4), _source(d, b, 4)
    if low is None or high is None or not isinstance(selector, nodes.Immediate):
        return None
    number = int(selector.value)
    return tuple((low + high)[number >> 4 * n & 7] for n in range(4))


def _shift(d: DefinedLanes, reg: Reg) -> Planes | None:
    name, kind = d.e.op.words
    count = bits_of(kind) // 8
    source, amount = _source(d, d.e.op.operands[1], count), d.e.op.operands[2]
    if source is None or not isinstance(amount, nodes.Immediate):
        return None
    by = int(amount.value) & 0xFFFFFFFF
    whole, part = divmod(min(by, 8 * count), 8)
    filled = source[-1] if name == "shr" and kind[0] == "s" else ALL
    left = name == "shl"

    def at(n: int) -> str:
        return source[n] if 0 <= n < count else filled if n >= count else ALL

    moved = []
    for n in range(count):
        near = at(n - whole) if left else at(n + whole)
        moved.append(d.both(near, at(n - whole - 1) if left else at(n + whole + 1)) if part else near)
    return tuple(moved)


def _bitwise(d: DefinedLanes, reg: Reg) -> Planes | None:
    name, kind = d.e.op.words
    count = bits_of(kind) // 8
    sources = [_source(d, operand, count) for operand in d.e.op.operands[1:]]
    if not count or any(source is None for source in sources):
        return None
    result = list((ALL,) * count)
    for source in sources:
        assert source is not None
        result = [d.both(a, b) for a, b in zip(result, source, strict=True)]
    for operand in d.e.op.operands[1:]:
        if name in ("and", "or") and isinstance(operand, nodes.Immediate):
            number = int(operand.value) ^ (0 if name == "and" else -1)  # bytes that do not depend on the other source
            result = [ALL if not number >> 8 * n & 0xFF else plane for n, plane in enumerate(result)]
    return tuple(result)


def _mov(d: DefinedLanes, reg: Reg) -> Planes | None:
    target, source = d.e.op.operands
    count = reg.bits // 8
    if isinstance(source, nodes.Vector):
        parts: list[str] = []
        for item in source.items:
            size = count // len(source.items)
            part = _source(d, item, size)
            if part is None:
                return None
            parts += part
        return tuple(parts)
    if isinstance(target, nodes.Vector):
        whole = _source(d, source, count * len(target.items))
        places = [n for n, item in enumerate(target.items) if d.e.reg(item) is reg]
        return whole[count * places[0] : count * (places[0] + 1)] if whole and places else None
    return _source(d, source, count)


def _cvt(d: DefinedLanes, reg: Reg) -> Planes | None:
    _, to, from_ = d.e.op.words
    if to[0] not in "usb" or from_[0] not in "usb":
        return None
    source = _source(d, d.e.op.operands[1], bits_of(from_) // 8)
    if source is None:
        return None
    filled = ALL
    if from_[0] == "s":
        filled = source[-1]
    whole = (*source, *(filled,) * 8)[: bits_of(to) // 8]
    top = whole[-1] if to[0] == "s" else ALL
    return (*whole, *(top,) * 8)[: reg.bits // 8]


_RULES: dict[str, Callable[[DefinedLanes, Reg], Planes | None]] = {
    "prmt": _prmt, "shl": _shift, "shr": _shift, "and": _bitwise, "or": _bitwise, "xor": _bitwise, "not": _bitwise,
    "mov": _mov, "cvt": _cvt,
}  # fmt: skip
_WORDS = {"cvt": 3}  # words of the opcode, where they are not two
