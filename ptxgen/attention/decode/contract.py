"""What the parts of decode attention agree on: the work a CTA gets, and the partials a main loop leaves behind.

    locate  →  (early loads)  →  lengths  →  main loop  →  CTA merge  →  cluster merge, ticket merge  →  output

The parts before the main loop fill a `Task`; a main loop (`mma`, `simt`) turns the task's tiles into `Partials` in
shared memory; the merges read nothing but partials. They share nothing else.

A main loop is a module of this package with a `MainLoop` in it, and a template part that the kernel's skeleton includes
between the fragment `lengths` and the barrier before the CTA merge. Its registers, fragments and labels are its own;
names that do not start with `kv_`, `q_`, `score`, `acc`, `row_`, `run_` or `tile_` may be taken elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ptxgen.attention.attention import Attention
from ptxgen.attention.problem import Problem
from ptxgen.attention.variant import PerHead
from ptxgen.builder.values import Reg, Shared

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.targets import Target

MOST_SHARED_SPLITS = (1 << 16) - 1  # the lower half of a ticket's counter; the upper half has marks of 15 CTAs


def problem_rules(problem: Problem) -> Iterator[str]:
    """Why decode's main loops cannot compute a problem: they take one query position of a sequence."""
    if problem.queries != 1:
        yield f"queries: decode takes one query position of a sequence (got {problem.queries}; nearest: 1)"


class LoopShape(NamedTuple):
    """How a main loop wants its CTA: `warps`, `heads` (query heads a CTA takes of a group), `tile` (positions a warp
    takes at a time: a power of two), `shared` (bytes of shared memory that the loop itself needs: [0, shared) of the
    arena).

    `in_flight`: tiles a warp has in flight at most, where the loop has a choice. `stages`: tiles of a warp that bulk
    copies bring to shared memory ahead of their use (0: loads go to registers). `overlay`: the partials may lie over
    the loop's own bytes; the loop then has a barrier of the CTA after its last tile and before it writes them.
    `once`: no warp ever gets more than one tile. `spread`: of its `Partials`. `aside`: loads to registers have
    the cache policy `L2::evict_unchanged`, where the loop has a choice.
    """

    warps: int
    heads: int
    tile: int
    shared: int = 0
    overlay: bool = False
    in_flight: int = 2
    stages: int = 0
    once: bool = False
    spread: int = 0
    aside: bool = False

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps


class Task(NamedTuple):
    """The work of one warp, in registers. A main loop may assume each of them, and may overwrite `tile` alone.

    Tiles are numbered over the whole sequence: tile i holds positions [i · shape.tile, (i + 1) · shape.tile). The warp
    takes tile, tile + tile_step, … below tile_end; warps differ in how many, so a main loop has no barrier of the CTA
    between its first and its last tile. Every tile in range holds at least one visible position; positions below
    `start` or from `length` on are to be masked (their scores −inf, and their V rows made zero: they may hold NaN), and
    no byte outside the buffers may be read. When there is a page table, tile i lies in page
    `page_row[i · tile // page_size]`.

    Before `lengths` only these are valid: tid, lane, warp, sequence, kv_head, first_head, k_rows, v_rows, scales,
    page_row, and `tile` unless the attention has a window.
    """

    tid: Reg  # u32, in the CTA
    lane: Reg  # u32
    warp: Reg  # u32
    kv_head: Reg  # u32
    first_head: Reg  # u32: first query head of this CTA, an index into q and out; head i of the CTA is first_head + i
    heads_left: Reg | None  # s32: query heads from first_head to the group's end; None when always ≥ shape.heads
    q_row: Reg  # u64, global: q of first_head (of this sequence), qk_dim elements a head
    k_rows: Reg  # u64, global: position 0 of this KV head (of this sequence, or of page 0)
    v_rows: Reg  # u64
    k_scales: Reg | None  # u64, global: scales of position 0 likewise; None unless quantised
    v_scales: Reg | None
    page_row: Reg | None  # u64, global: this sequence's row of the page table (s32); None unless paged
    per_head: Mapping[PerHead, Reg]  # u64, global: of first_head, what steps of the variant read
    length: Reg  # s32: visible positions end here, 0 … max_len
    start: Reg | None  # s32: and begin here; None without a window
    tile: Reg  # s32
    tile_end: Reg  # s32
    tile_step: Reg  # s32
    early: bool = False  # whether the loop may start before `lengths`
    late_newest: bool = False  # programmatic launch: `lengths` comes first, then the early part, which must leave out
    # position length − 1, then the wait for the kernel ahead, then the query and the rest


