"""The native state of one launch geometry: launch, thread, gang, CTA and warp structures in host memory, reusable.

Python fills in what does not change from CTA to CTA; `gang.start` resets the rest.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ptxgen.runtime.cpu.compile.entry import Entry
from ptxgen.runtime.cpu.flow.symbols import round_up
from ptxgen.runtime.cpu.native.layout import (
    ASYNC,
    ASYNC_RECORDS,
    CACHE_BYTES,
    CHECK,
    CTA,
    DOUBT,
    DOUBTS,
    FAULT,
    GANG,
    LATE,
    LATE_RECORDS,
    LAUNCH,
    LOCAL_WINDOW,
    MORE_FAULTS,
    ORDER,
    ORDER_CTAS,
    ORDER_KEYS,
    ORDER_PLACES,
    ORDER_RECORDS,
    ORDER_TIMES,
    READY,
    STAMP_CTAS,
    THREAD,
    TURNS_BYTES,
    WARP,
    WARP_LANES,
)
from ptxgen.runtime.cpu.run.geometry import Geometry, shared_bytes

_PACK = {kind: struct.Struct("<" + kind).pack_into for kind in "IQq"}
_MOST_EPOCHS = 1 << 26  # a stamp has 27 bits for the count


class Block:
    """Zeroed bytes aligned to 1024, with typed access."""

    __slots__ = ("_data", "_view", "address", "bytes", "order", "size")
    order: Block  # of a launch in check mode

    def __init__(self, size: int, fill: int = 0) -> None:
        self._data = np.full(size + 1024, fill, np.uint8) if fill else np.zeros(size + 1024, np.uint8)
        skip = -self._data.ctypes.data % 1024
        self.bytes = self._data[skip : skip + size]
        self.address = int(self.bytes.ctypes.data)
        self.size = size
        self._view = memoryview(self.bytes)  # type: ignore[arg-type]

    def put(self, kind: str, offset: int, value: int) -> None:
        """Store one value (`struct` format)."""
        _PACK[kind](self._view, offset, value)

    def get(self, kind: str, offset: int) -> int:
        """Load one value (`struct` format)."""
        return int(struct.unpack_from("<" + kind, self._view, offset)[0])


def launch_block(entry: Entry, geometry: Geometry, check: bool) -> Block:
    """A LAUNCH structure with everything but what changes from launch to launch."""
    block = Block(LAUNCH["_end"])
    shape = entry.shape
    for axis, g, b, c in zip("xyz", geometry.grid, geometry.block, geometry.cluster, strict=True):
        block.put("I", LAUNCH["grid_" + axis], g)
        block.put("I", LAUNCH["block_" + axis], b)
        block.put("I", LAUNCH["cluster_" + axis], c)
    block.put("q", LAUNCH["gangs"], geometry.gangs)
    block.put("I", LAUNCH["warps"], geometry.warps)
    block.put("I", LAUNCH["threads"], geometry.threads)
    block.put("I", LAUNCH["ctas_per_gang"], geometry.ctas_per_gang)
    block.put("q", LAUNCH["shared_bytes"], shared_bytes(entry, geometry))
    block.put("q", LAUNCH["local_stride"], local_stride(entry))
    block.put("q", LAUNCH["warp_stride"], shape.stride)
    block.put("q", LAUNCH["cta_stride"], CTA["_stride"])
    block.put("I", LAUNCH["pending"], shape.pending)
    block.put("I", LAUNCH["blocks"], shape.blocks)
    block.put("I", LAUNCH["words"], shape.words)
    block.put("I", LAUNCH["first_block"], entry.first_block)
    block.put("I", LAUNCH["dynamic_shared"], geometry.shared)
    block.put("q", LAUNCH["cleared"], shape.file - READY)
    block.put("I", LAUNCH["inits"], int(entry.strong))
    block.put("I", LAUNCH["registers"], entry.launch_registers)
    if check:
        block.order = order_block(geometry)
        block.put("q", LAUNCH["known"], block.order.address)
    return block


def row_bytes(geometry: Geometry) -> int:
    """Bytes of a row of record numbers, one a CTA; nothing where there are too many to compare."""
    return 4 * round_up(geometry.ctas, 16) if geometry.ctas <= ORDER_CTAS else 0


def order_block(geometry: Geometry) -> Block:
    """What CTAs of a launch know of each other (check mode); untouched pages cost nothing."""
    row = row_bytes(geometry)
    rows = round_up(ORDER_TIMES + 4 * ORDER_PLACES, 128)
    clocks = rows + round_up(ORDER_PLACES * row, 128)
    block = Block(clocks + (4 * WARP_LANES * ORDER_RECORDS if row else 0))
    block.put("q", ORDER["rows"], block.address + rows)
    block.put("q", ORDER["clocks"], block.address + clocks)
    block.put("I", ORDER["row"], row // 4)
    return block


def forget_order(block: Block, geometry: Geometry) -> None:
    """A new launch: no accesses are recorded yet."""
    if block.get("I", ORDER["places"]):
        block.bytes[ORDER_KEYS : ORDER_KEYS + 8 * ORDER_PLACES] = 0
    for name in ("lock", "places", "records"):
        block.put("I", ORDER[name], 0)
    block.put("I", ORDER["ctas"], geometry.ctas if row_bytes(geometry) else 0)
    block.put("I", ORDER["off"], int(geometry.ctas >= STAMP_CTAS))


def local_stride(entry: Entry) -> int:
    """Bytes of local memory from one lane to the next."""
    return round_up(entry.local_bytes, 16)


class Gang:
    """Structures of one cluster (or lone CTA) in flight on a thread."""

    def __init__(self, entry: Entry, geometry: Geometry, launch: Block, thread: Block, check: bool) -> None:
        count, shape = geometry.ctas_per_gang, entry.shape
        shared = round_up(max(shared_bytes(entry, geometry), 1), 1024)
        local = WARP_LANES * local_stride(entry)
        self.block = Block(GANG["_end"])
        self.ctas = Block(count * CTA["_stride"])
        self.warps = Block(count * geometry.warps * shape.stride)
        self.shared = Block(count * shared, fill=0xFF)
        self.local = Block(max(count * geometry.warps * local, 1), fill=0xFF)
        self.geometry, self.shape = geometry, shape
        self.valid = Block(count * shared if check else 1)
        self.races = [_check_block(shared_bytes(entry, geometry)) for _ in range(count if check else 0)]
        row = row_bytes(geometry)
        self.known = Block(2 * count * geometry.warps * max(row, 1) if check else 1)
        self.block.put("q", GANG["launch"], launch.address)
        self.block.put("q", GANG["thread"], thread.address)
        self.block.put("q", GANG["ctas"], self.ctas.address)
        self.block.put("I", GANG["count"], count)
        lanes = _lanes(geometry)
        for rank in range(count):
            at = rank * CTA["_stride"]
            first = rank * geometry.warps
            for name, value in (
                ("launch", launch.address),
                ("thread", thread.address),
                ("gang", self.block.address),
                ("shared", self.shared.address + rank * shared),
                ("shared_bytes", shared_bytes(entry, geometry)),
                ("warps", self.warps.address + first * shape.stride),
                ("valid", self.valid.address + (rank * shared if check else 0)),
                ("races", self.races[rank].address if check else 0),
                ("known", self.known.address + 2 * first * row if check else 0),
                ("glimpsed", self.known.address + (2 * first + geometry.warps) * row if check else 0),
            ):
                self.ctas.put("q", at + CTA[name], value)
            self.ctas.put("I", at + CTA["rank"], rank)
            self.ctas.put("I", at + CTA["warp_count"], geometry.warps)
            self.ctas.put("I", at + CTA["threads"], geometry.threads)
            for number in range(geometry.warps):
                here = (first + number) * shape.stride
                self.warps.put("q", here + WARP["cta"], self.ctas.address + at)
                self.warps.put("q", here + WARP["thread"], thread.address)
                self.warps.put("q", here + WARP["local"], self.local.address + (first + number) * local)
                self.warps.put("I", here + WARP["id"], number)
                self.warps.put("I", here + WARP["all"], lanes.missing[number])
                for axis, values in zip("xyz", lanes.ids, strict=True):
                    rows = values[number * WARP_LANES : (number + 1) * WARP_LANES]
                    place = here + WARP["tid_" + axis]
                    self.warps.bytes[place : place + 4 * WARP_LANES] = rows.view(np.uint8)

    def renew(self) -> None:
        """Start counting synchronisations anew before the counts outgrow their stamps; between launches."""
        for rank, block in enumerate(self.races):
            at = rank * CTA["_stride"] + CTA["epoch"]
            if self.ctas.get("I", at) > _MOST_EPOCHS:
                block.bytes[CHECK["cluster"] :] = 0
                self.ctas.put("I", at, 0)

    def warp_states(self) -> bytes:
        """Ready words, pending masks and registers of all warps: equal bytes, with equal memory, mean that nothing has
        happened."""
        table = self.warps.bytes.reshape(-1, self.shape.stride)
        return table[:, READY:].tobytes()

    def own_memory(self) -> list[np.ndarray]:
        """What else the warps' next steps depend on: which lanes wait where, barriers, shared and local memory."""
        warps = self.warps.bytes.reshape(-1, self.shape.stride)
        ctas = self.ctas.bytes.reshape(-1, CTA["_stride"])
        parts = (
            warps[:, WARP["parks"] : WARP["vclock"]], ctas[:, CTA["bars"] : CTA["ext"]],
            self.block.bytes[GANG["cluster_arrived"] : GANG["_end"]],
        )  # fmt: skip
        return [*map(np.ascontiguousarray, parts), self.shared.bytes, self.local.bytes]


