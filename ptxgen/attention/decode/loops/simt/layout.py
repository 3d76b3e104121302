"""How a warp without tensor cores shares out a tile of K or V: lanes over positions and over dims. Pure arithmetic.

Lane = token · dim_lanes + dim lane. A row is cut into pieces of 16 bytes (or 8); dim lane d holds pieces d,
d + dim_lanes, … of the rows of its positions, so that neighbouring lanes read neighbouring bytes, and a score is a sum
over dim_lanes lanes. Position t of a lane is t · token_lanes + token of the tile.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from ptxgen.attention.attention import Attention
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target

MOST_HEADS = 8  # query heads of a CTA
_BOOKKEEPING = 36  # pointers, tile numbers, addresses of shared memory, and what the assembler needs to schedule
_LEAST_TILE, _MOST_TILE = 2, 64  # positions; a page holds a multiple of 16
_WHOLE = 16  # a cache of fewer positions still gets a tile of so many
_LINE = 128  # bytes of a cache line: shorter runs of a row cost more requests


class Budget(NamedTuple):
    """What a target gives a thread: `registers`, most of its 255 by the estimate below; `in_flight`, bytes of K and V
    that it should have on their way at a time (with 8 warps on a multiprocessor; more gains nothing)."""

    registers: int
    in_flight: int


# Before sm_90 a shuffle has a second path for warps that are not together, which the assembler calls as a function:
# values that live across it find fewer registers. Those chips also have less bandwidth a multiprocessor.
BUDGETS = {"sm_75": Budget(140, 128), "sm_90": Budget(220, 320)}


class Lanes(NamedTuple):
    """One way to share out a tile of rows of `dim` elements. `element` and `piece` are bytes; `tokens` positions a lane
    has of a tile; `staged`: the query is read from shared memory, not kept in registers; `per_head`: values that every
    head brings to the variant's steps."""

    dim: int
    element: int
    quantised: bool
    heads: int
    piece: int
    dim_lanes: int
    tokens: int
    staged: bool
    per_head: int = 0

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
        return self.dim * self.element // self.piece

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
        scores = (self.tokens + 2 + self.per_head) * self.heads
        widened += 8 if self.uneven else 0
        return _BOOKKEEPING + self.heads * self.dims + query + 2 * self.kv_registers + scales + widened + scores

    def cost(self, in_flight: int) -> float:
        """Estimate of issue slots a position, raised where too little is in flight or lines are read in parts."""
        products = 2 * self.heads * self.dims
        sums = 2 * math.log2(self.dim_lanes) * self.heads
        widening = 0 if self.element == 4 else 4 * self.dims
        loads = 2 * self.pieces + (self.heads * self.dims / 2 / self.tokens if self.staged else 0)
        tile = 30 + 6 * self.heads
        slots = (products + sums + 5 * self.heads + widening + loads) / self.token_lanes + tile / self.tile
        in_parts = self.dim_lanes * self.piece < min(_LINE, self.dim * self.element)
        waiting: float = max(1.0, in_flight / (8 * self.kv_registers)) ** 0.5
        return slots * waiting * (1.3 if in_parts else 1.0)


def budget_of(target: Target) -> Budget:
    """The budget of a target: of the newest row that it includes."""
    return [budget for name, budget in BUDGETS.items() if target.includes(parse_target(name))][-1]


def lanes_of(attention: Attention, target: Target) -> Lanes:
    """The best way for an attention; as many of a group's heads as registers allow, in equal parts."""
    budget, problem, cache = budget_of(target), attention.problem, attention.cache
    visible = min(cache.max_len, attention.variant.window or cache.max_len)
    enough = 1 << (visible - 1).bit_length()  # a tile that holds all
    most_tile = 16 if cache.page_size else min(max(enough, _WHOLE), _MOST_TILE)
    for parts in range(-(-attention.problem.group // MOST_HEADS), attention.problem.group + 1):
        heads = -(-attention.problem.group // parts)
        one = Lanes(
            problem.qk_dim, problem.kv_dtype.bytes, cache.quantised, heads, 8, 1, 1, False,
            len(attention.variant.per_head),
        )  # fmt: skip
        found = _best(one, most_tile, budget)
        if found is not None:
            return found
    raise AssertionError(f"no lanes for {attention}")


@cache
def _best(one: Lanes, most_tile: int, budget: Budget) -> Lanes | None:
    """The cheapest way with the heads of `one` within a budget."""
    fitting = [
        lanes
        for piece in (16, 8)
        if one.dim * one.element % piece == 0
        for dim_lanes in (1, 2, 4, 8, 16, 32)
        for tokens in (1, 2, 4, 8, 16)
        for staged in (False, True)
        if (lanes := one._replace(piece=piece, dim_lanes=dim_lanes, tokens=tokens, staged=staged)).tile <= most_tile
        and lanes.tile >= _LEAST_TILE
        and lanes.registers <= budget.registers
    ]
    return min(fitting, key=lambda lanes: (lanes.cost(budget.in_flight), lanes.registers), default=None)
