"""A warp's tiles of the cache, one after the other: which one is loaded next, and a lane's pointers into it."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import Task
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch


@dataclass
class Pointer:
    """Where a lane reads K or V, or their scales."""

    register: Reg  # in the tile that is loaded next
    stride: int  # bytes from one position to the next
    lane: Reg | None = None  # of pages and rings: the place in the first tile, of page 0


class Tiles:
    """Owns `%tile_next`, `%tile_live` and, of pages, `%tile_page`; moves `pointers`, which a loader adds.

    A tile has so many `positions`. With `clears_page` the page of a tile that is not there has the number 0, else its
    number is not read.
    """

    def __init__(
        self, b: Builder, attention: Attention, task: Task, positions: int, *, clears_page: bool = False
    ) -> None:
        self.b, self.cache, self.task, self.positions = b, attention.cache, task, positions
        self.next = b.reg("tile_next", "s32")
        self.live = b.reg("tile_live", "pred")
        self.page = b.reg("tile_page", "s32") if self.cache.page_size else None
        self.clears_page = clears_page
        self.pointers: list[Pointer] = []
        self._advance: dict[int, Reg] = {}  # by the bytes of a position

    @property
    def from_lanes(self) -> bool:
        """Whether pointers are computed anew for each tile, from those of the first, in place of being moved on."""
        return bool(self.cache.page_size or self.cache.ring)

    @property
    def ragged(self) -> bool:
        """Whether a whole tile may reach past the rows that exist, so that rows are loaded one by one."""
        return self.cache.ragged(self.positions)

    def enter(self) -> None:
        """Point into the warp's first tile, which `next` has and of which `live` says whether it is there; pointers are
        those of tile 0 until then."""
        b = self.b
        if self.page is not None:
            if self.clears_page:
                b.op("mov.b32", self.page, 0)
            self._fetch_page(self.next, self.live)
        if self.from_lanes:
            self._compute()
            return
        for pointer in self.pointers:
            step = self.positions * pointer.stride
            b.op("mad.wide.u32", pointer.register, self.next, step, pointer.register)

    def find_steps(self) -> None:
        """What carries a pointer from one of the warp's tiles to its next."""
        if self.from_lanes:
            return
        for stride in sorted({pointer.stride for pointer in self.pointers}):
            self._advance[stride] = self.b.op(
                "mul.wide.u32", f"kv_advance{stride}", self.task.tile_step, self.positions * stride
            )

    def advance(self) -> None:
        """Move on to the warp's next tile."""
        b = self.b
        b.op("add.s32", self.next, self.next, self.task.tile_step)
        b.op("setp.lt.s32", self.live, self.next, self.task.tile_end)
        if self.from_lanes:
            self._compute()
            return
        for pointer in self.pointers:
            b.op("add.u64", pointer.register, pointer.register, self._advance[pointer.stride])

    def _compute(self) -> None:
        """Pointers into a page or a ring."""
        if self.page is not None:
            self._point_into_page(self.page)
        else:
            self._point_into_ring()

    def _fetch_page(self, tile: Reg, guard: Reg) -> None:
        """Start reading the page number of a tile, one tile ahead of its use."""
        b = self.b
        assert self.page is not None
        assert self.task.page_row is not None
        entry, address = scratch(b, "tile_entry", "u32"), scratch(b, "tile_entry_address", "u64")
        tiles = self.cache.page_size // self.positions
        if tiles == 1 and self.clears_page:
            b.op("mov.b32", entry, tile)
        else:  # by 1, too: the simt loop takes 114 registers with it and 120 with a copy (sm_75, pages of a tile)
            b.op("div.u32", entry, tile, tiles)
        b.op("mad.wide.u32", address, entry, 4, self.task.page_row)
        b.op("ld.global.s32", self.page, address[0], pred=guard)

    def _point_into_page(self, page: Reg) -> None:
        """Pointers from the page number of `next`; then fetch the number of the tile after it."""
        b = self.b
        b.note("the page of this tile, and its place in the page")
        place, wide = scratch(b, "tile_place", "u32"), scratch(b, "tile_wide_page", "u64")
        b.op("rem.u32", place, self.next, self.cache.page_size // self.positions)
        b.op("cvt.u64.u32", wide, page, pred=None if self.clears_page else self.live)
        for pointer in self.pointers:
            assert pointer.lane is not None
            page_bytes, step = self.cache.page_positions * pointer.stride, self.positions * pointer.stride
            b.op("mad.lo.u64", pointer.register, wide, page_bytes, pointer.lane, pred=self.live)
            b.op("mad.wide.u32", pointer.register, place, step, pointer.register, pred=self.live)
        later, ahead = scratch(b, "tile_later", "s32"), scratch(b, "tile_ahead", "pred")
        b.op("add.s32", later, self.next, self.task.tile_step)
        b.op("setp.lt.s32", ahead, later, self.task.tile_end)
        self._fetch_page(later, ahead)

    def _point_into_ring(self) -> None:
        """Pointers from the tile's place in the ring."""
        b = self.b
        place = scratch(b, "tile_place", "u32")
        b.op("rem.u32", place, self.next, self.cache.ring // self.positions)
        for pointer in self.pointers:
            b.op("mad.wide.u32", pointer.register, place, self.positions * pointer.stride, pointer.lane)
