"""GGUF's Q5_0: blocks of 32 columns, an f16 scale and 32 codes of 5 bits, less 16; the tile is `blocks_of_32`'s."""

from __future__ import annotations

from ptxgen.weights.blocks_of_32 import BlocksOf32, formats


class Q5_0(BlocksOf32, bits=5, with_min=False):
    """Codes of 5 bits, less 16, an f16 scale for 32 columns."""


FORMATS = formats(Q5_0, "q5_0")
