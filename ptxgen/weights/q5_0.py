"""GGUF's Q5_0: blocks of 32 columns, an f16 scale and 32 codes of 5 bits, less 16; the tile is `blocks_of_32`'s."""

from __future__ import annotations

from ptxgen.weights.blocks_of_32 import BlocksOf32, formats


class Q5_0(BlocksOf32):
    """Codes of 5 bits, less 16, an f16 scale for 32 columns."""

    bits = 5
    less = 16
    integer_digits = 1
    x_sum_factor = -16.0


FORMATS = formats(Q5_0, "q5_0")
