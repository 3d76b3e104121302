"""A row of x into its tile with scales: in e4m3 of the row or of its blocks of 128 columns; in f16 in its own unit."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder.values import Reg
from ptxgen.dtypes import f16
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.quantised_rows import LARGEST, TINY, magnitude, over_scale
from ptxgen.idioms.reduce import over_cta, over_lanes, over_warp
from ptxgen.products.wgmma.tokens import layout
from ptxgen.products.wgmma.tokens.packing import OWN, Packing


class ScaledPacking(Packing):
    """The same fragments. The 128 columns of a warp in a load are a block, and a group where blocks are."""

    def _find_place(self, tile: Reg, token: Reg, own: Reg) -> None:
        b = self.b
        piece = b.op("bfe.u32", "piece", own, 4, 3)
        turned = b.op("and.b32", "turned", token, layout.GROUP - 1)
        b.op("xor.b32", piece, piece, turned)
        place = b.op("shl.b32", "place", piece, 4)
        b.op("bfi.b32", place, own, place, 0, 4)
        b.op("add.u64", self.out, self.out, b.op("cvt.u64.u32", "wide_place", place))
        self._find_scales(tile, token, own)

    def _find_scales(self, tile: Reg, token: Reg, own: Reg) -> None:
        """Where the scale of the row, or of the thread's group, goes, and whether it is this thread that stores it."""
        b, spec = self.b, self.spec
        groups = layout.scale_shape(spec.dim, spec.tokens, spec.group)[1]
        of_group = spec.tokens * layout.SCALE_BYTES
        scales = b.op("mad.wide.u32", "scales_target", tile, groups * of_group, b.ld_param("scales"))
        if spec.group:
            b.op("mad.wide.u32", scales, b.op("shr.u32", "own_group", own, 7), of_group, scales)
        self.scales = b.op("mad.wide.u32", scales, token, layout.SCALE_BYTES, scales)
        first = b.op("and.b32", "place_in_group", own, 127 if spec.group else -1)
        self.keeps = b.op("setp.eq.u32", "keeps_scale", first, 0)

    def _survey(self, thread: Reg, exists: Reg) -> None:
        """Before a row is packed, its largest element, and with a norm its sum of squares; with scales of blocks only
        the latter."""
        b, spec = self.b, self.spec
        if spec.group:
            super()._survey(thread, exists)
            return
        sums = [b.reg("square_sum", "f32")] if spec.norm else []
        largest = b.reg("row_largest", "f32")
        with b.fragment("begin_squares"):
            convert.clear(b, [*sums, largest])
        with b.fragment("squares_pass", "the largest of a pass"):
            self._load_row(exists)
            for total in sums:
                for value in self.values:
                    b.op("fma.rn.f32", total, value, value, total)
            values = self.values.regs
            if spec.norm:
                self._load_gains()
                values = b.array("gained", "f32", len(values)).regs
                for value, own, gain in zip(values, self.values, self.gains or (), strict=True):
                    b.op("mul.f32", value, own, gain)
            magnitude(b, largest, values)
            b.op("add.u32", self.column, self.column, spec.reach)
            b.op("setp.lt.u32", "more_squares", self.column, spec.dim)
        warps = spec.threads // 32
        if sums:
            over_cta(b, "squares", "add.f32", sums, thread, warps)
        over_cta(b, "largest", "max.f32", [largest], thread, warps)
        with b.fragment("root", "the row's scale; back to its start"):
            for total in sums:
                self._find_root(total)
                b.op("mul.f32", largest, largest, self.factor)
            self.inverse = self._scale_of(largest)
            b.op("st.global.f32", self.scales[0], largest, pred=self.keeps)
            b.op("mov.u32", self.column, self.own)

    def _scale_of(self, largest: Reg) -> Reg:
        """The inverse of a row's scale from its largest magnitude, which becomes the scale."""
        return over_scale(self.b, largest, self.spec.dtype)

    def _load_values(self, exists: Reg) -> None:
        """A row of one pass is in registers since its scale was sought."""
        if self.spec.group or not self.spec.held:
            super()._load_values(exists)
        elif self.spec.norm:
            self._apply_norm()

    def _store(self, own: Sequence[Reg], there: Reg) -> None:
        b, spec = self.b, self.spec
        inverse = self._find_scale(own, there) if spec.group else self.inverse
        for value in own:
            b.op("mul.f32", value, value, inverse)
        convert.pack(b, self.digits.regs, own, spec.dtype)
        b.op("st.global.b32", self.out[0], self.digits[0], pred=there)

    def _find_scale(self, own: Sequence[Reg], there: Reg) -> Reg:
        """The inverse of the scale of the warp's 128 columns."""
        b = self.b
        largest, bits = scratch(b, "group_largest", "f32"), scratch(b, "largest_bits", "u32")
        b.op("mov.f32", largest, 0.0)
        magnitude(b, largest, own)
        b.op("mov.b32", bits, largest)
        over_warp(b, "max.u32", bits)  # of numbers that are not negative as of their bits
        b.op("mov.b32", largest, bits)
        inverse = self._power_of(largest)
        keeps = b.op("and.pred", scratch(b, "keeps_this", "pred"), there, self.keeps)
        b.op("st.global.f32", self.scales[0], largest, pred=keeps)
        return inverse

    def _power_of(self, largest: Reg) -> Reg:
        """The inverse of a group's scale, a power of four, from its largest magnitude, which becomes the scale."""
        b, most = self.b, LARGEST[self.spec.dtype.name]
        bits, inverse = scratch(b, "scale_bits", "u32"), scratch(b, "inverse_scale", "f32")
        tiny = scratch(b, "is_tiny", "pred")
        b.op("setp.lt.f32", tiny, largest, TINY)
        b.op("mul.f32", largest, largest, 1 / most)
        b.op("mov.b32", bits, largest)
        b.op("add.u32", bits, bits, layout.BELOW)
        b.op("or.b32", bits, bits, layout.ODD)
        b.op("and.b32", bits, bits, layout.EXPONENTS)
        b.op("mov.b32", largest, bits)
        b.op("rcp.rn.f32", inverse, largest)
        b.op("selp.f32", inverse, 0.0, inverse, tiny)
        b.op("selp.f32", largest, 0.0, largest, tiny)
        return inverse

    def _advance(self, step: int) -> None:
        b, spec = self.b, self.spec
        b.op("add.u64", self.out, self.out, step)
        if spec.group:
            groups = OWN * spec.threads // spec.group
            b.op("add.u64", self.scales, self.scales, groups * spec.tokens * layout.SCALE_BYTES)


