"""Approximations of ex2, lg2, sin, cos and tanh on vectors of f32, each within 2 ulp of the exact value.

Polynomials are least-error fits on the reduced range; special values (NaN, infinities, zeros, subnormals) come out as
the PTX ISA lists them.
"""

from __future__ import annotations

import struct

from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.support import support

# 2^f, f in [-1/2, 1/2]
_EX2 = (1.0, 0.6931471805568324, 0.24022651213498092, 0.055504109063258665, 0.009618025613318034,
        0.0013333478473685416, 0.00015469729214118296, 1.5303700711365693e-05)  # fmt: skip
# log2((1 + t) / (1 - t)) / t in t², t² up to 0.0296
_LG2 = (2.8853900817903284, 0.9617966729876931, 0.5770836604473608, 0.41166778679354493, 0.3408278979421657)
# sin(r) / r and cos(r) in r², r up to pi/4
_SIN = (1.0, -0.1666666663087105, 0.00833332871261169, -0.00019839181133448602, 2.717150942499632e-06)
_COS = (1.0, -0.4999999960695406, 0.041666615925969, -0.0013886594866756585, 2.4377694116500734e-05)
# tanh(x) / x in x², x² up to 1/2
_TANH = (1.0, -0.33333332485769396, 0.13333297448410494, -0.05396242190524171, 0.021822444250138254,
         -0.0086535318020324, 0.0030565408334645543, -0.0006841875519490755)  # fmt: skip
_I32 = "i32"
_TWO_OVER_PI = 0.6366197723675814
_PIO2_HIGH, _PIO2_LOW = 1.5707963267948966, 6.123233995736766e-17


class _Floats:
    """Expressions on `<n x float>`."""

    def __init__(self, c: Code, n: int) -> None:
        self.c, self.n = c, n
        self.single, self.whole, self.lanes = vec("float", n), vec("i32", n), vec("i1", n)

    def const(self, value: float) -> str:
        """A float in every lane."""
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        return f"bitcast ({self.whole} {splat('i32', bits)} to {self.single})"

    def fma(self, a: str, b: str, c: str) -> str:
        """a·b + c, rounded once."""
        kind = self.single
        return self.c(f"call {kind} @llvm.fma.v{self.n}f32({kind} {a}, {kind} {b}, {kind} {c})")

    def polynomial(self, coefficients: tuple[float, ...], x: str) -> str:
        """Horner's scheme, lowest coefficient first."""
        value = self.const(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.const(coefficient))
        return value

    def bits(self, value: str) -> str:
        """As integers."""
        return self.c(f"bitcast {self.single} {value} to {self.whole}")

    def floats(self, value: str) -> str:
        """Integers as the floats of those bits."""
        return self.c(f"bitcast {self.whole} {value} to {self.single}")

    def choose(self, lanes: str, a: str, b: str) -> str:
        """lanes ? a : b."""
        return self.c(f"select {self.lanes} {lanes}, {self.single} {a}, {self.single} {b}")

    def op(self, name: str, a: str, b: str) -> str:
        """A float operation with two operands."""
        return self.c(f"{name} {self.single} {a}, {b}")

    def test(self, how: str, a: str, b: str) -> str:
        """A float comparison."""
        return self.c(f"fcmp {how} {self.single} {a}, {b}")


def _function(name: str, lanes: str) -> tuple[Code, _Floats]:
    kind = vec("float", int(lanes))
    c = Code(f"define internal {kind} @{name}.{lanes}({kind} %a) noinline")
    return c, _Floats(c, int(lanes))


def _ex2(f: _Floats, x: str) -> str:
    c = f.c
    low, high = f.const(-160.0), f.const(130.0)
    bounded = f.choose(f.test("olt", x, low), low, x)
    bounded = f.choose(f.test("ogt", bounded, high), high, bounded)
    nearest = c(f"call {f.single} @llvm.rint.v{f.n}f32({f.single} {bounded})")
    power = f.polynomial(_EX2, f.op("fsub", bounded, nearest))
    exponent = c(f"call {f.whole} @llvm.fptosi.sat.v{f.n}i32.v{f.n}f32({f.single} {nearest})")
    # two factors, so that results below the normal range round once and results above it overflow
    half = c(f"ashr {f.whole} {exponent}, {splat('i32', 1)}")
    rest = c(f"sub {f.whole} {exponent}, {half}")
    for part in (half, rest):
        biased = c(f"add {f.whole} {part}, {splat('i32', 127)}")
        power = f.op("fmul", power, f.floats(c(f"shl {f.whole} {biased}, {splat('i32', 23)}")))
    return f.choose(f.test("uno", x, x), x, power)


@support("flushed")
def flushed(name: str, lanes: str) -> str:
    """`flushed.NAME.N(x)`: a function of `.ftz`: subnormal operands and results become zeros of their sign."""
    c, f = _function(f"flushed.{name}", lanes)
    value = _flushed(f, "%a")
    c.ret(f"{f.single} " + _flushed(f, c(f"call {f.single} @{name}.{lanes}({f.single} {value})")))
    return c.text()


def _flushed(f: _Floats, value: str) -> str:
    bits = f.bits(value)
    exponent = f.c(f"and {f.whole} {bits}, {splat('i32', 0x7F800000)}")
    tiny = f.c(f"icmp eq {f.whole} {exponent}, zeroinitializer")
    sign = f.c(f"and {f.whole} {bits}, {splat('i32', -0x80000000)}")
    return f.floats(f.c(f"select {f.lanes} {tiny}, {f.whole} {sign}, {f.whole} {bits}"))


