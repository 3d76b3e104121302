"""Where every field of the executor's native state lies, in bytes: launch, thread, gang (cluster), CTA, warp.

The IR and the Python side both read these numbers; nothing else knows an offset. All pointers are 8 bytes. A family
that needs state of its own takes a field here (append, keep alignment) and bumps `FORMAT`.

- LAUNCH: one per launch, read by all threads.       - THREAD: one per host thread; the fault lands here.
- GANG: one cluster (or a lone CTA) in flight.        - CTA, WARP: the obvious; a warp ends in its pending masks and
  its register file, whose sizes depend on the entry (`Shape`).
"""

from __future__ import annotations

from dataclasses import dataclass

FORMAT = 1  # bump when anything here or in emitted code changes meaning: it is part of every cache key

SHARED_BASE = 1024  # first byte of a CTA's shared window: a null shared pointer is out of bounds
SHARED_WINDOW = 1 << 56  # generic address = window | offset; no host address has these bits
LOCAL_WINDOW = 2 << 56
WINDOW_SHIFT = 56
RANK_SHIFT = 24  # shared::cluster address = (rank + 1) << 24 | offset; rank field 0 is the CTA itself
MAX_CLUSTER = 16  # CTAs
MAX_PARKED = 32  # park records of a warp: at most one a lane
BARRIERS = 16
PARK_BYTES = 32
BARRIER_BYTES = 32
CACHE_BYTES = 32  # a memory site's last-hit allocation
WARP_LANES = 32


def _offsets(fields: str) -> dict[str, int]:
    """`name:bytes` words to offsets, in order; alignment is the writer's duty and is asserted."""
    table, here = {}, 0
    for word in fields.split():
        name, size = word.split(":")
        width = int(size)
        assert here % min(width, 8) == 0, f"{name} is misaligned"
        table[name] = here
        here += width
    table["_end"] = here
    return table


LAUNCH = _offsets(
    "next:8 gangs:8 grid_x:4 grid_y:4 grid_z:4 block_x:4 block_y:4 block_z:4 cluster_x:4 cluster_y:4 cluster_z:4 "
    "warps:4 threads:4 ctas_per_gang:4 params:8 param_bytes:8 symbols:8 readable:32 writable:32 "
    "warp_function:8 shared_bytes:8 local_stride:8 warp_stride:8 "
    "pending:4 blocks:4 words:4 first_block:4 budget:4 look:4 dynamic_shared:4 seed:4 cta_stride:8 order:8 "
    "random:4 check:4 grid_id:8 cleared:8 known:8 generation:4 before:4 shuffled:8 workspace:64 ext:128 inits:4 "
    "registers:4 print:8"
)
WORKSPACE_BYTES = 64  # what a cooperative launch has for the barrier of its grid (%envreg1, %envreg2)
# `readable` and `writable`: the allocations that native code searches
ALLOCATIONS = _offsets("begins:8 ends:8 shadows:8 count:8")
THREAD = _offsets(
    "launch:8 random:8 fault:4 site:4 mask:4 bytes:4 address:8 extra:8 cta:8 warp:8 gang:8 cursor:8 "
    "last_cta:8 time:8 ext:160 queue:8 queued:8 late_queue:8 late:8 "
    "late_round:4 pad:4 landed:8 landed_for:8 swept:8 reported:8 more:8 more_faults:4 doubting:4 doubts:8 doubted:4 "
    "pad2:4"
)
# a finding: what THREAD has from `fault` on, too
FAULT = {name: THREAD[name] - THREAD["fault"] for name in ("fault", "site", "mask", "bytes", "address", "extra", "cta",
                                                           "warp")}  # fmt: skip
