"""What attention makes of a token into the rows that the product behind it reads, four columns a call. Owns no layout:
that is a class of `digits_bf16/digits.py` or `wgmma/tokens/attention_output.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ptxgen.idioms import convert
from ptxgen.idioms.division import split
from ptxgen.weights.format import OWN

if TYPE_CHECKING:
    from ptxgen.attention.decode.contract import Task
    from ptxgen.attention.decode.place import Place
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg


class Elements(ABC):
    """Rows `[n_heads, head_dim]` as so many digits of each element, in tiles of so many `tokens`; tokens of a tile past
    the last are left as they are."""

    column: ClassVar[str]  # the register of a column

    def __init__(
        self, digits: int, tokens: int, n_heads: int, head_dim: int, b: Builder, out: Reg, where: Place, task: Task
    ) -> None:  # fmt: skip
        self.b, self.digits, self.tokens, self.out = b, digits, tokens, out
        self.width = n_heads * head_dim
        assert where.sequence is not None
        self.begin(*split(b, "out_tile", "out_token", where.sequence, tokens))
        self.first = b.op("mul.lo.u32", "out_column", task.first_head, head_dim)
        self.split = b.array("out_digit", "b32", 2 * digits)

    def __call__(self, element: Reg, values: tuple[Reg, ...], exists: Reg | None) -> None:
        """The digits of the four columns of an element of the CTA's heads; part of an open fragment."""
        b = self.b
        column = b.op("mad.lo.u32", self.column, element, OWN, self.first)
        b.op("min.u32", column, column, self.width - OWN)  # as it is: a bound for the checks
        places = self.places(column, values, exists)
        digits = [self.split[2 * i : 2 * i + 2] for i in range(self.digits)]
        convert.split_digits(b, values, digits)
        for index, words in enumerate(digits):
            self.store(places, index, words, exists)

    @abstractmethod
    def begin(self, tile: Reg, token: Reg) -> None:
        """Bring `out` to the token's place in its tile."""

    @abstractmethod
    def places(self, column: Reg, values: tuple[Reg, ...], exists: Reg | None) -> Sequence[Reg]:
        """Where the first digit of four columns goes, which are `values`."""

    @abstractmethod
    def store(self, places: Sequence[Reg], digit: int, words: Sequence[Reg], exists: Reg | None) -> None:
        """Leave a digit of four columns, two words."""
