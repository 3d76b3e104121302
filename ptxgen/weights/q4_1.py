"""GGUF's Q4_1: blocks of 32 columns, an f16 scale, an f16 min and 32 codes of 4 bits; the tile is `blocks_of_32`'s."""

from __future__ import annotations

from ptxgen.weights.blocks_of_32 import BlocksOf32, formats


class Q4_1(BlocksOf32, bits=4, with_min=True):
    """Codes of 4 bits, an f16 scale and an f16 min for 32 columns."""


FORMATS = formats(Q4_1, "q4_1")
