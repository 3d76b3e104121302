"""How a warp without tensor cores shares out a tile of K or V: lanes over positions and over dims. Pure arithmetic.

Lane = token · dim_lanes + dim lane. A row is cut into pieces of 16 bytes (or 8); dim lane d holds pieces d,
d + dim_lanes, … of the rows of its positions, so that neighbouring lanes read neighbouring bytes, and a score is a sum
over dim_lanes lanes. Position t of a lane is t · token_lanes + token of the tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from ptxgen.idioms.decode.contract import Attention

MOST_HEADS = 8  # query heads of a CTA
REGISTERS = 220  # of a thread's 255, by the estimate below
_BOOKKEEPING = 36  # pointers, tile numbers, addresses of shared memory, and what the assembler needs to schedule
_LEAST_TILE, _MOST_TILE = 2, 64  # positions; a page holds a multiple of 16
_IN_FLIGHT = 320  # bytes of K and V a lane should have in flight; more gains nothing
_LINE = 128  # bytes of a cache line: shorter runs of a row cost more requests


@dataclass(frozen=True)
class Lanes:
    """One way to share out a tile. `element` and `piece` are bytes; `tokens` positions a lane has of a tile; `staged`:
    the query is read from shared memory, not kept in registers."""

    head_dim: int
    element: int
    quantised: bool
    heads: int
    piece: int
    dim_lanes: int
    tokens: int
    staged: bool

    @property
    def token_lanes(self) -> int:
        """Positions that the warp has side by side."""
        return 32 // self.dim_lanes

    @property
    def tile(self) -> int:
        """Positions of a tile."""
        return self.tokens * self.token_lanes

    @property
    def elements(self) -> int:
        """Elements of a piece."""
        return self.piece // self.element

    @property
    def words(self) -> int:
        """Registers of a piece."""
        return self.piece // 4

    @property
    def row_pieces(self) -> int:
        """Pieces of a row."""
        return self.head_dim * self.element // self.piece

    @property
    def pieces(self) -> int:
        """Pieces of a row that a lane has; the last may be missing in some lanes."""
        return -(-self.row_pieces // self.dim_lanes)

    @property
    def uneven(self) -> bool:
        """Whether some lanes lack the last piece."""
        return self.row_pieces % self.dim_lanes != 0

    @property
    def dims(self) -> int:
        """Dims of a lane."""
        return self.pieces * self.elements

    @property
    def kv_registers(self) -> int:
        """Registers that a tile of K, or of V, fills."""
        return self.tokens * self.pieces * self.words

    @property
    def registers(self) -> int:
        """Estimate of a thread's registers."""
        query = 4 if self.staged else self.heads * self.dims
        scales = 2 * self.tokens * self.pieces if self.quantised else 0
        widened = 0 if self.element == 4 else (self.elements + 1) * (self.tokens if self.staged else 1) + 12
        scores = (self.tokens + 2) * self.heads
        widened += 8 if self.uneven else 0
        return _BOOKKEEPING + self.heads * self.dims + query + 2 * self.kv_registers + scales + widened + scores

    @property
    def cost(self) -> float:
        """Estimate of issue slots a position, raised where too little is in flight or lines are read in parts."""
        products = 2 * self.heads * self.dims
        sums = 2 * math.log2(self.dim_lanes) * self.heads
        widening = 0 if self.element == 4 else 4 * self.dims
        loads = 2 * self.pieces + (self.heads * self.dims / 2 / self.tokens if self.staged else 0)
        tile = 30 + 6 * self.heads
        slots = (products + sums + 5 * self.heads + widening + loads) / self.token_lanes + tile / self.tile
        in_parts = self.dim_lanes * self.piece < min(_LINE, self.head_dim * self.element)
        return slots * max(1.0, _IN_FLIGHT / (8 * self.kv_registers)) ** 0.5 * (1.3 if in_parts else 1.0)


def lanes_of(attention: Attention) -> Lanes:
    """The best way for an attention; as many of a group's heads as registers allow, in equal parts."""
    most_tile = 16 if attention.page_size else _MOST_TILE
    first = -(-attention.group // MOST_HEADS)
    for parts in range(first, attention.group + 1):
        heads = -(-attention.group // parts)
        found = _best(attention.head_dim, attention.kv_dtype.bytes, attention.quantised, heads, most_tile)
        if found is not None:
            return found
    raise AssertionError(f"no lanes for {attention}")


@cache
def _best(head_dim: int, element: int, quantised: bool, heads: int, most_tile: int) -> Lanes | None:
    row = head_dim * element
    one = Lanes(head_dim, element, quantised, heads, 8, 1, 1, False)
    fitting = [
        lanes
        for piece in (16, 8)
        if row % piece == 0
        for dim_lanes in (1, 2, 4, 8, 16, 32)
        if dim_lanes < 2 * (row // piece)
        for tokens in (1, 2, 4, 8, 16)
        for staged in (False, True)
        if (lanes := replace(one, piece=piece, dim_lanes=dim_lanes, tokens=tokens, staged=staged)).tile <= most_tile
        and lanes.tile >= _LEAST_TILE
        and lanes.registers <= REGISTERS
    ]
    return min(fitting, key=lambda lanes: (lanes.cost, lanes.registers), default=None)
