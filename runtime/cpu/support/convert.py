"""Roundings that LLVM has no plain operation for: directed modes, 16-bit and 8-bit floats, exact fused 16-bit products.

A float format is (exponent bits, mantissa bits); everything is done on the bits, in all lanes at once.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.support import support

_MODE = {"rz": 0, "rn": 1, "rp": 2, "rm": 3}  # the numbers of llvm.set.rounding


@support("directed")
def directed(name: str, rounding: str, kind: str, source: str = "") -> str:
    """`directed.add.rz.f32(a, b)`, `directed.cvt.rp.f32.f64(a)`: one operation under a rounding mode."""
    vector = vec("float" if kind == "f32" else "double")
    short = "v32f32" if kind == "f32" else "v32f64"
    count = {"sqrt": 1, "rcp": 1, "cvt": 1, "fma": 3}.get(name, 2)
    from_ = _cvt_source(source) if name == "cvt" else vector
    parameters = ", ".join(f"{from_} %{x}" for x in "abc"[:count])
    full = ".".join(["directed", name, rounding, kind] + ([source] if source else []))
    c = Code(f"define internal {vector} @{full}({parameters}) noinline strictfp")
    c.do(f"call void @llvm.set.rounding(i32 {_MODE[rounding]})")
    tail = 'metadata !"round.dynamic", metadata !"fpexcept.ignore"'
    if name == "rcp":
        one = splat("float", "1.0") if kind == "f32" else splat("double", "1.0")
        call = f"@llvm.experimental.constrained.fdiv.{short}({vector} {one}, {vector} %a, {tail})"
    elif name == "cvt":
        operation = "fptrunc" if source == "f64" else ("sitofp" if source[0] == "s" else "uitofp")
        mangled = f"{short}.{'v32f64' if source == 'f64' else 'v32i' + source[1:]}"
        call = f"@llvm.experimental.constrained.{operation}.{mangled}({from_} %a, {tail})"
    else:
        intrinsic = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}.get(name, name)
        arguments = ", ".join(f"{vector} %{x}" for x in "abc"[:count])
        call = f"@llvm.experimental.constrained.{intrinsic}.{short}({arguments}, {tail})"
    result = c(f"call {vector} {call} strictfp")
    c.do("call void @llvm.set.rounding(i32 1)")
    if source.startswith("u") and rounding == "rm":  # hosts that subtract for it make -0 of 0
        result = c(f"call {vector} @llvm.fabs.{short}({vector} {result})")
    c.ret(f"{vector} {result}")
    return c.text()


def _cvt_source(source: str) -> str:
    return vec("double") if source == "f64" else vec("i" + source[1:])


@support("bf16")
def bf16(what: str, lanes: str) -> str:
    """`bf16.narrow.N(f32s)`: to nearest even; `bf16.fma.N(a, b, c)`: rounded once."""
    n = int(lanes)
    if what == "narrow":
        return _narrow(f"bf16.narrow.{n}", n, 8, 7, "i16")
    return _fused(f"bf16.fma.{n}", n, "double", "bf16")


@support("half")
def half(what: str, lanes: str) -> str:
    """`half.widen.N`, `half.narrow.N` for hosts without the conversion, `half.fma.N(a, b, c)` rounded once."""
    n = int(lanes)
    if what == "widen":
        return _widen_half(n)
    if what == "narrow":
        return _narrow(f"half.narrow.{n}", n, 5, 10, "i16")
    return _fused(f"half.fma.{n}", n, "float", "half")


@support("pair")
def pair(kind: str, way: str) -> str:
    """`pair.f16|bf16.native|soft(upper, lower)`: two f32 rounded to nearest even, as one register."""
    single, small, whole = vec("float"), vec("i16"), vec("i32")
    c = Code(f"define internal {whole} @pair.{kind}.{way}({single} %upper, {single} %lower) noinline")
    rounded = (_rounded(c, value, kind, way) for value in ("%upper", "%lower"))
    upper, lower = (c(f"zext {small} {half} to {whole}") for half in rounded)
    c.ret(f"{whole} " + c(f"or {whole} {c(f'shl {whole} {upper}, splat (i32 16)')}, {lower}"))
    return c.text()


def _rounded(c: Code, value: str, kind: str, way: str, n: int = 32) -> str:
    """f32 to nearest even as f16 or bf16."""
    single, small, half = vec("float", n), vec("i16", n), vec("half", n)
    if way == "soft":
        return c(f"call {small} @{'half' if kind == 'f16' else 'bf16'}.narrow.{n}({single} {value})")
    bits = c(f"bitcast {half} {c(f'fptrunc {single} {value} to {half}')} to {small}")
    nan = c(f"fcmp uno {single} {value}, {value}")
    return c(f"select {vec('i1', n)} {nan}, {small} {splat('i16', 0x7FFF)}, {small} {bits}")


@support("small_pair")
def small_pair(form: str, kind: str, way: str, *relu: str) -> str:
    """`small_pair.e4m3|e5m2.f16|bf16.native|soft[.relu](pair)`: two of 8 bits, widened exactly, as one register."""
    whole, single, bytes_ = vec("i32", 64), vec("float", 64), vec("i8", 64)
    name = ".".join(["small_pair", form, kind, way, *relu])
    c = Code(f"define internal {vec('i32')} @{name}({vec('i16')} %pair) noinline")
    both = c(f"bitcast {vec('i16')} %pair to {bytes_}")
    value = c(f"call {single} @unpack.{form}.64({whole} {c(f'zext {bytes_} {both} to {whole}')})")
    if relu:
        kept = c(f"fcmp ugt {single} {value}, zeroinitializer")
        value = c(f"select {vec('i1', 64)} {kept}, {single} {value}, {single} zeroinitializer")
    c.ret(f"{vec('i32')} " + c(f"bitcast {vec('i16', 64)} {_rounded(c, value, kind, way, 64)} to {vec('i32')}"))
    return c.text()


def _narrow(name: str, n: int, exponent: int, mantissa: int, element: str) -> str:
    single, small = vec("float", n), vec(element, n)
    c = Code(f"define internal {small} @{name}({single} %a) noinline")
    result = round_bits(c, "%a", n, exponent, mantissa, "rn")
    c.ret(f"{small} " + c(f"trunc {vec('i32', n)} {result} to {small}"))
    return c.text()


def round_bits(c: Code, value: str, n: int, exponent: int, mantissa: int, mode: str, finite: bool = False) -> str:
    """f32 → the bits of a smaller format, as i32s. `mode`: rn, rz, ra (ties away from zero), rp, rm; NaN is canonical.

    `finite`: beyond the largest number comes the largest number (e4m3 always; `.satfinite`), else infinity.
    """
    single, whole, lanes = vec("float", n), vec("i32", n), vec("i1", n)

    def const(number: int) -> str:
        return splat("i32", number)

    bits = c(f"bitcast {single} {value} to {whole}")
    sign = c(f"and {whole} {bits}, {const(-0x80000000)}")
    magnitude = c(f"and {whole} {bits}, {const(0x7FFFFFFF)}")
    nan = c(f"icmp ugt {whole} {magnitude}, {const(0x7F800000)}")
    infinite = c(f"icmp eq {whole} {magnitude}, {const(0x7F800000)}")
    bias = (1 << exponent - 1) - 1
    # how many mantissa bits go: 23 − mantissa, and one more for each step below the smallest normal exponent
    power = c(f"lshr {whole} {magnitude}, {const(23)}")
    below = c(f"sub {whole} {const(128 - bias)}, {power}")  # 127 − bias + 1 − power
    extra = c(f"call {whole} @llvm.smax.v{n}i32({whole} {below}, {whole} zeroinitializer)")
    dropped = c(f"add {whole} {extra}, {const(23 - mantissa)}")
    dropped = c(f"call {whole} @llvm.umin.v{n}i32({whole} {dropped}, {whole} {const(31)})")
    implicit = c(f"icmp ne {whole} {power}, zeroinitializer")
    fraction = c(f"and {whole} {magnitude}, {const(0x7FFFFF)}")
    leading = c(f"select {lanes} {implicit}, {whole} {const(0x800000)}, {whole} zeroinitializer")
    significand = c(f"or {whole} {fraction}, {leading}")
    # a subnormal f32 has the exponent of the smallest normal one
    denormal_fix = c(f"select {lanes} {implicit}, {whole} zeroinitializer, {whole} {const(1)}")
    dropped = c(f"sub {whole} {dropped}, {denormal_fix}") if bias != 127 else _bf16_dropped(c, whole, mantissa, const)
    kept = c(f"lshr {whole} {significand}, {dropped}")
    unit = c(f"shl {whole} {const(1)}, {dropped}")
    rest = c(f"and {whole} {significand}, {c(f'sub {whole} {unit}, {const(1)}')}")
    up = _round_up(c, mode, n, kept, rest, unit, sign)
    kept = c(f"add {whole} {kept}, {c(f'zext {lanes} {up} to {whole}')}")
    # put the exponent under the mantissa: its carry runs into the exponent by itself
    if bias == 127:
        base = c(f"call {whole} @llvm.usub.sat.v{n}i32({whole} {power}, {whole} {const(1)})")
    else:
        base = c(
            f"call {whole} @llvm.smax.v{n}i32({whole} {c(f'sub {whole} {power}, {const(128 - bias)}')}, {whole} "
            f"zeroinitializer)"
        )
    result = c(f"add {whole} {c(f'shl {whole} {base}, {const(mantissa)}')}, {kept}")
    has_infinity = not (exponent == 4 and mantissa == 3)
    top = ((1 << exponent) - 1) << mantissa
    largest = top - 1 if has_infinity else 0x7E
    overflow = c(f"icmp ugt {whole} {result}, {const(largest)}")
    overflow = c(f"or {lanes} {overflow}, {infinite}")
    beyond = const(largest) if finite else _overflow(c, mode, n, sign, infinite, top, largest)
    result = c(f"select {lanes} {overflow}, {whole} {beyond}, {whole} {result}")
    width = exponent + mantissa
    placed = c(f"lshr {whole} {sign}, {const(31 - width)}")
    result = c(f"or {whole} {result}, {placed}")
    return c(f"select {lanes} {nan}, {whole} {const((1 << width) - 1)}, {whole} {result}")


def _bf16_dropped(c: Code, whole: str, mantissa: int, const: object) -> str:
    """With f32's own exponents nothing more goes below the smallest normal."""
    return const(23 - mantissa)  # type: ignore[operator,no-any-return]


