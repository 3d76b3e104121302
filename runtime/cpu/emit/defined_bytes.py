"""Check mode: which bytes of a result are defined, of the instructions that only move bytes. Emits masks of lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ptxgen import nodes
from ptxgen.runtime.cpu.flow.symbols import Reg, bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.emit.warp_code import WarpCode
    from ptxgen.runtime.cpu.flow.blocks import Op, Source
    from ptxgen.runtime.cpu.flow.flow import Flow

Planes = tuple[str, ...]  # for each byte of a register, the lanes in which it is defined, as an i32
ALL = "-1"


class Followed(Protocol):
    """What is followed of registers: `DefinedLanes`."""

    e: WarpCode
    silent: bool  # whether a read is no finding

    def planes(self, reg: Reg) -> Planes | None:
        """The lanes in which each byte of a register is defined, or None if that is known to be all."""

    def both(self, a: str, b: str) -> str:
        """The lanes that are among both."""


def bytes_of_result(d: Followed, reg: Reg) -> Planes | None:
    """The bytes of a register that the present instruction writes, from those that it reads; None: not by byte."""
    words = d.e.op.words
    rule = _RULES.get(words[0])
    if words[0] == "cvt" and len(words) > 3:
        return _pair(d, reg) or _number(d, reg)
    if words[0] == "slct":
        return _by_sign(d, reg)
    if words[-1] in _PAIRS and words[0] in _BY_HALVES and reg.bits == 32:
        return _halves(d, reg)
    return None if rule is None or len(words) != _WORDS.get(words[0], 2) else rule(d, reg)


def by_byte(flow: Flow) -> int:
    """The registers of which some bytes may be defined and others not, as a bit set."""
    found, copies = 0, []
    for block in flow.blocks:
        for op in block.ops:
            if op.pure and op.words[0] in _COPIES and not any(isinstance(o, nodes.Vector) for o in op.operands):
                copies += [(target.index, [source.index for source in op.reads]) for target in op.writes]
            elif op.pure and _moves_bytes(op.words):
                for target in op.writes:
                    found |= (target.bits > 8) << target.index
    before = -1
    while before != found:
        before = found
        for index, sources in copies:
            if any(found >> source & 1 for source in sources):
                found |= 1 << index
    return found


def _moves_bytes(words: tuple[str, ...]) -> bool:
    """Whether bytes of what such an instruction writes may come from different bytes."""
    if words[0] == "cvt":
        return words[-2].endswith("x2") or (len(words) == 3 and words[1][0] in "us" and words[2][0] in "us")
    if words[-1] in _PAIRS and words[0] in _BY_HALVES:
        return True
    return words[0] in _RULES and (words[0] not in ("add", "sub") or words[-1][0] != "f")


def _field(d: Followed, source: Planes, begin: int, end: int) -> str:
    """The lanes in which these bits of a source are defined; none of them: all lanes."""
    lanes = ALL
    for n in range(max(begin, 0) // 8, -(-min(end, 8 * len(source)) // 8) if end > begin else 0):
        lanes = d.both(lanes, source[n])
    return lanes


def _numbers(operands: tuple[Source, ...]) -> list[int] | None:
    """Their values, where all are immediate."""
    found = [int(one.value) for one in operands if isinstance(one, nodes.Immediate)]
    return found if len(found) == len(operands) else None


def _source(d: Followed, operand: Source, count: int) -> Planes | None:
    """`count` bytes of a source, from its lowest on."""
    if isinstance(operand, nodes.Immediate):
        return (ALL,) * count
    reg = d.e.reg(operand)
    if reg is None or reg.bits < 8 * count:
        return None
    return (d.planes(reg) or (ALL,) * count)[:count]


def _prmt(d: Followed, reg: Reg) -> Planes | None:
    _, a, b, selector = d.e.op.operands
    low, high = _source(d, a, 4), _source(d, b, 4)
    if low is None or high is None or not isinstance(selector, nodes.Immediate):
        return None
    number = int(selector.value)
    return tuple((low + high)[number >> 4 * n & 7] for n in range(4))


def _shift(d: Followed, reg: Reg) -> Planes | None:
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


def _funnel(d: Followed, reg: Reg) -> Planes | None:
    """shf: 32 bits of two registers side by side."""
    _, direction, mode, _ = d.e.op.words
    _, a, b, amount = d.e.op.operands
    low, high, number = _source(d, a, 4), _source(d, b, 4), _numbers((amount,))
    if low is None or high is None or number is None:
        return None
    by = number[0] & 31 if mode == "wrap" else min(number[0] & 0xFFFFFFFF, 32)
    begin = 32 - by if direction == "l" else by
    return tuple(_field(d, low + high, begin + 8 * n, begin + 8 * n + 8) for n in range(4))


def _extract(d: Followed, reg: Reg) -> Planes | None:
    """bfe: a field, from its lowest bit on; behind it zeros, or the field's sign."""
    kind = d.e.op.words[1]
    count = bits_of(kind) // 8
    source, numbers = _source(d, d.e.op.operands[1], count), _numbers(d.e.op.operands[2:])
    if source is None or numbers is None:
        return None
    begin, end = numbers[0] & 0xFF, (numbers[0] & 0xFF) + (numbers[1] & 0xFF)
    last = min(end, 8 * count) - 1
    fill = _field(d, source, last, last + 1) if kind[0] == "s" else ALL
    return tuple(
        d.both(_field(d, source, begin + 8 * n, min(begin + 8 * n + 8, end)), fill if begin + 8 * n + 8 > end else ALL)
        for n in range(count)
    )


