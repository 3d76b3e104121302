"""Integer and logic instructions, selections and comparisons of the oracle (PTX ISA 9.7.1, 9.7.5, 9.7.6, 9.7.8)."""

from __future__ import annotations

import numpy as np

from tests.oracle.machine import Machine, handles
from tests.oracle.memory import OracleFault
from tests.oracle.numbers import DTYPES, is_float
from tests.oracle.program import WIDTH, Op


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
                m.carry[m.active] = (x + y >> WIDTH[kind] != 0) if op.name == "add" else x < y
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


@handles("mad", "mul24", "mad24", "madc")
def integer_mad(m: Machine, op: Op) -> None:
    """mad and its 24-bit forms; the float forms are in `floating`."""
    kind = op.type
    if is_float(kind):
        from tests.oracle.floating import float_fma

        return float_fma(m, op)
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
    """addc, subc with the carry flag; .cc writes it."""
    kind = f"u{WIDTH[op.type]}"
    a, b = (big(m.get(o, kind)) for o in op.args[1:3])
    carry = m.carry[m.active].astype(object)
    total = a + b + carry if op.name == "addc" else a - b - carry
    if "cc" in op:
        m.carry[m.active] = [v >> WIDTH[kind] != 0 for v in total]
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
        out = np.zeros_like(a)
        for row in range(8):
            if table >> row & 1:
                out |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return m.set(op.args[0], kind, out)
    m.set(op.args[0], kind, {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op.name](a, b))


@handles("popc", "clz", "brev", "bfind", "fns", "bmsk", "szext", "sad", "dp4a", "dp2a", "bfe", "bfi", "shf", "prmt")
def bit_field(m: Machine, op: Op) -> None:
    """Instructions that are easiest to state for one value at a time."""
    function, types, result = _SCALAR[op.name](op)
    columns = [m.get(o, t).tolist() for o, t in zip(op.args[1:], types, strict=True)]
    m.set(op.args[0], result, wrap([function(*row) for row in zip(*columns, strict=True)], result))


def _bfe(a: int, position: int, length: int, kind: str) -> int:
    width = WIDTH[kind]
    position, length = position & 0xFF, length & 0xFF
    raw = a % (1 << width)
    sign = 0
    if kind[0] == "s" and length:
        sign = raw >> min(position + length - 1, width - 1) & 1
    out = 0
    for i in range(width):
        inside = i < length and position + i < width
        out |= (raw >> (position + i) & 1 if inside else sign) << i
    return out


def _bfi(a: int, b: int, position: int, length: int, kind: str) -> int:
    width, position, length = WIDTH[kind], position & 0xFF, length & 0xFF
    for i in range(length):
        if position + i < width:
            b = b & ~(1 << position + i) | (a >> i & 1) << position + i
    return b


def _prmt(a: int, b: int, c: int, mode: str) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    n = c & 3
    orders = {"f4e": [n, n + 1, n + 2, n + 3], "b4e": [n, (n - 1) & 7, (n - 2) & 7, (n - 3) & 7], "rc8": [n] * 4,
              "ecl": [max(i, n) for i in range(4)], "ecr": [min(i, n) for i in range(4)],
              "rc16": [(n & 1) * 2, (n & 1) * 2 + 1] * 2}  # fmt: skip
    out = 0
    for i in range(4):
        selector = orders[mode][i] if mode else c >> 4 * i & 15
        byte = data[selector & 7]
        if not mode and selector & 8:
            byte = 0xFF if byte & 0x80 else 0
        out |= byte << 8 * i
    return out


def _shf(op: Op, a: int, b: int, c: int) -> int:
    n = min(c, 32) if "clamp" in op else c & 31
    pair = b << 32 | a
    return (pair << n >> 32 if "l" in op else pair >> n) & 0xFFFFFFFF


