"""Loads, stores, atomics and fences of the oracle (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

import numpy as np

from tests.evidence.oracle.integer import wrap
from tests.evidence.oracle.machine import Machine, bits, handles, typed
from tests.evidence.oracle.mbarriers import complete
from tests.evidence.oracle.numbers import PAIRS, fma, is_float, narrow
from tests.evidence.oracle.program import WIDTH, Op

SPACES = ("global", "shared", "local", "const", "param", "shared.cta", "shared.cluster", "param.entry", "param.func")


def space_of(op: Op) -> str:
    """The state space among the modifiers: empty for generic; both shared windows are `shared`."""
    found = next((w for w in op.mods if w in SPACES), "")
    return found.split(".")[0]


def vector_length(op: Op) -> int:
    """n of .vn."""
    return next((int(w[1:]) for w in op.mods if w in ("v2", "v4", "v8")), 1)


@handles("ld", "ldu")
def load(m: Machine, op: Op) -> None:
    """ld in any space, vectors too; a narrow value is extended to its register by its type."""
    kind, count = op.type, vector_length(op)
    size = WIDTH[kind] // 8
    at = m.spaces.place(m.at(op.args[1], space_of(op)), size * count, m.active)
    data = m.spaces.load(at, size * count).reshape(-1, count, size)
    targets = op.args[0] if isinstance(op.args[0], tuple) else (op.args[0],)
    for n, target in enumerate(targets):
        raw = np.ascontiguousarray(data[:, n]).view(f"u{size}").reshape(-1)
        m.set(target, kind, typed(raw, kind))


@handles("st")
def store(m: Machine, op: Op) -> None:
    """st in any space, vectors too; st.async also completes bytes on an mbarrier."""
    kind, count = op.type, vector_length(op)
    size = WIDTH[kind] // 8
    sources = op.args[1] if isinstance(op.args[1], tuple) else (op.args[1],)
    data = np.stack([bits(m.get(s, kind), kind).view(np.uint8).reshape(-1, size) for s in sources], 1)
    at = m.spaces.place(m.at(op.args[0], space_of(op)), size * count, m.active)
    m.spaces.store(at, data.reshape(-1, size * count))
    if "async" in op:
        complete(m, op.args[2], size * count)


def combine(name: str, kind: str, old: np.ndarray, b: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    """The value that one atomic operation leaves behind; arrays of one element (two for packed pairs)."""
    if name == "exch":
        return b
    if name == "cas":
        return np.where(old == b, c, old).astype(old.dtype)
    if name == "add":
        return fma(old, np.ones_like(old), b, kind) if is_float(kind) else wrap(int(old[0]) + int(b[0]), kind)
    if name in ("min", "max"):
        pick = np.fmin if name == "min" else np.fmax
        return narrow(pick(old.astype(np.float64), b.astype(np.float64)), kind) if is_float(kind) else pick(old, b)
    if name in ("and", "or", "xor"):
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[name](old, b)
    if name == "inc":
        return wrap(0 if old[0] >= b[0] else int(old[0]) + 1, kind)
    return wrap(int(b[0]) if old[0] == 0 or old[0] > b[0] else int(old[0]) - 1, kind)


@handles("atom", "red")
def atomic(m: Machine, op: Op) -> None:
    """Atomics, one thread after the other by number; red.async also completes bytes on an mbarrier."""
    kind, count = op.type, vector_length(op)
    name = next(w for w in op.mods if w in ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas"))
    size = WIDTH[kind] // 8
    place, *sources = op.args[1:] if op.name == "atom" else op.args
    if "async" in op:
        barrier = sources.pop()
    columns = [o if isinstance(o, tuple) else (o,) for o in sources]
    values = [[m.get(part, kind) for part in column] for column in columns]
    at = m.spaces.place(m.at(place, space_of(op)), size * count, m.active)
    before = np.zeros((m.active.size, count), f"u{size}")
    for t in range(m.active.size):
        for n in range(count):
            where = slice(at[t] + n * size, at[t] + (n + 1) * size)
            raw = m.spaces.bytes[where].copy().view(f"u{size}")
            before[t, n] = raw[0]
            old = typed(raw, kind).reshape(-1)
            b = np.atleast_1d(values[0][n][t]).reshape(-1)
            c = np.atleast_1d(values[1][n][t]) if len(values) > 1 else None
            new = combine(name, kind, old, b, c)
            new = new.reshape(1, 2) if kind in PAIRS else new
            m.spaces.bytes[where] = bits(new, kind).view(np.uint8)
    if op.name == "atom":
        targets = op.args[0] if isinstance(op.args[0], tuple) else (op.args[0],)
        for n, target in enumerate(targets):
            m.set(target, kind, typed(before[:, n].copy(), kind))
    if "async" in op:
        complete(m, barrier, size * count)


@handles("membar", "fence", "prefetch", "prefetchu", "griddepcontrol", "setmaxnreg", "discard", "applypriority")
def order(m: Machine, op: Op) -> None:
    """Nothing to do: memory is sequentially consistent here, and launches do not overlap."""


@handles("createpolicy")
def policy(m: Machine, op: Op) -> None:
    """A cache policy is a number that changes nothing."""
    m.set(op.args[0], "b64", np.zeros(m.active.size, np.uint64))
