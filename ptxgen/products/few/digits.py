"""Rows of x into units of bf16 digits: a thread has 16 columns of a row, four of each chunk of 64 columns."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.products.bytes import layout as bytes_layout
from ptxgen.products.digits import split_digits
from ptxgen.products.few import layout
from ptxgen.weights.format import OWN


class HalfDigits:
    """What becomes of the 16 values of a thread: `keep`; units of 256 columns are four of `layout`."""

    def __init__(self, b: Builder, digits: int) -> None:
        self.b, self.digits = b, digits
        self.unit_bytes = bytes_layout.UNIT // layout.UNIT * layout.unit_bytes(digits)
        self.split = b.array("staged_digit", "b32", 4 * digits)

    def begin(self, pair: Reg, quad: Reg, token: Reg, unit: Reg) -> None:
        """Where the parts of the thread's columns go, those of 64 columns `pair` of a unit at `unit`."""
        b = self.b
        lane = b.op("mad.lo.u32", "unit_lane", token, 4, quad)
        place = b.op("mul.lo.u32", "digits_place", pair, layout.unit_bytes(self.digits))
        b.op("mad.lo.u32", place, lane, layout.LANE_BYTES, place)
        self.to = b.op("mad.wide.u32", "digits_to", place, 1, unit)

    def keep(self, values: Sequence[Reg]) -> None:
        """The digits of the thread's values."""
        for pair in range(layout.UNIT // layout.PAIR):
            for half in (0, 1):
                first = OWN * (2 * pair + half)
                digits = [self.split[4 * i + 2 * half : 4 * i + 2 * half + 2] for i in range(self.digits)]
                split_digits(self.b, values[first : first + OWN], digits)
            for i in range(self.digits):
                place = (self.digits * pair + i) * layout.DIGIT_BYTES
                convert.store_words(self.b, self.to, self.split[4 * i : 4 * i + 4], place)
