"""16-bit results that additional warps store to global memory while the next tile is multiplied.

A warpgroup writes the results of half of its tokens to shared memory, keeps the other half as 16-bit numbers in
registers, and goes on to the next tile; some stages later it writes these, too. One additional warp for each warpgroup
copies them to the output. Named barriers signal that the buffer is full, or empty again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.division import split
from ptxgen.products.wgmma.epilogue.results_16bit import PIECE, HalfResults
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import OCTET, WARPS, Geometry

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

HELD_STAGES = 4  # of the next tile that are multiplied before what is held is left, so that the place is empty
LOADS = 4  # of 16 bytes that a lane has in flight
PER_STMATRIX = 4  # words
LANES = 32


class CarriedResults(HalfResults):
    """Fragments `begin_results`, `find_output`, `begin_holding`, `find_held`, `leave_first`, `hold`, `leave_held`: of a
    warpgroup that multiplies."""

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, sums: Sequence[Sequence[Reg]], step: Reg
    ) -> None:
        """`step`: stages of a tile that are left."""
        super().__init__(b, spec, at, ring, sums)
        self.step = step
        self.held = b.array("held_word", "b32", self.blocks * at.result_tokens // PER_STMATRIX)

    def build(self, tasks: Tasks) -> None:
        """Build the fragments that leave results for the warp that carries them."""
        b, at = self.b, self.at
        first = at.result_tokens
        with b.fragment("begin_results", "where this lane leaves pieces; the barriers of what is left there"):
            self._begin_leaving(tasks)
            holds = b.op("setp.ne.u32", "holds", 0, 0)
        if self.bias is None:
            b.without("find_output")
        else:
            with b.fragment("find_output", "the bias of this lane's outputs"):
                self._find_bias(tasks.group)
        with b.fragment("find_held", "whether what is held of the tile before is left in this stage"):
            stage = min(HELD_STAGES, at.steps - 1)
            b.op("setp.eq.and.u32", "leaves_held", self.step, at.steps - stage, holds)
        with b.fragment("leave_first", "half of the tokens: results to shared memory"):
            self._leave(0)
        with b.fragment("hold", "the other half stays in registers, as 16-bit numbers"):
            for index, word in enumerate(self._words_from(first)):
                self._finish(self.held[index], *word)
            b.op("setp.eq.u32", holds, 0, 0)
        with b.fragment("leave_held", "the other half of the tile before: to shared memory"):
            self._leave_held()
        b.expose(carried_threads=LANES * (WARPS + 1))

    def _begin_leaving(self, tasks: Tasks) -> None:
        b, at = self.b, self.at
        area = b.op("add.u32", "results_place", b.op("mov.u32", "ring_of_results", self.ring.memory),
                    at.results_at)  # fmt: skip
        own_group = b.op("shr.u32", "own_group", tasks.warp, 2)
        b.op("mad.lo.u32", area, own_group, self.buffer_bytes, area)
        self.full = b.op("add.u32", "left_full", own_group, 1)
        self.empty = b.op("add.u32", "left_empty", own_group, 1 + at.shape.groups)
        self._find_places(tasks.lane, tasks.warp, area)
        if self.bias is not None:
            self._begin_bias(tasks.lane, tasks.warp)

    def _words_from(self, first: int) -> list[tuple[int, int, int]]:
        """Octet, half and block of every word that is held, in the order in which `stmatrix` takes them."""
        return [
            (token // OCTET + index // 2, index % 2, block)
            for token in range(first, first + self.at.result_tokens, 2 * OCTET)
            for block in range(self.blocks)
            for index in range(PER_STMATRIX)
        ]

    def _leave_held(self) -> None:
        places = [
            self.leave_at[block][token * self.pitch]
            for token in range(0, self.at.result_tokens, 2 * OCTET)
            for block in range(self.blocks)
        ]
        for index, place in enumerate(places):
            words = self.held[PER_STMATRIX * index : PER_STMATRIX * (index + 1)]
            self.b.op(f"stmatrix.sync.aligned.m8n8.x{PER_STMATRIX}.trans.shared.b16", place, tuple(words))


class Carrier:
    """The warp that carries a warpgroup's results. Fragments `begin_carrying`, `find_carried`, `begin_half`, `carry`,
    `next_half`; predicates `carries_more`, `carries_half`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        self.b, self.spec, self.at, self.ring = b, spec, at, ring
        self.rows = at.rows // at.shape.groups
        self.pitch = 2 * self.rows
        self.pieces = self.rows // PIECE
        self.at_once = LANES // self.pieces  # tokens of a load
        self.taken = b.array("carried_word", "b32", 4 * LOADS)
        self.carries_tile: Reg | None = None  # whether the tile has rows of the warpgroup, where that is not so of all

    def build(self, tasks: Tasks) -> None:
        """Build all of its fragments."""
        b, spec, at = self.b, self.spec, self.at
        row_bytes = spec.out_dtype.bytes * spec.n
        with b.fragment("begin_carrying", "which warpgroup's results, and where this lane takes them up"):
            self._begin(tasks)
            to, left = b.reg("carried_to", "u64"), b.reg("carried_left", "s32")
        with b.fragment("find_carried", "the lane's first token and its outputs"):
            row = b.op("mad.lo.u32", convert.scratch(b, "carried_row", "u32"), tasks.token_tile, at.tokens, self.token)
            column = b.op("mad.lo.u32", convert.scratch(b, "carried_column_out", "u32"), tasks.group,
                          at.rows // at.shape.units, self.column)  # fmt: skip
            b.op("mad.wide.u32", to, row, row_bytes, self.out)
            b.op("mad.wide.u32", to, column, spec.out_dtype.bytes, to)
            b.op("sub.s32", left, tasks.count, row)
            inside = b.op("setp.lt.u32", convert.scratch(b, "carried_inside", "pred"), column, spec.n)
            b.op("selp.s32", left, left, 0, inside)
            halves = b.op("mov.u32", "halves_left", at.tokens // at.result_tokens)
            if tasks.is_last is not None:
                self.carries_tile = b.op("setp.eq.or.u32", "carries_tile", self.own, 0, ~tasks.is_last)
            b.expose(has_halves=self.carries_tile)
        step = LOADS * self.at_once
        with b.fragment("begin_half", "from the first token that was left"):
            for now, place in zip(self.now, self.places, strict=True):
                b.op("mov.u32", now, place)
            rounds = b.op("mov.u32", "carries_left", at.result_tokens // step)
        with b.fragment("carry", f"{step} tokens to the output"):
            self._carry(to, left, row_bytes, step)
            b.op("sub.u32", rounds, rounds, 1)
            b.op("setp.ne.u32", "carries_more", rounds, 0)
        with b.fragment("next_half"):
            b.op("sub.u32", halves, halves, 1)
            b.op("setp.ne.u32", "carries_half", halves, 0)

    def _begin(self, tasks: Tasks) -> None:
        b, at = self.b, self.at
        own = self.own = b.op("sub.u32", "carried_group", tasks.warp, at.warps + 1)
        b.op("min.u32", own, own, at.shape.groups - 1)
        b.op("add.u32", "carried_full", own, 1)
        b.op("add.u32", "carried_empty", own, 1 + at.shape.groups)
        area = b.op("mov.u32", "carried_area", self.ring.memory)
        b.op("add.u32", area, area, at.results_at)
        b.op("mad.lo.u32", area, own, self.pitch * at.result_tokens, area)
        self.token, piece = split(b, "carried_token", "carried_piece", tasks.lane, self.pieces)
        self.column = b.op("mul.lo.u32", "carried_column", piece, PIECE)
        b.op("mad.lo.u32", self.column, own, self.rows, self.column)
        b.note("piece p of token r lies at p ^ (r mod 8): of every other load half a row away")
        turned = b.op("xor.b32", "carried_turn", piece, self.token)
        self.places = b.array("carried_place", "u32", OCTET // self.at_once)
        b.op("mad.lo.u32", self.places[0], self.token, self.pitch, area)
        for index in reversed(range(len(self.places))):
            other = b.op("xor.b32", convert.scratch(b, "turned_piece", "u32"), turned, index * self.at_once)
            b.op("mad.lo.u32", self.places[index], other, 2 * PIECE, self.places[0])
        self.now = b.array("carried_at", "u32", len(self.places))
        self.out, self.stores = b.ld_param("out"), b.reg("carries_store", "pred")

    def _carry(self, to: Reg, left: Reg, row_bytes: int, step: int) -> None:
        b = self.b
        pieces = [self.taken[4 * load : 4 * load + 4] for load in range(LOADS)]
        for load, piece in enumerate(pieces):
            place = self.now[load % len(self.now)]
            convert.load_words(b, piece, place, load * self.at_once * self.pitch, space="shared")
        for load, piece in enumerate(pieces):
            b.op("setp.gt.s32", self.stores, left, load * self.at_once)
            convert.store_words(b, to, piece, pred=self.stores)
            b.op("add.u64", to, to, row_bytes * self.at_once)
        for now in self.now:
            b.op("add.u32", now, now, step * self.pitch)
        b.op("sub.s32", left, left, step)
