"""How K and V rows lie in the registers of a warp that multiplies them with mma.m16n8k16. Pure arithmetic, no code.

Lane = 4·g + q. The order of a contraction is free, so what a lane loads in one piece *is* an A fragment:
K tile (tokens on M): rows g and g + 8, the bytes at q of every block; V tile (dims on M): tokens 2q, 2q+1, 2q+8, 2q+9,
the bytes at g of every block. A row is cut into blocks of falling size, so that no lane ever loads outside its row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

TILE = 16  # tokens of a tile: M of the score product, K of the output product
UNIT_REGISTERS = 16  # most registers that one unit of the load stream fills
K_ROWS = (0, 8)  # added to g
V_ROWS = (0, 1, 8, 9)  # added to 2q


class Block(NamedTuple):
    """Bytes [base, base + lanes · width) of every row: `width` bytes a lane, so many at once.

    `repeats`: only half of the lanes' share exists; the upper half loads what the lower one does and is ignored.
    `scaled`: each row has one more register, for the scale of the lane's elements (never more than one: a lane's
    elements start at a multiple of their number, which divides 32).
    """

    kind: str  # "k" or "v"
    base: int
    width: int
    element: int
    repeats: bool = False
    scaled: bool = False

    @property
    def rows(self) -> tuple[int, ...]:
        """Row offsets a lane loads."""
        return K_ROWS if self.kind == "k" else V_ROWS

    @property
    def elements(self) -> int:
        """Elements a lane holds of a row."""
        return self.width // self.element

    @property
    def words(self) -> int:
        """Registers a lane needs for one row."""
        return -(-self.width // 4)

    @property
    def registers(self) -> int:
        return (self.words + self.scaled) * len(self.rows)

    def word(self, row: int, index: int) -> int:
        """Register, within the block, of a row's word."""
        return row * self.words + index

    def scale(self, row: int) -> int:
        """Register, within the block, of a row's scale."""
        return self.words * len(self.rows) + row

    @property
    def first_dim(self) -> int:
        return self.base // self.element

    @property
    def steps(self) -> int:
        """mma instructions along K (kind "k"), or output tiles of 16 dims (kind "v")."""
        return max(self.elements // 4, 1) if self.kind == "k" else max(self.elements // 2, 1)


class Placed(NamedTuple):
    """A block at its place in a unit: register offset within the unit, and its number among the blocks of its kind."""

    block: Block
    offset: int
    number: int


class Unit(NamedTuple):
    """Blocks that are loaded and consumed together; an empty unit pads the stream of a tile."""

    kind: str
    blocks: tuple[Placed, ...]

    @property
    def registers(self) -> int:
        return sum(p.block.registers for p in self.blocks)


class TileLayout(NamedTuple):
    """The units of one tile in the order of their use: K's, then V's."""

    units: tuple[Unit, ...]

    @property
    def k_blocks(self) -> tuple[Block, ...]:
        return tuple(p.block for u in self.units if u.kind == "k" for p in u.blocks)

    @property
    def v_blocks(self) -> tuple[Block, ...]:
        return tuple(p.block for u in self.units if u.kind == "v" for p in u.blocks)

    @property
    def output_tiles(self) -> int:
        """16-dim tiles of the accumulator."""
        return sum(b.steps for b in self.v_blocks)

    @property
    def first_v(self) -> int:
        """Index of the first unit of V."""
        return sum(u.kind == "k" for u in self.units)


def _blocks(kind: str, row_bytes: int, element: int, scaled: bool) -> list[Block]:
    lanes = 4 if kind == "k" else 8
    widest = 16 if row_bytes % 16 == 0 else 8
    narrowest = max(2, 2 * element)  # a lane needs a pair of elements
    base, out = 0, []
    for width in (16, 8, 4, 2):
        if width > widest or width < narrowest:
            continue
        while row_bytes - base >= lanes * width:
            out.append(Block(kind, base, width, element, scaled=scaled))
            base += lanes * width
    if base < row_bytes:  # 8 dims of V are half of what eight lanes hold
        out.append(Block(kind, base, narrowest, element, True, scaled))
    return out


def _units(kind: str, blocks: list[Block]) -> list[Unit]:
    units: list[list[Placed]] = []
    room = 0
    for index, block in enumerate(blocks):
        if block.registers > room:
            units.append([])
            room = UNIT_REGISTERS
        units[-1].append(Placed(block, UNIT_REGISTERS - room, index))
        room -= block.registers
    return [Unit(kind, tuple(u)) for u in units]


@lru_cache(maxsize=256)
def tile_layout(k_dim: int, v_dim: int, element: int, scaled: bool) -> TileLayout:
    """The layout of rows of so many elements of `element` bytes (1 or 2), with scales or without."""
    dims = (("k", k_dim), ("v", v_dim))
    k, v = (_units(kind, _blocks(kind, dim * element, element, scaled)) for kind, dim in dims)
    return TileLayout(tuple(k + v))


class Ring(NamedTuple):
    """Registers for the loads in flight: `depth` units, reused in turn as the stream of tiles goes by.

    Either whole tiles are in flight (`ahead` of them, and the loop is unrolled as often), or, for rows too long for
    that, a part of one tile; its units are then padded to a multiple of the depth.
    """

    layout: TileLayout
    units: tuple[Unit, ...]
    depth: int

    @property
    def ahead(self) -> int:
        """Tiles in flight besides the one in use; 0 when less than a tile is."""
        return self.depth // len(self.units)

    @property
    def unroll(self) -> int:
        return max(self.ahead, 1)

    @property
    def slot_offsets(self) -> tuple[int, ...]:
        """First register of each slot, and at the end the number of registers."""
        sizes = [0] * self.depth
        for position in range(self.unroll * len(self.units)):
            slot = position % self.depth
            sizes[slot] = max(sizes[slot], self.units[position % len(self.units)].registers)
        offsets = [0]
        for size in sizes:
            offsets.append(offsets[-1] + size)
        return tuple(offsets)

    @property
    def registers(self) -> int:
        return self.slot_offsets[-1]


def ring_of(layout: TileLayout, budget: int, most_tiles: int) -> Ring:
    """The deepest ring within `budget` registers: up to `most_tiles` whole tiles, or else a part of a tile."""
    size = sum(u.registers for u in layout.units)
    tiles = min(most_tiles, budget // size)
    if tiles > 0:
        return Ring(layout, layout.units, tiles * len(layout.units))
    depth = max(2, min(budget // UNIT_REGISTERS, 4))
    padding = -len(layout.units) % depth
    return Ring(layout, layout.units + (Unit("v", ()),) * padding, depth)


def tile_ring(layout: TileLayout, budget: int) -> Ring:
    """Registers for one tile, or for as many of its units as the budget holds: of a tile that is in shared memory."""
    return Ring(layout, layout.units, max(2, min(len(layout.units), budget // UNIT_REGISTERS)))
