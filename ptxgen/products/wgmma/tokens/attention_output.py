"""What attention makes of a token into the tiles that PackedGemm reads."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder.values import Reg
from ptxgen.products.tokens.attention_output import Elements
from ptxgen.products.wgmma.tokens import layout

PIECE = 16  # bytes
CHUNK_PIECES = 2  # of 16 columns: the first has columns 4t and 4t + 1 of them, the second 4t + 2 and 4t + 3


class ElementTiles(Elements):
    """Rows as `layout.py` has them; columns past a row's end are left as they are."""

    column = "tile_column"

    def begin(self, tile: Reg, token: Reg) -> None:
        b = self.b
        self.digit_bytes = self.tokens * layout.ROW_BYTES
        self.block_bytes = self.digits * self.digit_bytes
        b.op("mad.wide.u32", self.out, tile, layout.blocks(self.width) * self.block_bytes, self.out)
        b.op("mad.wide.u32", self.out, token, layout.ROW_BYTES, self.out)
        turned = b.op("and.b32", "out_turn", token, layout.GROUP - 1)
        self.turned = b.op("mul.lo.u32", turned, turned, PIECE)

    def places(self, column: Reg, values: tuple[Reg, ...], exists: Reg | None) -> Sequence[Reg]:
        b = self.b
        block = b.op("shr.u32", "tile_block", column, layout.COLUMNS.bit_length() - 1)
        to = b.op("mad.wide.u32", "tile_to", block, self.block_bytes, self.out)
        piece, lane = b.op("bfe.u32", "tile_piece", column, 4, 2), b.op("and.b32", "tile_lane", column, 12)
        b.op("mad.lo.u32", piece, piece, CHUNK_PIECES * PIECE, lane)
        b.op("xor.b32", piece, piece, self.turned)
        found = []
        for half in range(CHUNK_PIECES):
            place = b.op("xor.b32", f"tile_place{half}", piece, PIECE * half)
            found.append(b.op("mad.wide.u32", f"tile_to{half}", place, 1, to))
        return found

    def store(self, places: Sequence[Reg], digit: int, words: Sequence[Reg], exists: Reg | None) -> None:
        for place, word in zip(places, words, strict=True):
            self.b.op("st.global.b32", place[digit * self.digit_bytes], word, pred=exists)
