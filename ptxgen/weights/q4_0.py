"""GGUF's Q4_0: blocks of 32 columns, an f16 scale and 32 codes of 4 bits, less 8; the tile is `blocks_of_32`'s."""

from __future__ import annotations

from ptxgen.weights.blocks_of_32 import BlocksOf32, formats


class Q4_0(BlocksOf32):
    """Codes of 4 bits, less 8, an f16 scale for 32 columns."""

    less = 8
    integer_digits = 1
    x_sum_factor = -8.0


FORMATS = formats(Q4_0, "q4_0")
