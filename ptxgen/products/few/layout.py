"""How a few tokens lie in memory as bf16 digits: eight of them a tile, units of 64 columns that bulk copies bring.

`[tile of tokens, unit]`, of each unit `[pair of chunks, digit, lane, 16 bytes]`: lane 4g + t has token g's columns 4t
to 4t + 3 of both chunks of 16, the B fragments of two products. Digits of a value add up to it, the largest first.
Columns and tokens past the last are zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dtypes import bf16
from ptxgen.launch import Extent
from ptxgen.products.bytes.layout import TOKENS
from ptxgen.products.digits import DIGITS as EXACT_DIGITS
from ptxgen.products.readings import ONE_DIGIT, digit_readings
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from ptxgen.kernel import Reading

DIGITS = {"exact": EXACT_DIGITS, "fast": 1}  # bf16 numbers that an element becomes
UNIT = 64  # columns
PAIR = 32  # columns of two chunks
LANE_BYTES = 16  # of a digit of a pair, in a lane
DIGIT_BYTES = 2 * PAIR * TOKENS  # of a digit of a pair


def unit_bytes(digits: int) -> int:
    """Bytes of a unit."""
    return UNIT // PAIR * digits * DIGIT_BYTES


def shape(cols: int, digits: int, rows: str = "rows") -> tuple[Extent, ...]:
    """The array's shape for so many rows, a capacity's name, of bf16."""
    return (f"ceil_div({rows}, {TOKENS})", -(-cols // UNIT), unit_bytes(digits) // bf16.bytes)


def has_row(shape: tuple[int, ...], rows: int, digits: int) -> np.ndarray:
    """Which elements of a packed array are of the first rows."""
    import numpy as np

    tiles, units = shape[:2]
    first = (np.arange(tiles * TOKENS) < rows).reshape(tiles, 1, 1, 1, TOKENS, 1)
    lanes = (tiles, units, UNIT // PAIR, digits, TOKENS, LANE_BYTES // bf16.bytes * PAIR // 8)
    return np.broadcast_to(first, lanes).reshape(shape)


def squares_shape(cols: int) -> tuple[Extent, ...]:
    """Of the sums of squares beside rows times a norm's weights, f32 `[tile, token, 16 columns]`."""
    return (f"ceil_div(rows, {TOKENS})", TOKENS, cols // TILE_ROWS)


def squares(x: np.ndarray) -> np.ndarray:
    """Of f32 `[rows, cols]`; tokens past the last are zero."""
    import numpy as np

    rows, cols = x.shape
    tiles = -(-rows // TOKENS)
    padded = np.zeros((tiles * TOKENS, cols), np.float64)
    padded[:rows] = x
    found = (padded.reshape(tiles, TOKENS, cols // TILE_ROWS, TILE_ROWS) ** 2).sum(3)
    return np.asarray(found.astype(np.float32))


def pack(x: np.ndarray, digits: int) -> np.ndarray:
    """f32 `[rows, cols]` as bf16 `[tiles, units, elements of a unit]`."""
    import numpy as np

    rows, cols = x.shape
    tiles, units = -(-rows // TOKENS), -(-cols // UNIT)
    left = np.zeros((tiles * TOKENS, units * UNIT), np.float32)
    left[:rows, :cols] = x
    parts = []
    for _ in range(digits):
        digit = left.astype(bf16.numpy)
        left = left - digit.astype(np.float32)
        lanes = digit.reshape(tiles, TOKENS, units, UNIT // PAIR, 2, 4, 4)  # [.., half, t, 4]
        parts.append(lanes.transpose(0, 2, 3, 1, 5, 4, 6))  # [tile, unit, pair, g, t, half, 4]
    return np.stack(parts, 3).reshape(tiles, units, unit_bytes(digits) // bf16.bytes)


def unpack(packed: np.ndarray, rows: int, cols: int, digits: int) -> np.ndarray:
    """float64 `[rows, cols]`."""
    import ml_dtypes
    import numpy as np

    tiles, units = packed.shape[:2]
    lanes = (
        np.ascontiguousarray(packed).view(ml_dtypes.bfloat16).reshape(tiles, units, UNIT // PAIR, digits, 8, 4, 2, 4)
    )
    whole = lanes.astype(np.float64).sum(3).transpose(0, 3, 1, 2, 5, 4, 6)
    return np.asarray(whole.reshape(tiles * TOKENS, units * UNIT)[:rows, :cols])


def readings(
    name: str, packed: np.ndarray, digits: int, limit: float, one: float = ONE_DIGIT
) -> Iterator[Reading]:  # fmt: skip
    """How a packed array is compared, as `digit_readings` has it."""
    each = packed.reshape(*packed.shape[:2], UNIT // PAIR, digits, DIGIT_BYTES // bf16.bytes)
    yield from digit_readings(name, each, 3, max(limit, one) if digits == 1 else limit)
