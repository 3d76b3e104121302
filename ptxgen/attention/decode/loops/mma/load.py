"""The loads of the mma main loop: where each lane's rows lie, and the stream of units that runs ahead of their use."""

from __future__ import annotations

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.loops.mma.layout import K_ROWS, TILE, V_ROWS, Block, Placed, Ring
from ptxgen.attention.decode.loops.tiles import Pointer, Tiles
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.scales import SCALE_GROUP

LOAD = "ld.global.nc.L1::no_allocate.L2::128B"
ASIDE_LOAD = "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B"  # takes a policy
ORDERED_LOAD = "ld.global.L1::no_allocate.L2::128B"  # not before the wait for a kernel ahead; `nc` may move there
FRESH_LOAD = "ld.relaxed.gpu.global"  # sees what was written while this kernel ran
PREFETCH = "prefetch.global.L2"  # brings a line nearer; what is read later is what is there then
Kind = tuple[str, int, bool]  # k or v, bytes a lane, repeated: what decides a lane's offset in a row


class Loader:
    """Owns the ring `%kv<n>`, and what a lane reads of the tile that is being issued.

    Units are issued in stream order, `ring.depth` of them ahead of their use; a tile's first moves the pointers on.
    """

    def __init__(self, b: Builder, attention: Attention, task: Task, ring: Ring, *, aside: bool = False) -> None:
        self.b, self.attention, self.task, self.ring = b, attention, task, ring
        self.rows = attention.cache.sides
        self.kv = b.array("kv", "b32", ring.registers)
        self.tiles = Tiles(b, attention, task, TILE, clears_page=True)
        self.row_guards: dict[str, list[Reg | None]] = {}
        self.g = b.reg("lane_g", "u32")
        self.q = b.reg("lane_q", "u32")
        self._pointers: dict[Kind, Pointer] = {}
        self._scale_pointers: dict[Kind, Pointer] = {}
        self.load = ORDERED_LOAD if task.late_newest else ASIDE_LOAD if aside else LOAD
        self.policy: tuple[Reg, ...] = (b.reg("kv_policy", "b64"),) if self.load == ASIDE_LOAD else ()

    # -- once --------------------------------------------------------------------------------------------------------

    def lanes(self) -> None:
        """Lane numbers, and every lane's pointers to tile 0 (of page 0)."""
        b, task = self.b, self.task
        for policy in self.policy:
            b.note("what the L2 holds of a kernel before stays there longer where rows that are read once make no room")
            b.op("createpolicy.fractional.L2::evict_unchanged.b64", policy, 1.0)
        b.op("shr.u32", self.g, task.lane, 2)
        b.op("and.b32", self.q, task.lane, 3)
        self.token = b.op("shl.b32", "lane_token", self.q, 1)
        rows = {"k": self.g, "v": self.token}
        across = {"k": self.q, "v": self.g}
        columns = {kind: b.reg(f"kv_{kind}_column", "u32") for kind in "kv"}
        layout = self.ring.layout
        for block in (*layout.k_blocks, *layout.v_blocks):
            key = _key(block)
            if key in self._pointers:
                continue
            column = across[block.kind]
            if block.repeats:
                column = b.op("and.b32", columns[block.kind], column, 3)
            name = f"kv_{block.kind}{block.width}{'r' if block.repeats else ''}"
            base = task.k_rows if block.kind == "k" else task.v_rows
            self._pointers[key] = self._lane_pointer(
                name, base, rows[block.kind], self.rows[block.kind].bytes, column, block.width
            )
            if block.scaled:
                shift = (SCALE_GROUP // block.elements).bit_length() - 1
                group = b.op("shr.u32", columns[block.kind], column, shift)
                scales = task.k_scales if block.kind == "k" else task.v_scales
                assert scales is not None
                self._scale_pointers[key] = self._lane_pointer(
                    name + "_scale", scales, rows[block.kind], self.rows[block.kind].scale_bytes, group, 2
                )
        self.tiles.pointers = [*self._pointers.values(), *self._scale_pointers.values()]
        if self.tiles.from_lanes:
            for pointer in self.tiles.pointers:
                pointer.lane = b.reg(pointer.register.name + "_lane", "u64")
            for pointer in self.tiles.pointers:
                b.op("mov.u64", pointer.lane, pointer.register)

    def _lane_pointer(self, name: str, base: Reg, row: Reg, row_bytes: int, column: Reg, column_bytes: int) -> Pointer:
        register: Reg = self.b.op("mad.wide.u32", name, row, row_bytes, base)
        self.b.op("mad.wide.u32", register, column, column_bytes, register)
        return Pointer(register, row_bytes)

    # -- tile by tile ------------------------------------------------------------------------------------------------

    def first_tile(self) -> None:
        """Point at the warp's first tile. Where the length is not known yet, every tile of the cache counts as there;
        where the newest position may still be written, its row is left for later."""
        b, task, tiles = self.b, self.task, self.tiles
        positions = self.attention.cache.max_len
        blind = task.early and not task.late_newest
        b.op("mov.b32", tiles.next, task.tile)
        if tiles.ragged or task.late_newest:
            b.note("rows that are not loaded count as zeros")
            for register in self.kv:
                b.op("mov.b32", register, 0)
        b.op("setp.lt.s32", tiles.live, tiles.next, -(-positions // TILE) if blind else task.tile_end)
        tiles.enter()
        if task.late_newest:
            self.newest = b.op("sub.s32", "newest", task.length, 1)
            self._guard_rows(self.newest, always=True)
        else:
            self._guard_rows(positions if blind else task.length)

    def newest_row(self) -> Reg:
        """Whether the warp's first tile holds the newest position; guards of that row alone."""
        b = self.b
        place, mine = b.reg("newest_place", "s32"), scratch(self.b, "row_mine", "s32")
        b.op("mad.lo.s32", place, self.tiles.next, -TILE, self.newest)
        is_newest: Reg = b.op("setp.lt.u32", "tile_is_newest", place, TILE)
        for kind, (lane, rows) in self._lane_rows().items():
            b.op("sub.s32", mine, place, lane)
            guards = [scratch(self.b, f"newest_{kind}{row}", "pred") for row in rows]
            for guard, row in zip(guards, rows, strict=True):
                b.op("setp.eq.s32", guard, mine, row)
            self.row_guards[kind] = [*guards]
        return is_newest

    def find_newest_tile(self) -> None:
        """The number of the tile that holds the newest position; which of the tiles ahead it is (0: none so far)."""
        b = self.b
        self.newest_tile = b.op("sub.s32", "newest_tile", self.task.tile_end, 1)
        self.newest_ahead = b.op("mov.u32", "newest_ahead", 0)

    def older_tile(self, number: int) -> None:
        """Move on to the warp's tile of this number. `%tile_is_older`: it lies before that of the newest position, and
        all its rows are there. The newest position's is the warp's last, so that pointers stay at it."""
        b, tiles = self.b, self.tiles
        self.row_guards = {}
        tiles.advance()
        b.op("setp.lt.s32", scratch(b, "tile_is_older", "pred"), tiles.next, self.newest_tile)
        held = b.op("setp.eq.s32", scratch(b, "tile_is_held", "pred"), tiles.next, self.newest_tile)
        b.op("mov.u32", self.newest_ahead, number, pred=held)

    def is_held(self, number: int) -> Reg:
        """Whether the newest position is in the tile of this number."""
        held: Reg = self.b.op("setp.eq.u32", scratch(self.b, "tile_is_held", "pred"), self.newest_ahead, number)
        return held

    def all_rows(self) -> None:
        """From here on every row below the length is loaded as usual."""
        self.row_guards = {}
        self._guard_rows(self.task.length)

    def next_tile(self) -> None:
        """Move on to the warp's next tile."""
        self.tiles.advance()
        self._guard_rows(self.task.length)

    def _lane_rows(self) -> dict[str, tuple[Reg, tuple[int, ...]]]:
        """By kind: the lane's first row in a tile, and the distances of the others it loads."""
        return {"k": (self.g, K_ROWS), "v": (self.token, V_ROWS)}

    def _guard_rows(self, end: Reg | int, *, always: bool = False) -> None:
        """Predicates of the tile's rows that lie below `end`; only where a tile may reach past the cache, unless
        `always`."""
        if not (self.tiles.ragged or always):
            return
        b = self.b
        left, mine = scratch(self.b, "row_left", "s32"), scratch(self.b, "row_mine", "s32")
        b.op("mad.lo.s32", left, self.tiles.next, -TILE, end)
        for kind, (lane, rows) in self._lane_rows().items():
            b.op("sub.s32", mine, left, lane)
            guards = [scratch(self.b, f"row_{kind}{row}_exists", "pred") for row in rows]
            for guard, row in zip(guards, rows, strict=True):
                b.op("setp.gt.s32", guard, mine, row)
            self.row_guards[kind] = [*guards]

    def issue(self, position: int, load: str = "", *, sure: bool = False) -> None:
        """Start the loads of the unit at this position of the (unrolled) stream. `sure`: the tile is live."""
        load = load or self.load
        unit = self.ring.units[position % len(self.ring.units)]
        for placed in unit.blocks:
            block = placed.block
            pointer = self._pointers[_key(block)].register
            guards = self.row_guards.get(block.kind, [None if sure else self.tiles.live] * len(block.rows))
            for row, distance in enumerate(block.rows):
                words = [self.register(position, placed, block.word(row, i)) for i in range(block.words)]
                offset = distance * self.rows[block.kind].bytes + block.base
                if load == PREFETCH:
                    self.b.op(load, pointer[offset], pred=guards[row])
                    continue
                policy = self.policy if load == self.load else ()
                vector = f".v{len(words)}.b32" if len(words) > 1 else ".b32" if block.width == 4 else ".u16"
                into = tuple(words) if len(words) > 1 else words[0]
                self.b.op(load + vector, into, pointer[offset], *policy, pred=guards[row])
            if block.scaled and load != PREFETCH:
                pointer = self._scale_pointers[_key(block)].register
                for row, distance in enumerate(block.rows):
                    offset = distance * self.rows[block.kind].scale_bytes + 2 * (block.first_dim // SCALE_GROUP)
                    self.b.op(
                        f"{load}.u16",
                        self.register(position, placed, block.scale(row)),
                        pointer[offset],
                        *(self.policy if load == self.load else ()),
                        pred=guards[row],
                    )

    def refill(self, position: int) -> None:
        """Issue what takes the place of the unit just consumed."""
        target = position + self.ring.depth
        if target % len(self.ring.units) == 0:
            self.next_tile()
        self.issue(target)

    def register(self, position: int, placed: Placed, index: int) -> Reg:
        """The register of a block of the unit at this position of the stream."""
        slot = self.ring.slot_offsets[position % self.ring.depth]
        register: Reg = self.kv[slot + placed.offset + index]
        return register


def _key(block: Block) -> Kind:
    return block.kind, block.width, block.repeats