def _insert(d: Followed, reg: Reg) -> Planes | None:
    """bfi: a field of one register within another."""
    count = bits_of(d.e.op.words[1]) // 8
    _, a, b, *place = d.e.op.operands
    field, around, numbers = _source(d, a, count), _source(d, b, count), _numbers(tuple(place))
    if field is None or around is None or numbers is None:
        return None
    begin = numbers[0] & 0xFF
    end = begin + (numbers[1] & 0xFF)
    found = []
    for n in range(count):
        first, last = 8 * n, 8 * n + 8
        inside = _field(d, field, max(first, begin) - begin, min(last, end) - begin)
        found.append(inside if begin <= first and last <= end else d.both(inside, around[n]))
    return tuple(found)


def _lookup(d: Followed, reg: Reg) -> Planes | None:
    """lop3: of the sources those count on which a byte depends, where the others are immediate."""
    *inputs, table = d.e.op.operands[1:]
    sources, number = [_source(d, one, 4) for one in inputs], _numbers((table,))
    if number is None or any(source is None for source in sources):
        return None
    fixed = [int(one.value) if isinstance(one, nodes.Immediate) else None for one in inputs]
    found = []
    for n in range(4):
        lanes = ALL
        for which, source in enumerate(sources):
            assert source is not None
            if fixed[which] is None and any(_depends(number[0], which, fixed, 8 * n + bit) for bit in range(8)):
                lanes = d.both(lanes, source[n])
        found.append(lanes)
    return tuple(found)


def _depends(table: int, which: int, fixed: list[int | None], bit: int) -> bool:
    """Whether an input changes that bit of a lop3, whatever the inputs that are not fixed are."""
    weight = (4, 2, 1)
    for index in range(8):
        if all(
            value is None or bool(index & weight[n]) == bool(value >> bit & 1) for n, value in enumerate(fixed)
        ) and (table >> index & 1 != table >> (index ^ weight[which]) & 1):
            return True
    return False


def _select(d: Followed, reg: Reg) -> Planes | None:
    """selp: the source that is chosen, if the predicate is defined."""
    count = bits_of(d.e.op.words[1]) // 8
    _, a, b, chosen = d.e.op.operands
    left, right, predicate = _source(d, a, count), _source(d, b, count), d.e.reg(chosen)
    if left is None or right is None or predicate is None:
        return None
    known = (d.planes(predicate) or (ALL,))[0]
    if left == right == (ALL,) * count:
        return (known,) * count
    before, d.silent = d.silent, True
    held = d.e.predicate(predicate)
    d.silent = before
    return _either(d, held, known, left, right)


def chooses_first(e: WarpCode, op: Op) -> str:
    """The lanes in which slct takes its first source, as <32 x i1>."""
    test = op.words[-1]
    c = e.src(op.operands[3], test)
    if "ftz" in op.words:
        return e.c(f"fcmp ogt {vec('float')} {c}, {splat('float', '0xB810000000000000')}")  # -2^-126, the first normal
    if test == "f32":
        return e.c(f"fcmp oge {vec('float')} {c}, zeroinitializer")
    return e.c(f"icmp sge {vec('i32')} {c}, zeroinitializer")


def _by_sign(d: Followed, reg: Reg) -> Planes | None:
    """slct: the source that the third chooses, if that is defined."""
    count = bits_of(d.e.op.words[-2]) // 8
    _, a, b, chosen = d.e.op.operands
    left, right, sign = _source(d, a, count), _source(d, b, count), _source(d, chosen, 4)
    if left is None or right is None or sign is None or d.e.reg(chosen) is reg:  # what chose is overwritten by now
        return None
    before, d.silent = d.silent, True
    held = d.e.bits(chooses_first(d.e, d.e.op))
    d.silent = before
    return _either(d, held, _field(d, sign, 0, 32), left, right)


def _either(d: Followed, held: str, known: str, left: Planes, right: Planes) -> Planes:
    """The bytes of `left` in the lanes `held`, of `right` in the others; defined where that choice is `known`."""
    others = d.e.c(f"xor i32 {held}, -1")
    found: dict[tuple[str, str], str] = {}
    for x, y in zip(left, right, strict=True):
        if (x, y) not in found:
            first, second = (d.both(one, lanes) for one, lanes in ((x, held), (y, others)))
            found[x, y] = d.both(d.e.c(f"or i32 {first}, {second}"), known)
    return tuple(found[pair] for pair in zip(left, right, strict=True))


