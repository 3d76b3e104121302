"""GGUF's Q4_0: blocks of 32 columns, an f16 scale and 32 codes of 4 bits, less 8; the tile is `blocks_of_32`'s."""

from __future__ import annotations

from ptxgen.weights.blocks_of_32 import BlocksOf32, formats


class Q4_0(BlocksOf32, bits=4, with_min=False):
    """Codes of 4 bits, less 8, an f16 scale for 32 columns."""


FORMATS = formats(Q4_0, "q4_0")
