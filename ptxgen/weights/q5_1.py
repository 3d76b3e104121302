"""GGUF's Q5_1: blocks of 32 columns, an f16 scale, an f16 min and 32 codes of 5 bits; the tile is `blocks_of_32`'s."""

from __future__ import annotations

from ptxgen.weights.blocks_of_32 import BlocksOf32, formats


class Q5_1(BlocksOf32, bits=5, with_min=True):
    """Codes of 5 bits, an f16 scale and an f16 min for 32 columns."""


FORMATS = formats(Q5_1, "q5_1")
