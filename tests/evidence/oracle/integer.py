"""Integer and logic instructions, selections and comparisons of the oracle (PTX ISA 9.7.1, 9.7.5, 9.7.6, 9.7.8)."""

from __future__ import annotations

import numpy as np

from tests.evidence.oracle.machine import Machine, handles
from tests.evidence.oracle.numbers import DTYPES
from tests.evidence.oracle.program import WIDTH, Op


def wrap(values: object, type_: str) -> np.ndarray:
    """Python integers (or wider arrays) to a type, modulo its width."""
    width = WIDTH[type_]
    flat = np.asarray(values, object).reshape(-1)
    raw = np.array([int(v) % (1 << width) for v in flat], f"u{width // 8}")
    return raw.view(DTYPES[type_])


def clamp(values: object, type_: str) -> np.ndarray:
    """Python integers to a type, saturated."""
    info = np.iinfo(DTYPES[type_])
    flat = np.asarray(values, object).reshape(-1)
    return np.array([min(max(int(v), int(info.min)), int(info.max)) for v in flat], info.dtype)


def big(values: np.ndarray) -> np.ndarray:
    """As Python integers, so that nothing overflows."""
    return values.astype(object)


def double(type_: str) -> str:
    """The type of twice the width."""
    return f"{type_[0]}{WIDTH[type_] * 2}"


def integer_binary(m: Machine, op: Op) -> None:
    """add, sub, mul (lo, hi, wide), div, rem, min, max on integers, packed 16-bit pairs too."""
    kind = op.type
    a, b = (m.get(o, kind) for o in op.args[1:3])
    with np.errstate(all="ignore"):
        if op.name in ("add", "sub"):
            out = a + b if op.name == "add" else a - b
            if "sat" in op:
                out = clamp(big(a) + big(b) if op.name == "add" else big(a) - big(b), kind)
            if "cc" in op:
                x, y = (big(v.view(f"u{v.itemsize}")) for v in (a, b))
                m.carry[m.active] = (x + y >> WIDTH[kind] != 0) if op.name == "add" else x >= y
        elif op.name == "mul":
            product = a * b if "lo" in op else big(a) * big(b)
            if "wide" in op:
                return m.set(op.args[0], double(kind), wrap(product, double(kind)))
            out = wrap([v >> WIDTH[kind] for v in product], kind) if "hi" in op else product
        elif op.name in ("div", "rem"):
            out = _divide(a, b, op.name, kind)
        else:
            out = np.minimum(a, b) if op.name == "min" else np.maximum(a, b)
            if "relu" in op:
                out = np.maximum(out, 0)
    m.set(op.args[0], kind, out)


def _divide(a: np.ndarray, b: np.ndarray, name: str, kind: str) -> np.ndarray:
    out = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        quotient = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        out.append((-1 if y == 0 else quotient) if name == "div" else (x if y == 0 else x - quotient * y))
    return wrap(out, kind)


@handles("mul24", "mad24", "madc")
def integer_mad(m: Machine, op: Op) -> None:
    """mad on integers (see `floating` for `mad`), and its 24-bit forms."""
    kind = op.type
    values = [big(m.get(o, kind)) for o in op.args[1:3]]
    if op.name in ("mul24", "mad24"):
        values = [np.array([_low24(v, kind) for v in x], object) for x in values]
    if "cc" in op or op.name == "madc":
        return _mad_carry(m, op, kind)
    product = values[0] * values[1]
    target = double(kind) if "wide" in op else kind
    if "hi" in op:
        product = np.array([v >> (16 if "24" in op.name else WIDTH[kind]) for v in product], object)
    if op.name == "mul24":
        return m.set(op.args[0], target, wrap(product, target))
    if "lo" in op:
        product = big(wrap(product, target))
    total = product + big(m.get(op.args[3], target))
    m.set(op.args[0], target, clamp(total, target) if "sat" in op else wrap(total, target))


def _mad_carry(m: Machine, op: Op, kind: str) -> None:
    """mad.cc, madc: half of the product, plus c, plus the flag for madc; .cc writes the flag."""
    a, b = (big(m.get(o, kind)) for o in op.args[1:3])
    half = wrap([v >> WIDTH[kind] if "hi" in op else v for v in a * b], f"u{WIDTH[kind]}")
    total = big(half) + big(m.get(op.args[3], f"u{WIDTH[kind]}"))
    if op.name == "madc":
        total = total + m.carry[m.active].astype(object)
    if "cc" in op:
        m.carry[m.active] = total >> WIDTH[kind] != 0
    m.set(op.args[0], kind, wrap(total, kind))


def _low24(v: int, kind: str) -> int:
    v &= 0xFFFFFF
    return v - (1 << 24) if kind == "s32" and v >> 23 else v


@handles("addc", "subc")
def carried(m: Machine, op: Op) -> None:
    """addc, subc with the carry flag, which a borrow clears; .cc writes it."""
    kind = f"u{WIDTH[op.type]}"
    a, b = (big(m.get(o, kind)) for o in op.args[1:3])
    carry = m.carry[m.active].astype(object)
    total = a + b + carry if op.name == "addc" else a - b - (1 - carry)
    if "cc" in op:
        m.carry[m.active] = [(v >> WIDTH[kind] != 0) == (op.name == "addc") for v in total]
    m.set(op.args[0], kind, wrap(total, kind))


@handles("and", "or", "xor", "not", "cnot", "shl", "shr", "lop3")
def logic(m: Machine, op: Op) -> None:
    """Bitwise operations and shifts; a shift amount of the width or more gives 0, or the sign."""
    kind = op.type
    if op.name in ("shl", "shr"):
        a, n = m.get(op.args[1], kind), m.get(op.args[2], "u32").astype(np.int64)
        n = np.minimum(n, WIDTH[kind])
        wide = big(a)
        out = [v << int(s) if op.name == "shl" else v >> int(s) for v, s in zip(wide, n, strict=True)]
        return m.set(op.args[0], kind, wrap(out, kind))
    a = m.get(op.args[1], kind)
    if op.name == "not":
        return m.set(op.args[0], kind, ~a)
    if op.name == "cnot":
        return m.set(op.args[0], kind, (a == 0).astype(a.dtype))
    b = m.get(op.args[2], kind)
    if op.name == "lop3":
        c, table = m.get(op.args[3], kind), int(op.args[4].value)
        chosen = np.zeros_like(a)
        for row in range(8):
            if table >> row & 1:
                chosen |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return m.set(op.args[0], kind, chosen)
    m.set(op.args[0], kind, {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op.name](a, b))
