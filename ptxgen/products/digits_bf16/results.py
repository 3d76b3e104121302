"""Results that the next product reads as bf16 digits."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.dtypes import bf16
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_lanes
from ptxgen.products.digits_bf16 import layout
from ptxgen.products.digits_bf16.digits import store_sum
from ptxgen.products.digits_bf16.geometry import FewRuns
from ptxgen.products.digits_s8.layout import TOKENS
from ptxgen.products.digits_s8.results import EarlyResults, TokenResults
from ptxgen.products.problem.product import Tokens
from ptxgen.products.problem.weighted import Surrounded
from ptxgen.weights.format import CHUNK, OWN, TILE_ROWS

HALF_BYTES = OWN * bf16.bytes  # of a lane's columns of a chunk
ROW_OF_TILE = (8, 4, 2, 1)  # distances of the lanes that have the results of a token in a record


class TokenDigits:
    """The digits of a result, column `out_row` of a token, in the parameter `param`, `cols` columns wide; with `sums`
    those of the sum of its 16 columns, too."""

    def __init__(self, b: Builder, param: str, cols: int, digits: int, *, sums: bool) -> None:
        self.b, self.param, self.cols, self.digits, self.sums = b, param, cols, digits, sums

    def locate(self, tokens: Tokens, token: Reg, out_row: Reg) -> None:
        """Where they go; part of an open fragment."""
        b = self.b
        tile = b.op("shr.u32", "out_tile", tokens.first, TOKENS.bit_length() - 1)
        place, part = b.op("shr.u32", "out_pair", out_row, layout.PAIR.bit_length() - 1), b.reg("out_part", "u32")
        b.op("mul.lo.u32", place, place, self.digits * layout.DIGIT_BYTES)
        b.op("mad.lo.u32", place, token, 4 * layout.LANE_BYTES, place)
        for name, start, bits, nbytes in (
            ("lane", OWN, CHUNK // OWN, layout.LANE_BYTES),
            ("chunk", CHUNK, layout.PAIR // CHUNK, HALF_BYTES),
            ("column", 1, OWN, bf16.bytes),
        ):
            b.note(f"the {name}")
            b.op("bfe.u32", part, out_row, start.bit_length() - 1, bits.bit_length() - 1)
            b.op("mad.lo.u32", place, part, nbytes, place)
        units = -(-self.cols // layout.columns(sums=self.sums))
        at, nbytes = f"{self.param}_at", units * layout.unit_bytes(self.digits, sums=self.sums)
        self.at = b.op("mad.wide.u32", at, tile, nbytes, b.ld_param(self.param))
        if self.sums:
            self._locate_sum(self.at, token, out_row, place)
        b.op("mad.wide.u32", self.at, place, 1, self.at)

    def _locate_sum(self, at: Reg, token: Reg, out_row: Reg, place: Reg) -> None:
        """Where the sum goes, and the digits, between whose units the sums lie."""
        b = self.b
        unit = b.op("shr.u32", "out_unit", out_row, layout.WIDE_UNIT.bit_length() - 1)
        b.op("mad.lo.u32", place, unit, layout.SUM_DIGITS * layout.SUM_BYTES, place)
        sums, part = b.op("mul.lo.u32", "out_sums", token, layout.SUM_BYTES // TOKENS), b.reg("out_sum_part", "u32")
        b.op("mad.lo.u32", sums, unit, layout.unit_bytes(self.digits, sums=True), sums)
        for start, bits, nbytes in layout.SUM_PLACES:
            b.op("bfe.u32", part, out_row, start, bits)
            b.op("mad.lo.u32", sums, part, nbytes, sums)
        self.sums_at = b.op("mad.wide.u32", f"{self.param}_sums_at", sums, 1, at)

    def add_up(self, value: Reg) -> None:
        """The sum of a token's results in a record, of what their digits add up to; all lanes are here."""
        b = self.b
        self.total = b.op("mov.f32", "digits_total", value)
        if self.digits == 1:
            word, back = convert.scratch(b, "digit_word", "b32"), convert.scratch_array(b, "digit_back", "f32", 2).regs
            convert.pack(b, (word,), (value, value), bf16)
            convert.unpack(b, back, (word,), bf16)
            b.op("mov.f32", self.total, back[0])
        over_lanes(b, "add.f32", self.total, ROW_OF_TILE)

    def store_sum(self, leads: Reg) -> None:
        """Its digits, by the lanes that `leads` says; part of an open fragment."""
        store_sum(self.b, self.sums_at, self.digits, self.total, leads)

    def store(self, value: Reg) -> None:
        """Split the value, which is lost, and store its digits; part of an open fragment."""
        b = self.b
        word, back = convert.scratch(b, "digit_word", "b32"), convert.scratch_array(b, "digit_back", "f32", 2).regs
        for digit in range(self.digits):
            convert.pack(b, (word,), (value, value), bf16)
            b.op("st.global.b16", self.at[digit * layout.DIGIT_BYTES], word)
            if digit + 1 < self.digits:
                convert.unpack(b, back, (word,), bf16)
                b.op("sub.f32", value, value, back[0])


