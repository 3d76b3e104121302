"""Control flow, barriers, shuffles, votes and other instructions of a warp or a CTA (PTX ISA 9.7.12, 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxgen import nodes
from tests.evidence.oracle.integer import wrap
from tests.evidence.oracle.machine import READY, Machine, handles
from tests.evidence.oracle.memory import OracleFault
from tests.evidence.oracle.program import Op


@handles("bra", "brx")
def branch(m: Machine, op: Op) -> None:
    """To a label, or to one of a table by index."""
    if op.name == "bra":
        m.pc[m.active] = op.targets[0]
        return
    index = m.get(op.args[0], "u32")
    m.pc[m.active] = np.array(op.targets)[index]


@handles("exit")
def leave(m: Machine, op: Op) -> None:
    """The threads are gone: barriers stop counting them."""
    m.alive[m.active] = False
    for key in list(m.barriers):
        _release(m, key)


@handles("trap")
def trap(m: Machine, op: Op) -> None:
    """An error of the kernel's own."""
    raise OracleFault(f"trap in thread {m.active[0]}")


# barriers of a CTA ------------------------------------------------------------------------------------------------
@handles("bar", "barrier")
def barrier(m: Machine, op: Op) -> None:
    """bar.sync, bar.arrive, bar.red with ids and counts; bar.warp.sync; barrier.cluster.arrive and wait."""
    words = [w for w in op.mods if w not in ("cta", "aligned")]
    if words[0] == "warp":
        return
    if words[0] == "cluster":
        if words[1] == "arrive":
            m.cluster_arrivals[m.active] += 1
        return
    reduces = words[0] == "red"
    args = list(op.args[1:] if reduces else op.args)
    value = m.get(args.pop(), "pred") if reduces else np.zeros(m.active.size, bool)
    numbers = m.get(args[0], "u32")
    counts = m.get(args[1], "u32") if len(args) > 1 else np.zeros(m.active.size, np.uint32)
    everyone = m.active
    keys = {(int(c), int(n)) for c, n in zip(m.cta[everyone], numbers, strict=True)}
    for key in sorted(keys):
        here = (m.cta[everyone] == key[0]) & (numbers == key[1])
        record = m.barriers.setdefault(key, [])
        waits = words[0] != "arrive"
        record.append((everyone[here], value[here], int(counts[here][0]), op if reduces else None, waits))
        if waits:
            m.parked[everyone[here]] = True
        _release(m, key)
    m.active = everyone


def _release(m: Machine, key: tuple[int, int]) -> None:
    record = m.barriers[key]
    if not record:
        return
    arrived = sum(threads.size for threads, *_ in record)
    count = record[0][2] or int((m.alive & (m.cta == key[0])).sum())
    if arrived < count:
        return
    m.barriers[key] = []
    values = np.concatenate([v for _, v, *_ in record])
    for threads, _, _, op, waits in record:
        if waits:
            m.parked[threads] = False
        if op is not None:
            m.active = threads
            result = {"popc": values.sum(), "and": values.all(), "or": values.any()}
            word = next(w for w in op.mods if w in result)
            m.set(op.args[0], op.type, np.full(threads.size, result[word], np.uint32 if word == "popc" else bool))


def _cluster_ready(m: Machine, op: Op) -> np.ndarray:
    """Through barrier.cluster.wait: those whose whole cluster has arrived as often as they have."""
    arrivals = np.where(m.alive, m.cluster_arrivals, np.iinfo(np.int64).max)
    least = np.full(m.cluster_number.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, m.cluster_number, arrivals)
    return least[m.cluster_number[m.active]] >= m.cluster_arrivals[m.active]


# lanes together ---------------------------------------------------------------------------------------------------
def members(m: Machine, op: Op) -> np.ndarray:
    """The member mask `[active]` of a .sync instruction; all lanes for those without an operand."""
    if op.name in ("mma", "ldmatrix", "stmatrix", "movmatrix", "wgmma"):
        return np.full(m.active.size, 0xFFFFFFFF, np.uint32)
    position = 0 if op.name in ("bar", "barrier") else (1 if op.name == "elect" else len(op.args) - 1)
    return m.get(op.args[position], "u32")


def lane_table(m: Machine, values: np.ndarray, fill: object = 0) -> np.ndarray:
    """Values of the active threads as `[warps, 32]`, other lanes filled."""
    table = np.full((int(m.warp.max()) + 1, 32), fill, values.dtype)
    table[m.warp[m.active], m.lane[m.active]] = values
    return table


