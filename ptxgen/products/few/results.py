"""Results that the next product reads as bf16 digits."""

from __future__ import annotations

from ptxgen.builder.values import Reg
from ptxgen.dtypes import bf16
from ptxgen.idioms import convert
from ptxgen.products.bytes.layout import TOKENS
from ptxgen.products.bytes.results import TokenResults
from ptxgen.products.few import layout
from ptxgen.products.few.geometry import FewRuns
from ptxgen.weights.format import CHUNK, OWN

HALF_BYTES = OWN * bf16.bytes  # of a lane's columns of a chunk


class HalfResults(TokenResults):
    """`TokenResults` that are packed; tokens of a tile past the last are zero, tiles without a token not written."""

    at: FewRuns

    def place(self, out_row: Reg, inside: Reg) -> None:
        b, spec = self.b, self.spec
        assert self.tokens is not None
        assert self.token is not None
        token = b.op("add.u32", "out_token", self.tokens.first, self.token)
        self.exists = b.op("setp.lt.u32", "token_exists", token, self.tokens.rows)
        b.op("setp.lt.and.u32", inside, self.tokens.first, self.tokens.rows, inside)
        tile = b.op("shr.u32", "out_tile", self.tokens.first, TOKENS.bit_length() - 1)
        place, part = b.op("shr.u32", "out_pair", out_row, layout.PAIR.bit_length() - 1), b.reg("out_part", "u32")
        b.op("mul.lo.u32", place, place, self.at.digits * layout.DIGIT_BYTES)
        b.op("mad.lo.u32", place, self.token, 4 * layout.LANE_BYTES, place)
        for name, start, bits, nbytes in (
            ("lane", OWN, CHUNK // OWN, layout.LANE_BYTES),
            ("chunk", CHUNK, layout.PAIR // CHUNK, HALF_BYTES),
            ("column", 1, OWN, bf16.bytes),
        ):
            b.note(f"the {name}")
            b.op("bfe.u32", part, out_row, start.bit_length() - 1, bits.bit_length() - 1)
            b.op("mad.lo.u32", place, part, nbytes, place)
        units = -(-spec.n // layout.UNIT)
        self.out = b.op("mad.wide.u32", "out_at", tile, units * layout.unit_bytes(self.at.digits), b.ld_param("out"))
        b.op("mad.wide.u32", self.out, place, 1, self.out)

    def store(self, out_row: Reg) -> None:
        b, result = self.b, self.surround(out_row)
        b.op("selp.f32", result, result, 0.0, self.exists)
        word, back = convert.scratch(b, "digit_word", "b32"), convert.scratch_array(b, "digit_back", "f32", 2).regs
        for digit in range(self.at.digits):
            convert.pack(b, (word,), (result, result), bf16)
            b.op("st.global.b16", self.out[digit * layout.DIGIT_BYTES], word)
            if digit + 1 < self.at.digits:
                convert.unpack(b, back, (word,), bf16)
                b.op("sub.f32", result, result, back[0])
