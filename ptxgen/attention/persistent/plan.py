"""How a resident launch deals out a layer's attention: query heads and positions to CTAs, rows of K and V to lanes.

And what the kernel around hands in: where a thread stands, and where CTAs publish.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.attention.attention import Attention
from ptxgen.builder.values import Reg, Shared
from ptxgen.dtypes import DType
from ptxgen.idioms.polls import Polls
from ptxgen.idioms.rope.rotation import Rotation

CHUNK = 8  # elements of a row of K or V that a lane has


@dataclass(frozen=True)
class Place:
    """Where a thread stands, in registers of the kernel around."""

    cta: Reg
    thread: Reg
    warp: Reg
    lane: Reg
    leads: Reg  # is it the CTA's first thread
    first_lane: Reg
    position: Reg  # of the new token
    turns: Shared  # cosine and sine of every pair of a head, f32 each
    polls: Polls


@dataclass(frozen=True)
class Region:
    """A part of what CTAs exchange in a layer: `copies` of `width` words, `offset` words from the layer's slot on."""

    offset: int
    width: int
    copies: int = 1

    @property
    def pitch(self) -> int:
        """Words from a copy to the next: a multiple of 16 bytes."""
        return -(-self.width // 4) * 4

    @property
    def end(self) -> int:
        """Words from the slot on that it ends behind."""
        return self.offset + self.copies * self.pitch


@dataclass(frozen=True)
class Exchange:
    """Where CTAs publish a layer's values, of this layer (`now`) and the next (`next`), which is cleared meanwhile.

    A word is 0 until it is published, and then the complement of an f32. `caches` points at the addresses of the
    layer's K and V in shared memory.
    """

    now: Reg
    next: Reg
    caches: Reg
    qkv: Region
    parts: Region
    attended: Region


@dataclass(frozen=True)
class Plan:
    """The numbers of an attention among `ctas` CTAs with `warps` warps each that take part.

    A CTA takes `split_rows` positions alone before others share them; `group_parts` CTAs share a KV head's query heads.
    """

    attention: Attention
    rotation: Rotation
    ctas: int
    warps: int
    split_rows: int
    group_parts: int

    @property
    def threads(self) -> int:
        """Threads of a CTA that take part."""
        return 32 * self.warps

    @property
    def dim(self) -> int:
        """Elements of a row."""
        return self.attention.problem.qk_dim

    @property
    def kv_dtype(self) -> DType:
        """Element type of the cache."""
        return self.attention.problem.kv_dtype

    @property
    def max_len(self) -> int:
        """Positions that the cache has."""
        return self.attention.cache.max_len

    @property
    def heads(self) -> int:
        """KV heads, each as often as it has parts of its query heads."""
        return self.attention.problem.n_kv_heads * self.group_parts

    @property
    def group(self) -> int:
        """Query heads that a CTA has: those of a KV head, or a part of them."""
        return self.attention.problem.n_heads // self.heads

    @property
    def q_width(self) -> int:
        """Elements of a token's queries."""
        return self.attention.problem.n_heads * self.dim

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys."""
        return self.attention.problem.n_kv_heads * self.dim

    @property
    def splits(self) -> int:
        """CTAs that share the positions of a KV head, at most."""
        return min(max(1, self.ctas // self.heads), -(-self.max_len // self.split_rows))

    @property
    def attending(self) -> int:
        """CTAs that have a part of a KV head's attention: the first parts of all heads, then the second ones, …"""
        return self.heads * self.splits

    @property
    def part_words(self) -> int:
        """Words of a split's part: sums of all heads of the group, then maximum and total of each."""
        return self.group * (self.dim + 2)

    @property
    def part_pitch(self) -> int:
        """Words from a split's part to the next: a multiple of 16 bytes."""
        return -(-self.part_words // 4) * 4

    @property
    def outputs_bytes(self) -> int:
        """Bytes of shared memory of what the warps leave."""
        return self.warps * self.group * self.dim * 4

    @property
    def row_lanes(self) -> int:
        """Lanes that share a row of K: `CHUNK` elements each."""
        return self.dim // CHUNK

    @property
    def rows_at_once(self) -> int:
        """Rows of K that a warp loads with one instruction."""
        return 32 // self.row_lanes

    @property
    def unroll(self) -> int:
        """Loads of K that a lane has under way."""
        return max(1, (4 if not self.crowded else 2 if self.group <= 5 else 1) * 2 // self.kv_dtype.bytes)

    @property
    def crowded(self) -> bool:
        """Whether registers are short for all queries of a KV head."""
        return self.group > 4
