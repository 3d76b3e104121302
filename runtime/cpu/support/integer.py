"""Integer functions that LLVM has not, or that would end the process: division, 64-bit high products, bit fields."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.support import support


def _bits(kind: str) -> int:
    return int(kind[1:])


@support("div")
def div(kind: str) -> str:
    """`div.KIND(a, b)`: a zero divisor gives all ones, and the most negative number over −1 stays."""
    return _division("div", kind)


@support("rem")
def rem(kind: str) -> str:
    """`rem.KIND(a, b)`: modulo zero is the dividend, modulo −1 zero."""
    return _division("rem", kind)


def _division(name: str, kind: str) -> str:
    bits, signed = _bits(kind), kind[0] == "s"
    element, vector = f"i{bits}", vec(f"i{bits}")
    c = Code(f"define internal {vector} @{name}.{kind}({vector} %a, {vector} %b) noinline")
    zero = c(f"icmp eq {vector} %b, zeroinitializer")
    unsafe = zero
    if signed:
        minus = c(f"icmp eq {vector} %b, {splat(element, -1)}")
        unsafe = c(f"or {vec('i1')} {zero}, {minus}")
    divisor = c(f"select {vec('i1')} {unsafe}, {vector} {splat(element, 1)}, {vector} %b")
    quotient = _by_float(c, kind, "%a", divisor) if bits <= 32 else _one_by_one(c, kind, "%a", divisor)
    if signed:
        opposite = c(f"sub {vector} zeroinitializer, %a")
        quotient = c(f"select {vec('i1')} {minus}, {vector} {opposite}, {vector} {quotient}")
    if name == "rem":
        quotient = c(f"select {vec('i1')} {zero}, {vector} zeroinitializer, {vector} {quotient}")
        result = c(f"sub {vector} %a, {c(f'mul {vector} {quotient}, %b')}")
    else:
        result = c(f"select {vec('i1')} {zero}, {vector} {splat(element, -1)}, {vector} {quotient}")
    c.ret(f"{vector} {result}")
    return c.text()


def _by_float(c: Code, kind: str, a: str, b: str) -> str:
    """Exact: a quotient of 32-bit numbers is further than a rounding of 53 bits from the next integer above it."""
    vector, double = vec(f"i{_bits(kind)}"), vec("double")
    convert, back = ("sitofp", "fptosi") if kind[0] == "s" else ("uitofp", "fptoui")
    x, y = c(f"{convert} {vector} {a} to {double}"), c(f"{convert} {vector} {b} to {double}")
    return c(f"{back} {double} {c(f'fdiv {double} {x}, {y}')} to {vector}")


def _one_by_one(c: Code, kind: str, a: str, b: str) -> str:
    element, vector = f"i{_bits(kind)}", vec(f"i{_bits(kind)}")
    slots = [c.var(vector, value, align=64) for value in (a, b)]
    with c.count("i32", 32) as lane:
        places = [c(f"getelementptr {element}, ptr {slot}, i32 {lane}") for slot in slots]
        x, y = (c.load(element, place) for place in places)
        c.store(element, c(f"{'s' if kind[0] == 's' else 'u'}div {element} {x}, {y}"), places[0])
    return c.load(vector, slots[0])


@support("mulhi")
def mulhi(kind: str) -> str:
    """`mulhi.u64(a, b)`, `mulhi.s64(a, b)`: the upper halves of the products."""
    vector = vec("i64")
    c = Code(f"define internal {vector} @mulhi.{kind}({vector} %a, {vector} %b) noinline")
    low = splat("i64", 0xFFFFFFFF)
    half = splat("i64", 32)
    a0, b0 = (c(f"and {vector} {x}, {low}") for x in ("%a", "%b"))
    a1, b1 = (c(f"lshr {vector} {x}, {half}") for x in ("%a", "%b"))
    ll, lh, hl, hh = (c(f"mul {vector} {x}, {y}") for x, y in ((a0, b0), (a0, b1), (a1, b0), (a1, b1)))
    middle = c(f"add {vector} {lh}, {c(f'lshr {vector} {ll}, {half}')}")
    middle2 = c(f"add {vector} {hl}, {c(f'and {vector} {middle}, {low}')}")
    top = c(f"add {vector} {hh}, {c(f'lshr {vector} {middle}, {half}')}")
    top = c(f"add {vector} {top}, {c(f'lshr {vector} {middle2}, {half}')}")
    if kind == "s64":  # take off what a negative factor added as an unsigned one
        for x, y in (("%a", "%b"), ("%b", "%a")):
            negative = c(f"ashr {vector} {x}, {splat('i64', 63)}")
            top = c(f"sub {vector} {top}, {c(f'and {vector} {negative}, {y}')}")
    c.ret(f"{vector} {top}")
    return c.text()


@support("bfe")
def bfe(kind: str) -> str:
    """`bfe.u32|s32|u64|s64(a, start, length)`; start and length below 256 (PTX ISA, "bfe")."""
    bits, signed = _bits(kind), kind[0] == "s"
    element, vector, short = f"i{bits}", vec(f"i{bits}"), vec("i32")
    c = Code(f"define internal {vector} @bfe.{kind}({vector} %a, {short} %start, {short} %length) noinline")
    most = splat("i32", bits - 1)
    # sign bit of the result: the field's top bit, or the value's where the field reaches beyond it
    end = c(f"add {short} {c(f'add {short} %start, %length')}, {splat('i32', -1)}")
    last = c(f"call {short} @llvm.umin.v32i32({short} {end}, {short} {most})")
    shifted = _wide_shift(c, "lshr", bits, "%a", "%start")
    inside = _wide_shift(c, "shl", bits, splat(element, -1), "%length")
    field = c(f"and {vector} {shifted}, {c(f'xor {vector} {inside}, {splat(element, -1)}')}")
    if signed:
        top = _wide_shift(c, "lshr", bits, "%a", last)
        negative = c(f"trunc {vector} {top} to {vec('i1')}")
        # bits of the result that hold no bit of the value are copies of the sign
        taken = _wide_shift(c, "lshr", bits, splat(element, -1), "%start")
        held = c(f"and {vector} {taken}, {c(f'xor {vector} {inside}, {splat(element, -1)}')}")
        filled = c(f"or {vector} {field}, {c(f'xor {vector} {held}, {splat(element, -1)}')}")
        field = c(f"select {vec('i1')} {negative}, {vector} {filled}, {vector} {field}")
        none = c(f"icmp eq {short} %length, zeroinitializer")
        field = c(f"select {vec('i1')} {none}, {vector} zeroinitializer, {vector} {field}")
    c.ret(f"{vector} {field}")
    return c.text()


def _wide_shift(c: Code, name: str, bits: int, value: str, amount: str) -> str:
    """A logical shift of any amount: zero from the width on."""
    vector, short = vec(f"i{bits}"), vec("i32")
    inside = c(f"icmp ult {short} {amount}, {splat('i32', bits)}")
    safe = c(f"select {vec('i1')} {inside}, {short} {amount}, {short} zeroinitializer")
    if bits == 64:
        safe = c(f"zext {short} {safe} to {vector}")
    return c(f"select {vec('i1')} {inside}, {vector} {c(f'{name} {vector} {value}, {safe}')}, {vector} zeroinitializer")


@support("fns")
def fns(*_: str) -> str:
    """`fns(mask, base, n)`: the n-th set bit at or above (n > 0) or below (n < 0) `base`; n 0: whether it is set."""
    vector = vec("i32")
    c = Code(f"define internal {vector} @fns({vector} %mask, {vector} %base, {vector} %n) noinline")
    slots = [c.var(vector, value, align=64) for value in ("%mask", "%base", "%n")]
    with c.count("i32", 32) as lane:
        places = [c(f"getelementptr i32, ptr {slot}, i32 {lane}") for slot in slots]
        mask, base, n = (c.load("i32", place) for place in places)
        down = c(f"icmp slt i32 {n}, 0")
        step = c(f"select i1 {down}, i32 -1, i32 1")
        wanted = c.var("i32", 0)
        c.store("i32", c(f"call i32 @llvm.abs.i32(i32 {n}, i1 false)"), wanted)
        with c.if_(c(f"icmp eq i32 {n}, 0")):
            c.store("i32", 1, wanted)
        at, result = c.var("i32", 0), c.var("i32", -1)
        c.store("i32", base, at)
        c.store("i32", -1, result)
        with c.loop() as out:
            here = c.load("i32", at)
            c.leave(out, c(f"icmp uge i32 {here}, 32"))
            with c.if_(c(f"trunc i32 {c(f'lshr i32 {mask}, {here}')} to i1")):
                left = c(f"sub i32 {c.load('i32', wanted)}, 1")
                c.store("i32", left, wanted)
                with c.if_(c(f"icmp eq i32 {left}, 0")):
                    c.store("i32", here, result)
                    c.store("i32", 32, at)
            c.leave(out, c(f"icmp eq i32 {n}, 0"))
            c.store("i32", c(f"add i32 {c.load('i32', at)}, {step}"), at)
        c.store("i32", c.load("i32", result), places[0])
    c.ret(f"{vector} " + c.load(vector, slots[0]))
    return c.text()