FAULT["_end"] = FAULT["warp"] + 8
MORE_FAULTS = 15  # that check mode keeps beside the first, until the warp returns
# a race of two stores, until it is known whether the later one changes anything (`support/equal_stores.py`)
DOUBT = _offsets("pointer:8 address:8 extra:8 n:8 site:4 kind:4 mask:4 row:4 old:4 several:4")
DOUBTS = 1024
GANG = _offsets(
    "launch:8 thread:8 ctas:8 count:4 rounds:4 index:8 id_x:4 id_y:4 id_z:4 random:4 ext:184 "
    "turn:4 shift:4 ran:4 moved:4 alive:4 spins:4 cluster_arrived:4 cluster_phase:4 patience:4 pad:4"
)
CTA = _offsets(
    "launch:8 thread:8 gang:8 shared:8 shared_bytes:8 warps:8 id_x:4 id_y:4 id_z:4 rank:4 warp_count:4 threads:4 "
    "live:4 alive_warps:4 index:8 epoch:4 begun:4 valid:8 races:8 known:8 glimpsed:8 bars:512 ext:328 "
    "learned:4 fences:4 late:4 late_round:4 seen_place:4 seen_times:4 seen_warp:4 last_map:4 made_maps:64 "
    "pool:4 pad:4"
)
WARP = _offsets(
    "mask:4 exited:4 state:4 id:4 cta:8 thread:8 summary:8 budget:4 start:4 parked:4 block:4 clock:8 local:8 all:4 "
    "site:4 turns:4 safe:4 age:8 synced:4 held:4 held_block:4 proxy:4 before:4 waited:4 met:4 pad3:4 tid_x:128 "
    f"tid_y:128 tid_z:128 wake:128 parks:{MAX_PARKED * PARK_BYTES} vclock:128 ext:48 "
    "wgmma_committed:4 wgmma_done:4 wgmma_fenced:4 "
    "wgmma_since:4 wgmma_groups:128 cluster_seen:128 copy_group:128 "
    "bulk_group:128 fenced:128 fenced_cta:128 knows:4 glimpses:4 phase:4 learned:4 "
    "how:4 last_wait:4 waits:128 "
    "proxied:128 apart:4 released:4 proxy_fences:128 proxy_count:4 registers:4 "
    "register_steps:4 register_site:4"
)
TURNS_BYTES = 32 * 32 * 4  # of a warp in check mode: a time for each pair of lanes
MADE_MAPS = 8  # tensor maps of a CTA that check mode keeps (`check/made_maps.py`)
WAITS = 4  # of mbarriers, a warp's last, that check mode keeps (`check/late_lanes.py`)
WAIT = _offsets("bar:8 mask:4 phase:4 arrived:4 apart:4 met:4 site:4")
WGMMA_SETS = 32  # sets of registers of wgmma that check mode follows (`emit/wgmma_products.py`)
CTA["_stride"] = 1088  # from one CTA of a gang to the next
assert CTA["_end"] <= CTA["_stride"]
assert WARP["tid_x"] % 64 == 0
assert WARP["wake"] % 64 == 0
READY = WARP["_end"]  # i64 words: bit n is set while block n has lanes to run; bit 0 is "return at once"
BAR = {"arrived": 0, "expected": 4, "and": 8, "or": 12, "popc": 16, "warps": 20}
# a copy in flight (check mode lands it when somebody waits for it), and what it is; with a `mover` that moves it
ASYNC = _offsets(
    "kind:4 bytes:4 warp:8 target:8 source:8 barrier:8 address:8 site:4 lane:4 group:4 count:4 data:16 mover:8 "
    "coordinates:24"
)
ASYNC_RECORDS = 16384  # per host thread; when full, the oldest lands early, as it may on a GPU
ASYNC_COPY, ASYNC_INLINE, ASYNC_OUT = 1, 2, 3  # from memory, with its data, from shared to global memory
ASYNC_PRODUCT = 4  # no copy: a wgmma that still reads its operands
# a reduction that happens later (`check/deferred_reductions.py`)
LATE = _offsets("target:8 function:8 value:8 cta:8 bytes:8")
LATE_RECORDS = 4096
RELEASE, ACQUIRE, OWN_CTA = 1, 2, 4  # `how` an access synchronises; without the first two it is relaxed
# check mode's block of a CTA: clocks of the cluster barrier and of the barriers, then the arrays of
# `check/shared_races.py`, then a clock for each 8 bytes of shared memory (at offset `clocks`), then of each lane of
# each warp the times up to which it knows the other lanes (`turns`; `check/lane_turns.py`)
CHECK = _offsets(
    "cells:8 clocks:8 writes:8 reads:8 last_reads:8 polls:8 strongs:8 written:8 read:8 write_lanes:8 "
    "read_lanes:8 inits:8 turns:8 pad:24 "
    "cluster:128 "
    f"arrived:128 visits:{16 * MAX_CLUSTER} bars:{128 * BARRIERS}"
)
CHECK["arrays"] = CHECK["_end"]
VISIT = _offsets("warp:8 time:4 site:4")  # the last access by another CTA of the cluster, one a rank
# check mode's block of a launch (`check/release_acquire.py`): a table of places through which CTAs synchronise, each
# with a row of record numbers, one a CTA; and the records, each the 32 clocks of a CTA's warps
ORDER = _offsets("lock:4 off:4 ctas:4 row:4 places:4 records:4 pad:8 rows:8 clocks:8 pad2:16")
ORDER_PLACES, ORDER_RECORDS, ORDER_CTAS = 1024, 65536, 4096  # beyond these, CTAs are no longer compared
# behind the flags of an allocation's bytes, before their stamps: whether all were written once, the last launch that
# wrote, the last that reads are followed in, and where their marks are
SHADOW = _offsets("complete:4 launch:4 reads:4 pad:4 marks:8 pad2:40")
MARK_BYTES = 19  # for every 4 bytes of an allocation whose reads are followed (`check/global_reads.py`)
STRONG_WRITER = 1 << 7  # of an unordered write, in a report's extra word: CTA + 1 from bit 8 on, this flag, the warp
READER = 1 << 6  # that it was a read
LATE_WRITER = 1 << 18  # of a race in shared memory, in that word: the write came while a copy or wgmma still read
STAMP_CTAS = (1 << 22) - 1  # a stamp of global memory has 22 bits for the CTA
ORDER_KEYS = ORDER["_end"]
ORDER_TIMES = ORDER_KEYS + 8 * ORDER_PLACES  # i32: how often a place was released
PARK = {"kind": 0, "id": 4, "mask": 8, "block": 12, "site": 16, "count": 20, "argument": 24}

# park kinds
PARK_BARRIER, PARK_CLUSTER, PARK_MBARRIER, PARK_REGISTERS = 1, 2, 3, 4
PARK_NAMES = {1: "barrier", 2: "cluster barrier", 3: "mbarrier", 4: "registers"}

# what a warp function returns, and the state of a warp; a gang may also be PAUSED: somebody asked for a look
DONE, PARKED, YIELDED, FAULTED, RUNNABLE, PAUSED = 0, 1, 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an entry's per-warp state: basic blocks and register-file bytes."""

    blocks: int
    registers: int

    @property
    def words(self) -> int:
        """i64 words of the ready bitmap."""
        return (self.blocks + 63) // 64

    @property
    def pending(self) -> int:
        """Offset of the i32 pending masks, one a block."""
        return READY + 8 * self.words

    @property
    def file(self) -> int:
        """Offset of the register file."""
        return _up(self.pending + 4 * self.blocks, 64)

    @property
    def stride(self) -> int:
        """Bytes of a warp."""
        return _up(self.file + self.registers, 64)


def _up(value: int, step: int) -> int:
    return (value + step - 1) // step * step