def _round_up(c: Code, mode: str, n: int, kept: str, rest: str, unit: str, sign: str) -> str:
    """<n x i1>: whether the kept bits go one up."""
    whole, lanes = vec("i32", n), vec("i1", n)
    inexact = c(f"icmp ne {whole} {rest}, zeroinitializer")
    if mode == "rz":
        return "zeroinitializer"
    if mode in ("rp", "rm"):
        test = "eq" if mode == "rp" else "ne"
        return c(f"and {lanes} {inexact}, {c(f'icmp {test} {whole} {sign}, zeroinitializer')}")
    middle = c(f"lshr {whole} {unit}, {splat('i32', 1)}")
    more = c(f"icmp ugt {whole} {rest}, {middle}")
    tie = c(f"icmp eq {whole} {rest}, {middle}")
    if mode == "ra":
        return c(f"or {lanes} {more}, {tie}")
    odd = c(f"trunc {whole} {kept} to {lanes}")
    return c(f"or {lanes} {more}, {c(f'and {lanes} {tie}, {odd}')}")


def _overflow(c: Code, mode: str, n: int, sign: str, infinite: str, top: int, largest: int) -> str:
    """Infinity, or the largest number where the mode rounds towards zero; infinities stay."""
    whole, lanes = vec("i32", n), vec("i1", n)
    infinity, last = splat("i32", top), splat("i32", largest)
    if mode in ("rn", "ra"):
        return infinity
    if mode == "rz":
        return c(f"select {lanes} {infinite}, {whole} {infinity}, {whole} {last}")
    test = "eq" if mode == "rp" else "ne"
    away = c(f"or {lanes} {infinite}, {c(f'icmp {test} {whole} {sign}, zeroinitializer')}")
    return c(f"select {lanes} {away}, {whole} {infinity}, {whole} {last}")


