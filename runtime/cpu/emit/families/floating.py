"""f32 and f64 arithmetic with every rounding, `.ftz` and `.sat`; other float types go to `half.py`.

Round-to-nearest forms are the host's own operations (never contracted); the directed ones run in support functions
that switch the rounding mode.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.float_forms import FloatForm, extreme
from ptxgen.runtime.cpu.emit.families.half import half_arithmetic
from ptxgen.runtime.cpu.emit.llvm_types import splat_float, vector_of
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.native.ir import indices, splat, vec

_FLOAT_KINDS = frozenset({"f32", "f64", "f16", "f16x2", "bf16", "bf16x2", "f32x2"})
_I32, _LANES = vec("i32"), vec("i1")
_WOVEN = indices([32 * (n % 2) + n // 2 for n in range(64)])


def is_float_op(op: Op) -> bool:
    """Whether an opcode that integers share is one of a float type."""
    return op.words[-1] in _FLOAT_KINDS


def suffix(kind: str) -> str:
    """`v32f32`: how intrinsics name the vector."""
    return "v32f32" if kind == "f32" else "v32f64"


def flush(e: Emitter, value: str) -> str:
    """Subnormal f32 numbers as zeros of their sign."""
    bits = e.c(f"bitcast {vec('float')} {value} to {_I32}")
    exponent = e.c(f"and {_I32} {bits}, {splat('i32', 0x7F800000)}")
    tiny = e.c(f"icmp eq {_I32} {exponent}, zeroinitializer")
    sign = e.c(f"and {_I32} {bits}, {splat('i32', -0x80000000)}")
    flushed = e.c(f"bitcast {_I32} {e.c(f'select {_LANES} {tiny}, {_I32} {sign}, {_I32} {bits}')} to {vec('float')}")
    return e.result(flushed) if e.is_result(value) else flushed


def saturate(e: Emitter, value: str, kind: str = "f32") -> str:
    """Clamped to [0, 1]; NaN becomes +0."""
    vector, element = vector_of(kind), "float" if kind == "f32" else "double"
    positive = e.c(f"fcmp ogt {vector} {value}, zeroinitializer")
    value = e.c(f"select {vec('i1')} {positive}, {vector} {value}, {vector} zeroinitializer")
    one = splat_float(1.0, element)
    below = e.c(f"fcmp olt {vector} {value}, {one}")
    return e.c(f"select {vec('i1')} {below}, {vector} {value}, {vector} {one}")


def arithmetic(e: Emitter, op: Op) -> None:
    """One float instruction of any type."""
    form = FloatForm(op)
    if form.kind == "f32x2":
        _pairs(e, op, form)
        return
    if form.kind not in ("f32", "f64"):
        half_arithmetic(e, op, form)
        return
    values = [e.src(o, form.kind) for o in op.operands[1:]]
    result = _rounded(e, form, values)
    if form.kind == "f64" and form.name in ("abs", "neg"):  # a NaN stays as it is
        nan = e.c(f"fcmp uno {vec('double')} {values[0]}, {values[0]}")
        result = e.c(f"select {_LANES} {nan}, {vec('double')} {values[0]}, {vec('double')} {result}")
    e.dst(op.operands[0], result, form.kind)


def _rounded(e: Emitter, form: FloatForm, values: list[str]) -> str:
    """The result of an f32 or f64 instruction with its `.ftz` and `.sat`."""
    if form.ftz:
        values = [flush(e, v) for v in values]
    result = compute(e, form, values)
    if form.ftz and form.name not in ("abs", "neg"):
        result = flush(e, result)
    if form.sat:
        return saturate(e, result, form.kind)
    return e.result(result) if form.kind == "f32" else result


def _pairs(e: Emitter, op: Op, form: FloatForm) -> None:
    """Two f32 in 64 bits: the instruction of f32 on the low halves and on the high ones."""
    form.kind = "f32"
    words, single, wide = vec("float", 64), vec("float"), vec("i64")
    pairs = [e.c(f"bitcast {wide} {e.src(o, 'b64')} to {words}") for o in op.operands[1:]]
    halves = []
    for first in (0, 1):
        picked = indices(list(range(first, 64, 2)))
        values = [e.c(f"shufflevector {words} {pair}, {words} poison, {picked}") for pair in pairs]
        halves.append(e.cast(_rounded(e, form, values), single, _I32))
    woven = e.c(f"shufflevector {_I32} {halves[0]}, {_I32} {halves[1]}, {_WOVEN}")
    e.dst(op.operands[0], e.c(f"bitcast {vec('i32', 64)} {woven} to {wide}"), "b64")


_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


def compute(e: Emitter, form: FloatForm, values: list[str]) -> str:
    """The value of an f32 or f64 operation."""
    vector = vector_of(form.kind)
    name = "fma" if form.name == "mad" else form.name
    if form.rounding != "rn":
        arguments = ", ".join(f"{vector} {v}" for v in values)
        return e.c(f"call {vector} @directed.{name}.{form.rounding}.{form.kind}({arguments})")
    if name in _BINARY:
        result = e.c(f"{_BINARY[name]} {vector} {values[0]}, {values[1]}")
        return (
            large_divisor(e, values[0], values[1], result) if name == "div" and form.approximate == "approx" else result
        )
    if name == "fma":
        a, b, c = values
        return e.c(f"call {vector} @llvm.fma.{suffix(form.kind)}({vector} {a}, {vector} {b}, {vector} {c})")
    if name in ("min", "max"):
        result = values[0]
        for other in values[1:]:
            result = extreme(e, form, result, other)
        return result
    if name == "sqrt":
        return e.c(f"call {vector} @llvm.sqrt.{suffix(form.kind)}({vector} {values[0]})")
    if name == "rcp":
        one = splat_float(1.0, "float" if form.kind == "f32" else "double")
        return e.c(f"fdiv {vector} {one}, {values[0]}")
    if name == "abs":
        return e.c(f"call {vector} @llvm.fabs.{suffix(form.kind)}({vector} {values[0]})")
    if name == "neg":
        return e.c(f"fneg {vector} {values[0]}")
    raise e.unsupported()


def large_divisor(e: Emitter, a: str, b: str, quotient: str) -> str:
    """div.approx beyond a divisor of 2^126: zero, and NaN for an infinite dividend (PTX ISA 9.7.3, "div")."""
    single = vec("float")
    size = e.c(f"call {single} @llvm.fabs.v32f32({single} {b})")
    above = e.c(f"fcmp ogt {single} {size}, {splat('float', '0x47D0000000000000')}")
    finite = e.c(f"fcmp olt {single} {size}, {splat('float', '0x7FF0000000000000')}")
    scaled = e.c(f"fmul {single} {quotient}, zeroinitializer")  # a zero of the quotient's sign; NaN from infinity
    return e.c(f"select {_LANES} {e.c(f'and {_LANES} {above}, {finite}')}, {single} {scaled}, {single} {quotient}")


@emits("fma")
def fma(e: Emitter, op: Op) -> None:
    """Fused multiply-add, rounded once."""
    arithmetic(e, op)


@emits("copysign")
def copysign(e: Emitter, op: Op) -> None:
    """Magnitude of b with the sign of a."""
    kind = op.words[1]
    vector = vector_of(kind)
    a, b = (e.src(o, kind) for o in op.operands[1:3])
    e.dst(op.operands[0], e.c(f"call {vector} @llvm.copysign.{suffix(kind)}({vector} {b}, {vector} {a})"), kind)


@emits("testp")
def testp(e: Emitter, op: Op) -> None:
    """Class of a number; to a GPU, zero is a normal one."""
    test, kind = op.words[1:3]
    flags = {
        "finite": 0x1F8, "infinite": 0x204, "number": 0x3FC, "notanumber": 0x003, "normal": 0x168, "subnormal": 0x090,
    }[test]  # fmt: skip
    value = e.src(op.operands[1], kind)
    lanes = e.c(f"call {vec('i1')} @llvm.is.fpclass.{suffix(kind)}({vector_of(kind)} {value}, i32 {flags})")
    e.dst_pred(op.operands[0], e.bits(lanes))
