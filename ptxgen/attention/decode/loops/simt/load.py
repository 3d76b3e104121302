"""The loads of the simt main loop: where each lane's pieces of K and V lie, one tile of each in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ptxgen.attention.attention import Attention
from ptxgen.attention.cache import RowLayout
from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.loops.simt.layout import Lanes
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms.convert import scratch
from ptxgen.scales import SCALE_GROUP

FRESH_LOAD = "ld.relaxed.gpu.global"  # sees what was written while this kernel ran


@dataclass
class Rows:
    """K's or V's side: the lane's pointer into the tile that is being loaded, and the registers it fills."""

    pointer: Reg
    words: RegArray
    side: RowLayout
    scale_pointer: Reg | None
    scales: RegArray | None
    lane: Reg | None = None  # of pages: the lane's offset from row 0 of page 0
    scale_lane: Reg | None = None


class Loader:
    """Owns `%kv_k<n>`, `%kv_v<n>`, their pointers, and the number of the tile being loaded."""

    def __init__(self, b: Builder, attention: Attention, task: Task, lanes: Lanes) -> None:
        self.b, self.attention, self.task, self.lanes = b, attention, task, lanes
        self.load = _load_words(b, task)
        self.token = b.reg("row_token", "u32")
        self.dim_lane = b.reg("row_dim_lane", "u32")
        self.next = b.reg("tile_next", "s32")
        self.live = b.reg("tile_live", "pred")
        self.has_last = b.reg("row_has_last", "pred") if lanes.uneven else None
        self.page = b.reg("tile_page", "s32") if attention.cache.page_size else None
        self.k, self.v = (self._rows(kind, side) for kind, side in attention.cache.sides.items())
        self._advance: dict[int, Reg] = {}
        self._live: list[Reg] = []  # of each token of a lane, or of all
        self._live_last: list[Reg] = []  # of these, where the lane has the row's last piece

    def _rows(self, kind: str, side: RowLayout) -> Rows:
        b, lanes = self.b, self.lanes
        word = "f32" if lanes.element == 4 else "b32"
        rows = Rows(b.reg(f"kv_{kind}_row", "u64"), b.array(f"kv_{kind}", word, lanes.kv_registers), side, None, None)
        if self.attention.cache.quantised:
            rows.scale_pointer = b.reg(f"kv_{kind}_scale_row", "u64")
            rows.scales = b.array(f"kv_{kind}_scale", "b16", lanes.tokens * lanes.pieces)
        return rows

    @property
    def ragged(self) -> bool:
        """Whether a whole tile may reach past the rows that exist, so that rows are loaded one by one."""
        return self.attention.cache.ragged(self.lanes.tile)

    def words(self, rows: Rows, token: int, piece: int) -> tuple[Reg, ...]:
        """Registers of a piece of one position."""
        first = (token * self.lanes.pieces + piece) * self.lanes.words
        registers: tuple[Reg, ...] = rows.words[first : first + self.lanes.words]
        return registers

    def scale(self, rows: Rows, token: int, piece: int) -> Reg:
        """The int8 scale of that piece."""
        assert rows.scales is not None
        register: Reg = rows.scales[token * self.lanes.pieces + piece]
        return register

    # -- once ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The lane's place in a tile, and its pointers to tile 0 (of page 0)."""
        b, task, lanes, attention = self.b, self.task, self.lanes, self.attention
        shift = lanes.dim_lanes.bit_length() - 1
        b.op("shr.u32", self.token, task.lane, shift)
        b.op("and.b32", self.dim_lane, task.lane, lanes.dim_lanes - 1)
        if self.has_last is not None:
            last = lanes.row_pieces - (lanes.pieces - 1) * lanes.dim_lanes
            b.op("setp.lt.u32", self.has_last, self.dim_lane, last)
        scale_lane = None
        if attention.cache.quantised:
            scale_lane = b.op("mul.lo.u32", "row_scale_lane", self.dim_lane, lanes.elements)
            b.op("shr.u32", scale_lane, scale_lane, SCALE_GROUP.bit_length() - 1)
        sides = ((self.k, task.k_rows, task.k_scales), (self.v, task.v_rows, task.v_scales))
        for rows, base, scales in sides:
            b.op("mad.wide.u32", rows.pointer, self.token, rows.side.bytes, base)
            b.op("mad.wide.u32", rows.pointer, self.dim_lane, lanes.piece, rows.pointer)
            if rows.scale_pointer is not None:
                assert scales is not None
                assert scale_lane is not None
                b.op("mad.wide.u32", rows.scale_pointer, self.token, rows.side.scale_bytes, scales)
                b.op("mad.wide.u32", rows.scale_pointer, scale_lane, 2, rows.scale_pointer)
        if attention.cache.page_size or attention.cache.ring:
            self._keep_lane_offsets()
        if self.ragged or lanes.uneven:
            b.note("what a lane does not load counts as zero")
            for rows in (self.k, self.v):
                for word in (*rows.words, *(rows.scales or ())):
                    b.op(f"mov.{word.type}", word, 0.0 if word.type == "f32" else 0)

    def _keep_lane_offsets(self) -> None:
        for kind, rows in (("k", self.k), ("v", self.v)):
            rows.lane = self.b.op("mov.u64", f"kv_{kind}_lane", rows.pointer)
            if rows.scale_pointer is not None:
                rows.scale_lane = self.b.op("mov.u64", f"kv_{kind}_scale_lane", rows.scale_pointer)

    def first_tile(self) -> None:
        """Point at the warp's first tile; where lengths are not known yet, every tile of the cache counts as there."""
        b, task, attention = self.b, self.task, self.attention
        end: Reg | int = task.tile_end
        if task.early and not task.late_newest:
            end = -(-attention.cache.max_len // self.lanes.tile)
        b.op("mov.b32", self.next, task.tile)
        b.op("setp.lt.s32", self.live, self.next, end)
        if attention.cache.page_size:
            self._fetch_page(self.next, self.live)
            self._point_into_page()
        elif attention.cache.ring:
            self._point_into_ring()
        else:
            for pointer, stride in self._strides():
                b.op("mad.wide.u32", pointer, self.next, self.lanes.tile * stride, pointer)
        self._guard_rows()

    def strides(self) -> None:
        """What carries a pointer from one of the warp's tiles to its next."""
        if not (self.attention.cache.page_size or self.attention.cache.ring):
            for stride in sorted({stride for _, stride in self._strides()}):
                advance = f"kv_advance{stride}"
                self._advance[stride] = self.b.op(
                    "mul.wide.u32", advance, self.task.tile_step, self.lanes.tile * stride
                )

    # -- every tile ------------------------------------------------------------------------------------------------

    def next_tile(self) -> None:
        """Move on to the warp's next tile."""
        b = self.b
        b.op("add.s32", self.next, self.next, self.task.tile_step)
        b.op("setp.lt.s32", self.live, self.next, self.task.tile_end)
        if self.attention.cache.page_size:
            self._point_into_page()
        elif self.attention.cache.ring:
            self._point_into_ring()
        else:
            for pointer, stride in self._strides():
                b.op("add.u64", pointer, pointer, self._advance[stride])
        self._guard_rows()

    def issue(self, rows: Rows) -> None:
        """Start the loads of a tile of K or V."""
        lanes = self.lanes
        for token in range(lanes.tokens):
            offset = token * lanes.token_lanes
            for piece in range(lanes.pieces):
                words = self.words(rows, token, piece)
                at = rows.pointer[offset * rows.side.bytes + piece * lanes.dim_lanes * lanes.piece]
                guard = self._guard(token, piece)
                self.b.op(f"{self.load}.v{len(words)}.{words[0].type}", words, at, pred=guard)
                if rows.scale_pointer is not None:
                    group = piece * lanes.dim_lanes * lanes.elements // SCALE_GROUP
                    at = rows.scale_pointer[offset * rows.side.scale_bytes + 2 * group]
                    self.b.op(f"{self.load}.b16", self.scale(rows, token, piece), at, pred=guard)

    def _guard(self, token: int, piece: int) -> Reg:
        last = self.has_last is not None and piece == self.lanes.pieces - 1
        return (self._live_last if last else self._live)[token if self.ragged else 0]

    def _guard_rows(self) -> None:
        """Predicates of what there is to load: the tile, where it may reach past the cache its rows, the last piece."""
        b, lanes = self.b, self.lanes
        names, self._live = ["tile"], [self.live]
        if self.ragged:
            left, names, self._live = scratch(b, "row_left", "s32"), [], []
            cache = self.attention.cache
            b.op("mad.lo.s32", left, self.next, -lanes.tile, self.task.length if cache.strided else cache.max_len)
            b.op("sub.s32", left, left, self.token)
            for token in range(lanes.tokens):
                exists = scratch(b, f"row{token}_live", "pred")
                b.op("setp.gt.and.s32", exists, left, token * lanes.token_lanes, self.live)
                names.append(f"row{token}")
                self._live.append(exists)
        if self.has_last is not None:
            self._live_last = [scratch(b, f"{name}_live_last", "pred") for name in names]
            for last, exists in zip(self._live_last, self._live, strict=True):
                b.op("and.pred", last, exists, self.has_last)

    def _strides(self) -> list[tuple[Reg, int]]:
        """Every pointer with the bytes of a position."""
        out = []
        for rows in (self.k, self.v):
            out.append((rows.pointer, rows.side.bytes))
            if rows.scale_pointer is not None:
                out.append((rows.scale_pointer, rows.side.scale_bytes))
        return out

    # -- pages -----------------------------------------------------------------------------------------------------

    def _fetch_page(self, tile: Reg, guard: Reg) -> None:
        """Start reading the page number of a tile, one tile ahead of its use."""
        b, task = self.b, self.task
        assert self.page is not None
        assert task.page_row is not None
        entry, address = scratch(b, "tile_entry", "u32"), scratch(b, "tile_entry_address", "u64")
        b.op("div.u32", entry, tile, self.attention.cache.page_size // self.lanes.tile)
        b.op("mad.wide.u32", address, entry, 4, task.page_row)
        b.op("ld.global.s32", self.page, address[0], pred=guard)

    def _point_into_page(self) -> None:
        """Pointers from the page number of `next`; then fetch the number of the tile after it."""
        b, attention, lanes = self.b, self.attention, self.lanes
        assert self.page is not None
        b.note("the page of this tile, and its place in the page")
        place, wide = scratch(b, "tile_place", "u32"), scratch(b, "tile_wide_page", "u64")
        b.op("rem.u32", place, self.next, attention.cache.page_size // lanes.tile)
        b.op("cvt.u64.u32", wide, self.page, pred=self.live)
        for pointer, lane, stride in self._from_lanes():
            b.op("mad.lo.u64", pointer, wide, attention.cache.page_positions * stride, lane, pred=self.live)
            b.op("mad.wide.u32", pointer, place, lanes.tile * stride, pointer, pred=self.live)
        later, ahead = scratch(b, "tile_later", "s32"), scratch(b, "tile_ahead", "pred")
        b.op("add.s32", later, self.next, self.task.tile_step)
        b.op("setp.lt.s32", ahead, later, self.task.tile_end)
        self._fetch_page(later, ahead)

    def _from_lanes(self) -> Iterator[tuple[Reg, Reg, int]]:
        """Every pointer, where the lane starts, and the bytes of a position."""
        for rows in (self.k, self.v):
            assert rows.lane is not None
            yield rows.pointer, rows.lane, rows.side.bytes
            if rows.scale_pointer is not None:
                assert rows.scale_lane is not None
                yield rows.scale_pointer, rows.scale_lane, rows.side.scale_bytes

    def _point_into_ring(self) -> None:
        """Pointers from the tile's place in the ring."""
        b, tile = self.b, self.lanes.tile
        place = scratch(b, "tile_place", "u32")
        b.op("rem.u32", place, self.next, self.attention.cache.ring // tile)
        for pointer, lane, stride in self._from_lanes():
            b.op("mad.wide.u32", pointer, place, tile * stride, lane)


def _load_words(b: Builder, task: Task) -> str:
    """The load that fits: what a kernel ahead may still write must not come from a cache of constants."""
    if task.late_newest:
        return FRESH_LOAD
    # The hint needs PTX ISA 7.4; a target that is older than that is not worth a newer driver.
    return "ld.global.nc.L1::no_allocate" if b.target.lowest_ptx >= (7, 4) else "ld.global.nc"