def expand_bits(c: Code, value: str, n: int, exponent: int, mantissa: int) -> str:
    """The bits of a smaller format (i32s) as f32s, exactly."""
    single, whole, lanes = vec("float", n), vec("i32", n), vec("i1", n)
    width, bias = exponent + mantissa, (1 << exponent - 1) - 1
    down = c(f"lshr {whole} {value}, {splat('i32', width)}")
    sign = c(f"shl {whole} {down}, {splat('i32', 31)}")
    body = c(f"and {whole} {value}, {splat('i32', (1 << width) - 1)}")
    # as an f32 whose exponent is too small by 127 − bias; a product with a power of two repairs it, subnormals too
    up = c(f"shl {whole} {body}, {splat('i32', 23 - mantissa)}")
    placed = c(f"bitcast {whole} {up} to {single}")
    factor = f"bitcast ({whole} {splat('i32', (127 + 127 - bias) << 23)} to {single})"
    scaled = c(f"bitcast {single} {c(f'fmul {single} {placed}, {factor}')} to {whole}")
    if exponent == 4 and mantissa == 3:
        special = c(f"icmp eq {whole} {body}, {splat('i32', 0x7F)}")
        filled = splat("i32", 0x7FFFFFFF)
    else:
        special = c(f"icmp uge {whole} {body}, {splat('i32', ((1 << exponent) - 1) << mantissa)}")
        fraction = c(f"shl {whole} {body}, {splat('i32', 23 - mantissa)}")
        filled = c(f"or {whole} {fraction}, {splat('i32', 0x7F800000)}")
    result = c(f"select {lanes} {special}, {whole} {filled}, {whole} {scaled}")
    return c(f"bitcast {whole} {c(f'or {whole} {result}, {sign}')} to {single}")


