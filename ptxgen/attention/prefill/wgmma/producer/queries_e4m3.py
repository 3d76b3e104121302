"""Rows of q as e4m3, each times a scale of its own, a power of two: so nothing rounds but the conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.producer.swizzled_copies import SwizzledCopy
from ptxgen.attention.prefill.wgmma.ring import WORD, Ring
from ptxgen.attention.prefill.wgmma.tile import LANES, ROWS, SWIZZLED_ROW, WgmmaTile
from ptxgen.attention.prefill.wgmma.variants import folds_scales
from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, e4m3
from ptxgen.idioms.convert import clear, load_words, pack, scratch, store_words, unpack, words_of
from ptxgen.idioms.reduce import halves, over_lanes

BIAS = 127  # of f32's exponents
LOW = 7  # a row's largest value becomes 2^7 to 2^8: e4m3 goes to 448
WORDS = ((32, 4), (128, 32))  # of rows of a thread on their way, by the largest head_dim
LEAST = 2.0**-100  # of a row's largest value, as far as its scale goes


class QueryRows(Protocol):
    """Who copies rows of q: `QueryCopies`, once it is aimed."""

    b: Builder
    spec: Prefill
    tile: WgmmaTile
    items: Items
    ring: Ring
    q: SwizzledCopy
    dtype: DType
    row: Reg  # the thread's first
    chunk: Reg  # the thread's place in its rows
    to: Reg  # where that is in shared memory, which begins at `base`
    base: Reg
    q_from: Reg


class Rounding:
    """Fragments `fill_q0` … of each warpgroup; of the loop over its rows behind them `round_rows`; `rows_rounded`."""

    def __init__(self, copies: QueryRows) -> None:
        self.b, self.copies = copies.b, copies
        b = self.b
        self.row, self.to, self.scale_to = b.reg("round_row", "s32"), b.reg("round_to", "u32"), b.reg("scale_to", "u32")
        self.end, self.full = b.reg("round_end", "s32"), b.reg("round_full", "u32")
        turned = copies.tile.turned
        self.sign = b.reg("q_sign", "b32") if turned and folds_scales(copies.spec.attention.variant) else None
        self.at_once = self._rows_at_once()
        self._rows()

    def _rows_at_once(self) -> int:
        """Rows of a thread that are on their way together, as registers allow; the others wait for them."""
        copies, copy = self.copies, self.copies.q
        if not copies.tile.turned or copies.items.cache.batched or copy.spread.column_passes > 1:
            return 1
        words = next(words for dim, words in WORDS if copies.spec.dim <= dim)
        if copies.items.step(copy.spread.rows_per_pass) is None:  # addresses of their own take registers, too
            words //= 2
        return max(1, words // words_of(copies.dtype, copy.elements))

    def fill(self, group: int) -> Fragment:
        """Aims at the first rows of a warpgroup."""
        b, copies = self.b, self.copies
        tile, first = copies.tile, ROWS * group
        items = copies.items
        with b.fragment(f"fill_q{group}", f"{ROWS} rows of q from {first} on, as e4m3 times a scale") as fill:
            first_row = items.second_row if items.pairs and group == 1 else items.first_row
            b.op("add.s32", self.row, first_row, copies.row)
            b.op("add.s32", self.row, self.row, first)
            b.op("add.s32", self.end, first_row, first + ROWS)
            b.op("add.u32", self.to, copies.to, group * tile.q_bytes)
            b.op("mad.lo.u32", self.scale_to, copies.row, 4, copies.base)
            b.op("add.u32", self.scale_to, self.scale_to, tile.q_scales_at + 4 * first)
            b.op("add.u32", self.full, copies.ring.at, copies.ring.q_full + WORD * group)
            if self.sign is not None:
                b.note("the sign of the scale of keys, which come as they are")
                b.op("mov.b32", self.sign, items.k_scale)
                b.op("and.b32", self.sign, self.sign, -0x80000000)
        return fill

    def _rows(self) -> None:
        b, copies, copy, kind = self.b, self.copies, self.copies.q, self.copies.dtype
        count, each = copy.spread.column_passes, words_of(kind, copy.elements)
        words = [b.array(f"q_word{n}_" if n else "q_word", "b32", count * each) for n in range(self.at_once)]
        values = b.array("q_value", "f32", count * copy.elements)
        packed = b.array("q_packed", "b32", words_of(e4m3, copy.elements))
        rows = copy.spread.rows_per_pass
        with b.fragment("round_rows", "rows by their lanes; zeros past the last"):
            for n in range(self.at_once):
                self._load(words[n], n * rows)
            first = b.op("setp.eq.u32", b.reg("is_first_chunk", "pred"), copies.chunk, 0)
            for n in range(self.at_once):
                unpack(b, values, words[n], kind)
                scale, inverse = self._scale(values)
                for value in values:
                    b.op("mul.f32", value, value, inverse)
                for column, takes in copy.passes(0):
                    pack(b, packed, values[column * copy.elements : (column + 1) * copy.elements], e4m3)
                    to = copy.place((self.to, 0), n, column)
                    store_words(b, self.to, packed, to.offset, space="shared", pred=takes)
                b.op("st.shared.f32", self.scale_to[4 * n * rows], scale, pred=first)
            rows *= self.at_once
            b.op("add.s32", self.row, self.row, rows)
            b.op("add.u32", self.to, self.to, rows * SWIZZLED_ROW)
            b.op("add.u32", self.scale_to, self.scale_to, 4 * rows)
            b.op("setp.lt.s32", "more_rounding", self.row, self.end)
        with b.fragment("rows_rounded", "there for consumers from here on"):
            if not copies.tile.q_in_registers:
                b.op("fence.proxy.async.shared::cta", note="and seen by wgmma")
            copies.ring.arrive_all(self.full[0])

    def _load(self, words: Sequence[Reg], skip: int) -> None:
        """The words of a row `skip` rows on, zeros if there is none; part of an open fragment."""
        b, copies, copy, kind = self.b, self.copies, self.copies.q, self.copies.dtype
        each, row, row_bytes = words_of(kind, copy.elements), self.row, copies.spec.attention.problem.query_bytes
        step = copies.items.step(copy.spread.rows_per_pass)  # None: every row's address is computed
        if skip:
            row = b.op("add.s32", scratch(b, "round_row_on", "s32"), row, skip)
        if not skip or step is None:
            at = copies.items.address("q_at", row, copies.q_from, row_bytes)[1]
            b.op("mad.wide.u32", at, copies.chunk, copy.elements * kind.bytes, at)
        passes = skip // copy.spread.rows_per_pass
        at, further = scratch(b, "q_at", "u64"), passes * (step or 0) * row_bytes
        exists = b.op("setp.lt.s32", scratch(b, "round_exists", "pred"), row, copies.items.n_rows)
        taken = scratch(b, "round_taken", "pred")
        clear(b, words)
        for column, takes in copy.passes(0):
            if takes is not None:
                b.op("and.pred", taken, exists, takes)
            some, offset = words[column * each : (column + 1) * each], column * LANES * copy.elements * kind.bytes
            load_words(b, some, at, further + offset, pred=exists if takes is None else taken)

    def _scale(self, values: Sequence[Reg]) -> tuple[Reg, Reg]:
        """The scale of a row and its inverse; part of an open fragment."""
        b = self.b
        largest, other = scratch(b, "q_largest", "f32"), scratch(b, "q_other", "f32")
        b.op("abs.f32", largest, values[0])
        for value in values[1:]:
            b.op("abs.f32", other, value)
            b.op("max.f32", largest, largest, other)
        over_lanes(b, "max.f32", largest, halves(LANES), other)
        b.op("max.f32", largest, largest, LEAST, note="a row of zeros has a scale, too")
        exponent, bits = scratch(b, "q_exponent", "u32"), scratch(b, "q_scale_bits", "b32")
        b.op("mov.b32", bits, largest)
        b.op("shr.u32", exponent, bits, 23)
        for value, first in ((other, 2 * BIAS + LOW), (largest, -LOW)):
            if first > 0:
                b.op("sub.u32", bits, first, exponent)
            else:
                b.op("add.u32", bits, exponent, first)
            b.op("shl.b32", bits, bits, 23)
            if first > 0 and self.sign is not None:
                b.op("or.b32", bits, bits, self.sign)
            b.op("mov.b32", value, bits)
        return largest, other
