"""Keys of a tile of rows, shared by CTAs: how many parts there are, and the keys of each. `merge` makes one of them."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.attention.prefill.ragged import WARP
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.division import divide_any

SPARED = 640  # keys that sharing spares a CTA at least, where it is worth a merge


@dataclass(frozen=True, slots=True)
class Shares:
    """How keys are shared. A part of those that the last rows see has `least` tiles of `keys` or more, and a tile of
    rows `most` parts or fewer.

    `ctas` run at once, on most GPUs. Parts are as many as these, so that each has one, or `rounds` times as many, where
    that makes each part smaller by more. A CTA has `warps` that accumulate, a thread of these `rows` rows and
    `accumulators` registers.
    """

    keys: int
    least: int
    most: int
    ctas: int
    rounds: int
    warps: int
    rows: int
    accumulators: int

    @property
    def record_floats(self) -> int:
        """Of a warp: accumulators, and a maximum and a sum for every row of a thread."""
        return WARP * (self.accumulators + 2 * self.rows)

    @property
    def records(self) -> int:
        """Parts of all tiles of rows, at most."""
        return self.rounds * self.ctas

    def parts(self, tiles: int, keys: int) -> int:
        """How many CTAs share so many keys, of as many tiles of rows: what `count` finds."""
        most = min(keys // (self.least * self.keys), self.most)
        once = min(self.ctas // max(1, tiles), most)
        several = min(self.rounds * self.ctas // max(1, tiles), most)
        return max(1, several if several > self.rounds * once else once)

    def worth(self, tiles: int, keys: int) -> int:
        """The same, where keys are sooner seen so; 1 where they are not."""
        count = self.parts(tiles, keys)
        return count if keys - keys // count >= SPARED else 1

    # -- the keys of a part --------------------------------------------------------------------------------------------

    def count(self, b: Builder, tiles: Reg, kv_len: Reg) -> Reg:
        """How many parts there are, of tiles of rows of all KV heads; part of an open fragment."""
        b.note("tiles of rows too few for all multiprocessors: CTAs share the keys of each, where these are many")
        most = divide_any(b, b.reg("most_parts", "s32"), kv_len, self.least * self.keys)
        b.op("min.s32", most, most, self.most)
        tiles = b.op("max.u32", b.reg("tiles_of_rows", "u32"), tiles, 1)
        parts: Reg = b.op("div.u32", b.reg("parts", "u32"), self.ctas, tiles)
        b.op("min.s32", parts, parts, most)
        if self.rounds > 1:
            several = b.op("div.u32", b.reg("parts_in_rounds", "u32"), self.records, tiles)
            b.op("min.s32", several, several, most)
            level = b.op("mul.lo.u32", scratch(b, "as_many_in_rounds", "u32"), parts, self.rounds)
            takes = b.op("setp.gt.s32", scratch(b, "takes_rounds", "pred"), several, level)
            b.op("selp.b32", parts, several, parts, takes)
        b.op("max.s32", parts, parts, 1)
        return parts


class Part:
    """Registers: a CTA's item, the tile of rows it is a part of, which part, and how many there are; behind `tiles`,
    how many of these have keys (one, where no row sees any)."""

    taking: Reg

    def __init__(self, b: Builder, item: Reg, parts: Reg, most: int) -> None:
        """The parts of a tile of rows lie side by side; part of an open fragment."""
        b.note("the parts of a tile of rows lie side by side")
        self.item, self.parts = item, parts
        self.unit: Reg = b.op("div.u32", b.reg("unit", "u32"), item, parts)
        self.number: Reg = b.op("mul.lo.u32", b.reg("part_of_unit", "u32"), self.unit, parts)
        b.op("sub.u32", self.number, item, self.number)
        b.op("min.u32", self.number, self.number, most - 1, note="no part lies beyond")

    def tiles(self, b: Builder, count: Reg) -> tuple[Reg, Reg]:
        """The first of the `count` tiles of keys that its rows see that is this part's, and how many are: the first
        parts have one more where they do not come out even; part of an open fragment."""
        b.note("and of these a part")
        each = b.op("div.u32", b.reg("tiles_of_part", "u32"), count, self.parts)
        over = b.op("mul.lo.u32", b.reg("tiles_over", "u32"), each, self.parts)
        b.op("sub.u32", over, count, over)
        low = b.op("min.u32", b.reg("part_lowest", "s32"), self.number, over)
        b.op("mad.lo.s32", low, self.number, each, low)
        has_more = b.op("setp.lt.u32", scratch(b, "has_tile_over", "pred"), self.number, over)
        tiles = b.op("mov.s32", b.reg("part_tiles", "s32"), each)
        b.op("add.s32", tiles, tiles, 1, pred=has_more)
        b.note("early rows may see fewer tiles than there are parts: these leave nothing")
        self.taking = b.op("max.u32", b.reg("parts_taking", "u32"), count, 1)
        b.op("min.u32", self.taking, self.taking, self.parts)
        return low, tiles