def _widen_half(n: int) -> str:
    small, whole, single = vec("i16", n), vec("i32", n), vec("float", n)
    c = Code(f"define internal {single} @half.widen.{n}({small} %a) noinline")
    c.ret(f"{single} " + expand_bits(c, c(f"zext {small} %a to {whole}"), n, 5, 10))
    return c.text()


@support("pack")
def pack(form: str, mode: str, lanes: str, finite: str = "") -> str:
    """`pack.e5m10.rz.32[.finite](f32s)` → i32s: to a small format; see `round_bits`."""
    exponent, mantissa = (int(x) for x in form[1:].split("m"))
    n = int(lanes)
    name = ".".join(["pack", form, mode, lanes] + ([finite] if finite else []))
    c = Code(f"define internal {vec('i32', n)} @{name}({vec('float', n)} %a) noinline")
    c.ret(f"{vec('i32', n)} " + round_bits(c, "%a", n, exponent, mantissa, mode, bool(finite)))
    return c.text()


@support("unpack")
def unpack(form: str, lanes: str) -> str:
    """`unpack.e4m3.32(i32s)` → f32s, exactly."""
    exponent, mantissa = (int(x) for x in form[1:].split("m"))
    n = int(lanes)
    c = Code(f"define internal {vec('float', n)} @unpack.{form}.{lanes}({vec('i32', n)} %a) noinline")
    c.ret(f"{vec('float', n)} " + expand_bits(c, "%a", n, exponent, mantissa))
    return c.text()


def _fused(name: str, n: int, element: str, prefix: str) -> str:
    """a·b + c of 16-bit floats: the product is exact in `element`, the sum rounded to odd, then once to 16 bits."""
    small, single, wide = vec("i16", n), vec("float", n), vec(element, n)
    c = Code(f"define internal {small} @{name}({small} %a, {small} %b, {small} %c) noinline")
    values = []
    for x in ("%a", "%b", "%c"):
        as_int = c(f"zext {small} {x} to {vec('i32', n)}")
        if prefix == "half":
            value = expand_bits(c, as_int, n, 5, 10)
        else:
            moved = c(f"shl {vec('i32', n)} {as_int}, {splat('i32', 16)}")
            value = c(f"bitcast {vec('i32', n)} {moved} to {single}")
        values.append(c(f"fpext {single} {value} to {wide}") if element == "double" else value)
    product = c(f"fmul {wide} {values[0]}, {values[1]}")
    total = odd_sum(c, product, values[2], element, n)
    if element == "double":
        total = odd_truncation(c, total, n)
    form = (5, 10) if prefix == "half" else (8, 7)
    c.ret(f"{small} " + c(f"trunc {vec('i32', n)} {round_bits(c, total, n, *form, 'rn')} to {small}"))
    return c.text()


