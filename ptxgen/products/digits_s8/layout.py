"""How a few tokens lie in memory as bytes: eight of them a tile, units of 256 columns that bulk copies bring.

`[tile of tokens, unit]` of `UNIT_BYTES` each. The values of a unit are integers of 23 bits, in units of a power of two
of each token, and their digits three signed bytes: [0, 6144) at (p · 3 + digit) · 512 + lane · 16 those of 64 columns
p, in a lane 4g + t of token g at columns 4t … 4t + 3 of each chunk of 16. [6144, 6912) sums of x over chunks of 16
columns, as three bf16 digits: at digit · 256 + lane · 8 those of token g in chunks t, 8 + t, 4 + t and 12 + t.
[6912, 6944) the powers of two of the tokens. Columns and tokens past the last are zero.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ptxgen.launch import Extent
from ptxgen.products.tokens.digits import MAGIC_BITS

if TYPE_CHECKING:
    import numpy as np

TOKENS = 8  # of a tile
UNIT = 256  # columns
DIGITS = 3
PAIR = 64  # columns whose digits a lane reads together
PAIR_BYTES = DIGITS * 512
SUMS_AT = UNIT // PAIR * PAIR_BYTES
SUM_BYTES = 256  # of a digit of the sums
FACTORS_AT = SUMS_AT + DIGITS * SUM_BYTES
UNIT_BYTES = FACTORS_AT + 4 * TOKENS
BITS = 22  # of the integer of the largest value of a unit, and a sign


def shape(cols: int) -> tuple[Extent, ...]:
    """The array's shape for "rows" rows."""
    return (f"ceil_div(rows, {TOKENS})", -(-cols // UNIT), UNIT_BYTES)


def pack(x: np.ndarray) -> np.ndarray:
    """f32 `[rows, cols]` as uint8 `[tiles, units, UNIT_BYTES]`; the factor and the sums of 256 columns of which one is
    not finite are NaN, and its digits are of the bits that f32 arithmetic leaves."""
    import numpy as np

    rows, cols = x.shape
    tiles, units = -(-rows // TOKENS), -(-cols // UNIT)
    padded = np.zeros((tiles * TOKENS, units * UNIT), np.float32)
    padded[:rows, :cols] = x
    split = padded.reshape(tiles, TOKENS, units, UNIT).transpose(0, 2, 1, 3)  # [tile, unit, token, 256]
    finite, nan = np.isfinite(split), np.uint32(0x7FFFFFFF)  # the NaN that GPUs compute
    bits = np.where(np.isnan(split), nan, split.view(np.uint32))
    largest = (bits & 0x7FFFFFFF).max(3).view(np.float32)
    exponents = np.maximum((largest.view(np.uint32) + 2) >> 23, BITS + 1).astype(np.int64) - 127 - (BITS - 1)
    whole = np.rint(np.where(finite, split, 0.0).astype(np.float64) * 2.0 ** -exponents[..., None]).astype(np.int64)
    whole = np.where(finite, whole, bits.astype(np.int64) - MAGIC_BITS)
    biased = (whole + 0x808080).astype(np.uint32)
    digits = np.stack([(biased >> shift & 0xFF).astype(np.uint8) ^ 0x80 for shift in (16, 8, 0)], 2)
    lanes = digits.reshape(tiles, units, DIGITS, TOKENS, UNIT // PAIR, 4, 4, 4)  # [.. digit, g, p, chunk, t, 4]
    lanes = lanes.transpose(0, 1, 4, 2, 3, 6, 5, 7)  # [tile, unit, p, digit, g, t, chunk, 4]
    factors = np.where(finite.all(3), np.exp2(exponents.astype(np.float64)).astype(np.float32), nan.view(np.float32))
    sums = whole.reshape(*whole.shape[:3], 16, 16).sum(4).astype(np.float32) * factors[..., None]
    parts = [lanes, _sums(sums), factors]
    parts = [
        np.ascontiguousarray(each).reshape(tiles, units, math.prod(each.shape[2:])).view(np.uint8) for each in parts
    ]
    return np.concatenate(parts, 2)


def _sums(sums: np.ndarray) -> np.ndarray:
    """f32 `[tile, unit, token, 16]` as the bits of bf16 `[tile, unit, digit, token, t, 2, 2]`."""
    import ml_dtypes
    import numpy as np

    left, out = sums, []
    for _ in range(DIGITS):
        digit = left.astype(ml_dtypes.bfloat16)
        left = left - digit.astype(np.float32)
        bits = np.where(np.isnan(digit), np.uint16(0x7FFF), digit.view(np.uint16))  # the NaN that GPUs compute
        halves = bits.reshape(*sums.shape[:3], 2, 2, 4)  # chunk = 8 · first + 4 · second + t
        out.append(halves.transpose(0, 1, 2, 5, 4, 3))
    return np.stack(out, 2)


def unpack(packed: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """float64 `[rows, cols]`: integers times the power of two."""
    import numpy as np

    tiles, units = packed.shape[:2]
    digits = np.ascontiguousarray(packed[:, :, :SUMS_AT]).view(np.int8)
    lanes = digits.reshape(tiles, units, UNIT // PAIR, DIGITS, TOKENS, 4, 4, 4).astype(np.int64)
    whole = (lanes[:, :, :, 0] * 256 + lanes[:, :, :, 1]) * 256 + lanes[:, :, :, 2]  # [tile, unit, p, g, t, chunk, 4]
    values = whole.transpose(0, 3, 1, 2, 5, 4, 6).reshape(tiles, TOKENS, units, UNIT)
    factors = np.ascontiguousarray(packed[:, :, FACTORS_AT:]).view(np.float32).astype(np.float64)
    out = values * factors.transpose(0, 2, 1)[..., None]
    return np.asarray(out.reshape(tiles * TOKENS, units * UNIT)[:rows, :cols])
