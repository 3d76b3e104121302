"""A warp's way over its run of tiles on tensor cores: several tiles are always on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg
from ptxgen.idioms.division import divide_bounded
from ptxgen.idioms.division import split as divided
from ptxgen.products.geometry.runs import SLOT_BYTES, Runs
from ptxgen.products.mainloop.columns import Columns, columns_of
from ptxgen.products.mainloop.reader import TileReader
from ptxgen.products.tokens.digits import Digits

if TYPE_CHECKING:
    from ptxgen.products.problem.weighted import Weighted


class Turn(NamedTuple):
    """The fragments of one of the tiles that are on their way."""

    suffix: str
    request: Fragment  # the tile is asked for the first time
    multiply: Fragment
    refill: Fragment  # a later tile into the same registers
    publish: Fragment  # where a record or the run ends
    ends: Reg


class Stream:
    """Fragments `locate`, `begin`, and those of every `Turn`; sums of a warp's records go to its slots."""

    def __init__(self, b: Builder, spec: Weighted, at: Runs, columns: Columns | None = None) -> None:
        self.b, self.spec, self.at, self.kind = b, spec, at, spec.kind
        self.columns = columns or columns_of(spec.kind)(b, spec.kind)
        self.reader = TileReader(b, spec.kind, spec.k, pieces=self.columns.pieces, tiles=at.tiles)
        self.words = [b.array(f"word_{i}_", "b32", self.reader.words).regs for i in range(at.stages)]

    def locate(self, cta: str, first_cta: int = 0, weight: str = "weight", split: int = 1) -> None:
        """The units of the CTA and the tiles of the warp; `cta`: the special register that counts CTAs, from
        `first_cta` on; `weight`: the parameter; `split`: CTAs of a cluster, which share the columns of the same
        units."""
        b, at = self.b, self.at
        with b.fragment("locate", "the CTA's units, the warp's tiles of them, and the lane's place in a tile"):
            self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            self.lane = b.op("and.b32", "lane", self.thread, 31)
            self.warp = b.op("shr.u32", "warp", self.thread, 5)
            self.row = b.op("shr.u32", "row_of_lane", self.lane, 2)
            self.quad = b.op("and.b32", "lane_of_row", self.lane, 3)
            index = b.op("mov.u32", "cta_of_product", b.special(cta))
            if first_cta:
                b.op("sub.u32", index, index, first_cta)
                b.op("min.u32", index, index, at.ctas - 1)  # which it is: a bound for the checks
            self.rank = self.first_of_rank = None
            if split > 1:
                index, self.rank = divided(b, "cluster_of_product", "rank", index, split)
            first = self.first_unit = b.op("mul.lo.u32", "first_unit", index, at.least)
            self.has_more = None
            total: Reg | int = at.least * at.parts * at.tiles
            if at.more:
                extra = b.op("min.u32", "units_more_before", index, at.more)
                b.op("add.u32", first, first, extra)
                self.has_more = b.op("setp.lt.u32", "has_unit_more", index, at.more)
                total = b.op("selp.b32", "tiles_of_cta", at.most * at.parts * at.tiles, total, self.has_more)
            begin = self._share(total)
            record, tile = b.reg("record_of_cta", "u32"), b.reg("tile", "u32")
            divide_bounded(b, record, begin, at.tiles, at.most * at.parts * at.tiles)
            b.op("min.u32", record, record, at.most * at.parts)  # as it is: a bound for the checks
            b.op("sub.u32", tile, begin, b.op("mul.lo.u32", "tiles_before", record, at.tiles))
            self.tile, self.own_record = tile, record
            self.ahead = b.op("mov.u32", "tile_ahead", tile) if self.reader.wraps else None
            place = tile
            if self.rank is not None:
                place = b.op("mul.lo.u32", "first_of_rank", self.rank, at.tiles)
                b.op("min.u32", place, place, self.kind.tiles(self.spec.k) - at.tiles)
                self.first_of_rank, place = place, b.op("add.u32", "tile_of_record", place, tile)
            self.place = self.reader.locate(b, b.ld_param(weight), self.lane, self.row, place)
            whole = b.op("mad.lo.u32", "record", first, at.parts, record)
            self.reader.go_to(b, whole)
            self.more = b.op("setp.gt.u32", "has_tiles", self.left, 0)

    def _share(self, total: Reg | int) -> Reg:
        """The first of this warp's tiles, of so many of the CTA; `left` is how many it has."""
        b, warps = self.b, self.at.warps
        if isinstance(total, int) and total % warps == 0:
            self.left = b.op("mov.u32", "tiles_left", total // warps)
            only: Reg = b.op("mul.lo.u32", "first_tile", self.warp, total // warps)
            return only
        begin: Reg = b.op("mul.lo.u32", "first_tile", self.warp, total)
        end = b.op("add.u32", "end_tile", begin, total)
        for each in (begin, end):
            divide_bounded(b, each, each, warps, warps * self.at.most * self.at.parts * self.at.tiles)
        self.left = b.op("sub.u32", "tiles_left", end, begin)
        return begin

    def units_of_cta(self) -> Reg | int:
        """How many units the CTA has."""
        at = self.at
        if self.has_more is None:
            return at.least
        units: Reg = self.b.op("selp.b32", "units_of_cta", at.most, at.least, self.has_more)
        return units

    def request(self) -> Sequence[Fragment]:
        """Requests of the first tiles, before x is waited for or behind x (`tiles_before_x`)."""
        b, out = self.b, []
        there = self.request_there = b.reg("is_there", "pred")
        for i, words in enumerate(self.words):
            with b.fragment(f"request_{i}", f"load the words of tile {i} of the run") as request:
                b.op("setp.gt.u32", there, self.left, i)
                self.reader.load(b, words, pred=there, pinned=True)
                self._ahead(there)
            out.append(request)
        return out

    def _ahead(self, there: Reg) -> None:
        """The address of the tile after the one that was asked for."""
        b = self.b
        self.reader.advance(b, 1)
        if self.ahead is not None:
            b.op("add.u32", self.ahead, self.ahead, 1)
            b.op("setp.eq.u32", there, self.ahead, self.at.tiles)
            self.reader.wrap(b, there)
            b.op("mov.u32", self.ahead, 0, pred=there)

    def build(self, requests: Sequence[Fragment], digits: Digits | None, slots: Reg) -> list[Turn]:
        """Everything else. `slots`: where the CTA's slots begin, of 16 f32 each."""
        b = self.b
        with b.fragment("begin", "where the lane reads x; sums of 0"):
            self.columns.begin(self.place, self.quad, digits)
            self.x_at = []
            for base, step in zip(self.columns.x_bases, self.columns.x_steps, strict=True):
                self.x_at.append(b.op("mad.lo.u32", f"{base.name}_at", self.tile, step, base))
            self.columns.clear()
        self.slot = slots
        self.there, self.ends = self.request_there, b.reg("ends_record", "pred")
        return [self._turn(i, request) for i, request in enumerate(requests)]

    def _turn(self, index: int, request: Fragment) -> Turn:
        b, at = self.b, self.at
        suffix, words = f"_{index}", self.words[index]
        with b.fragment(f"multiply{suffix}", "multiply the tile with x") as multiply:
            self.columns.multiply(words, self.x_at)
            b.op("add.u32", self.tile, self.tile, 1)
            for address, step in zip(self.x_at, self.columns.x_steps, strict=True):
                b.op("add.u32", address, address, step)
            b.op("setp.eq.u32", self.ends, self.tile, at.tiles)
            b.op("setp.eq.or.u32", self.ends, self.left, 1, self.ends)
        with b.fragment(f"refill{suffix}", f"load the words of the tile {at.stages} further on") as refill:
            b.op("setp.gt.u32", self.there, self.left, at.stages)
            self.reader.load(b, words, pred=self.there)
            self._ahead(self.there)
            b.op("sub.u32", self.left, self.left, 1)
            b.op("setp.gt.u32", self.more, self.left, 0)
        with b.fragment(f"publish{suffix}", "the warp's sums of the record to shared memory") as publish:
            self.columns.publish(self.slot, self.quad)
            b.op("add.u32", self.slot, self.slot, SLOT_BYTES * at.tokens)
            self.columns.clear()
            b.op("mov.u32", self.tile, 0)
            for address, base in zip(self.x_at, self.columns.x_bases, strict=True):
                b.op("mov.u32", address, base)
        return Turn(suffix, request, multiply, refill, publish, self.ends)