def _bfind(v: int, kind: str, shift: bool) -> int:
    if kind[0] == "s" and v < 0:
        v = ~v
    top = v.bit_length() - 1
    return top if top < 0 or not shift else WIDTH[kind] - 1 - top


def _fns(mask: int, start: int, offset: int) -> int:
    if offset == 0:
        return start if mask >> start & 1 else 0xFFFFFFFF
    step, at, left = (1, start, offset) if offset > 0 else (-1, start, -offset)
    while 0 <= at < 32:
        left -= mask >> at & 1
        if left == 0:
            return at
        at += step
    return 0xFFFFFFFF


def _dots(op: Op, a: int, b: int, c: int) -> int:
    def field(v: int, n: int, width: int, kind: str) -> int:
        v = v >> n * width & (1 << width) - 1
        return v - (1 << width) if kind == "s32" and v >> width - 1 else v

    a_kind, b_kind = [x for x in op.mods if x in ("s32", "u32")]
    if op.name == "dp4a":
        return c + sum(field(a, n, 8, a_kind) * field(b, n, 8, b_kind) for n in range(4))
    return c + sum(field(a, n, 16, a_kind) * field(b, n + 2 * ("hi" in op), 8, b_kind) for n in range(2))


def _szext(v: int, n: int, op: Op) -> int:
    n = n & 31 if "wrap" in op else min(n, 32)
    if n == 0:
        return 0
    v &= (1 << n) - 1
    return v - (1 << n) if op.type == "s32" and v >> n - 1 else v


def _bmsk(start: int, length: int, op: Op) -> int:
    start, length = (start & 31, length & 31) if "wrap" in op else (min(start, 32), min(length, 32))
    return (1 << length) - 1 << start


def _dot_type(op: Op) -> str:
    return "s32" if "s32" in op else "u32"


_SCALAR = {
    "popc": lambda op: (lambda v: v.bit_count(), [op.type], "u32"),
    "clz": lambda op: (lambda v: WIDTH[op.type] - v.bit_length(), [op.type], "u32"),
    "brev": lambda op: (lambda v: int(f"{v:0{WIDTH[op.type]}b}"[::-1], 2), [op.type], op.type),
    "bfind": lambda op: (lambda v: _bfind(v, op.type, "shiftamt" in op), [op.type], "u32"),
    "fns": lambda op: (_fns, ["b32", "b32", "s32"], "b32"),
    "bmsk": lambda op: (lambda a, b: _bmsk(a, b, op), ["u32", "u32"], "u32"),
    "szext": lambda op: (lambda a, b: _szext(a, b, op), ["u32", "u32"], op.type),
    "sad": lambda op: (lambda a, b, c: c + abs(a - b), [op.type] * 3, op.type),
    "dp4a": lambda op: (lambda a, b, c: _dots(op, a, b, c), ["u32", "u32", _dot_type(op)], _dot_type(op)),
    "dp2a": lambda op: (lambda a, b, c: _dots(op, a, b, c), ["u32", "u32", _dot_type(op)], _dot_type(op)),
    "bfe": lambda op: (lambda a, b, c: _bfe(a, b, c, op.type), [op.type, "u32", "u32"], op.type),
    "bfi": lambda op: (lambda a, b, c, d: _bfi(a, b, c, d, op.type), [op.type, op.type, "u32", "u32"], op.type),
    "shf": lambda op: (lambda a, b, c: _shf(op, a, b, c), ["u32"] * 3, "u32"),
    "prmt": lambda op: (
        lambda a, b, c: _prmt(a, b, c, op.mods[-1] if op.mods[-1] != "b32" else ""),
        ["u32"] * 3,
        "u32",
    ),
}

