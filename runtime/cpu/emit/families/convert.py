"""cvt between all types, with every rounding, saturation and `.relu`; pairs of 16- and 8-bit floats; cvt.pack."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.runtime.cpu.emit.emitter import Emitter
from ptxgen.runtime.cpu.emit.families.floating import flush, saturate
from ptxgen.runtime.cpu.emit.families.half import narrow, widen
from ptxgen.runtime.cpu.emit.llvm_types import SIGNED, element_of, integer_vector, vector_of
from ptxgen.runtime.cpu.flow.flow import Op
from ptxgen.runtime.cpu.flow.registry import emits
from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import splat, vec

_FLOATS = frozenset({"f16", "bf16", "f32", "f64", "tf32"})
_WHOLE_ROUNDING = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_FORMATS = {"f16": "e5m10", "bf16": "e8m7", "e4m3": "e4m3", "e5m2": "e5m2"}
_SMALL_PAIRS = frozenset({"e4m3x2", "e5m2x2"})
_ROUNDINGS = frozenset({"rn", "rz", "rm", "rp", "rna"})


@dataclass(frozen=True, slots=True)
class _Form:
    """The words of a cvt."""

    to: str
    source: str
    rounding: str
    whole: str  # rounding to an integral value: an LLVM intrinsic, or empty
    ftz: bool
    sat: bool
    finite: bool
    relu: bool

    @classmethod
    def of(cls, op: Op) -> _Form:
        words = op.words[1:-2]
        rounding = next((w for w in words if w in _ROUNDINGS), "rn")
        whole = next((_WHOLE_ROUNDING[w] for w in words if w in _WHOLE_ROUNDING), "")
        return cls(op.words[-2], op.words[-1], "ra" if rounding == "rna" else rounding, whole, "ftz" in words,
                   "sat" in words, "satfinite" in words, "relu" in words)  # fmt: skip


@emits("cvt")
def cvt(e: Emitter, op: Op) -> None:
    """One conversion."""
    if op.words[1] == "pack":
        _pack(e, op)
        return
    form = _Form.of(op)
    if "rs" in op.words or "scaled" in " ".join(op.words):
        raise e.unsupported()
    if form.to in _SMALL_PAIRS or form.source in _SMALL_PAIRS or form.to.endswith("x2"):
        _pairs(e, op, form)
        return
    value = e.src(op.operands[1], form.source)
    if form.source in _FLOATS:
        if form.to in _FLOATS:
            result = _float_to_float(e, form, value)
            if form.to == "f32" and (form.source not in ("f64", "bf16") or form.sat):
                result = e.result(result)
        else:
            result = _float_to_int(e, form, value)
    elif form.to in _FLOATS:
        result = _int_to_float(e, form, value)
    else:
        _int_to_int(e, op, form, value)
        return
    e.dst(op.operands[0], result, form.to)


def _int_to_int(e: Emitter, op: Op, form: _Form, value: str) -> None:
    """Truncated or extended; `.sat` clamps to the range of the destination."""
    have, want = bits_of(form.source), bits_of(form.to)
    width = max(have, want)
    whole = integer_vector(width)
    signed = form.source in SIGNED
    if have < width:
        value = e.c(f"{'sext' if signed else 'zext'} {integer_vector(have)} {value} to {whole}")
    if form.sat:
        value = _clamp(e, value, width, signed, want, form.to in SIGNED)
    if want < width:
        value = e.c(f"trunc {whole} {value} to {integer_vector(want)}")
    e.dst(op.operands[0], value, form.to)


def _clamp(e: Emitter, value: str, width: int, signed: bool, want: int, to_signed: bool) -> str:
    """An integer limited to what `want` bits hold."""
    whole, element = integer_vector(width), f"i{width}"
    most = (1 << want - to_signed) - 1
    suffix = f"v32i{width}"
    if not signed:
        return e.c(f"call {whole} @llvm.umin.{suffix}({whole} {value}, {whole} {splat(element, most)})")
    least = -(1 << want - 1) if to_signed else 0
    value = e.c(f"call {whole} @llvm.smax.{suffix}({whole} {value}, {whole} {splat(element, least)})")
    if most >= 1 << width - 1:
        return value
    return e.c(f"call {whole} @llvm.smin.{suffix}({whole} {value}, {whole} {splat(element, most)})")


def _int_to_float(e: Emitter, form: _Form, value: str) -> str:
    bits, signed = bits_of(form.source), form.source in SIGNED
    vector = integer_vector(bits)
    if bits < 32:
        value = e.c(f"{'sext' if signed else 'zext'} {vector} {value} to {vec('i32')}")
        bits, vector = 32, vec("i32")
    kind = f"{'s' if signed else 'u'}{bits}"
    if form.to in ("f32", "f64"):
        wide = vector_of(form.to)
        if form.rounding == "rn":
            result = e.c(f"{'sitofp' if signed else 'uitofp'} {vector} {value} to {wide}")
        else:
            result = e.c(f"call {wide} @directed.cvt.{form.rounding}.{form.to}.{kind}({vector} {value})")
        return saturate(e, result, form.to) if form.sat else result
    # to 53 bits towards zero, with a set last bit if that was not exact; then to odd, and once to the destination
    if bits == 64:
        double = e.c(f"call {vec('double')} @oddint.{kind}({vector} {value})")
    else:
        double = e.c(f"{'sitofp' if signed else 'uitofp'} {vector} {value} to {vec('double')}")
    odd = e.c(f"call {vec('float')} @odd.f64({vec('double')} {double})")
    return _to_small(e, form, odd)


def _float_to_int(e: Emitter, form: _Form, value: str) -> str:
    """Rounded to an integral value, clamped to the destination.

    NaN becomes zero from f32 or less to 32 bits or less, else the top bit alone (as a GPU has it).
    """
    kind = form.source
    if kind in ("f16", "bf16"):
        value, kind = widen(e, value, kind), "f32"
    elif form.ftz and kind == "f32":
        value = flush(e, value)
    vector, short = vector_of(kind), "v32f32" if kind == "f32" else "v32f64"
    rounded = e.c(f"call {vector} @llvm.{form.whole or 'trunc'}.{short}({vector} {value})")
    element = element_of(form.to)
    operation = "fptosi" if form.to in SIGNED else "fptoui"
    target = vec(element)
    number = e.c(f"call {target} @llvm.{operation}.sat.v32{element}.{short}({vector} {rounded})")
    if form.source != "f64" and bits_of(form.to) <= 32:
        return number
    nan, top = e.c(f"fcmp uno {vector} {value}, {value}"), splat(element, -(1 << bits_of(form.to) - 1))
    return e.c(f"select {vec('i1')} {nan}, {target} {top}, {target} {number}")


def _float_to_float(e: Emitter, form: _Form, value: str) -> str:
    source, to = form.source, form.to
    if source == to and not form.whole and not form.sat and not form.ftz:
        return value
    if source in ("f16", "bf16"):
        value, source = widen(e, value, source), "f32"
    elif form.ftz and source == "f32" and to != "f16":
        value = flush(e, value)
    if form.whole:
        short = "v32f32" if source == "f32" else "v32f64"
        vector = vector_of(source)
        value = e.c(f"call {vector} @llvm.{form.whole}.{short}({vector} {value})")
    if to == "f64":
        if source == "f32":
            if form.ftz:  # which makes a NaN canonical first
                value = _with_nan(e, value, value, splat("i32", 0x7FFFFFFF))
            value = e.c(f"fpext {vec('float')} {value} to {vec('double')}")
        return saturate(e, value, "f64") if form.sat else value
    if to == "f32":
        return _to_single(e, form, value, source)
    if source == "f64":
        odd = e.c(f"call {vec('float')} @odd.f64({vec('double')} {value})")
        return _keep_nan(e, value, _to_small(e, form, odd), to)
    return _to_tf32(e, form, value) if to == "tf32" else _to_small(e, form, value)


def _with_nan(e: Emitter, value: str, result: str, bits: str) -> str:
    """`result`, but the f32 of these bits where `value` is NaN."""
    single = vec("float")
    nan = e.c(f"fcmp uno {single} {value}, {value}")
    return e.c(f"select {vec('i1')} {nan}, {single} {e.cast(bits, vec('i32'), single)}, {single} {result}")


def _keep_nan(e: Emitter, value: str, small: str, to: str) -> str:
    """A NaN of f64 keeps its sign and the top of its payload in 16 bits, and is quiet."""
    whole, short, double = vec("i64"), vec("i16"), vec("double")
    fraction = 10 if to == "f16" else 7
    bits = e.cast(value, double, whole)
    sign = e.c(f"and {whole} {e.c(f'lshr {whole} {bits}, splat (i64 48)')}, splat (i64 32768)")
    payload = e.c(f"lshr {whole} {bits}, {splat('i64', 52 - fraction)}")
    payload = e.c(f"and {whole} {payload}, {splat('i64', (1 << fraction) - 1)}")
    quiet = e.c(f"or {whole} {e.c(f'or {whole} {sign}, {payload}')}, {splat('i64', 0x7FFF & -(1 << fraction - 1))}")
    nan = e.c(f"fcmp uno {double} {value}, {value}")
    return e.c(f"select {vec('i1')} {nan}, {short} {e.c(f'trunc {whole} {quiet} to {short}')}, {short} {small}")


def _to_single(e: Emitter, form: _Form, value: str, source: str) -> str:
    if source == "f64":
        if form.rounding == "rn":
            value = e.c(f"fptrunc {vec('double')} {value} to {vec('float')}")
        else:
            value = e.c(f"call {vec('float')} @directed.cvt.{form.rounding}.f32.f64({vec('double')} {value})")
        if form.ftz:
            value = flush(e, value)
    return saturate(e, value) if form.sat else value


def _relu(e: Emitter, value: str) -> str:
    """Negative numbers and −0 as zero; NaN stays."""
    kept = e.c(f"fcmp ugt {vec('float')} {value}, zeroinitializer")
    return e.c(f"select {vec('i1')} {kept}, {vec('float')} {value}, {vec('float')} zeroinitializer")


def _to_small(e: Emitter, form: _Form, value: str) -> str:
    """f32 to f16 or bf16."""
    if form.relu:
        value = _relu(e, value)
    if form.sat:
        value = saturate(e, value)
    if form.rounding == "rn" and not form.finite:
        return narrow(e, value, form.to)
    finite = ".finite" if form.finite else ""
    name = f"pack.{_FORMATS[form.to]}.{form.rounding}.32{finite}"
    bits = e.c(f"call {vec('i32')} @{name}({vec('float')} {value})")
    return e.c(f"trunc {vec('i32')} {bits} to {vec('i16')}")


def _to_tf32(e: Emitter, form: _Form, value: str) -> str:
    """f32 with 10 mantissa bits; the 13 others are zero, in a NaN too. Infinities stay."""
    whole = vec("i32")
    if form.relu:
        value = _relu(e, value)
    bits = e.cast(value, vec("float"), whole)
    magnitude = e.c(f"and {whole} {bits}, {splat('i32', 0x7FFFFFFF)}")
    if form.rounding == "ra":
        moved = e.c(f"add {whole} {bits}, {splat('i32', 0x1000)}")
    elif form.rounding == "rn":
        last = e.c(f"lshr {whole} {bits}, {splat('i32', 13)}")
        last = e.c(f"and {whole} {last}, {splat('i32', 1)}")
        moved = e.c(f"add {whole} {bits}, {e.c(f'add {whole} {last}, splat (i32 4095)')}")
    else:
        moved = bits
    kept = e.c(f"and {whole} {moved}, {splat('i32', -0x2000)}")
    if form.finite:
        over = e.c(f"icmp uge {whole} {e.c(f'and {whole} {kept}, splat (i32 2147483647)')}, {splat('i32', 0x7F800000)}")
        sign = e.c(f"and {whole} {bits}, {splat('i32', -0x80000000)}")
        largest = e.c(f"or {whole} {sign}, {splat('i32', 0x7F7FE000)}")
        kept = e.c(f"select {vec('i1')} {over}, {whole} {largest}, {whole} {kept}")
    special = e.c(f"icmp uge {whole} {magnitude}, {splat('i32', 0x7F800000)}")
    nan = e.c(f"icmp ugt {whole} {magnitude}, {splat('i32', 0x7F800000)}")
    if not form.finite:
        kept = e.c(f"select {vec('i1')} {special}, {whole} {bits}, {whole} {kept}")
    quiet = e.c(f"and {whole} {bits}, {splat('i32', -0x2000)}") if form.rounding == "ra" else splat("i32", 0x7FFFE000)
    return e.c(f"select {vec('i1')} {nan}, {whole} {quiet}, {whole} {kept}")


def _pairs(e: Emitter, op: Op, form: _Form) -> None:
    """Two f32s or a pair into a pair: the first source is the upper half."""
    to, source = form.to, form.source
    if source in _SMALL_PAIRS:
        e.dst(op.operands[0], _from_small_pair(e, op, form), "b32")
        return
    if source == "f32":
        values = [e.src(o, "f32") for o in op.operands[1:3]]
    elif source in ("f16x2", "bf16x2"):
        both = widen(e, e.src(op.operands[1], source), source)
        values = [_half_of(e, both, 1), _half_of(e, both, 0)]
    else:
        raise e.unsupported()
    if form.relu:
        values = [_relu(e, v) for v in values]
    element = to[:-2]
    if element not in _FORMATS:
        raise e.unsupported()
    bits = bits_of(to) // 2
    if element in ("f16", "bf16") and form.rounding == "rn" and not form.finite:
        way = "native" if element == "f16" and e.native_half else "soft"
        upper, lower = (f"{vec('float')} {value}" for value in values)
        e.dst(op.operands[0], e.c(f"call {vec('i32')} @pair.{element}.{way}({upper}, {lower})"), "b32")
        return
    halves = [_packed(e, form, element, v) for v in values]
    whole = vec("i32")
    upper = e.c(f"shl {whole} {halves[0]}, {splat('i32', bits)}")
    result = e.c(f"or {whole} {upper}, {halves[1]}")
    if bits == 8:
        e.dst(op.operands[0], e.c(f"trunc {whole} {result} to {vec('i16')}"), "b16")
    else:
        e.dst(op.operands[0], result, "b32")


def _packed(e: Emitter, form: _Form, element: str, value: str) -> str:
    """An f32 as the bits of a small format, as i32s."""
    finite = form.finite or element in ("e4m3", "e5m2")
    name = f"pack.{_FORMATS[element]}.{form.rounding}.32{'.finite' if finite else ''}"
    return e.c(f"call {vec('i32')} @{name}({vec('float')} {value})")


def _half_of(e: Emitter, both: str, which: int) -> str:
    """Every second element of 64."""
    picks = "<" + ", ".join(f"i32 {2 * n + which}" for n in range(32)) + ">"
    return e.c(f"shufflevector {vec('float', 64)} {both}, {vec('float', 64)} poison, {vec('i32')} {picks}")


def _from_small_pair(e: Emitter, op: Op, form: _Form) -> str:
    """e4m3x2 or e5m2x2 as f16x2 or bf16x2, exactly."""
    to = form.to[:-2]
    way = "native" if to == "f16" and e.native_half else "soft"
    name = f"small_pair.{_FORMATS[form.source[:-2]]}.{to}.{way}{'.relu' if form.relu else ''}"
    return e.c(f"call {vec('i32')} @{name}({vec('i16')} {e.src(op.operands[1], 'b16')})")


def _pack(e: Emitter, op: Op) -> None:
    """`cvt.pack.sat.T.s32{.b32} d, a, b{, c}`: a and b clamped to T, above the upper bits of c."""
    kind, source = op.words[3], op.words[4]
    bits, whole = int(kind[1:]), vec("i32")  # u2, u4 and their like exist only here
    parts = []
    for operand in op.operands[1:3]:
        value = _clamp(e, e.src(operand, source), 32, True, bits, kind[0] == "s")
        parts.append(e.c(f"and {whole} {value}, {splat('i32', (1 << bits) - 1)}"))
    result = e.c(f"or {whole} {e.c(f'shl {whole} {parts[0]}, splat (i32 {bits})')}, {parts[1]}")
    if len(op.operands) > 3 and 2 * bits < 32:
        rest = e.c(f"shl {whole} {e.src(op.operands[3], 'b32')}, {splat('i32', 2 * bits)}")
        result = e.c(f"or {whole} {rest}, {result}")
    e.dst(op.operands[0], result, "b32")