def _check_block(shared: int) -> Block:
    """Clocks and cells of a CTA's shared memory (check mode); untouched pages cost nothing."""
    cells = round_up(shared // 4 + 1, 16)
    clocks = CHECK["arrays"] + round_up(cells * (4 + 4 + 4 * WARP_LANES + 12 + 4), 128)
    turns = clocks + 128 * (cells // 2 + 1)
    block = Block(turns + WARP_LANES * TURNS_BYTES)
    block.put("q", CHECK["cells"], cells)
    block.put("q", CHECK["clocks"], clocks)
    block.put("q", CHECK["turns"], block.address + turns)
    at = block.address + CHECK["arrays"]
    sizes = {"writes": 4, "reads": 4, "last_reads": 4 * WARP_LANES, "polls": 4, "strongs": 4, "inits": 4}
    sizes |= {"written": 1, "read": 1, "write_lanes": 1, "read_lanes": 1}
    for name, size in sizes.items():
        block.put("q", CHECK[name], at)
        at += cells * size
    return block


@dataclass(frozen=True, slots=True)
class _Lanes:
    ids: tuple[np.ndarray, np.ndarray, np.ndarray]
    missing: list[int]  # per warp: lanes beyond the CTA's threads


def _lanes(geometry: Geometry) -> _Lanes:
    total = geometry.warps * WARP_LANES
    linear = np.arange(total, dtype=np.uint32)
    x, y, _ = (np.uint32(n) for n in geometry.block)
    ids = (linear % x, linear // x % y, linear // (x * y))
    missing = []
    for number in range(geometry.warps):
        held = min(WARP_LANES, geometry.threads - number * WARP_LANES)
        missing.append(0xFFFFFFFF ^ ((1 << held) - 1))
    return _Lanes(tuple(np.ascontiguousarray(i, np.uint32) for i in ids), missing)  # type: ignore[arg-type]


class Fault(NamedTuple):
    """What native code has found, in the order of `layout.FAULT`."""

    kind: int
    site: int
    mask: int
    size: int
    address: int
    extra: int
    cta: int
    warp: int


class Worker:
    """A host thread's structures: THREAD with its site caches, and one gang (more while gangs wait for each other)."""

    def __init__(self, entry: Entry, geometry: Geometry, launch: Block, check: bool) -> None:
        self.entry, self.geometry, self.launch, self.check = entry, geometry, launch, check
        self.thread = Block(THREAD["_end"] + CACHE_BYTES * max(len(entry.sites), 1))
        self.thread.put("q", THREAD["launch"], launch.address)
        self.queue = Block(ASYNC["_end"] * ASYNC_RECORDS)
        self.thread.put("q", THREAD["queue"], self.queue.address)
        self.late = Block(LATE["_end"] * LATE_RECORDS)
        self.thread.put("q", THREAD["late_queue"], self.late.address)
        self.reported = Block(4 * max(len(entry.sites), 1) if check else 4)
        self.more = Block(FAULT["_end"] * MORE_FAULTS if check else 4)
        self.doubts = Block(DOUBT["_end"] * DOUBTS if check else 4)
        for name in ("reported", "more", "doubts"):
            self.thread.put("q", THREAD[name], getattr(self, name).address)
        self.gang = Gang(entry, geometry, launch, self.thread, check)
        self.spare: list[Gang] = []  # of gangs that have ended
        self.table: object = None  # the allocations that the site caches know

    def another_gang(self) -> Gang:
        """Structures for one more gang, which the caller keeps."""
        if self.spare:
            return self.spare.pop()
        return Gang(self.entry, self.geometry, self.launch, self.thread, self.check)

    def faults(self) -> list[Fault]:
        """What native code has found since it was last asked, the reason for its return first."""
        first = bytes(self.thread.bytes[THREAD["fault"] : THREAD["fault"] + FAULT["_end"]])
        count = self.thread.get("I", THREAD["more_faults"])
        rest = bytes(self.more.bytes[: FAULT["_end"] * count])
        return [Fault(*fields) for fields in struct.iter_unpack("<4I4Q", first + rest)]

    def go_on(self, gangs: list[Gang]) -> None:
        """Forget what was found: the warps of these gangs that returned for it may run again."""
        for gang in gangs:
            for at in range(0, gang.warps.size, gang.shape.stride):
                ready = gang.warps.get("Q", at + READY) & ~1
                gang.warps.put("Q", at + READY, ready)
                if not ready:
                    summary = gang.warps.get("Q", at + WARP["summary"])
                    gang.warps.put("Q", at + WARP["summary"], summary & ~1)
        self.thread.put("I", THREAD["fault"], 0)
        self.thread.put("I", THREAD["more_faults"], 0)

    def reset(self, seed: int, forget: bool) -> None:
        """Ready for the next launch; `forget`: allocations have changed."""
        self.gang.renew()
        for name in ("fault", "more_faults", "doubting", "doubted"):
            self.thread.put("I", THREAD[name], 0)
        self.reported.bytes[:] = 0
        self.thread.put("q", THREAD["queued"], 0)
        self.thread.put("q", THREAD["late"], 0)
        self.thread.put("Q", THREAD["random"], (seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) % (1 << 64) or 1)
        if forget:
            self.thread.bytes[THREAD["_end"] :] = 0


__all__ = ["LOCAL_WINDOW", "Block", "Gang", "Worker", "launch_block"]
