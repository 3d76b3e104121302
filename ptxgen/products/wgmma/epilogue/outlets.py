"""Where results go: rows, or tiles as PackedGemm reads them, for the next product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch
from ptxgen.products.wgmma.tiling.geometry import VECTOR, Geometry
from ptxgen.products.wgmma.tokens import layout

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct


class Outlet(ABC):
    """Where four neighbouring outputs of a token go: `to` points at a row, and rows are `row_bytes` apart. `ragged`: a
    row may end within four."""

    to: Reg
    columns_left: Reg

    def __init__(self, b: Builder, spec: PackedProduct, row_bytes: int, *, ragged: bool) -> None:
        self.b, self.spec, self.row_bytes, self.ragged = b, spec, row_bytes, ragged
        self._token = 0

    @abstractmethod
    def find(self, tile: Reg, token: Reg, row: Reg, column: Reg) -> None:
        """Of `row`, which is `token` of a tile, the outputs from `column` on."""

    @abstractmethod
    def store(self, values: Sequence[Reg], guard: Reg, inside: Reg) -> None:
        """Store four results under `guard`, in a row that ends within them those inside."""

    def move(self, opcode: str, values: Sequence[Reg], at: Reg, guard: Reg, offset: int = 0) -> None:
        """Load or store four values, or those of them inside the row."""
        b, store = self.b, opcode.startswith("st")
        if not self.ragged:
            operands = (at[offset], tuple(values)) if store else (tuple(values), at[offset])
            b.op(f"{opcode}.v4.f32", *operands, pred=guard)
            return
        one = scratch(b, "one_inside", "pred")
        for i, value in enumerate(values):
            b.op("setp.gt.and.u32", one, self.columns_left, i, guard)
            place = at[offset + 4 * i]
            b.op(f"{opcode}.f32", *((place, value) if store else (value, place)), pred=one)

    def go_to(self, token: int) -> None:
        """Point at the row so many tokens from the first."""
        if token != self._token:
            self.b.op("add.u64", self.to, self.to, self.row_bytes * (token - self._token))
            self._token = token

    def load(self, values: Sequence[Reg], guard: Reg, tokens: int) -> None:
        """What is there already, in the row so many tokens from the one that `go_to` points at."""
        self.move("ld.global", values, self.to, guard, self.row_bytes * tokens)


class RowsOut(Outlet):
    """out `[rows, n]`, f32 or 16 bits."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, param: str = "out") -> None:
        super().__init__(b, spec, spec.out_dtype.bytes * spec.n, ragged=spec.n % VECTOR != 0)
        self.out, self.to = b.ld_param(param), b.reg("store_at" if param == "out" else f"{param}_at", "u64")
        self.bytes = spec.out_dtype.bytes

    def find(self, tile: Reg, token: Reg, row: Reg, column: Reg) -> None:
        b, spec = self.b, self.spec
        b.op("mad.wide.u32", self.to, row, self.row_bytes, self.out)
        b.op("mad.wide.u32", self.to, column, self.bytes, self.to)
        if self.ragged:
            self.columns_left = b.op("sub.u32", scratch(b, "columns_left", "u32"), spec.n, column)
        self._token = 0

    def store(self, values: Sequence[Reg], guard: Reg, inside: Reg) -> None:
        b, dtype = self.b, self.spec.out_dtype
        if dtype == f32:
            self.move("st.global", values, self.to, guard)
            return
        if not self.ragged:
            words = convert.scratch_array(b, "result_word", "b32", VECTOR // 2).regs
            convert.pack(b, words, values, dtype)
            convert.store_words(b, self.to, words, pred=guard)
            return
        one, word = scratch(b, "one_inside", "pred"), scratch(b, "one_word", "b32")
        for i, value in enumerate(values):
            b.op("setp.gt.and.u32", one, self.columns_left, i, guard)
            convert.pack(b, (word,), (value, value), dtype)
            b.op("st.global.b16", self.to[self.bytes * i], word, pred=one)


class TilesOut(RowsOut):
    """out as `tokens/layout.py` has it: a chunk's columns 4t and 4t + 1 in its first piece, 4t + 2 and 4t + 3 in the
    second.

    Tokens from the last on are zero, as PackTokens has them.
    """

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, param: str = "out") -> None:
        super().__init__(b, spec, at, param)
        self.at = at
        self.digits = b.array("result_digit", "b32", 2 * spec.digits)
        self.places = [b.array(f"place{half}_", "u64", 2).regs for half in (0, 1)]  # of tokens 0 … 3 and 4 … 7 on

    def find(self, tile: Reg, token: Reg, row: Reg, column: Reg) -> None:
        b, spec, at = self.b, self.spec, self.at
        block_bytes = spec.digits * at.tokens * layout.ROW_BYTES
        b.op("mad.wide.u32", self.to, tile, layout.blocks(spec.n) * block_bytes, self.out)
        block = b.op("shr.u32", scratch(b, "out_block", "u32"), column, 6)
        b.op("mad.wide.u32", self.to, block, block_bytes, self.to)
        b.op("mad.wide.u32", self.to, token, layout.ROW_BYTES, self.to)
        piece, turned = scratch(b, "out_piece", "u32"), scratch(b, "out_turned", "u32")
        b.op("bfe.u32", piece, column, 4, 2)
        b.op("shl.b32", piece, piece, 5)
        b.op("and.b32", turned, token, layout.GROUP - 1)
        b.op("shl.b32", turned, turned, 4)
        b.op("xor.b32", piece, piece, turned)
        b.op("and.b32", turned, column, 12)
        b.op("add.u32", piece, piece, turned)
        wide = scratch(b, "out_place", "u64")
        for half, places in enumerate(self.places):
            for quad, place in enumerate(places):
                b.op("xor.b32", turned, piece, 16 * half + 64 * quad)
                b.op("cvt.u64.u32", wide, turned)
                b.op("add.u64", place, self.to, wide)
        self._token = 0

    def go_to(self, token: int) -> None:
        self._token = token

    def store(self, values: Sequence[Reg], guard: Reg, inside: Reg) -> None:
        b, spec = self.b, self.spec
        for value in values:
            b.op("selp.f32", value, value, 0.0, guard)
        digits = self.digits
        if spec.digits == 1:
            convert.pack(b, digits.regs, values, spec.x_dtype)
        else:
            convert.split_digits(b, values, [digits[2 * n : 2 * n + 2] for n in range(spec.digits)])
        for n in range(spec.digits):
            for half, places in enumerate(self.places):
                place = places[self._token // 4 % 2]
                offset = (n * self.at.tokens + self._token) * layout.ROW_BYTES
                b.op("st.global.b32", place[offset], digits[2 * n + half], pred=inside)