_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_JOIN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@handles("setp", "set")
def compare(m: Machine, op: Op) -> None:
    """setp and set: compare, then combine with a predicate; set writes 1.0 or all ones."""
    kind = op.type
    a, b = (m.get(o, kind) for o in op.args[1:3])
    if is_float(kind):
        a, b = (v.astype(np.float64) for v in (a, b))
        if "ftz" in op:
            a, b = (np.where(np.abs(v) < 2.0**-126, v * 0, v) for v in (a, b))
    words = [w for w in op.mods if w in _COMPARE or w[:-1] in _COMPARE or w in ("num", "nan")]
    with np.errstate(invalid="ignore"):
        result = _relation(words[0], a, b)
    joins = [w for w in op.mods if w in _JOIN]
    extra = m.get(op.args[3], "pred") if joins else None
    if op.name == "setp":
        targets = op.args[0][1:] if isinstance(op.args[0], tuple) else (op.args[0],)
        packed = result.ndim == 2
        for n, target in enumerate(targets):
            value = result[:, n] if packed else (result if n == 0 else ~result)
            if extra is not None:
                value = _JOIN[joins[0]](value, extra)
            m.set(target, "pred", value)
        return
    if extra is not None:
        result = _JOIN[joins[0]](result, extra if result.ndim == 1 else extra[:, None])
    target = next(w for w in op.mods if w in DTYPES)
    ones = result if is_float(target) else wrap(-result.astype(np.int64).reshape(-1), target)
    m.set(op.args[0], target, ones.astype(DTYPES[target]))


def _relation(word: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    unordered = np.isnan(a) | np.isnan(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    if word in ("num", "nan"):
        return unordered == (word == "nan")
    if word in _COMPARE:
        return _COMPARE[word](a, b) & ~(unordered & (word != "ne")) & ~(unordered & (word == "ne"))
    return _COMPARE[word[:-1]](a, b) | unordered


@handles("selp", "slct")
def select(m: Machine, op: Op) -> None:
    """selp by a predicate, slct by the sign of c."""
    if op.name == "selp":
        kind = op.type
        chosen = m.get(op.args[3], "pred")
    else:
        kind, by = [w for w in op.mods if w in DTYPES]
        c = m.get(op.args[3], by)
        chosen = c >= 0
        if "ftz" in op:
            chosen |= np.abs(c) < 2.0**-126
    raw = f"b{WIDTH[kind]}"
    m.set(op.args[0], raw, np.where(chosen, m.get(op.args[1], raw), m.get(op.args[2], raw)))


@handles("mov", "cvta", "nop", "pmevent", "isspacep")
def move(m: Machine, op: Op) -> None:
    """mov of values, addresses, vectors; cvta between a space and generic; isspacep."""
    from tests.oracle.memory import GLOBAL, LOCAL, RANK_SHIFT, SHARED

    windows = {"shared": (SHARED, LOCAL), "local": (LOCAL, GLOBAL), "global": (GLOBAL, 2**63), "const": (GLOBAL, 2**63),
               "param": (GLOBAL, 2**63), "shared.cta": (SHARED, SHARED + (1 << RANK_SHIFT)),
               "shared.cluster": (SHARED, LOCAL)}  # fmt: skip
    if op.name == "mov":
        kind = op.type
        if kind == "pred":
            return m.set(op.args[0], "pred", m.get(op.args[1], "pred"))
        raw = f"b{WIDTH[kind]}"
        return m.set(op.args[0], raw, m.get(op.args[1], raw))
    if op.name == "nop" or op.name == "pmevent":
        return None
    space = next(w for w in op.mods if w in windows)
    low, high = windows[space]
    if op.name == "isspacep":
        address = m.get(op.args[1], "u64").astype(np.int64)
        return m.set(op.args[0], "pred", (address >= low) & (address < high))
    kind = op.type
    start = low if space.startswith(("shared", "local")) else 0
    value = m.get(op.args[1], kind).astype(np.uint64)
    value = value - np.uint64(start) if "to" in op else value + np.uint64(start)
    if kind == "u32" and start:
        raise OracleFault("a generic address in 32 bits")
    return m.set(op.args[0], kind, value)