class RowPacking(ScaledPacking):
    """The same fragments of f16 `by_row`: beside the digits go the sums of 32 columns, which eight lanes have."""

    pieces = "even columns of a chunk are in its first piece, odd ones in the second"
    LANES = (1, 2, 4)  # distances of those lanes

    def _find_place(self, tile: Reg, token: Reg, own: Reg) -> None:
        Packing._find_place(self, tile, token, own)
        self._find_scales(tile, token, own)
        b, spec = self.b, self.spec
        of_unit = spec.tokens * layout.SUMS_BYTES
        sums = self.sums = b.op(
            "mad.wide.u32", "sums_target", tile, layout.blocks(spec.dim) * layout.COLUMNS // layout.PADDED * of_unit,
            b.ld_param("sums"),
        )  # fmt: skip
        b.op("mad.wide.u32", sums, b.op("shr.u32", "own_unit", own, 8), of_unit, sums)
        b.op("mad.wide.u32", sums, token, self.row_bytes, sums)
        sub, upper = b.op("bfe.u32", "sum_place", own, 5, 2), b.op("bfe.u32", "upper_sum", own, 7, 1)
        b.op("mad.lo.u32", sub, sub, 2, upper)
        b.op("mad.wide.u32", sums, sub, f16.bytes, sums)
        first = b.op("and.b32", "place_in_sum", own, layout.SUMMED - 1)
        self.keeps_sum = b.op("setp.eq.u32", "keeps_sum", first, 0)

    @property
    def row_bytes(self) -> int:
        """Bytes of a token's sums, of one digit."""
        return layout.SUMS_BYTES // layout.SUM_DIGITS

    def _scale_of(self, largest: Reg) -> Reg:
        b = self.b
        bits, inverse = scratch(b, "unit_bits", "u32"), scratch(b, "inverse_unit", "f32")
        b.op("mov.b32", bits, largest)
        b.op("and.b32", bits, bits, layout.EXPONENT)
        b.op("max.u32", bits, bits, layout.LEAST_EXPONENT)
        b.op("sub.u32", bits, bits, layout.UP_BITS)
        b.op("mov.b32", largest, bits)
        b.op("sub.u32", bits, 2 * 127 << 23, bits)
        b.op("mov.b32", inverse, bits)
        return inverse

    def _store(self, own: Sequence[Reg], there: Reg) -> None:
        b, spec = self.b, self.spec
        for value in own:
            b.op("mul.f32", value, value, self.inverse)
        apart = (own[0], own[2], own[1], own[3])
        if spec.digits > 1:
            total = self._add_up(own)
            Packing._store(self, apart, there)
        else:
            Packing._store(self, apart, there)
            convert.unpack(b, apart, self.digits.regs, spec.dtype)  # what the tile has is added up
            total = self._add_up(own)
        keeps = b.op("and.pred", scratch(b, "keeps_this", "pred"), there, self.keeps_sum)
        word, back = scratch(b, "sum_word", "b32"), [scratch(b, f"sum_back{i}", "f32") for i in (0, 1)]
        for digit in range(layout.SUM_DIGITS):
            convert.pack(b, (word,), (total, total), f16)
            b.op("st.global.b16", self.sums[digit * spec.tokens * self.row_bytes], word, pred=keeps)
            if digit + 1 < layout.SUM_DIGITS:
                convert.unpack(b, back, (word,), f16)
                b.op("sub.f32", total, total, back[0])

    def _add_up(self, own: Sequence[Reg]) -> Reg:
        """The sum of the 32 columns that eight lanes have, over 32."""
        b = self.b
        total: Reg = b.op("add.f32", scratch(b, "column_sum", "f32"), own[0], own[1])
        for value in own[2:]:
            b.op("add.f32", total, total, value)
        over_lanes(b, "add.f32", total, self.LANES)
        b.op("mul.f32", total, total, 1 / layout.SUMMED)
        return total

    def _advance(self, step: int) -> None:
        b, spec = self.b, self.spec
        Packing._advance(self, step)
        units = OWN * spec.threads // layout.PADDED
        b.op("add.u64", self.sums, self.sums, units * spec.tokens * layout.SUMS_BYTES)
