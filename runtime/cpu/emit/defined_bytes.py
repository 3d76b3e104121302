"""Check mode: which bytes of a result are defined, of instructions that keep bytes or elements apart. Emits masks of lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    rule = _rule(d.e.op.words)
    return None if rule is None else rule(d, reg)


def _rule(words: tuple[str, ...]) -> Callable[[DefinedLanes, Reg], Planes | None] | None:
    name = words[0]
    if words[-1] in _PAIRS and name in _BY_HALF and (name != "set" or words[-2] in _PAIRS):
        return _halves
    if name == "cvt" and len(words) > 3:
        return _packed if words[-2] in _PAIRS or words[-2] in _BYTE_PAIRS else None
    return _RULES.get(name) if len(words) == _WORDS.get(name, 2) else None


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


def _lop3(d: DefinedLanes, reg: Reg) -> Planes | None:
    return _joined(d, d.e.op.operands[1:4], 4)


def _joined(d: DefinedLanes, operands: Iterable[Source], count: int) -> Planes | None:
    """Byte by byte, where all sources are defined."""
    result = (ALL,) * count
    for operand in operands:
        source = _source(d, operand, count)
        if source is None:
            return None
        result = tuple(d.both(a, b) for a, b in zip(result, source, strict=True))
    return result


def _carried(d: DefinedLanes, reg: Reg) -> Planes | None:
    """A byte of a sum depends on those below."""
    kind = d.e.op.words[1]
    below = _joined(d, d.e.op.operands[1:], bits_of(kind) // 8) if kind[0] in "us" else None
    if below is None:
        return None
    result: list[str] = []
    for plane in below:
        result.append(d.both(result[-1], plane) if result else plane)
    return tuple(result)


def _halves(d: DefinedLanes, reg: Reg) -> Planes | None:
    """Two elements of 16 bits, apart from each other."""
    planes = _joined(d, d.e.op.operands[1:], 4)
    if planes is None:
        return None
    low, high = (d.both(planes[n], planes[n + 1]) for n in (0, 2))
    return (low, low, high, high)


def _packed(d: DefinedLanes, reg: Reg) -> Planes | None:
    """Conversions of pairs: the second source (or half) goes to the low element."""
    to, from_ = d.e.op.words[-2:]
    sources = d.e.op.operands[1:]
    if len(sources) == 2 and from_ == "f32":
        found = [_source(d, operand, 4) for operand in reversed(sources)]
        if None in found:
            return None
        elements = [_all_of(d, planes) for planes in found if planes is not None]
    elif len(sources) == 1 and (from_ in _PAIRS or from_ in _BYTE_PAIRS):
        size = 2 if from_ in _PAIRS else 1
        whole = _source(d, sources[0], 2 * size)
        if whole is None:
            return None
        elements = [_all_of(d, whole[:size]), _all_of(d, whole[size:])]
    else:
        return None
    width = 2 if to in _PAIRS else 1
    return tuple(plane for plane in elements for _ in range(width))


def _all_of(d: DefinedLanes, planes: Planes) -> str:
    result = planes[0]
    for plane in planes[1:]:
        result = d.both(result, plane)
    return result


_PAIRS = frozenset({"f16x2", "bf16x2", "u16x2", "s16x2"})
_BYTE_PAIRS = frozenset({"e4m3x2", "e5m2x2"})
_BY_HALF = frozenset({"add", "sub", "mul", "fma", "min", "max", "neg", "abs", "set", "ex2", "tanh"})
_RULES: dict[str, Callable[[DefinedLanes, Reg], Planes | None]] = {
    "prmt": _prmt, "shl": _shift, "shr": _shift, "and": _bitwise, "or": _bitwise, "xor": _bitwise, "not": _bitwise,
    "mov": _mov, "cvt": _cvt, "lop3": _lop3, "add": _carried, "sub": _carried,
}  # fmt: skip
_WORDS = {"cvt": 3}  # words of the opcode, where they are not two
