"""The loads of the simt main loop: where each lane's pieces of K and V lie, one tile of each in registers."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.attention.attention import Attention
from ptxgen.attention.cache import RowLayout
from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.loops.simt.layout import Lanes
from ptxgen.attention.decode.loops.tiles import Pointer, Tiles
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms.convert import scratch
from ptxgen.scales import SCALE_GROUP

FRESH_LOAD = "ld.relaxed.gpu.global"  # sees what was written while this kernel ran


@dataclass
class Rows:
    """K's or V's side: the lane's pointer into the tile that is being loaded, and the registers it fills."""

    pointer: Pointer
    words: RegArray
    side: RowLayout
    scale_pointer: Pointer | None
    scales: RegArray | None


class Loader:
    """Owns `%kv_k<n>` and `%kv_v<n>`, and what a lane reads of the tile that is being loaded."""

    def __init__(self, b: Builder, attention: Attention, task: Task, lanes: Lanes) -> None:
        self.b, self.attention, self.task, self.lanes = b, attention, task, lanes
        self.load = _load_words(b, task)
        self.token = b.reg("row_token", "u32")
        self.dim_lane = b.reg("row_dim_lane", "u32")
        self.tiles = Tiles(b, attention, task, lanes.tile)
        self.has_last = b.reg("row_has_last", "pred") if lanes.uneven else None
        self.k, self.v = (self._rows(kind, side) for kind, side in attention.cache.sides.items())
        self.tiles.pointers = [p for rows in (self.k, self.v) for p in (rows.pointer, rows.scale_pointer) if p]
        self._live: list[Reg] = []  # of each token of a lane, or of all
        self._live_last: list[Reg] = []  # of these, where the lane has the row's last piece

    def _rows(self, kind: str, side: RowLayout) -> Rows:
        b, lanes = self.b, self.lanes
        word = "f32" if lanes.element == 4 else "b32"
        pointer = Pointer(b.reg(f"kv_{kind}_row", "u64"), side.bytes)
        words = b.array(f"kv_{kind}", word, lanes.kv_registers)
        if not self.attention.cache.quantised:
            return Rows(pointer, words, side, None, None)
        scale_pointer = Pointer(b.reg(f"kv_{kind}_scale_row", "u64"), side.scale_bytes)
        scales = b.array(f"kv_{kind}_scale", "b16", lanes.tokens * lanes.pieces)
        return Rows(pointer, words, side, scale_pointer, scales)

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
            pointer = rows.pointer.register
            b.op("mad.wide.u32", pointer, self.token, rows.side.bytes, base)
            b.op("mad.wide.u32", pointer, self.dim_lane, lanes.piece, pointer)
            if rows.scale_pointer is not None:
                assert scales is not None
                assert scale_lane is not None
                pointer = rows.scale_pointer.register
                b.op("mad.wide.u32", pointer, self.token, rows.side.scale_bytes, scales)
                b.op("mad.wide.u32", pointer, scale_lane, 2, pointer)
        if self.tiles.from_lanes:
            self._keep_lane_offsets()
        if self.tiles.ragged or lanes.uneven:
            b.note("what a lane does not load counts as zero")
            for rows in (self.k, self.v):
                for word in (*rows.words, *(rows.scales or ())):
                    b.op(f"mov.{word.type}", word, 0.0 if word.type == "f32" else 0)

    def _keep_lane_offsets(self) -> None:
        for kind, rows in (("k", self.k), ("v", self.v)):
            rows.pointer.lane = self.b.op("mov.u64", f"kv_{kind}_lane", rows.pointer.register)
            if rows.scale_pointer is not None:
                scale_lane = self.b.op("mov.u64", f"kv_{kind}_scale_lane", rows.scale_pointer.register)
                rows.scale_pointer.lane = scale_lane

    def first_tile(self) -> None:
        """Point at the warp's first tile; where lengths are not known yet, every tile of the cache counts as there."""
        b, task, tiles = self.b, self.task, self.tiles
        end: Reg | int = task.tile_end
        if task.early and not task.late_newest:
            end = -(-self.attention.cache.max_len // self.lanes.tile)
        b.op("mov.b32", tiles.next, task.tile)
        b.op("setp.lt.s32", tiles.live, tiles.next, end)
        tiles.enter()
        self._guard_rows()

    # -- every tile ------------------------------------------------------------------------------------------------

    def next_tile(self) -> None:
        """Move on to the warp's next tile."""
        self.tiles.advance()
        self._guard_rows()

    def issue(self, rows: Rows) -> None:
        """Start the loads of a tile of K or V."""
        lanes = self.lanes
        for token in range(lanes.tokens):
            offset = token * lanes.token_lanes
            for piece in range(lanes.pieces):
                words = self.words(rows, token, piece)
                at = rows.pointer.register[offset * rows.side.bytes + piece * lanes.dim_lanes * lanes.piece]
                guard = self._guard(token, piece)
                self.b.op(f"{self.load}.v{len(words)}.{words[0].type}", words, at, pred=guard)
                if rows.scale_pointer is not None:
                    group = piece * lanes.dim_lanes * lanes.elements // SCALE_GROUP
                    at = rows.scale_pointer.register[offset * rows.side.scale_bytes + 2 * group]
                    self.b.op(f"{self.load}.b16", self.scale(rows, token, piece), at, pred=guard)

    def _guard(self, token: int, piece: int) -> Reg:
        last = self.has_last is not None and piece == self.lanes.pieces - 1
        return (self._live_last if last else self._live)[token if self.tiles.ragged else 0]

    def _guard_rows(self) -> None:
        """Predicates of what there is to load: the tile, where it may reach past the cache its rows, the last piece."""
        b, lanes = self.b, self.lanes
        names, self._live = ["tile"], [self.tiles.live]
        if self.tiles.ragged:
            left, names, self._live = scratch(b, "row_left", "s32"), [], []
            cache = self.attention.cache
            b.op("mad.lo.s32", left, self.tiles.next, -lanes.tile, self.task.length if cache.strided else cache.max_len)
            b.op("sub.s32", left, left, self.token)
            for token in range(lanes.tokens):
                exists = scratch(b, f"row{token}_live", "pred")
                b.op("setp.gt.and.s32", exists, left, token * lanes.token_lanes, self.tiles.live)
                names.append(f"row{token}")
                self._live.append(exists)
        if self.has_last is not None:
            self._live_last = [scratch(b, f"{name}_live_last", "pred") for name in names]
            for last, exists in zip(self._live_last, self._live, strict=True):
                b.op("and.pred", last, exists, self.has_last)


def _load_words(b: Builder, task: Task) -> str:
    """The load that fits: what a kernel ahead may still write must not come from a cache of constants."""
    if task.late_newest:
        return FRESH_LOAD
    # The hint needs PTX ISA 7.4; a target that is older than that is not worth a newer driver.
    return "ld.global.nc.L1::no_allocate" if b.target.lowest_ptx >= (7, 4) else "ld.global.nc"
