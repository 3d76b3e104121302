"""How a few tokens lie in memory as bytes: eight of them a tile, units of 256 columns that bulk copies bring.

`[tile of tokens, unit]` of `UNIT_BYTES` each. The values of a unit are integers of 23 bits, in units of a power of two
of each token, and their digits three signed bytes: [0, 6144) at (p · 3 + digit) · 512 + lane · 16 those of 64 columns
p, in a lane 4g + t of token g at columns 4t … 4t + 3 of each chunk of 16. [6144, 6656) sums of x over blocks of 32
columns as three bf16 digits: at lane · 16 + digit · 4 those of token g in blocks t and 4 + t. [6656, 7168) sums of the
integers over chunks c of 16, times −32, in the low 32 bits: at (c div 2) · 64 + token div 2 · 16 + (c mod 2) · 8 +
token mod 2 · 4. [7168, 7200) the powers of two of the tokens. Columns and tokens past the last are zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.launch import Extent

if TYPE_CHECKING:
    import numpy as np

TOKENS = 8  # of a tile
UNIT = 256  # columns
DIGITS = 3
PAIR = 64  # columns whose digits a lane reads together
PAIR_BYTES = DIGITS * 512
SUMS_AT = UNIT // PAIR * PAIR_BYTES
COUNTS_AT = SUMS_AT + 512
COUNT_BYTES = 64  # of two chunks
COUNT_FACTOR = -32  # of the sums: what codes of 6 bits are from their middle
FACTORS_AT = COUNTS_AT + UNIT // 32 * COUNT_BYTES
UNIT_BYTES = FACTORS_AT + 4 * TOKENS
BITS = 22  # of the integer of the largest value of a unit, and a sign


def shape(cols: int) -> tuple[Extent, ...]:
    """The array's shape for "rows" rows."""
    return (f"ceil_div(rows, {TOKENS})", -(-cols // UNIT), UNIT_BYTES)


def pack(x: np.ndarray) -> np.ndarray:
    """f32 `[rows, cols]` as uint8 `[tiles, units, UNIT_BYTES]`."""
    import numpy as np

    rows, cols = x.shape
    tiles, units = -(-rows // TOKENS), -(-cols // UNIT)
    padded = np.zeros((tiles * TOKENS, units * UNIT), np.float32)
    padded[:rows, :cols] = x
    split = padded.reshape(tiles, TOKENS, units, UNIT).transpose(0, 2, 1, 3)  # [tile, unit, token, 256]
    largest = np.abs(split).max(3)
    exponents = np.maximum((largest.view(np.uint32) + 2) >> 23, BITS + 1).astype(np.int64) - 127 - (BITS - 1)
    whole = np.rint(split.astype(np.float64) * 2.0 ** -exponents[..., None]).astype(np.int64)
    biased = (whole + 0x808080).astype(np.uint32)
    digits = np.stack([(biased >> shift & 0xFF).astype(np.uint8) ^ 0x80 for shift in (16, 8, 0)], 2)
    lanes = digits.reshape(tiles, units, DIGITS, TOKENS, UNIT // PAIR, 4, 4, 4)  # [.. digit, g, p, chunk, t, 4]
    lanes = lanes.transpose(0, 1, 4, 2, 3, 6, 5, 7)  # [tile, unit, p, digit, g, t, chunk, 4]
    factors = np.exp2(exponents.astype(np.float64)).astype(np.float32)
    sums = whole.reshape(*whole.shape[:3], 8, 32).sum(4).astype(np.float32) * factors[..., None]
    counts = (COUNT_FACTOR * whole.reshape(*whole.shape[:3], 8, 2, 16).sum(5) & 0xFFFFFFFF).astype(np.uint32)
    counts = counts.reshape(tiles, units, 4, 2, 8, 2).transpose(
        0, 1, 4, 2, 5, 3
    )  # [.., pair, token pair, chunk, token]
    parts = [lanes.reshape(tiles, units, -1), _sums(sums).reshape(tiles, units, -1)]
    parts += [np.ascontiguousarray(each).reshape(tiles, units, -1).view(np.uint8) for each in (counts, factors)]
    return np.concatenate(parts, 2)


def _sums(sums: np.ndarray) -> np.ndarray:
    """f32 `[tile, unit, token, 8]` as bytes `[tile, unit, lane, 16]`."""
    import ml_dtypes
    import numpy as np

    left, out = sums, np.zeros((*sums.shape[:3], 4, 4, 2), np.uint16)  # [.., t, digit, block div 4]
    for digit in range(DIGITS):
        part = left.astype(ml_dtypes.bfloat16)
        left = left - part.astype(np.float32)
        out[..., digit, :] = part.view(np.uint16).reshape(*sums.shape[:3], 2, 4).swapaxes(3, 4)
    return out.view(np.uint8)


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