def _together(m: Machine, op: Op) -> np.ndarray:
    """Those whose member mask holds no living lane that is elsewhere."""
    if op.name in ("bar", "barrier"):
        if "cluster" in op:
            return _cluster_ready(m, op) if "wait" in op else np.ones(m.active.size, bool)
        if "warp" not in op:
            return np.ones(m.active.size, bool)
    guarded = np.ones(m.active.size, bool)
    if op.guard is not None:
        guarded = m.registers[op.guard[0].index][m.active] != op.guard[1]
    everyone = m.active
    here = np.zeros((int(m.warp.max()) + 1, 32), bool)
    here[m.warp[everyone[guarded]], m.lane[everyone[guarded]]] = True
    gone = np.ones_like(here)
    gone[m.warp[m.alive], m.lane[m.alive]] = False
    mask = members(m, op)
    wanted = mask[:, None] >> np.arange(32, dtype=np.uint32) & 1 == 1
    ok = (~wanted | (here | gone)[m.warp[everyone]]).all(1)
    return ok | ~guarded


READY.update(dict.fromkeys(
    ("bar", "barrier", "shfl", "vote", "match", "redux", "mma", "ldmatrix", "stmatrix", "movmatrix", "elect"), _together
))  # fmt: skip


@handles("shfl")
def shuffle(m: Machine, op: Op) -> None:
    """shfl.sync up, down, bfly, idx, as the pseudo-code of the ISA has it."""
    mode = next(w for w in op.mods if w in ("up", "down", "bfly", "idx"))
    a = m.get(op.args[1], "b32")
    b, c = m.get(op.args[2], "u32").astype(int), m.get(op.args[3], "u32").astype(int)
    lane = m.lane[m.active]
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    top = (lane & segment) | (clamp & ~segment)
    least = lane & segment
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": least | (b & ~segment)}[mode]
    valid = source >= top if mode == "up" else source <= top
    source = np.where(valid, source, lane)
    out = lane_table(m, a)[m.warp[m.active], source]
    target = op.args[0]
    if isinstance(target, tuple):
        m.set(target[2], "pred", valid)
        target = target[1]
    m.set(target, "b32", out)


def _mask_values(m: Machine, truth: np.ndarray) -> np.ndarray:
    return (lane_table(m, truth, False) << np.arange(32, dtype=np.uint32)).sum(1, dtype=np.uint32)


@handles("vote")
def vote(m: Machine, op: Op) -> None:
    """vote.sync over the lanes of the member mask."""
    mask = m.get(op.args[2], "u32")
    ones = _mask_values(m, m.get(op.args[1], "pred"))[m.warp[m.active]] & mask
    if "ballot" in op:
        return m.set(op.args[0], "b32", ones)
    out = {"all": ones == mask, "any": ones != 0, "uni": (ones == mask) | (ones == 0)}
    return m.set(op.args[0], "pred", next(out[w] for w in op.mods if w in out))


@handles("activemask")
def activemask(m: Machine, op: Op) -> None:
    """The lanes that execute this together."""
    m.set(op.args[0], "b32", _mask_values(m, np.ones(m.active.size, bool))[m.warp[m.active]])


@handles("elect")
def elect(m: Machine, op: Op) -> None:
    """The lowest lane of the member mask."""
    mask = m.get(op.args[1], "u32").astype(np.int64)
    leader = np.array([(int(v) & -int(v)).bit_length() - 1 for v in mask])
    target = op.args[0]
    m.set(target[1], "b32", leader.astype(np.uint32))
    m.set(target[2], "pred", m.lane[m.active] == leader)


@handles("match")
def match(m: Machine, op: Op) -> None:
    """match.any: lanes with my value; match.all: the mask if all are equal."""
    kind, mask = op.type, m.get(op.args[2], "u32")
    table = lane_table(m, m.get(op.args[1], kind))
    row, lane = m.warp[m.active], m.lane[m.active]
    same = table[row] == table[row, lane][:, None]
    found = (same << np.arange(32, dtype=np.uint32)).sum(1, dtype=np.uint32) & mask
    if "any" in op:
        return m.set(op.args[0], "b32", found)
    target = op.args[0] if isinstance(op.args[0], tuple) else ("pair", op.args[0], None)
    m.set(target[1], "b32", np.where(found == mask, mask, np.uint32(0)))
    return m.set(target[2], "pred", found == mask)


@handles("redux")
def redux(m: Machine, op: Op) -> None:
    """Sum, extremum or bitwise reduction over the member mask, each lane on its own."""
    kind, mask = op.type, m.get(op.args[2], "u32")
    table = lane_table(m, m.get(op.args[1], kind)).tolist()
    fold: dict[str, Callable[..., Any]] = {
        "add": sum, "min": min, "max": max, "and": lambda v: np.bitwise_and.reduce(v),
        "or": lambda v: np.bitwise_or.reduce(v), "xor": lambda v: np.bitwise_xor.reduce(v),
    }  # fmt: skip
    apply = next(fold[w] for w in op.mods if w in fold)
    rows = [(table[w], int(b)) for w, b in zip(m.warp[m.active], mask, strict=True)]
    m.set(op.args[0], kind, wrap([apply([v for n, v in enumerate(row) if b >> n & 1]) for row, b in rows], kind))


def constant(operand: object) -> int:
    """The value of an immediate operand."""
    if not isinstance(operand, nodes.Immediate):
        raise OracleFault(f"{operand!r} must be an immediate")
    return int(operand.value)
