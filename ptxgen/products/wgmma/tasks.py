"""The tile scheduler: which tile a CTA takes next, and which part of k: whole tiles in turn, or an even share of all k.

Tiles of many tokens go in bands, so that neighbouring CTAs have rows of weights or tokens in common. Where k is shared
evenly (`stream`), a CTA begins and ends within tiles; `split_k/stream.py` has what becomes of their sums. With
`last_split` whole tiles go first, a turn after the other; where the tiles of the last turn are so few that each has
room for that many CTAs, these share its k and add up their sums by memory (`split_k/memory.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.division import divide_any
from ptxgen.idioms.division import split as split_by
from ptxgen.products.wgmma.tiling.geometry import WARPS, Geometry

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

MOST_ROWS = 1 << 24
MOST_UNITS = 1 << 30  # steps of all tiles that CTAs share out: weeks of work
BAND = 2048  # tokens whose tiles run side by side


class Tasks:
    """Fragments `locate`, `count`, `find_tile`, `next_tile`: the first tile, how many there are, where each lies.
    `more_tiles` is None where a CTA has no second tile.

    `thread`, `lane`, `warp`; `row_warp`: of those that have different rows; `slice`: of the warpgroup among those that
    share k, where they do; `share_rank`, `split_rank`: of the CTA among those that share tokens, and k; `group`,
    `token_tile`: rows and tokens of the tile; `first_step`, `steps`: of k, None where it is 0, a number where it is all
    of it; `is_last`: whether the tile has rows of one warpgroup alone, `passes`: whether it does and this warp has none
    of them; `takes`: whether the CTA is one that finishes tokens, where not all that share k do; `cluster`, `turn`:
    which of those that share k by memory, and whether its tile is an even or an odd one; `is_shared`: whether the tile
    is one of a last turn whose k is shared, `shared_rank` then of the CTA among those that do so, else 0; `count`:
    tokens in all; `has_tile`: whether the CTA has a first tile.
    """

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry) -> None:
        self.b, self.spec, self.at = b, spec, at
        self.share_rank: Reg | None = None
        self.split_rank: Reg | None = None
        self.slice: Reg | None = None
        self.takes: Reg | None = None
        self.first_step: Reg | None = None
        self.steps: Reg | int = at.steps
        self.is_last: Reg | None = None
        self.passes: Reg | None = None
        self.turn: Reg | None = None
        self.is_shared: Reg | None = None
        self.clusters = at.row_groups // at.shape.share  # that take all rows

    def locate(self) -> None:
        """The fragment `locate`."""
        b, at = self.b, self.at
        split, share = at.shape.split, at.shape.share
        with b.fragment("locate", "the warp, its task, the CTA's first tile"):
            thread = self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            self.lane = b.op("and.b32", "lane", thread, 31)
            warp = self.warp = b.op("shr.u32", "warp", thread, 5)
            self.row_warp = warp
            if at.shape.slices > 1:
                self.row_warp = b.op("and.b32", "warp_of_rows", warp, at.row_warps - 1)
                self.slice = b.op("shr.u32", "slice", warp, at.row_warps.bit_length() - 1)
            b.op("setp.ge.u32", "is_copier", warp, at.warps)
            b.op("setp.eq.u32", "copies_stages", warp, at.warps)
            if at.factored:
                b.op("setp.eq.u32", "finds_factors", warp, at.warps + 1)
            if at.roots:
                b.op("setp.eq.u32", "finds_squares", warp, at.warps + 1)
            if at.carried:
                carries = b.op("setp.gt.u32", "carries", warp, at.warps)
                b.op("setp.le.and.u32", carries, warp, at.warps + at.shape.groups, carries)
            tile = self.tile = b.reg("tile", "u32")
            if not (at.one_tile or self.spec.last_split):
                self.tile_step = b.reg("tile_step", "u32")
            if self.spec.last_split:
                self._begin_turns()
            elif self.spec.stream:
                self.cluster = b.reg("cluster", "u32")
                self.first_step, self.steps = b.reg("first_step", "u32"), b.reg("own_steps", "u32")
                self.find_cluster()
            else:
                self._find_own(tile)
            if not (at.one_tile or self.spec.last_split):
                self._find_step()
            if at.shape.by_memory:
                self._find_rank()
            elif split * share > 1:
                rank = b.op("mov.u32", "rank", b.special("cluster_ctarank"))
                self.share_rank, self.split_rank = (rank if share > 1 else None), (rank if split > 1 else None)
            if share > 1 and split > 1:
                self.split_rank, self.share_rank = split_by(b, "split_rank", "share_rank", rank, share)
            if self.split_rank is not None and not at.crowded:
                self._split(self.split_rank)
            b.op("setp.eq.u32", "makes_bells", thread, 0)
            self.weight = b.ld_param("weight")
            self.group, self.token_tile = b.reg("row_group", "u32"), b.reg("token_tile", "u32")
            if at.rows_first:
                self._find_group(b.reg("token_tile_ahead", "u32"))
                self._own_group()

    def _find_rank(self) -> None:
        """Which of those that share k by memory."""
        b, cta = self.b, convert.scratch(self.b, "cta", "u32")
        b.op("mov.u32", cta, b.special("ctaid.x"))
        self.cluster = b.op("min.u32", "cluster", self.tile, self.at.most_turns - 1)  # a bound for the checks
        rank = self.split_rank = b.op("mul.lo.u32", "split_rank", self.cluster, self.at.shape.split)
        b.op("sub.u32", rank, cta, rank)
        b.op("min.u32", rank, rank, self.at.shape.split - 1)  # as it is: a bound for the checks
        self.turn = b.op("mov.u32", "turn", 0)

    def _split(self, rank: Reg) -> None:
        """The part of k of one of the CTAs that share it."""
        b, at = self.b, self.at
        self.first_step, self.steps = b.reg("first_step", "u32"), b.reg("own_steps", "u32")
        self._find_steps(rank, at.shape.split)
        if at.takers < at.shape.split:
            self.takes = b.op("setp.lt.u32", "takes_tokens", rank, at.takers)

    def _find_steps(self, rank: Reg, split: int) -> None:
        """The steps of one of `split` CTAs that share k."""
        b, first, steps = self.b, self.first_step, self.steps
        assert first is not None
        assert isinstance(steps, Reg)
        b.op("mul.lo.u32", first, rank, self.at.steps)
        divide_any(b, first, first, split)
        b.op("mad.lo.u32", steps, rank, self.at.steps, self.at.steps)
        divide_any(b, steps, steps, split)
        b.op("sub.u32", steps, steps, first)

    def own_token(self, token: Reg, each: int) -> Reg:
        """Of the tile, a token of those that this CTA, or warpgroup, finishes, `each` as many; part of an open
        fragment."""
        rank = self.slice or self.split_rank
        if rank is None:
            return token
        own: Reg = self.b.op("mad.lo.u32", "own_token", rank, each, token)
        return own

    def _find_group(self, token_tile: Reg) -> None:
        """Rows and tokens of a tile where neighbouring ones have the same tokens."""
        b = self.b
        divide_any(b, token_tile, self.tile, self.clusters)
        b.op("mul.lo.u32", self.group, token_tile, self.clusters)
        b.op("sub.u32", self.group, self.tile, self.group)
        b.op("min.u32", self.group, self.group, self.clusters - 1)  # as it is: a bound for the checks

    def _own_group(self) -> None:
        """Rows of the CTA, of those of the cluster."""
        if self.share_rank is not None:
            self.b.op("mad.lo.u32", self.group, self.group, self.at.shape.share, self.share_rank)

    def build(self) -> None:
        """Build the fragments that count tokens, find a CTA's tiles and go from one to the next."""
        b, spec, at = self.b, self.spec, self.at
        tile = self.tile
        with b.fragment("count", "how many tokens there are, and how many tiles of the output"):
            if spec.indirect:
                count = b.reg("tokens", "s32")
                b.op("ld.global.s32", count, b.ld_param("n_rows")[0])
            else:
                count = b.ld_param("n_rows")
            count = self.count = b.op("max.s32", "tokens_counted", count, 0)
            b.op("min.s32", count, count, MOST_ROWS)
            self.token_tiles, tiles = b.reg("token_tiles", "u32"), b.reg("tiles_in_all", "u32")
            self._count_tiles(tiles)
            if spec.stream:
                self._find_range(tiles)
            elif spec.last_split:
                self._find_turns(tiles)
            else:
                self.has_tile = b.op("setp.lt.u32", "has_tile", tile, tiles)
        with b.fragment("find_tile", "which rows of weights, and which tokens"):
            if spec.stream:
                self._find_part()
            if spec.last_split:
                self._find_turn()
            if self.split_rank is not None and at.crowded:
                self._split(self.split_rank)
            self._find_tile()
        if at.one_tile:
            b.without("next_tile")
            b.expose(more_tiles=None)
            return
        with b.fragment("next_tile"):
            if at.crowded:
                self._count_tiles(tiles)
            if spec.stream:
                b.op("add.u32", self.unit, self.unit, self.steps)
                b.op("setp.lt.u32", "more_tiles", self.unit, self.end)
            elif spec.last_split:
                places = b.op("mov.u32", "places_again", b.special("nctaid.x"))  # else it takes a register
                b.op("add.u32", self.ordinal, self.ordinal, places)
                b.op("setp.lt.u32", "more_tiles", self.ordinal, tiles)
            else:
                if at.crowded:
                    self._find_step()
                if self.turn is not None:
                    b.op("xor.b32", self.turn, self.turn, 1)
                b.op("add.u32", tile, tile, self.tile_step)
                b.op("setp.lt.u32", "more_tiles", tile, tiles)

    def _count_tiles(self, tiles: Reg) -> None:
        """Tiles of tokens, and of all clusters."""
        b, each, token_tiles = self.b, self.spec.tokens, self.token_tiles
        b.op("add.u32", token_tiles, self.count, each - 1)
        divide_any(b, token_tiles, token_tiles, each)
        b.op("mul.lo.u32", tiles, token_tiles, self.clusters)

    def find_cluster(self) -> None:
        """Which cluster of a launch with even shares this is; part of an open fragment."""
        self._find_own(self.cluster)
        self.b.op("min.u32", self.cluster, self.cluster, self.at.most_turns - 1)

    def _find_own(self, out: Reg) -> None:
        """The CTA's index among clusters, which is that of its first tile."""
        b, each = self.b, self.at.shape.split * self.at.shape.share
        b.op("mov.u32", out, b.special("ctaid.x"))
        if each > 1:
            divide_any(b, out, out, each)

    def _find_step(self) -> None:
        """From one tile of a CTA to its next."""
        b, shape = self.b, self.at.shape
        each = shape.split if shape.by_memory else shape.share
        b.op("mov.u32", self.tile_step, b.special("nctaid.x"))
        if each > 1:
            divide_any(b, self.tile_step, self.tile_step, each)

    def _find_tile(self) -> None:
        b, at, tile = self.b, self.at, self.tile
        group, token_tile = self.group, self.token_tile
        if at.rows_first:
            self._find_group(token_tile)
        else:
            clusters = self.clusters - at.shape.last // at.shape.share
            b.note("bands of tokens: those of a band pass all rows of weights before the next band's")
            most = max(1, BAND // self.spec.tokens)
            band = divide_any(b, "band", tile, most * clusters)
            first = b.op("mul.lo.u32", "first_of_band", band, most)
            wide = b.op("sub.u32", "tiles_of_band", self.token_tiles, first)
            b.op("min.u32", wide, wide, most)
            b.op("max.u32", wide, wide, 1)
            in_band = b.op("mul.lo.u32", "tile_in_band", band, most * clusters)
            b.op("sub.u32", in_band, tile, in_band)
            b.op("div.u32", group, in_band, wide)
            b.op("rem.u32", token_tile, in_band, wide)
            b.op("add.u32", token_tile, token_tile, first)
            b.op("min.u32", group, group, clusters - 1)
        if at.shape.last:
            self._find_last()
        self._own_group()
        if self.is_last is not None:
            self._count_units(self.is_last)
        b.op("min.u32", token_tile, token_tile, MOST_ROWS // self.spec.tokens)

    def _find_last(self) -> None:
        """Rows and tokens of a tile behind all whole ones."""
        b, at = self.b, self.at
        last = at.shape.last // at.shape.share
        b.note("behind the whole tiles those of one warpgroup")
        whole = b.op("mul.lo.u32", "whole_tiles", self.token_tiles, self.clusters - last)
        is_last = self.is_last = b.op("setp.ge.u32", "is_last", self.tile, whole)
        b.op("sub.u32", whole, self.tile, whole)
        wide = b.op("max.u32", "tiles_of_rows", self.token_tiles, 1)
        group, token_tile = b.op("div.u32", "last_group", whole, wide), b.op("rem.u32", "last_token_tile", whole, wide)
        b.op("min.u32", group, group, last - 1)
        b.op("selp.b32", self.group, group, self.group, is_last)
        b.op("selp.b32", self.token_tile, token_tile, self.token_tile, is_last)
        self.passes = b.op("setp.ge.and.u32", "passes", self.warp, WARPS, is_last)

    def _count_units(self, is_last: Reg) -> None:
        """The tile's first rows, in those of a warpgroup."""
        b, at = self.b, self.at
        whole, units = at.row_groups - at.shape.last, at.shape.units
        each = b.op("selp.b32", "units_of_tile", 1, units, is_last)
        before = b.op("selp.b32", "units_before", whole * units, 0, is_last)
        b.op("mad.lo.u32", self.group, self.group, each, before)
        b.op("min.u32", self.group, self.group, whole * units + at.shape.last - 1)  # as it is: a bound for the checks

    # -- a last turn whose k is shared ---------------------------------------------------------------------------------

    def _begin_turns(self) -> None:
        """Registers of the tile; which of all tiles is the CTA's first."""
        b, at = self.b, self.at
        self.ordinal, self.is_shared = b.reg("ordinal", "u32"), b.reg("is_shared", "pred")
        self.shared_rank, self.cluster = b.reg("shared_rank", "u32"), b.reg("shared_tile", "u32")
        self.first_step, self.steps = b.reg("first_step", "u32"), b.reg("own_steps", "u32")
        if at.takers < at.shape.last_split:
            self.takes = b.reg("takes_tokens", "pred")
        self._find_own(self.ordinal)

    def _find_turns(self, tiles: Reg) -> None:
        """How many tiles are whole, and whether those of the last turn are shared; `tiles` becomes how many places of
        CTAs there are in all turns."""
        b, split = self.b, self.at.shape.last_split
        places = b.op("mov.u32", "places", b.special("nctaid.x"))
        whole = self.whole = b.op("div.u32", "whole_tiles", tiles, places)
        b.op("mul.lo.u32", whole, whole, places)
        left = b.op("sub.u32", "tiles_left", tiles, whole)
        wanted = b.op("mul.lo.u32", "places_wanted", left, split)
        self.shares = b.op("setp.le.u32", "shares_last", wanted, places)
        b.op("selp.b32", left, wanted, left, self.shares)
        b.op("add.u32", tiles, whole, left)
        self.has_tile = b.op("setp.lt.u32", "has_tile", self.ordinal, tiles)

    def _find_turn(self) -> None:
        """The tile, and the CTA's part of its k."""
        b, at, split, rank = self.b, self.at, self.at.shape.last_split, self.shared_rank
        assert isinstance(self.steps, Reg)
        b.op("setp.ge.and.u32", self.is_shared, self.ordinal, self.whole, self.shares)
        b.op("sub.u32", rank, self.ordinal, self.whole)
        divide_any(b, self.cluster, rank, split)
        b.op("min.u32", self.cluster, self.cluster, at.most_shared - 1)  # a bound for the checks
        b.op("add.u32", self.tile, self.whole, self.cluster)
        b.op("selp.b32", self.tile, self.tile, self.ordinal, self.is_shared)
        before = b.op("mul.lo.u32", "places_before", self.cluster, split)
        b.op("sub.u32", rank, rank, before)
        b.op("min.u32", rank, rank, split - 1)  # as it is: a bound for the checks
        b.op("selp.b32", rank, rank, 0, self.is_shared)
        self._find_steps(rank, split)
        b.op("selp.b32", self.steps, self.steps, at.steps, self.is_shared)
        if self.takes is not None:
            b.op("setp.lt.u32", self.takes, rank, at.takers)

    def finished(self, token: Reg) -> Reg:
        """Of the tile, a token of those that this CTA finishes, `token` being counted from the first of them; part of
        an open fragment."""
        if self.is_shared is None:
            return token
        first: Reg = self.b.op("mad.lo.u32", "finished_token", self.shared_rank, self.at.shared_tokens, token)
        return first

    def limit(self, left: Reg, token: Reg) -> Reg | None:
        """`left`, the tokens from one on that is counted as above, becomes at most as many as the CTA finishes; the
        result: how many these are in all, None where that is the same of all tiles. Part of an open fragment."""
        if self.is_shared is None:
            return None
        b, at = self.b, self.at
        every: Reg = b.op("selp.b32", "finished_tokens", at.shared_tokens, at.tokens, self.is_shared)
        own = b.op("sub.s32", convert.scratch(b, "own_left", "s32"), every, token)
        b.op("min.s32", left, left, own)
        return every

    # -- an even share of all k ----------------------------------------------------------------------------------------

    def _find_range(self, tiles: Reg) -> None:
        """Steps of all tiles, one tile's after the other's, are dealt out in runs of the same length, or one more."""
        b, clusters = self.b, self.tile_step
        units = b.op("mul.lo.u32", "steps_in_all", tiles, self.at.steps)
        self.run = b.op("div.u32", "run", units, clusters)
        left = self.longer = b.op("mul.lo.u32", "longer_runs", self.run, clusters)
        b.op("sub.u32", left, units, left)
        b.op("min.u32", self.run, self.run, MOST_UNITS // self.at.most_turns)
        self.unit, self.end = b.reg("unit", "u32"), b.reg("last_unit", "u32")
        self.find_end(self.unit, self.cluster)
        after = b.op("add.u32", "next_cluster", self.cluster, 1)
        self.find_end(self.end, after)
        self.has_tile = b.op("setp.lt.u32", "has_tile", self.unit, self.end)

    def find_end(self, out: Reg, clusters: Reg) -> None:
        """Where the runs of the first `clusters` clusters end."""
        b = self.b
        b.op("min.u32", out, clusters, self.longer)
        b.op("mad.lo.u32", out, clusters, self.run, out)

    def _find_part(self) -> None:
        b, at, first, steps = self.b, self.at, self.first_step, self.steps
        assert first is not None
        assert isinstance(steps, Reg)
        divide_any(b, self.tile, self.unit, at.steps)
        b.op("min.u32", self.tile, self.tile, MOST_UNITS // at.steps - 1)  # as it is: a bound for the checks
        b.op("mul.lo.u32", first, self.tile, at.steps)
        b.op("sub.u32", first, self.unit, first)
        b.op("sub.u32", steps, self.end, self.unit)
        left = b.op("sub.u32", "steps_left", at.steps, first)
        b.op("min.u32", steps, steps, left)
