"""Values into units of bf16 digits: 16 columns of a row a thread, four of each chunk, or four columns of a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.threads import split
from ptxgen.products.bytes import layout as bytes_layout
from ptxgen.products.digits import split_digits
from ptxgen.products.few import layout
from ptxgen.weights.format import CHUNK, OWN

if TYPE_CHECKING:
    from ptxgen.attention.decode.contract import Task
    from ptxgen.attention.decode.place import Place


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


class ElementDigits:
    """What attention makes of a token, `[n_heads, head_dim]`, as digits for the product behind it, four columns a call.
    Tokens of a tile past the last are left as they are."""

    def __init__(
        self, digits: int, n_heads: int, head_dim: int, b: Builder, out: Reg, where: Place, task: Task
    ) -> None:  # fmt: skip
        self.b, self.digits = b, digits
        assert where.sequence is not None
        tile, token = split(b, "out_tile", "out_token", where.sequence, bytes_layout.TOKENS)
        self.width = n_heads * head_dim
        units = self.width // layout.UNIT
        self.out = b.op("mad.wide.u32", out, tile, units * layout.unit_bytes(digits), out)
        b.op("mad.wide.u32", out, token, 4 * layout.LANE_BYTES, out)
        self.first = b.op("mul.lo.u32", "out_column", task.first_head, head_dim)
        self.split = b.array("out_digit", "b32", 2 * digits)

    def __call__(self, element: Reg, values: tuple[Reg, ...], exists: Reg | None) -> None:
        """The digits of the four columns of an element of the CTA's heads; part of an open fragment."""
        b = self.b
        column = b.op("mad.lo.u32", "digit_column", element, OWN, self.first)
        b.op("min.u32", column, column, self.width - OWN)  # as it is: a bound for the checks
        place, part = b.op("shr.u32", "digit_place", column, layout.PAIR.bit_length() - 1), b.reg("digit_part", "u32")
        b.op("mul.lo.u32", place, place, self.digits * layout.DIGIT_BYTES)
        for start, parts, nbytes in ((CHUNK, layout.PAIR // CHUNK, 2 * OWN), (OWN, CHUNK // OWN, layout.LANE_BYTES)):
            b.op("bfe.u32", part, column, start.bit_length() - 1, parts.bit_length() - 1)
            b.op("mad.lo.u32", place, part, nbytes, place)
        to = b.op("mad.wide.u32", "digits_to", place, 1, self.out)
        digits = [self.split[2 * i : 2 * i + 2] for i in range(self.digits)]
        split_digits(b, values, digits)
        for index, words in enumerate(digits):
            convert.store_words(b, to, words, index * layout.DIGIT_BYTES, pred=exists)