class Partials(NamedTuple):
    """Where every warp of a CTA leaves its partial softmax, in shared memory from the byte `offset` on, all f32.

    For warp w and head i of the CTA (0 ≤ i < heads):
      running maximum of the scores in the log2 domain   at  maximum(w) + 4 · i     (−inf when the warp saw none)
      sum of 2^(score − maximum)                         at  total(w) + 4 · i       (0 then)
      Σ 2^(score − maximum) · V[position, 4 · c …]       at  row(w) + pitch_bytes · i + 16 · slot(c)         (0 then)
    where chunk c of a row, four dims, lies in slot(c) = c ^ (i >> 1 & 3) if it is one of the first `spread` dims, else
    slot(c) = c: a loop whose lanes would meet in the same banks of shared memory spreads them (`spread`: a multiple of
    64). Every word is written by every warp, also by warps without a tile. Offsets are bytes; rows are 16-byte aligned.
    """

    warps: int
    heads: int
    v_dim: int
    offset: int = 0
    spread: int = 0

    @property
    def pitch(self) -> int:
        """f32 values from one head's row to the next; the four spare ones spread heads over the banks."""
        return self.v_dim + 4

    @property
    def pitch_bytes(self) -> int:
        return 4 * self.pitch

    @property
    def _statistics(self) -> int:
        return -(-self.heads // 4) * 16

    def row(self, warp: int) -> int:
        """Offset of head 0's accumulator."""
        return self.offset + warp * self.warp_stride

    @property
    def warp_stride(self) -> int:
        """Bytes from one warp's accumulator to the next warp's."""
        return self.heads * self.pitch_bytes

    def maximum(self, warp: int) -> int:
        """Offset of head 0's maximum."""
        return self.offset + self.warps * self.warp_stride + warp * self.statistics_stride

    def total(self, warp: int) -> int:
        """Offset of head 0's sum."""
        return self.maximum(warp) + self._statistics

    @property
    def statistics_stride(self) -> int:
        """Bytes from one warp's maxima to the next warp's."""
        return 2 * self._statistics

    @property
    def bytes(self) -> int:
        """Size of all partials of a CTA."""
        return self.warps * (self.warp_stride + self.statistics_stride)


class LoopParts(NamedTuple):
    """Templates of a main loop, below `attention/decode/`: `main`, its first loads, and its query.

    `first` is placed by `main`, or `early` by the skeleton before `lengths`, where the task allows that (K and V only;
    the fragment `early_query` follows if the loop built it). `drains`: a CTA that ends early must wait for what `first`
    asked for.
    """

    main: str
    first: str
    query: str
    early: bool
    drains: bool = False


class MainLoop(Protocol):
    """A main loop. Between its first loads and its first tile it places `meet_parts`, which are about other CTAs."""

    def shape(self, attention: Attention, target: Target, warps: int = 8, stages: int = 0) -> LoopShape | str:
        """How it would run this attention on this target with at most so many warps, and tiles in shared memory a warp;
        the reason when it cannot."""

    def build(
        self, b: Builder, attention: Attention, shape: LoopShape, task: Task, partials: Partials, arena: Shared
    ) -> LoopParts:
        """Build every fragment that its parts place. At its end the partials stand in `arena`, and no barrier has
        followed; the skeleton's barrier is the next thing."""
