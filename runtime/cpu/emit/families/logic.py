"""Bits: and, or, xor, not, cnot, lop3, shifts, funnel shifts, byte permutations."""

from __future__ import annotations

from ptxgen import nodes
from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.integer import _shift
from ptxgen.runtime.cpu.emit.llvm_types import element_of, vector_of
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec

_I32 = vec("i32")


@emits("and", "or", "xor")
def bitwise(e: Emitter, op: Op) -> None:
    """Bit by bit; predicates too."""
    name, kind = op.words
    if kind == "pred":
        a, known_a = e.pred(op.operands[1]), e.so_far()
        b, known_b = e.pred(op.operands[2]), e.so_far()
        e.only_defined(e.decided(name, a, known_a, b, known_b))
        e.dst_pred(op.operands[0], e.c(f"{name} i32 {a}, {b}"))
        return
    a, b = (e.src(o, kind) for o in op.operands[1:3])
    e.dst(op.operands[0], e.c(f"{name} {vector_of(kind)} {a}, {b}"), kind)


@emits("not")
def invert(e: Emitter, op: Op) -> None:
    """Every bit inverted."""
    kind = op.words[1]
    if kind == "pred":
        e.dst_pred(op.operands[0], e.c(f"xor i32 {e.pred(op.operands[1])}, -1"))
        return
    value = e.src(op.operands[1], kind)
    e.dst(op.operands[0], e.c(f"xor {vector_of(kind)} {value}, {splat(element_of(kind), -1)}"), kind)


@emits("cnot")
def cnot(e: Emitter, op: Op) -> None:
    """1 for zero, else 0."""
    kind = op.words[1]
    vector = vector_of(kind)
    zero = e.c(f"icmp eq {vector} {e.src(op.operands[1], kind)}, zeroinitializer")
    e.dst(op.operands[0], e.c(f"zext {vec('i1')} {zero} to {vector}"), kind)


@emits("lop3")
def lop3(e: Emitter, op: Op) -> None:
    """Any function of three bits by its truth table; with a Boolean operator also `result ≠ 0 op q` as a predicate."""
    boolean = op.words[1] if op.words[1] in ("and", "or") else ""
    a, b, c = (e.src(o, "b32") for o in op.operands[1:4])
    table = op.operands[4]
    if not isinstance(table, nodes.Immediate):
        raise e.error(f"operand {table}: the truth table must be a literal")
    result = _truth_table(e, int(table.value), a, b, c)
    target = op.operands[0]
    if boolean and isinstance(target, nodes.Pair):
        nonzero = e.bits(e.c(f"icmp ne {_I32} {result}, zeroinitializer"))
        e.dst_pred(target.second, e.c(f"{boolean} i32 {nonzero}, {e.pred(op.operands[5])}"))
        target = target.first
    e.dst(target, result, "b32")


def _truth_table(e: Emitter, table: int, a: str, b: str, c: str) -> str:
    """Shannon's expansion: by a, then b, then c."""
    ones = splat("i32", -1)

    def inverted(x: str) -> str:
        return e.c(f"xor {_I32} {x}, {ones}")

    def of_c(bits: int) -> str:
        return {0: "zeroinitializer", 1: inverted(c) if bits == 1 else "", 2: c, 3: ones}[bits]

    def mix(x: str, high: str, low: str) -> str:
        if high == low:
            return high
        if (high, low) == (ones, "zeroinitializer"):
            return x
        # low ^ (x & (high ^ low)): one bit from `high` where x is set
        masked = e.c(f"and {_I32} {x}, {e.c(f'xor {_I32} {high}, {low}')}")
        return e.c(f"xor {_I32} {low}, {masked}")

    known = {0xC0: ("and", a, b), 0x3C: ("xor", a, b), 0xFC: ("or", a, b)}
    if table in known:
        name, x, y = known[table]
        return e.c(f"{name} {_I32} {x}, {y}")
    cells = {bits: of_c(bits) for bits in {table >> shift & 3 for shift in (0, 2, 4, 6)}}
    halves = [mix(b, cells[table >> shift + 2 & 3], cells[table >> shift & 3]) for shift in (0, 4)]
    return mix(a, halves[1], halves[0])


@emits("shl", "shr")
def shift(e: Emitter, op: Op) -> None:
    """Shifts; an amount from the width on leaves zeros or signs."""
    kind = op.words[1]
    vector, bits = vector_of(kind), bits_of(kind)
    value = e.src(op.operands[1], kind)
    name = "shl" if op.words[0] == "shl" else ("ashr" if kind[0] == "s" else "lshr")
    amount = op.operands[2]
    if isinstance(amount, nodes.Immediate):
        number = int(amount.value) & 0xFFFFFFFF
        if number >= bits:
            number = bits - 1
            if name != "ashr":
                e.dst(op.operands[0], "zeroinitializer", kind)
                return
        e.dst(op.operands[0], e.c(f"{name} {vector} {value}, {splat(element_of(kind), number)}"), kind)
        return
    count = e.src(amount, "u32")
    if bits == 16:
        most = splat("i32", 16)
        small = e.c(f"call {_I32} @llvm.umin.v32i32({_I32} {count}, {_I32} {most})")
        count = e.c(f"trunc {_I32} {small} to {vec('i16')}")
    e.dst(op.operands[0], _shift(e, name, vector, value, count, bits), kind)


