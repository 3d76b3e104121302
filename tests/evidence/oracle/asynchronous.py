"""Asynchronous copies and mbarriers of the oracle (PTX ISA 9.7.9.25, 9.7.13.15); clusters' address mapping.

Bulk copies land at once; cp.async lands when it is waited for, at the latest that the ISA allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.evidence.oracle import tensor
from tests.evidence.oracle.access import space_of
from tests.evidence.oracle.machine import Machine, handles
from tests.evidence.oracle.mbarriers import Barrier, barriers_at, complete
from tests.evidence.oracle.memory import LOCAL, RANK_SHIFT, SHARED, OracleFault
from tests.evidence.oracle.program import Op, Place
from tests.evidence.oracle.warp import constant


@dataclass
class Copy:
    """cp.async of several threads: landed when their group is waited for."""

    threads: np.ndarray
    groups: np.ndarray
    to: np.ndarray
    source: np.ndarray
    size: int
    filled: np.ndarray


def _land(m: Machine, copy: Copy, which: np.ndarray) -> None:
    data = np.zeros((int(which.sum()), copy.size), np.uint8)
    for n, (at, count) in enumerate(zip(copy.source[which], copy.filled[which], strict=True)):
        data[n, :count] = m.spaces.bytes[at : at + count]
    m.spaces.store(copy.to[which], data)
    for name in ("threads", "groups", "to", "source", "filled"):
        setattr(copy, name, getattr(copy, name)[~which])


def land_groups(m: Machine, threads: np.ndarray, keep: int | None) -> None:
    """Lands the copies of `threads` but those of their last `keep` groups; None: uncommitted ones too."""
    limit = np.full(m.count, -1)
    limit[threads] = m.copy_group[threads] - keep if keep is not None else np.iinfo(np.int64).max
    for copy in m.copies:
        _land(m, copy, copy.groups < limit[copy.threads])
    m.copies = [c for c in m.copies if c.threads.size]


@handles("cp")
def copy_async(m: Machine, op: Op) -> None:
    """cp.async, its groups and waits, and bulk copies."""
    if "bulk" in op:
        return bulk(m, op)
    if "commit_group" in op:
        m.copy_group[m.active] += 1
    elif "wait_group" in op:
        land_groups(m, m.active, constant(op.args[0]))
    elif "wait_all" in op:
        land_groups(m, m.active, None)
    elif "mbarrier" in op:
        land_groups(m, m.active, None)
        if "noinc" in op:
            _arrive(m, op.args[0], np.ones(m.active.size, int))
    else:
        _issue(m, op)
    return None


def _issue(m: Machine, op: Op) -> None:
    size = constant(op.args[2])
    filled = np.full(m.active.size, size)
    extra = op.args[3] if len(op.args) > 3 and not any("cache_hint" in w for w in op.mods) else None
    if any("cache_hint" in w for w in op.mods) and len(op.args) > 4:
        extra = op.args[3]
    if extra is not None:
        ignores = getattr(extra, "type", "") == "pred" or isinstance(extra, tuple)
        count = np.where(m.get(extra, "pred"), 0, size) if ignores else np.minimum(m.get(extra, "u32"), size)
        filled = count.astype(int)
    to = m.spaces.place(m.at(op.args[0], "shared"), size, m.active)
    source = np.zeros(m.active.size, np.int64)
    reads = filled > 0
    everyone = m.active
    address = m.at(op.args[1], "global")
    source[reads] = m.spaces.place(address[reads], size, everyone[reads])
    m.copies.append(Copy(everyone, m.copy_group[everyone].copy(), to, source, size, filled))


def bulk(m: Machine, op: Op) -> None:
    """cp.async.bulk between global and shared memory, shared::cluster included; groups need no waiting here."""
    if any(w in op for w in ("commit_group", "wait_group", "prefetch")):
        return
    if "tensor" in op:
        sizes_ = tensor.copy(m, op)
        if any("complete_tx" in w for w in op.mods) and not any("multicast" in w for w in op.mods):
            complete(m, op.args[2], sizes_)
        return
    spaces = [w.split(".")[0] for w in op.mods if w.split(".")[0] in ("global", "shared")]
    sizes = m.get(op.args[2], "u32").astype(int)
    to, source = m.at(op.args[0], spaces[0]), m.at(op.args[1], spaces[1])
    if any("multicast" in w for w in op.mods):
        return _multicast(m, op, source, sizes)
    for t in range(m.active.size):
        one = m.active[t : t + 1]
        if sizes[t] % 16:
            raise OracleFault(f"a bulk copy of {sizes[t]} bytes")
        _copy_bytes(m, one, to[t], source[t], sizes[t])
    if any("complete_tx" in w for w in op.mods):
        complete(m, op.args[3], sizes)


def _copy_bytes(m: Machine, one: np.ndarray, to: np.uint64, source: np.uint64, size: int) -> None:
    steps = np.arange(0, size, 16, dtype=np.uint64)
    who = np.repeat(one, steps.size)
    data = m.spaces.load(m.spaces.place(source + steps, 16, who), 16)
    m.spaces.store(m.spaces.place(to + steps, 16, who), data)


def _multicast(m: Machine, op: Op, source: np.ndarray, sizes: np.ndarray) -> None:
    """The copy and its signal at the same offsets in every CTA of the mask."""
    everyone, inside = m.active, np.uint64((1 << RANK_SHIFT) - 1)
    to, bar = (m.at(o, "shared") - np.uint64(SHARED) & inside for o in (op.args[0], op.args[3]))
    masks = m.get(op.args[4], "u16")
    for t, mask in enumerate(masks):
        for rank in (r for r in range(16) if mask >> r & 1):
            window = np.uint64(SHARED + (rank + 1 << RANK_SHIFT))
            m.active = everyone[t : t + 1]
            _copy_bytes(m, m.active, to[t] + window, source[t], sizes[t])
            complete(m, Place(int(bar[t] + window)), int(sizes[t]))
    m.active = everyone


# mbarriers --------------------------------------------------------------------------------------------------------
def _arrive(m: Machine, place: Place, counts: np.ndarray, space: str = "shared") -> np.ndarray:
    phases = []
    for barrier, count in zip(barriers_at(m, place, space), counts, strict=True):
        phases.append(barrier.pending << 32 | barrier.phase)
        barrier.update(int(count), 0)
    return np.array(phases, np.uint64)


@handles("mbarrier")
def mbarrier(m: Machine, op: Op) -> None:
    """init, inval, arrive (expect_tx, drop), expect_tx, complete_tx, pending_count, test_wait and try_wait.

    A token holds the pending count above the phase.
    """
    verb = op.mods[0]
    space = space_of(op)
    if verb == "init":
        counts = m.get(op.args[1], "u32")
        for at, count in zip(m.spaces.place(m.at(op.args[0], space), 8, m.active), counts, strict=True):
            m.mbarriers[int(at)] = Barrier(int(count), int(count))
    elif verb == "inval":
        for at in m.spaces.place(m.at(op.args[0], space), 8, m.active):
            m.mbarriers.pop(int(at))
    elif verb in ("expect_tx", "complete_tx"):
        sign = 1 if verb == "expect_tx" else -1
        for barrier, size in zip(barriers_at(m, op.args[0], space), m.get(op.args[1], "u32"), strict=True):
            barrier.update(0, sign * int(size))
    elif verb == "pending_count":
        m.set(op.args[0], "u32", (m.get(op.args[1], "u64") >> np.uint64(32)).astype(np.uint32))
    elif verb in ("arrive", "arrive_drop"):
        _arrival(m, op, space)
    elif verb in ("test_wait", "try_wait"):
        numbers = m.get(op.args[2], "u32" if "parity" in op else "u64") & np.uint32(0xFFFFFFFF)
        done = [b.phase % 2 != n % 2 if "parity" in op else b.phase > n
                for b, n in zip(barriers_at(m, op.args[1], space), numbers.tolist(), strict=True)]  # fmt: skip
        m.set(op.args[0], "pred", np.array(done))
    else:
        raise OracleFault(f"mbarrier.{verb}")


def _arrival(m: Machine, op: Op, space: str) -> None:
    counts = np.ones(m.active.size, int)
    if "expect_tx" in op:
        for barrier, size in zip(barriers_at(m, op.args[1], space), m.get(op.args[2], "u32"), strict=True):
            barrier.bytes += int(size)
    elif len(op.args) > 2:
        counts = m.get(op.args[2], "u32").astype(int)
    if op.mods[0] == "arrive_drop":
        for barrier, count in zip(barriers_at(m, op.args[1], space), counts, strict=True):
            barrier.expected -= int(count)
    m.set(op.args[0], "b64", _arrive(m, op.args[1], counts, space))


@handles("mapa", "getctarank")
def map_address(m: Machine, op: Op) -> None:
    """mapa: a shared address as seen in a peer; getctarank: whose memory an address is in."""
    shared = any(w.startswith("shared") for w in op.mods)
    kind = op.type
    start = 0 if shared else SHARED
    address = m.get(op.args[1], "u64" if kind == "u64" else "u32").astype(np.int64) - start
    rank = address >> RANK_SHIFT
    if op.name == "getctarank":
        return m.set(op.args[0], "u32", np.where(rank > 0, rank - 1, m.rank[m.active]).astype(np.uint32))
    target = m.get(op.args[2], "u32").astype(np.int64)
    if not shared and ((address < 0) | (address + start >= LOCAL)).any():
        raise OracleFault("mapa of an address that is not shared")
    out = start + (address & (1 << RANK_SHIFT) - 1) + (target + 1 << RANK_SHIFT)
    return m.set(op.args[0], kind, out.astype(np.uint64 if kind == "u64" else np.uint32))
