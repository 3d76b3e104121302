"""Comparisons, selections and moves of the oracle (PTX ISA 9.7.5, 9.7.6, 9.7.9: mov, cvta, isspacep)."""

from __future__ import annotations

import numpy as np

from tests.evidence.oracle.integer import wrap
from tests.evidence.oracle.machine import Machine, handles
from tests.evidence.oracle.memory import GLOBAL, LOCAL, RANK_SHIFT, SHARED, OracleFault
from tests.evidence.oracle.numbers import DTYPES, is_float
from tests.evidence.oracle.program import WIDTH, Op

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
