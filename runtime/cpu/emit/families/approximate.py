"""Reciprocals and roots, exact where rounded; ex2, lg2, sin, cos, tanh as polynomials (`support/transcendental.py`)."""

from __future__ import annotations

from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.float_forms import FloatForm
from ptxgen.runtime.cpu.emit.families.floating import arithmetic, flush
from ptxgen.runtime.cpu.emit.families.half import count_of, flush_half, narrow, widen
from ptxgen.runtime.cpu.emit.llvm_types import splat_float, vector_of
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.native.ir import splat, vec


@emits("ex2", "lg2", "sin", "cos", "tanh")
def transcendental(e: Emitter, op: Op) -> None:
    """One function of one operand; 16-bit types go through f32."""
    form = FloatForm(op)
    value = e.src(op.operands[1], form.kind)
    n = count_of(form.kind)
    half = form.kind != "f32"
    if half:
        value = widen(e, value, form.kind)
    name = f"flushed.{form.name}.{n}" if form.ftz and not half else f"{form.name}.{n}"
    result = e.c(f"call {vec('float', n)} @{name}({vec('float', n)} {value})")
    if half:
        result = narrow(e, result, form.kind)
        if form.ftz:
            result = flush_half(e, result, form.kind)
    else:
        result = e.result(result)
    e.dst(op.operands[0], result, form.kind)


@emits("rcp", "sqrt")
def root(e: Emitter, op: Op) -> None:
    """Reciprocal or square root; `.approx` ones are the exact result rounded to nearest."""
    form = FloatForm(op)
    if form.kind == "f64" and form.approximate:
        _upper_half(e, op, form)
        return
    arithmetic(e, op)


@emits("rsqrt")
def rsqrt(e: Emitter, op: Op) -> None:
    """1/√a."""
    form = FloatForm(op)
    if form.kind == "f64" and form.ftz:
        _upper_half(e, op, form)
        return
    value = e.src(op.operands[1], form.kind)
    if form.ftz:
        value = flush(e, value)
    result = _inverse_root(e, value, form.kind)
    if form.ftz:
        result = flush(e, result)
    e.dst(op.operands[0], e.result(result) if form.kind == "f32" else result, form.kind)


def _inverse_root(e: Emitter, value: str, kind: str) -> str:
    """Through f64 for f32, so that only one rounding shows."""
    double = vec("double")
    wide = e.c(f"fpext {vec('float')} {value} to {double}") if kind == "f32" else value
    root_value = e.c(f"call {double} @llvm.sqrt.v32f64({double} {wide})")
    result = e.c(f"fdiv {double} {splat_float(1.0, 'double')}, {root_value}")
    return e.c(f"fptrunc {double} {result} to {vec('float')}") if kind == "f32" else result


def _upper_half(e: Emitter, op: Op, form: FloatForm) -> None:
    """`.approx.ftz.f64`: only the upper 32 bits of operand and result count (PTX ISA, "rcp.approx.ftz.f64")."""
    double, whole = vec("double"), vec("i64")
    upper = splat("i64", -(1 << 32))
    bits = e.c(f"and {whole} {e.src(op.operands[1], 'b64')}, {upper}")
    value = _flush_double(e, e.cast(bits, whole, double))
    if form.name == "rcp":
        result = e.c(f"fdiv {double} {splat_float(1.0, 'double')}, {value}")
    else:
        result = _inverse_root(e, value, "f64")
    result = _flush_double(e, result)
    kept = e.c(f"and {whole} {e.cast(result, double, whole)}, {upper}")
    e.dst(op.operands[0], kept, "b64")


def _flush_double(e: Emitter, value: str) -> str:
    whole = vec("i64")
    bits = e.cast(value, vector_of("f64"), whole)
    exponent = e.c(f"and {whole} {bits}, {splat('i64', 0x7FF0000000000000)}")
    tiny = e.c(f"icmp eq {whole} {exponent}, zeroinitializer")
    sign = e.c(f"and {whole} {bits}, {splat('i64', -(1 << 63))}")
    return e.cast(e.c(f"select {vec('i1')} {tiny}, {whole} {sign}, {whole} {bits}"), whole, vector_of("f64"))
