"""The loop of tensor cores for tokens: weights as exact bf16 codes, x as three bf16 digits that add up to f32.

Sums of a group of chunks with one scale begin anew and go to the f32 totals times that scale, so that no long chain of
sums is rounded by the tensor cores.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import product

from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.products.geometry.groups import FEW_WORDS
from ptxgen.products.mainloop.loop import Inputs, TileLoop, row_of
from ptxgen.products.problem.product import Tokens
from ptxgen.products.tokens.digits import DIGITS
from ptxgen.weights.bits import constant, pair_of_bf16
from ptxgen.weights.format import CHUNK, OWN, TILE_ROWS

TOKENS = 8
ASKED_TOGETHER = 4  # chunks of a `late` loop whose x is asked for at once
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
Fragments = Sequence[Sequence[Reg]]


class MmaLoop(TileLoop):
    """What is common: totals are four a part, rows g and g + 8 by columns 2t and 2t + 1 of N."""

    def begin(self, tokens: Tokens | None, inputs: Inputs | None) -> None:
        b = self.b
        self.sums = b.array("sum", "f32", self.spec.parts * 4).regs
        self.products, self.zeros = b.array("product", "f32", 4), b.array("zero_sum", "f32", 4)
        convert.clear(b, self.zeros)

    @abstractmethod
    def own_digits(self, chunk: int) -> Fragments:
        """B fragments of a chunk whose products are added up."""

    def multiply(self, part: int) -> None:
        b, kind = self.b, self.kind
        totals = self.sums[4 * part : 4 * part + 4]
        group = kind.scale_chunks
        for chunk in range(kind.chunks):
            columns = f"columns {CHUNK * chunk} to {CHUNK * (chunk + 1) - 1} of the tile"
            b.note(f"{columns}: x as bf16 digits", after=convert.RUN)
            digits = self.own_digits(chunk)
            b.note(f"{columns}: the weights", after=convert.RUN)
            factors, less = kind.scales(b, self.words, chunk)
            fragments = kind.fragments(b, self.words, chunk)
            b.note(f"{columns}: the products", after=convert.RUN)
            first = chunk % group == 0
            for index, (a, digit) in enumerate(self._pairs(fragments, digits)):
                self._mma(self.products, a, digit, fresh=first and index == 0)
            x_sums = self._sum_x(digits, first) if less else ()
            if (chunk + 1) % group == 0:
                self._scale(totals, factors, less, x_sums)

    def _pairs(self, fragments: Fragments, digits: Fragments) -> list[tuple[Sequence[Reg], Sequence[Reg]]]:
        """Parts of the weights with parts of x, the small ones first; below 2⁻²⁴ of the whole nothing."""
        pairs = [(i + j, a, d) for (i, a), (j, d) in product(enumerate(fragments), enumerate(digits)) if i + j < DIGITS]
        return [(a, d) for _, a, d in sorted(pairs, key=lambda pair: -pair[0])]

    def _mma(self, sums: Sequence[Reg], a: Sequence[Reg], digit: Sequence[Reg], *, fresh: bool) -> None:
        self.b.op(MMA, tuple(sums), tuple(a), tuple(digit), tuple(self.zeros if fresh else sums))

    def _sum_x(self, digits: Fragments, first: bool) -> Sequence[Reg]:
        """The sum of x over the chunk, as a product with ones: what a min is multiplied with."""
        b = self.b
        sums = convert.scratch_array(b, "x_sum", "f32", 4).regs
        one = constant(b, "one_pair", pair_of_bf16(1))
        for index, digit in enumerate(reversed(digits)):
            self._mma(sums, (one,) * 4, digit, fresh=first and index == 0)
        return sums

    def _scale(self, totals: Sequence[Reg], factors: Sequence[Reg], less: Sequence[Reg], x_sums: Sequence[Reg]) -> None:
        b = self.b
        for i, total in enumerate(totals):
            if factors:
                b.op("fma.rn.f32", total, self.products[i], factors[i // 2], total)
            else:
                b.op("add.f32", total, total, self.products[i])
            if less:
                b.op("fma.rn.f32", total, x_sums[i], less[i // 2], total)


class TokenLoop(MmaLoop):
    """Eight tokens on N. x comes from global memory straight into fragments: four neighbours of a token are one load.

    Rows past the last are read as the last, and not stored.
    """

    @property
    def late(self) -> bool:
        return self.spec.gated and self.kind.words > FEW_WORDS

    def begin(self, tokens: Tokens | None, inputs: Inputs | None) -> None:
        assert tokens is not None
        super().begin(tokens, inputs)
        b, spec = self.b, self.spec
        row = row_of(b, "x_row", tokens, self.row)
        own = self.own_column = b.op("mul.lo.u32", "own_column", self.quad, OWN)
        self.x_base = b.op("mad.wide.u32", "x_base", row, 4 * spec.k, b.ld_param("x") if inputs is None else inputs.x)
        b.op("mad.wide.u32", self.x_base, own, 4, self.x_base)
        self.own_x = b.array("x_own", "f32", OWN)
        self.own_norm = b.array("norm_own", "f32", OWN) if spec.norm else None
        self.digits = b.array("x_digit", "b32", 2 * DIGITS)
        if inputs is not None:
            self.norm_base = b.op("mad.wide.u32", "norm_base", own, 4, inputs.norm_weight)

    def find_x(self) -> None:
        b, step = self.b, 4 * self.kind.tile_k
        self.x_at = b.op("mad.wide.u32", "x_at", self.step, step, self.x_base)
        if self.spec.norm:
            self.norm_at = b.op("mad.wide.u32", "norm_at", self.step, step, self.norm_base)
        if self.spec.k % self.kind.tile_k:
            self.column = b.op("mad.lo.u32", "tile_column", self.step, self.kind.tile_k, self.own_column)

    def own_digits(self, chunk: int) -> Fragments:
        b, x = self.b, self.own_x
        if self.late and chunk and chunk % ASKED_TOGETHER == 0:
            b.note("keeps loads of later chunks from being moved up, for want of registers")
            b.op("bar.warp.sync", -1)
        self._load(x, self.x_at, chunk, "global")
        if self.own_norm is not None:
            self._load(self.own_norm, self.norm_at, chunk, "global")
            for value, factor in zip(x, self.own_norm, strict=True):
                if self.spec.norm_offset:
                    b.op("add.f32", factor, factor, self.spec.norm_offset)
                b.op("mul.f32", value, value, factor)
        out = [self.digits[2 * i : 2 * i + 2] for i in range(DIGITS)]
        convert.split_digits(b, x, out)
        return out

    def _load(self, values: Sequence[Reg], at: Reg, chunk: int, space: str) -> None:
        """Four columns of a chunk; zeros past the last column."""
        b, spec = self.b, self.spec
        width = next(v for v in (4, 2, 1) if spec.k % v == 0)
        ragged = (spec.k % self.kind.tile_k) != 0
        if ragged:
            inside = convert.scratch(b, "inside_columns", "pred")
            convert.clear(b, values)
        for j in range(0, OWN, width):
            guard = None
            if ragged:
                if CHUNK * chunk + j >= spec.k:
                    continue
                guard = b.op("setp.lt.u32", inside, self.column, spec.k - CHUNK * chunk - j)
            convert.load_words(b, values[j : j + width], at, 4 * (CHUNK * chunk + j), space=space, pred=guard)

    def publish(self, at: Reg, offsets: Sequence[int]) -> None:
        b = self.b
        own = b.op("mad.lo.u32", "publish_tokens", self.quad, 2 * 4 * TILE_ROWS, at)
        for (part, offset), half, token in product(enumerate(offsets), (0, 1), (0, 1)):
            total = self.sums[4 * part + 2 * half + token]
            b.op("st.shared.f32", own[offset + 4 * (token * TILE_ROWS + 8 * half)], total)