def _bitwise(d: Followed, reg: Reg) -> Planes | None:
    name, kind = d.e.op.words
    count = bits_of(kind) // 8
    sources = [_source(d, operand, count) for operand in d.e.op.operands[1:]]
    if name == "xor" and _same(d):
        return (ALL,) * (reg.bits // 8)
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


def _same(d: Followed) -> bool:
    """Whether both sources are one register: then `xor` and `sub` give 0, whatever it holds."""
    a, b = map(d.e.reg, d.e.op.operands[1:])
    return a is not None and a is b and a.bits > 1


def _mov(d: Followed, reg: Reg) -> Planes | None:
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


def _cvt(d: Followed, reg: Reg) -> Planes | None:
    _, to, from_ = d.e.op.words
    if to[0] not in "us" or from_[0] not in "us":
        return _number(d, reg)
    source = _source(d, d.e.op.operands[1], bits_of(from_) // 8)
    if source is None:
        return None
    filled = ALL
    if from_[0] == "s":
        filled = source[-1]
    whole = (*source, *(filled,) * 8)[: bits_of(to) // 8]
    top = whole[-1] if to[0] == "s" else ALL
    return (*whole, *(top,) * 8)[: reg.bits // 8]


def _number(d: Followed, reg: Reg) -> Planes | None:
    """cvt of one number, of which all bits count; those of a wider register do not."""
    *_, to, from_ = d.e.op.words
    if len(d.e.op.operands) != 2 or to.endswith("x2") or from_.endswith("x2"):
        return None
    source = _source(d, d.e.op.operands[1], bits_of(from_) // 8)
    return None if source is None else (_field(d, source, 0, 8 * len(source)),) * (reg.bits // 8)


def _halves(d: Followed, reg: Reg) -> Planes | None:
    """Arithmetic of pairs: each half of the result comes from those halves of the sources."""
    result: Planes = (ALL,) * 4
    for operand in d.e.op.operands[1:]:
        source = _source(d, operand, 4)
        if source is None:
            return None
        low, high = _field(d, source, 0, 16), _field(d, source, 16, 32)
        result = tuple(d.both(a, b) for a, b in zip(result, (low, low, high, high), strict=True))
    return result


def _sum(d: Followed, reg: Reg) -> Planes | None:
    """add, sub: a byte depends on those bytes of the sources and on what may carry into them."""
    count = bits_of(d.e.op.words[1]) // 8
    sources = [_source(d, operand, count) for operand in d.e.op.operands[1:]]
    if d.e.op.words[0] == "sub" and d.e.op.words[1][0] != "f" and _same(d):
        return (ALL,) * (reg.bits // 8)
    if d.e.op.words[1][0] == "f" or any(source is None for source in sources):
        return None
    found = [ALL] * count
    for source in sources:
        assert source is not None
        found = [d.both(lanes, _field(d, source, 0, 8 * n + 8)) for n, lanes in enumerate(found)]
    return tuple(found)


def _pair(d: Followed, reg: Reg) -> Planes | None:
    """cvt to a pair: of two numbers (the first goes to the upper half), or of another pair."""
    *_, to, from_ = d.e.op.words
    sources = d.e.op.operands[1:]
    if not to.endswith("x2") or len(sources) > 2:
        return None
    if len(sources) == 2:
        halves = [_source(d, one, bits_of(from_) // 8) for one in reversed(sources)]
    else:
        whole = _source(d, sources[0], _width(d, sources[0]) // 8)
        middle = len(whole) // 2 if whole else 0
        halves = [whole[:middle], whole[middle:]] if whole and middle else [None]
    if any(half is None for half in halves):
        return None
    count = reg.bits // 8 // 2
    return tuple(_field(d, half, 0, 8 * len(half)) for half in halves if half is not None for _ in range(count))


def _width(d: Followed, operand: Source) -> int:
    """The bits of a register; of anything else 0."""
    reg = d.e.reg(operand)
    return 0 if reg is None else reg.bits


_RULES: dict[str, Callable[[Followed, Reg], Planes | None]] = {
    "prmt": _prmt, "shl": _shift, "shr": _shift, "and": _bitwise, "or": _bitwise, "xor": _bitwise, "not": _bitwise,
    "mov": _mov, "cvt": _cvt, "shf": _funnel, "bfe": _extract, "bfi": _insert, "lop3": _lookup, "selp": _select,
    "add": _sum, "sub": _sum,
}  # fmt: skip
_COPIES = frozenset({"mov", "selp", "slct"})  # of whole registers, unless they name vectors
_PAIRS = frozenset({"f16x2", "bf16x2", "u16x2", "s16x2"})
_BY_HALVES = frozenset({"add", "sub", "mul", "fma", "min", "max", "neg", "abs", "set", "ex2", "tanh"})
_WORDS = {"cvt": 3, "shf": 4}  # words of the opcode, where they are not two
