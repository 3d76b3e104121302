"""Integer arithmetic: add … mad, carries, division, min/max, bit counting and bit fields, dot products of bytes."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.floating import arithmetic as float_arithmetic
from ptxgen.runtime.cpu.emit.families.floating import is_float_op
from ptxgen.runtime.cpu.emit.llvm_types import SIGNED, element_of, integer_vector, vector_of
from ptxgen.runtime.cpu.flow.flow import Op, Source
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec

Emit = Callable[[Emitter, Op], None]
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def shared(*opcodes: str) -> Callable[[Emit], Emit]:
    """Register an emitter for opcodes that float types have too; those of a float type go to `floating`."""

    def register(emit: Emit) -> Emit:
        @emits(*opcodes)
        def by_type(e: Emitter, op: Op) -> None:
            (float_arithmetic if is_float_op(op) else emit)(e, op)

        return by_type

    return register


def _sources(e: Emitter, op: Op, kind: str, count: int = 2) -> list[str]:
    return [e.src(o, kind) for o in op.operands[1 : 1 + count]]


@shared("add", "sub")
def add(e: Emitter, op: Op) -> None:
    """Sum or difference; `.sat` clamps s32; `.cc` also sets the carry flag, which a borrow clears."""
    kind, name = op.words[-1], op.words[0]
    vector = vector_of(kind)
    a, b = _sources(e, op, kind)
    if "sat" in op.words:
        result = e.c(f"call {vector} @llvm.s{name}.sat.{_suffix(vector)}({vector} {a}, {vector} {b})")
    else:
        result = e.c(f"{name} {vector} {a}, {b}")
    if "cc" in op.words:
        test = f"icmp ult {vector} {result}, {a}" if name == "add" else f"icmp uge {vector} {a}, {b}"
        e.dst_pred(e.flow.carry, e.bits(e.c(test)))
    e.dst(op.operands[0], result, kind)


@emits("addc", "subc")
def addc(e: Emitter, op: Op) -> None:
    """a + b + carry, or a − b − borrow = a + ~b + carry: nvcc mixes the two in one chain."""
    kind, name = op.words[-1], op.words[0][:3]
    a, b = _sources(e, op, kind)
    if name == "sub":
        b = e.c(f"xor {vector_of(kind)} {b}, {splat(element_of(kind), -1)}")
    _with_carry(e, op, kind, a, b)


def _with_carry(e: Emitter, op: Op, kind: str, a: str, b: str) -> None:
    vector = vector_of(kind)
    carry = e.c(f"zext {vec('i1')} {e.lanes(e.pred(e.flow.carry))} to {vector}")
    first = e.c(f"add {vector} {a}, {b}")
    result = e.c(f"add {vector} {first}, {carry}")
    if "cc" in op.words:
        one, two = e.c(f"icmp ult {vector} {first}, {a}"), e.c(f"icmp ult {vector} {result}, {first}")
        e.dst_pred(e.flow.carry, e.bits(e.c(f"or {vec('i1')} {one}, {two}")))
    e.dst(op.operands[0], result, kind)


def _suffix(vector: str) -> str:
    count, _, element = vector[1:-1].partition(" x ")
    return f"v{count}{element}"


def _widened(e: Emitter, value: str, kind: str) -> tuple[str, str]:
    """(the value with twice the bits, that vector type)."""
    bits = bits_of(kind)
    wide = integer_vector(2 * bits)
    extension = "sext" if kind in SIGNED else "zext"
    return e.c(f"{extension} {integer_vector(bits)} {value} to {wide}"), wide


def _product(e: Emitter, a: str, b: str, kind: str, part: str) -> str:
    """The `lo`, `hi` or `wide` part of a product."""
    bits = bits_of(kind)
    narrow = integer_vector(bits)
    if part == "lo":
        return e.c(f"mul {narrow} {a}, {b}")
    if bits == 64:
        name = f"mulhi.{'s' if kind in SIGNED else 'u'}64"
        return e.c(f"call {narrow} @{name}({narrow} {a}, {narrow} {b})")
    (x, wide), (y, _) = _widened(e, a, kind), _widened(e, b, kind)
    full = e.c(f"mul {wide} {x}, {y}")
    if part == "wide":
        return full
    down = e.c(f"lshr {wide} {full}, {splat(f'i{2 * bits}', bits)}")
    return e.c(f"trunc {wide} {down} to {narrow}")


@shared("mul")
def mul(e: Emitter, op: Op) -> None:
    """The low, high or whole product."""
    kind, part = op.words[-1], op.words[1]
    a, b = _sources(e, op, kind)
    e.dst(op.operands[0], _product(e, a, b, kind, part), _WIDE[kind] if part == "wide" else kind)


@shared("mad", "madc")
def mad(e: Emitter, op: Op) -> None:
    """Product plus addend; `madc` also adds the carry; `.sat` clamps the high form of s32."""
    kind, part = op.words[-1], op.words[1]
    a, b = _sources(e, op, kind)
    result_kind = _WIDE[kind] if part == "wide" else kind
    vector = vector_of(result_kind)
    product, addend = _product(e, a, b, kind, part), e.src(op.operands[3], result_kind)
    if op.words[0] == "madc":
        _with_carry(e, op, result_kind, product, addend)
        return
    if "sat" in op.words:
        result = e.c(f"call {vector} @llvm.sadd.sat.{_suffix(vector)}({vector} {product}, {vector} {addend})")
    else:
        result = e.c(f"add {vector} {product}, {addend}")
    if "cc" in op.words:
        e.dst_pred(e.flow.carry, e.bits(e.c(f"icmp ult {vector} {result}, {product}")))
    e.dst(op.operands[0], result, result_kind)


@emits("mul24", "mad24")
def mul24(e: Emitter, op: Op) -> None:
    """24-bit products: `lo` is the low 32 bits of 48, `hi` bits 16 to 47."""
    kind, part = op.words[-1], op.words[1]
    a, b = _sources(e, op, kind)
    shift = "ashr" if kind == "s32" else "lshr"
    vector, wide = vec("i32"), vec("i64")
    parts = []
    for value in (a, b):
        up = e.c(f"shl {vector} {value}, {splat('i32', 8)}")
        narrow = e.c(f"{shift} {vector} {up}, {splat('i32', 8)}")
        parts.append(e.c(f"{'sext' if kind == 's32' else 'zext'} {vector} {narrow} to {wide}"))
    full = e.c(f"mul {wide} {parts[0]}, {parts[1]}")
    if part == "hi":
        full = e.c(f"lshr {wide} {full}, {splat('i64', 16)}")
    result = e.c(f"trunc {wide} {full} to {vector}")
    if op.words[0] == "mad24":
        addend = e.src(op.operands[3], kind)
        if "sat" in op.words:
            result = e.c(f"call {vector} @llvm.sadd.sat.v32i32({vector} {result}, {vector} {addend})")
        else:
            result = e.c(f"add {vector} {result}, {addend}")
    e.dst(op.operands[0], result, kind)


@emits("sad")
def sad(e: Emitter, op: Op) -> None:
    """c + |a − b|."""
    kind = op.words[-1]
    vector = vector_of(kind)
    a, b, c = _sources(e, op, kind, 3)
    less = e.c(f"icmp {'slt' if kind in SIGNED else 'ult'} {vector} {a}, {b}")
    up, down = e.c(f"sub {vector} {b}, {a}"), e.c(f"sub {vector} {a}, {b}")
    distance = e.c(f"select {vec('i1')} {less}, {vector} {up}, {vector} {down}")
    e.dst(op.operands[0], e.c(f"add {vector} {c}, {distance}"), kind)


@shared("div", "rem")
def div(e: Emitter, op: Op) -> None:
    """Quotient or remainder; a zero divisor gives all ones, or the dividend."""
    kind = op.words[-1]
    vector = vector_of(kind)
    a, b = _sources(e, op, kind)
    # Lanes that do not execute hold any value: they divide by 1, as a division by 0 would end the process.
    live = e.exec_vector()
    safe = e.c(f"select {vec('i1')} {live}, {vector} {b}, {vector} {splat(element_of(kind), 1)}")
    result = e.c(f"call {vector} @{op.words[0]}.{kind}({vector} {a}, {vector} {safe})")
    e.dst(op.operands[0], result, kind)


@shared("abs")
def absolute(e: Emitter, op: Op) -> None:
    """|a|; the most negative number stays."""
    kind = op.words[-1]
    vector = vector_of(kind)
    (a,) = _sources(e, op, kind, 1)
    e.dst(op.operands[0], e.c(f"call {vector} @llvm.abs.{_suffix(vector)}({vector} {a}, i1 false)"), kind)


@shared("neg")
def neg(e: Emitter, op: Op) -> None:
    """−a."""
    kind = op.words[-1]
    vector = vector_of(kind)
    (a,) = _sources(e, op, kind, 1)
    e.dst(op.operands[0], e.c(f"sub {vector} zeroinitializer, {a}"), kind)


@shared("min", "max")
def minimum(e: Emitter, op: Op) -> None:
    """The smaller or larger; `.relu` then clamps at zero."""
    kind = op.words[-1]
    vector = vector_of(kind)
    a, b = _sources(e, op, kind)
    sign = "s" if kind[0] == "s" else "u"
    result = e.c(f"call {vector} @llvm.{sign}{op.words[0]}.{_suffix(vector)}({vector} {a}, {vector} {b})")
    if "relu" in op.words:
        result = e.c(f"call {vector} @llvm.smax.{_suffix(vector)}({vector} {result}, {vector} zeroinitializer)")
    e.dst(op.operands[0], result, kind)


@emits("popc", "clz", "brev")
def count_bits(e: Emitter, op: Op) -> None:
    """Set bits, leading zeros (32 or 64 for zero), or the bits in reverse."""
    kind = op.words[-1]
    vector = vector_of(kind)
    (a,) = _sources(e, op, kind, 1)
    name = {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}[op.words[0]]
    tail = ", i1 false" if name == "ctlz" else ""
    result = e.c(f"call {vector} @llvm.{name}.{_suffix(vector)}({vector} {a}{tail})")
    if name == "bitreverse":
        e.dst(op.operands[0], result, kind)
        return
    if kind == "b64":
        result = e.c(f"trunc {vector} {result} to {vec('i32')}")
    e.dst(op.operands[0], result, "u32")


@emits("bfind")
def bfind(e: Emitter, op: Op) -> None:
    """Position of the highest bit that differs from the sign (all ones for none); `.shiftamt`: from the top."""
    kind = op.words[-1]
    vector, bits = vector_of(kind), bits_of(kind)
    element = f"i{bits}"
    (a,) = _sources(e, op, kind, 1)
    if kind in SIGNED:
        a = e.c(f"xor {vector} {a}, {e.c(f'ashr {vector} {a}, {splat(element, bits - 1)}')}")
    zeros = e.c(f"call {vector} @llvm.ctlz.{_suffix(vector)}({vector} {a}, i1 false)")
    place = zeros if "shiftamt" in op.words else e.c(f"sub {vector} {splat(element, bits - 1)}, {zeros}")
    none = e.c(f"icmp eq {vector} {a}, zeroinitializer")
    result = e.c(f"select {vec('i1')} {none}, {vector} {splat(element, -1)}, {vector} {place}")
    if bits == 64:
        result = e.c(f"trunc {vector} {result} to {vec('i32')}")
    e.dst(op.operands[0], result, "u32")


@emits("fns")
def fns(e: Emitter, op: Op) -> None:
    """Position of the n-th set bit from a base, upwards or downwards."""
    vector = vec("i32")
    a, b = e.src(op.operands[1], "b32"), e.src(op.operands[2], "b32")
    n = e.src(op.operands[3], "s32")
    e.dst(op.operands[0], e.c(f"call {vector} @fns({vector} {a}, {vector} {b}, {vector} {n})"), "b32")


def _clamped(e: Emitter, value: str, most: int) -> str:
    return e.c(f"call {vec('i32')} @llvm.umin.v32i32({vec('i32')} {value}, {vec('i32')} {splat('i32', most)})")


def _shift(e: Emitter, name: str, vector: str, value: str, amount: str, bits: int) -> str:
    """A shift whose amount may reach the width: then zero (or the sign)."""
    if bits == 64:
        amount = e.c(f"zext {vec('i32')} {amount} to {vec('i64')}")
    most = splat(f"i{bits}", bits - 1)
    inside = e.c(f"icmp ule {vector} {amount}, {most}")
    safe = e.c(f"select {vec('i1')} {inside}, {vector} {amount}, {vector} {most}")
    moved = e.c(f"{name} {vector} {value}, {safe}")
    if name == "ashr":
        return moved
    return e.c(f"select {vec('i1')} {inside}, {vector} {moved}, {vector} zeroinitializer")


def _field_number(e: Emitter, operand: Source, bits: int) -> str:
    """A position or length: 8 bits of it in the 32-bit forms; the 64-bit ones, which a GPU emulates, clamp it."""
    short, value = vec("i32"), e.src(operand, "u32")
    if bits == 32:
        return e.c(f"and {short} {value}, {splat('i32', 255)}")
    return e.c(f"call {short} @llvm.umin.v32i32({short} {value}, {short} {splat('i32', 255)})")


@emits("bfe")
def bfe(e: Emitter, op: Op) -> None:
    """A bit field, extended by its top bit (by the value's, where the field ends beyond it)."""
    kind = op.words[-1]
    vector, bits = vector_of(kind), bits_of(kind)
    a = e.src(op.operands[1], kind)
    start, length = (_field_number(e, o, bits) for o in op.operands[2:4])
    signed = kind in SIGNED
    # move the field's top to bit 63 of 64 bits, in which a 32-bit value stands extended; then down again
    name = f"bfe.{'s' if signed else 'u'}{bits}"
    e.dst(
        op.operands[0], e.c(f"call {vector} @{name}({vector} {a}, {vec('i32')} {start}, {vec('i32')} {length})"), kind
    )


@emits("bfi")
def bfi(e: Emitter, op: Op) -> None:
    """b with `length` low bits of a put at `start`."""
    kind = op.words[-1]
    vector, bits = vector_of(kind), bits_of(kind)
    a, b = e.src(op.operands[1], kind), e.src(op.operands[2], kind)
    start, length = (_field_number(e, o, bits) for o in op.operands[3:5])
    ones = splat(f"i{bits}", -1)
    beyond = e.c(f"xor {vector} {_shift(e, 'shl', vector, ones, length, bits)}, {ones}")
    mask = _shift(e, "shl", vector, beyond, start, bits)
    field = _shift(e, "shl", vector, a, start, bits)
    kept = e.c(f"and {vector} {b}, {e.c(f'xor {vector} {mask}, {ones}')}")
    e.dst(op.operands[0], e.c(f"or {vector} {kept}, {e.c(f'and {vector} {field}, {mask}')}"), kind)


@emits("bmsk")
def bmsk(e: Emitter, op: Op) -> None:
    """`length` ones from `start`; `.clamp` limits both to 32, `.wrap` takes them modulo 32."""
    vector = vec("i32")
    start, length = e.src(op.operands[1], "u32"), e.src(op.operands[2], "u32")
    if "wrap" in op.words:
        start, length = (e.c(f"and {vector} {x}, {splat('i32', 31)}") for x in (start, length))
    ones = splat("i32", -1)
    low = e.c(f"xor {vector} {_shift(e, 'shl', vector, ones, length, 32)}, {ones}")
    e.dst(op.operands[0], _shift(e, "shl", vector, low, start, 32), "b32")


@emits("szext")
def szext(e: Emitter, op: Op) -> None:
    """The low `n` bits, extended."""
    kind = op.words[-1]
    vector = vec("i32")
    a, n = e.src(op.operands[1], kind), e.src(op.operands[2], "u32")
    n = e.c(f"and {vector} {n}, {splat('i32', 31)}") if "wrap" in op.words else _clamped(e, n, 32)
    gap = e.c(f"sub {vector} {splat('i32', 32)}, {n}")
    up = _shift(e, "shl", vector, a, gap, 32)
    down = _shift(e, "ashr" if kind == "s32" else "lshr", vector, up, gap, 32)
    none = e.c(f"icmp eq {vector} {n}, zeroinitializer")
    e.dst(op.operands[0], e.c(f"select {vec('i1')} {none}, {vector} zeroinitializer, {vector} {down}"), kind)


@emits("dp4a", "dp2a")
def dot_product(e: Emitter, op: Op) -> None:
    """c plus the products of four bytes, or of two halfwords and two bytes of the low or high half."""
    vector = vec("i32")
    a_kind, b_kind = op.words[-2:]
    a, b = e.src(op.operands[1], "b32"), e.src(op.operands[2], "b32")
    total = e.src(op.operands[3], "b32")
    two = op.words[0] == "dp2a"
    first = 16 if two and op.words[1] == "hi" else 0
    for n in range(2 if two else 4):
        x = _piece(e, a, (16 if two else 8) * n, 16 if two else 8, a_kind == "s32")
        y = _piece(e, b, first + 8 * n, 8, b_kind == "s32")
        total = e.c(f"add {vector} {total}, {e.c(f'mul {vector} {x}, {y}')}")
    e.dst(op.operands[0], total, "b32")


def _piece(e: Emitter, value: str, start: int, length: int, signed: bool) -> str:
    """A field of a word, extended."""
    vector = vec("i32")
    up = e.c(f"shl {vector} {value}, {splat('i32', 32 - start - length)}")
    return e.c(f"{'ashr' if signed else 'lshr'} {vector} {up}, {splat('i32', 32 - length)}")