def odd_sum(c: Code, a: str, b: str, element: str, n: int) -> str:
    """a + b rounded to odd: exact sums stay, others get a set last bit, so that a later rounding is the only one."""
    wide, bits = vec(element, n), 32 if element == "float" else 64
    whole, lanes = vec(f"i{bits}", n), vec("i1", n)
    total = c(f"fadd {wide} {a}, {b}")
    back = c(f"fsub {wide} {total}, {a}")
    difference = c(f"fsub {wide} {a}, {c(f'fsub {wide} {total}, {back}')}")
    error = c(f"fadd {wide} {difference}, {c(f'fsub {wide} {b}, {back}')}")
    image = c(f"bitcast {wide} {total} to {whole}")
    even = c(f"xor {lanes} {c(f'trunc {whole} {image} to {lanes}')}, {splat('i1', 'true')}")
    inexact = c(f"fcmp one {wide} {error}, zeroinitializer")  # false for NaN: infinities stay
    wrong = c(f"and {lanes} {even}, {inexact}")
    # the exact sum lies beside `total`, on the side of the error: away from zero if their signs agree
    error_bits = c(f"bitcast {wide} {error} to {whole}")
    same = c(f"icmp sge {whole} {c(f'xor {whole} {image}, {error_bits}')}, zeroinitializer")
    step = c(f"select {lanes} {same}, {whole} {splat(f'i{bits}', 1)}, {whole} {splat(f'i{bits}', -1)}")
    moved = c(f"add {whole} {image}, {step}")
    return c(f"bitcast {whole} {c(f'select {lanes} {wrong}, {whole} {moved}, {whole} {image}')} to {wide}")


def odd_truncation(c: Code, value: str, n: int) -> str:
    """f64 → f32 rounded to odd."""
    double, whole, single, small, lanes = vec("double", n), vec("i64", n), vec("float", n), vec("i32", n), vec("i1", n)
    near = c(f"fptrunc {double} {value} to {single}")
    back = c(f"fpext {single} {near} to {double}")
    image = c(f"bitcast {single} {near} to {small}")
    even = c(f"xor {lanes} {c(f'trunc {small} {image} to {lanes}')}, {splat('i1', 'true')}")
    wrong = c(f"and {lanes} {even}, {c(f'fcmp one {double} {back}, {value}')}")
    magnitude, mine = (
        c(f"and {whole} {c(f'bitcast {double} {x} to {whole}')}, {splat('i64', (1 << 63) - 1)}") for x in (value, back)
    )
    larger = c(f"icmp ugt {whole} {magnitude}, {mine}")
    step = c(f"select {lanes} {larger}, {small} {splat('i32', 1)}, {small} {splat('i32', -1)}")
    moved = c(f"add {small} {image}, {step}")
    return c(f"bitcast {small} {c(f'select {lanes} {wrong}, {small} {moved}, {small} {image}')} to {single}")


@support("odd")
def odd(*_: str) -> str:
    """`odd.f64(x)`: f32 rounded to odd, so that one more rounding is the only one that shows."""
    c = Code(f"define internal {vec('float')} @odd.f64({vec('double')} %a) noinline")
    c.ret(f"{vec('float')} " + odd_truncation(c, "%a", 32))
    return c.text()


@support("oddint")
def oddint(kind: str) -> str:
    """`oddint.s64(x)`, `oddint.u64(x)`: f64 rounded towards zero, the last bit set where that was not exact."""
    whole, double, lanes = vec("i64"), vec("double"), vec("i1")
    c = Code(f"define internal {double} @oddint.{kind}({whole} %a) noinline")
    value = c(f"call {double} @directed.cvt.rz.f64.{kind}({whole} %a)")
    operation = "fptosi" if kind == "s64" else "fptoui"
    back = c(f"call {whole} @llvm.{operation}.sat.v32i64.v32f64({double} {value})")
    sticky = c(f"zext {lanes} {c(f'icmp ne {whole} {back}, %a')} to {whole}")
    bits = c(f"or {whole} {c(f'bitcast {double} {value} to {whole}')}, {sticky}")
    c.ret(f"{double} " + c(f"bitcast {whole} {bits} to {double}"))
    return c.text()