class HalfResults(TokenResults):
    """`TokenResults` that are packed; tokens of a tile past the last are zero, tiles without a token not written.
    `sums`: with sums beside them."""

    at: FewRuns

    def __init__(self, b: Builder, spec: Surrounded, at: FewRuns, memory: Shared, *, sums: bool) -> None:
        super().__init__(b, spec, at, memory)
        self.sums = sums

    def place(self, out_row: Reg, inside: Reg) -> None:
        b, spec = self.b, self.spec
        assert self.tokens is not None
        assert self.token is not None
        token = b.op("add.u32", "out_token", self.tokens.first, self.token)
        self.exists = b.op("setp.lt.u32", "token_exists", token, self.tokens.rows)
        b.op("setp.lt.and.u32", inside, self.tokens.first, self.tokens.rows, inside)
        self.packed = TokenDigits(b, "out", spec.n, self.at.digits, sums=self.sums)
        self.packed.locate(self.tokens, self.token, out_row)
        if self.sums:
            self._make(out_row)
            self.packed.add_up(self.result_value)
            self.leads = b.op("setp.eq.u32", "leads_record", self.row, 0)

    def _make(self, out_row: Reg) -> None:
        """The result, which is zero where there is no token."""
        self.result_value = self.surround(out_row)
        self.b.op("selp.f32", self.result_value, self.result_value, 0.0, self.exists)

    def store(self, out_row: Reg) -> None:
        if self.sums:
            self.packed.store_sum(self.leads)
        else:
            self._make(out_row)
        self.packed.store(self.result_value)


class NormedResults(EarlyResults):
    """Rows of a residual stream, and beside them what a product needs that norms them: the digits of the rows times the
    norm's weights, as `HalfResults` are, and the sums of squares of every 16 columns."""

    at: FewRuns

    def __init__(
        self, b: Builder, spec: Surrounded, at: FewRuns, memory: Shared, *, sums: bool, norm_offset: float
    ) -> None:
        super().__init__(b, spec, at, memory)
        self.sums, self.norm_offset = sums, norm_offset

    def sources(self, name: str) -> dict[str, tuple[Reg, Reg]]:
        b, spec = self.b, self.spec
        assert self.tokens is not None
        assert self.token is not None
        token = b.op("add.u32", f"{name}_out_token", self.tokens.first, self.token)
        exists = b.op("setp.lt.and.u32", f"{name}_token_exists", token, self.tokens.rows, self.inside)
        out = b.op("mad.wide.u32", f"{name}_out", token, 4 * spec.n, self.param("out"))
        b.op("mad.wide.u32", out, self.out_row, 4, out)
        gain = b.op("mad.wide.u32", f"{name}_gain", self.out_row, 4, self.param("norm_weight"))
        return {"before": (out, exists), "gain": (gain, self.inside)}

    def read(self, name: str) -> None:
        b, found = self.b, self.sources(name)
        self.out, self.exists = found["before"]
        self.before, self.gain = b.op("mov.f32", "before", 0.0), b.op("mov.f32", "gain", 0.0)
        b.op("ld.global.f32", self.before, self.out[0], pred=self.exists)
        gain, inside = found["gain"]
        b.op("ld.global.nc.f32", self.gain, gain[0], pred=inside)

    def place(self, out_row: Reg, inside: Reg) -> None:
        """With the sum of squares of the record's rows of the token, which takes all lanes."""
        b, spec = self.b, self.spec
        assert self.tokens is not None
        assert self.token is not None
        if not self.early:
            self.read("late")
        assert self.before is not None
        b.op("setp.lt.and.u32", inside, self.tokens.first, self.tokens.rows, inside)
        self.result_value = result = self.surround(out_row)
        b.op("add.f32", result, result, self.before)
        self.value = b.op("selp.f32", "normed_value", result, 0.0, self.exists)
        self.square = b.op("mul.f32", "square", self.value, self.value)
        over_lanes(b, "add.f32", self.square, ROW_OF_TILE)
        self.packed = TokenDigits(b, "digits", spec.n, self.at.digits, sums=self.sums)
        self.packed.locate(self.tokens, self.token, out_row)
        record = b.op("shr.u32", "out_record", out_row, TILE_ROWS.bit_length() - 1)
        row = b.op("add.u32", "square_row", self.tokens.first, self.token)
        b.op("mad.lo.u32", record, row, spec.n // TILE_ROWS, record)
        self.squares_at = b.op("mad.wide.u32", "squares_at", record, 4, b.ld_param("out_squares"))
        self.leads = b.op("setp.eq.u32", "leads_record", self.row, 0)
        if self.sums:
            self._times_gain()
            self.packed.add_up(self.value)

    def _times_gain(self) -> None:
        """The row's value as the norm behind it has it, but for the root."""
        b = self.b
        if self.norm_offset:
            b.op("add.f32", self.gain, self.gain, self.norm_offset)
        b.op("mul.f32", self.value, self.value, self.gain)

    def store(self, out_row: Reg) -> None:
        b = self.b
        b.op("st.global.f32", self.out[0], self.result_value, pred=self.exists)
        b.op("st.global.f32", self.squares_at[0], self.square, pred=self.leads)
        if self.sums:
            self.packed.store_sum(self.leads)
        else:
            self._times_gain()
        self.packed.store(self.value)
