"""f16, bf16 and their pairs: computed in f32 and rounded once. Owns widening and narrowing."""

from __future__ import annotations

from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.float_forms import FloatForm, extreme
from ptxgen.runtime.cpu.emit.llvm_types import splat_float, vector_of
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.native.ir import splat, vec

_BF16 = frozenset({"bf16", "bf16x2"})


def count_of(kind: str) -> int:
    """Elements of a register of a warp: 64 for pairs."""
    return 64 if kind.endswith("x2") else 32


def widen(e: Emitter, value: str, kind: str) -> str:
    """f16, bf16 or pairs of them as f32 (exact)."""
    n = count_of(kind)
    narrow, wide, single = vec("i16", n), vec("i32", n), vec("float", n)
    if kind in _BF16:
        up = e.c(f"shl {wide} {e.c(f'zext {narrow} {value} to {wide}')}, {splat('i32', 16)}")
        return e.cast(up, wide, single)
    if e.native_half:
        return e.c(f"fpext {vec('half', n)} {e.cast(value, narrow, vec('half', n))} to {single}")
    return e.c(f"call {single} @half.widen.{n}({narrow} {value})")


def narrow(e: Emitter, value: str, kind: str) -> str:
    """f32 rounded to nearest even; overflow becomes infinity."""
    n = count_of(kind)
    small, single = vec("i16", n), vec("float", n)
    if kind in _BF16:
        return e.c(f"call {small} @bf16.narrow.{n}({single} {value})")
    if e.native_half:
        rounded = e.cast(e.c(f"fptrunc {single} {value} to {vec('half', n)}"), vec("half", n), small)
        nan = e.c(f"fcmp uno {single} {value}, {value}")
        return e.c(f"select {vec('i1', n)} {nan}, {small} {splat('i16', 0x7FFF)}, {small} {rounded}")
    return e.c(f"call {small} @half.narrow.{n}({single} {value})")


def flush_half(e: Emitter, value: str, kind: str) -> str:
    """Subnormal numbers of a 16-bit format as zeros of their sign."""
    vector = vec("i16", count_of(kind))
    exponent = e.c(f"and {vector} {value}, {splat('i16', 0x7F80 if kind in _BF16 else 0x7C00)}")
    tiny = e.c(f"icmp eq {vector} {exponent}, zeroinitializer")
    sign = e.c(f"and {vector} {value}, {splat('i16', -0x8000)}")
    return e.c(f"select {vec('i1', count_of(kind))} {tiny}, {vector} {sign}, {vector} {value}")


def half_arithmetic(e: Emitter, op: Op, form: FloatForm) -> None:
    """add, sub, mul, fma, min, max, abs, neg of 16-bit floats and their pairs."""
    kind = form.kind
    values = [e.src(o, kind) for o in op.operands[1:]]
    if form.ftz:
        values = [flush_half(e, v, kind) for v in values]
    if form.name in ("abs", "neg"):
        e.dst(op.operands[0], _sign_changed(e, values[0], form), kind)
        return
    result = narrow_of(e, form, values)
    if form.ftz:
        result = flush_half(e, result, kind)
    e.dst(op.operands[0], result, kind)


def _tiny_flushed(e: Emitter, exact: str, n: int) -> str:
    """What is subnormal in f16 before it is rounded, as a zero of its sign: where half-precision .ftz looks."""
    single = vec("float", n)
    size = e.c(f"call {single} @llvm.fabs.v{n}f32({single} {exact})")
    tiny = e.c(f"fcmp olt {single} {size}, {splat('float', '0x3F10000000000000')}")
    zero = e.c(f"fmul {single} {exact}, zeroinitializer")
    return e.c(f"select {vec('i1', n)} {tiny}, {single} {zero}, {single} {exact}")


def _sign_changed(e: Emitter, value: str, form: FloatForm) -> str:
    """abs or neg of the bits; a NaN becomes the canonical one."""
    vector, magnitude = vector_of(form.kind), splat("i16", 0x7FFF)
    name, mask = ("and", magnitude) if form.name == "abs" else ("xor", splat("i16", -0x8000))
    infinity = splat("i16", 0x7F80 if form.kind in _BF16 else 0x7C00)
    nan = e.c(f"icmp ugt {vector} {e.c(f'and {vector} {value}, {magnitude}')}, {infinity}")
    changed = e.c(f"{name} {vector} {value}, {mask}")
    return e.c(f"select {vec('i1', count_of(form.kind))} {nan}, {vector} {magnitude}, {vector} {changed}")


def narrow_of(e: Emitter, form: FloatForm, values: list[str]) -> str:
    """The rounded result of an operation on 16-bit floats."""
    kind, n = form.kind, count_of(form.kind)
    single, small = vec("float", n), vec("i16", n)
    if form.name == "fma":
        arguments = ", ".join(f"{small} {v}" for v in values)
        prefix = "bf16" if kind in _BF16 else "half"
        result = e.c(f"call {small} @{prefix}.fma.{n}({arguments})")
        wide = None
    else:
        wides = [widen(e, v, kind) for v in values]
        if form.name in ("min", "max"):
            wide = wides[0]
            for other in wides[1:]:
                wide = extreme(e, form, wide, other, single, "i32", 31)
        else:
            name = {"add": "fadd", "sub": "fsub", "mul": "fmul"}.get(form.name)
            if name is None:
                raise e.unsupported()
            wide = e.c(f"{name} {single} {wides[0]}, {wides[1]}")
            if form.ftz and name == "fmul":
                wide = _tiny_flushed(e, wide, n)
        result = ""
    if form.sat or form.relu:
        if wide is None:
            wide = widen(e, result, kind)
        positive = e.c(f"fcmp ogt {single} {wide}, zeroinitializer")
        unordered = e.c(f"fcmp uno {single} {wide}, zeroinitializer")
        kept = positive if form.sat else e.c(f"or {vec('i1', n)} {positive}, {unordered}")
        wide = e.c(f"select {vec('i1', n)} {kept}, {single} {wide}, {single} zeroinitializer")
        if form.sat:
            one = splat_float(1.0).replace("<32 x", f"<{n} x")
            below = e.c(f"fcmp olt {single} {wide}, {one}")
            wide = e.c(f"select {vec('i1', n)} {below}, {single} {wide}, {single} {one}")
        return narrow(e, wide, kind)
    return result if wide is None else narrow(e, wide, kind)