@emits("shf")
def funnel(e: Emitter, op: Op) -> None:
    """The upper (l) or lower (r) word of a shifted pair; amounts modulo 32 (`.wrap`) or at most 32 (`.clamp`)."""
    left, wrap = op.words[1] == "l", op.words[2] == "wrap"
    low, high, amount = (e.src(o, "b32") for o in op.operands[1:4])
    name = "fshl" if left else "fshr"
    result = e.c(f"call {_I32} @llvm.{name}.v32i32({_I32} {high}, {_I32} {low}, {_I32} {amount})")
    if not wrap:
        over = e.c(f"icmp uge {_I32} {amount}, {splat('i32', 32)}")
        result = e.c(f"select {vec('i1')} {over}, {_I32} {low if left else high}, {_I32} {result}")
    e.dst(op.operands[0], result, "b32")


@emits("prmt")
def prmt(e: Emitter, op: Op) -> None:
    """Bytes of a pair of words, picked by nibbles (bit 3: the byte's sign instead), or by a mode."""
    mode = op.words[2] if len(op.words) > 2 else ""
    a, b = (e.src(o, "b32") for o in op.operands[1:3])
    selector = op.operands[3]
    if isinstance(selector, nodes.Immediate) and not mode:
        e.dst(op.operands[0], _fixed_bytes(e, a, b, int(selector.value)), "b32")
        return
    wide = vec("i64")
    pair = e.c(f"shl {wide} {e.c(f'zext {_I32} {b} to {wide}')}, {splat('i64', 32)}")
    pair = e.c(f"or {wide} {pair}, {e.c(f'zext {_I32} {a} to {wide}')}")
    chosen = e.c(f"zext {_I32} {e.src(selector, 'b32')} to {wide}")
    result = "zeroinitializer"
    for n in range(4):
        index, signs = _byte_choice(e, chosen, mode, n)
        up = e.c(f"shl {wide} {index}, {splat('i64', 3)}")
        moved = e.c(f"lshr {wide} {pair}, {up}")
        byte = e.c(f"trunc {wide} {moved} to {vec('i8')}")
        if signs is not None:
            sign = e.c(f"ashr {vec('i8')} {byte}, {splat('i8', 7)}")
            byte = e.c(f"select {vec('i1')} {signs}, {vec('i8')} {sign}, {vec('i8')} {byte}")
        wider = e.c(f"zext {vec('i8')} {byte} to {_I32}")
        placed = e.c(f"shl {_I32} {wider}, {splat('i32', 8 * n)}")
        result = e.c(f"or {_I32} {result}, {placed}")
    e.dst(op.operands[0], result, "b32")


def _fixed_bytes(e: Emitter, a: str, b: str, selector: int) -> str:
    """`prmt` with a literal selector: a masked shift for all bytes that move alike."""
    moves: dict[tuple[str, int], int] = {}  # (source, bits to the left; 32 and more: sign of a byte) -> mask
    for n in range(4):
        nibble = selector >> 4 * n & 15
        source, place = (b if nibble & 4 else a), 8 * (nibble & 3)
        key = (source, 32 + place if nibble & 8 else 8 * n - place)
        moves[key] = moves.get(key, 0) | 0xFF << 8 * n
    result = ""
    for (source, by), mask in moves.items():
        if by >= 32:
            up = e.c(f"shl {_I32} {source}, {splat('i32', 56 - by)}")
            moved, left = e.c(f"ashr {_I32} {up}, {splat('i32', 31)}"), 0xFFFFFFFF
        else:
            moved = e.c(f"{'shl' if by > 0 else 'lshr'} {_I32} {source}, {splat('i32', abs(by))}") if by else source
            left = 0xFFFFFFFF << by & 0xFFFFFFFF if by > 0 else 0xFFFFFFFF >> -by
        part = moved if mask == left else e.c(f"and {_I32} {moved}, {splat('i32', mask)}")
        result = e.c(f"or {_I32} {result}, {part}") if result else part
    return result


_MODES = {  # byte n of the result for selector 0 … 3 (PTX ISA, "prmt")
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def _byte_choice(e: Emitter, selector: str, mode: str, n: int) -> tuple[str, str | None]:
    """(index of the byte for result byte n, lanes in which its sign is wanted)."""
    wide = vec("i64")
    if not mode:
        nibble = e.c(f"lshr {wide} {selector}, {splat('i64', 4 * n)}")
        masked = e.c(f"and {wide} {nibble}, {splat('i64', 8)}")
        sign = e.c(f"icmp ne {wide} {masked}, zeroinitializer")
        return e.c(f"and {wide} {nibble}, {splat('i64', 7)}"), sign
    if mode not in _MODES:
        raise e.unsupported()
    index = "zeroinitializer"
    which = e.c(f"and {wide} {selector}, {splat('i64', 3)}")
    for value, row in enumerate(_MODES[mode]):
        here = e.c(f"icmp eq {wide} {which}, {splat('i64', value)}")
        index = e.c(f"select {vec('i1')} {here}, {wide} {splat('i64', row[n])}, {wide} {index}")
    return index, None
