"""What attention makes of a token into the tiles that PackedGemm reads, four columns a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.threads import split
from ptxgen.products.digits import split_digits
from ptxgen.products.wgmma import tokens as packed
from ptxgen.weights.format import OWN

if TYPE_CHECKING:
    from ptxgen.attention.decode.contract import Task
    from ptxgen.attention.decode.place import Place

PIECE = 16  # bytes
CHUNK_PIECES = 2  # of 16 columns: the first has columns 4t and 4t + 1 of them, the second 4t + 2 and 4t + 3


class ElementTiles:
    """Rows `[n_heads, head_dim]` as `tokens.py` has them, in tiles of so many; those past the last, and columns past a
    row's end, are left as they are."""

    def __init__(
        self, digits: int, tokens: int, n_heads: int, head_dim: int, b: Builder, out: Reg, where: Place, task: Task
    ) -> None:  # fmt: skip
        self.b, self.digits, self.tokens = b, digits, tokens
        assert where.sequence is not None
        tile, token = split(b, "out_tile", "out_token", where.sequence, tokens)
        self.width = n_heads * head_dim
        self.block_bytes = digits * tokens * packed.ROW_BYTES
        self.out = b.op("mad.wide.u32", out, tile, packed.blocks(self.width) * self.block_bytes, out)
        b.op("mad.wide.u32", out, token, packed.ROW_BYTES, out)
        turned = b.op("and.b32", "out_turn", token, packed.GROUP - 1)
        self.turned = b.op("mul.lo.u32", turned, turned, PIECE)
        self.first = b.op("mul.lo.u32", "out_column", task.first_head, head_dim)
        self.split = b.array("out_digit", "b32", 2 * digits)

    def __call__(self, element: Reg, values: tuple[Reg, ...], exists: Reg | None) -> None:
        """The digits of the four columns of an element of the CTA's heads; part of an open fragment."""
        b = self.b
        column = b.op("mad.lo.u32", "tile_column", element, OWN, self.first)
        b.op("min.u32", column, column, self.width - OWN)  # as it is: a bound for the checks
        block = b.op("shr.u32", "tile_block", column, packed.COLUMNS.bit_length() - 1)
        to = b.op("mad.wide.u32", "tile_to", block, self.block_bytes, self.out)
        piece, lane = b.op("bfe.u32", "tile_piece", column, 4, 2), b.op("and.b32", "tile_lane", column, 12)
        b.op("mad.lo.u32", piece, piece, CHUNK_PIECES * PIECE, lane)
        b.op("xor.b32", piece, piece, self.turned)
        places = []
        for half in range(CHUNK_PIECES):
            place = b.op("xor.b32", f"tile_place{half}", piece, PIECE * half)
            places.append(b.op("mad.wide.u32", f"tile_to{half}", place, 1, to))
        digits = [self.split[2 * i : 2 * i + 2] for i in range(self.digits)]
        split_digits(b, values, digits)
        for index, words in enumerate(digits):
            for place, word in zip(places, words, strict=True):
                b.op("st.global.b32", place[index * self.tokens * packed.ROW_BYTES], word, pred=exists)