@support("ex2")
def ex2(lanes: str) -> str:
    """`ex2.N(x)`: 2^x."""
    c, f = _function("ex2", lanes)
    c.ret(f"{f.single} " + _ex2(f, "%a"))
    return c.text()


@support("lg2")
def lg2(lanes: str) -> str:
    """`lg2.N(x)`: −inf for zeros, NaN below."""
    c, f = _function("lg2", lanes)
    small = f.test("olt", "%a", f.const(1.1754943508222875e-38))
    scaled = f.choose(small, f.op("fmul", "%a", f.const(2.0**24)), "%a")
    bits = f.bits(scaled)
    # exponent such that the mantissa lies in [√½, √2)
    shifted = c(f"sub {f.whole} {bits}, {splat('i32', 0x3F3504F3)}")
    exponent = c(f"ashr {f.whole} {shifted}, {splat('i32', 23)}")
    mantissa = f.floats(c(f"sub {f.whole} {bits}, {c(f'shl {f.whole} {exponent}, {splat(_I32, 23)}')}"))
    one = f.const(1.0)
    t = f.op("fdiv", f.op("fsub", mantissa, one), f.op("fadd", mantissa, one))
    series = f.op("fmul", t, f.polynomial(_LG2, f.op("fmul", t, t)))
    whole = c(f"sitofp {f.whole} {exponent} to {f.single}")
    whole = f.choose(small, f.op("fsub", whole, f.const(24.0)), whole)
    result = f.op("fadd", whole, series)
    infinite = f.test("oeq", "%a", f.const(float("inf")))
    result = f.choose(infinite, "%a", result)
    result = f.choose(f.test("oeq", "%a", f.const(0.0)), f.const(float("-inf")), result)
    nan = f.test("ult", "%a", f.const(0.0))
    c.ret(f"{f.single} " + f.choose(nan, f.floats(splat("i32", 0x7FFFFFFF)), result))
    return c.text()


def _reduced(f: _Floats, x: str) -> tuple[str, str]:
    """(x − k·π/2 within ±π/4, k modulo 4 as integers), through f64."""
    c, n = f.c, f.n
    double = vec("double", n)

    def const(value: float) -> str:
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return f"bitcast ({vec('i64', n)} {splat('i64', bits)} to {double})"

    def fma(a: str, b: str, addend: str) -> str:
        return c(f"call {double} @llvm.fma.v{n}f64({double} {a}, {double} {b}, {double} {addend})")

    wide = c(f"fpext {f.single} {x} to {double}")
    turns = c(f"fmul {double} {wide}, {const(_TWO_OVER_PI)}")
    k = c(f"call {double} @llvm.rint.v{n}f64({double} {turns})")
    back = c(f"fneg {double} {k}")
    rest = fma(back, const(_PIO2_LOW), fma(back, const(_PIO2_HIGH), wide))
    quarter = c(f"call {double} @llvm.floor.v{n}f64({double} {c(f'fmul {double} {k}, {const(0.25)}')})")
    number = fma(quarter, const(-4.0), k)
    whole = c(f"call {f.whole} @llvm.fptosi.sat.v{n}i32.v{n}f64({double} {number})")
    return c(f"fptrunc {double} {rest} to {f.single}"), whole


def _circular(name: str, lanes: str, quadrant: int) -> str:
    c, f = _function(name, lanes)
    rest, k = _reduced(f, "%a")
    if quadrant:
        k = c(f"add {f.whole} {k}, {splat('i32', quadrant)}")
    square = f.op("fmul", rest, rest)
    sine = f.op("fmul", rest, f.polynomial(_SIN, square))
    cosine = f.polynomial(_COS, square)
    odd = c(f"trunc {f.whole} {k} to {f.lanes}")
    chosen = f.choose(odd, cosine, sine)
    sign = c(f"shl {f.whole} {c(f'lshr {f.whole} {k}, {splat(_I32, 1)}')}, {splat('i32', 31)}")
    result = f.floats(c(f"xor {f.whole} {f.bits(chosen)}, {sign}"))
    if not quadrant:  # −0 stays
        result = f.choose(f.test("oeq", "%a", f.const(0.0)), "%a", result)
    endless = f.test("uno", f.op("fsub", "%a", "%a"), f.const(0.0))
    c.ret(f"{f.single} " + f.choose(endless, f.floats(splat("i32", 0x7FFFFFFF)), result))
    return c.text()


@support("sin")
def sin(lanes: str) -> str:
    """`sin.N(x)`; NaN for infinities."""
    return _circular("sin", lanes, 0)


@support("cos")
def cos(lanes: str) -> str:
    """`cos.N(x)`; NaN for infinities."""
    return _circular("cos", lanes, 1)


@support("tanh")
def tanh(lanes: str) -> str:
    """`tanh.N(x)`: a polynomial near zero, else 1 − 2 / (e^2x + 1)."""
    c, f = _function("tanh", lanes)
    magnitude = c(f"call {f.single} @llvm.fabs.v{f.n}f32({f.single} %a)")
    near = f.op("fmul", "%a", f.polynomial(_TANH, f.op("fmul", "%a", "%a")))
    power = _ex2(f, f.op("fmul", magnitude, f.const(2.8853900817779268)))
    share = f.op("fdiv", f.const(2.0), f.op("fadd", power, f.const(1.0)))
    far = f.op("fsub", f.const(1.0), share)
    far = c(f"call {f.single} @llvm.copysign.v{f.n}f32({f.single} {far}, {f.single} %a)")
    small = f.test("olt", magnitude, f.const(0.7))
    c.ret(f"{f.single} " + f.choose(small, near, far))
    return c.text()
