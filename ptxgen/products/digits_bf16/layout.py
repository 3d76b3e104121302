"""How a few tokens lie in memory as bf16 digits: eight of them a tile, units of 64 columns that bulk copies bring.

`[tile of tokens, unit]`, of each unit `[pair of chunks, digit, lane, 16 bytes]`: lane 4g + t has token g's columns 4t
to 4t + 3 of both chunks of 16, the B fragments of two products. Digits of a value add up to it, the largest first.
Columns and tokens past the last are zero.

With `sums` units have 256 columns, and behind their pairs sums over chunks of what the digits add up to, as three bf16
digits: at digit · 256 + lane · 8 those of token g in chunks t, 8 + t, 4 + t and 12 + t. K-quants have x so, for mins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dtypes import bf16
from ptxgen.launch import Extent
from ptxgen.products.digits_s8 import layout as s8_layout
from ptxgen.products.digits_s8.layout import TOKENS
from ptxgen.products.problem.readings import ONE_DIGIT, digit_readings
from ptxgen.products.tokens.digits import DIGITS as EXACT_DIGITS
from ptxgen.weights.format import CHUNK, TILE_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from ptxgen.kernel import Reading

DIGITS = {"exact": EXACT_DIGITS, "fast": 1}  # bf16 numbers that an element becomes
UNIT = 64  # columns
PAIR = 32  # columns of two chunks
LANE_BYTES = 16  # of a digit of a pair, in a lane
DIGIT_BYTES = 2 * PAIR * TOKENS  # of a digit of a pair
WIDE_UNIT = s8_layout.UNIT  # columns of a unit that has sums, too
SUM_DIGITS, SUM_BYTES = s8_layout.DIGITS, s8_layout.SUM_BYTES
# where in a token's sums that of a column's chunk is: from bit so much of the column on, so many bits, and their bytes
SUM_PLACES = ((4, 2, SUM_BYTES // TOKENS // 4), (6, 1, 4), (7, 1, 2))


def columns(*, sums: bool) -> int:
    """Columns of a unit."""
    return WIDE_UNIT if sums else UNIT


def pairs_bytes(digits: int, *, sums: bool = False) -> int:
    """Bytes of a unit's pairs of chunks."""
    return columns(sums=sums) // PAIR * digits * DIGIT_BYTES


def unit_bytes(digits: int, *, sums: bool = False) -> int:
    """Bytes of a unit."""
    return pairs_bytes(digits, sums=sums) + (SUM_DIGITS * SUM_BYTES if sums else 0)


def shape(cols: int, digits: int, rows: str = "rows", *, sums: bool = False) -> tuple[Extent, ...]:
    """The array's shape for so many rows, a capacity's name, of bf16."""
    units = -(-cols // columns(sums=sums))
    return (f"ceil_div({rows}, {TOKENS})", units, unit_bytes(digits, sums=sums) // bf16.bytes)


def has_row(shape: tuple[int, ...], rows: int, digits: int, *, sums: bool = False) -> np.ndarray:
    """Which elements of a packed array are of the first rows."""
    import numpy as np

    tiles, units = shape[:2]
    first = (np.arange(tiles * TOKENS) < rows).reshape(tiles, 1, 1, 1, TOKENS, 1)
    lanes = (columns(sums=sums) // PAIR * digits, LANE_BYTES // bf16.bytes * PAIR // 8)
    parts = [np.broadcast_to(first, (tiles, units, lanes[0], 1, TOKENS, lanes[1])).reshape(tiles, units, -1)]
    if sums:
        each = SUM_BYTES // bf16.bytes // TOKENS
        parts.append(np.broadcast_to(first, (tiles, units, SUM_DIGITS, 1, TOKENS, each)).reshape(tiles, units, -1))
    return np.concatenate(parts, 2)


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


def pack(x: np.ndarray, digits: int, *, sums: bool = False) -> np.ndarray:
    """f32 `[rows, cols]` as bf16 `[tiles, units, elements of a unit]`."""
    import numpy as np

    rows, cols = x.shape
    unit = columns(sums=sums)
    tiles, units = -(-rows // TOKENS), -(-cols // unit)
    left = np.zeros((tiles * TOKENS, units * unit), np.float32)
    left[:rows, :cols] = x
    whole, parts = left, []
    for _ in range(digits):
        digit = left.astype(bf16.numpy)
        left = left - digit.astype(np.float32)
        lanes = digit.reshape(tiles, TOKENS, units, unit // PAIR, 2, 4, 4)  # [.., half, t, 4]
        parts.append(lanes.transpose(0, 2, 3, 1, 5, 4, 6))  # [tile, unit, pair, g, t, half, 4]
    pairs = np.stack(parts, 3).reshape(tiles, units, pairs_bytes(digits, sums=sums) // bf16.bytes)
    if not sums:
        return pairs
    return np.concatenate([pairs, _sums((whole - left).reshape(tiles, TOKENS, units, unit // CHUNK, CHUNK))], 2)


def _sums(x: np.ndarray) -> np.ndarray:
    """Of f32 `[tile, token, unit, chunk, 16]`: bf16 `[tile, unit, elements of the sums]`."""
    import numpy as np

    left, parts = x.astype(np.float64).sum(4).astype(np.float32), []
    for _ in range(SUM_DIGITS):
        digit = left.astype(bf16.numpy)
        left = left - digit.astype(np.float32)
        halves = digit.reshape(*x.shape[:3], 2, 2, 4)  # chunk = 8 · first + 4 · second + t
        parts.append(halves.transpose(0, 2, 1, 5, 4, 3))  # [tile, unit, token, t, second, first]
    return np.stack(parts, 2).reshape(x.shape[0], x.shape[2], SUM_DIGITS * SUM_BYTES // bf16.bytes)


def unpack(packed: np.ndarray, rows: int, cols: int, digits: int, *, sums: bool = False) -> np.ndarray:
    """float64 `[rows, cols]`."""
    import ml_dtypes
    import numpy as np

    (tiles, units), unit = packed.shape[:2], columns(sums=sums)
    pairs = np.ascontiguousarray(packed[:, :, : pairs_bytes(digits, sums=sums) // bf16.bytes])
    lanes = pairs.view(ml_dtypes.bfloat16).reshape(tiles, units, unit // PAIR, digits, 8, 4, 2, 4)
    whole = lanes.astype(np.float64).sum(3).transpose(0, 3, 1, 2, 5, 4, 6)
    return np.asarray(whole.reshape(tiles * TOKENS, units * unit)[:rows, :cols])


def readings(
    name: str, packed: np.ndarray, digits: int, limit: float, one: float = ONE_DIGIT, *, sums: bool = False
) -> Iterator[Reading]:  # fmt: skip
    """How a packed array is compared, as `digit_readings` has it."""
    pairs = pairs_bytes(digits, sums=sums) // bf16.bytes
    each = packed[:, :, :pairs].reshape(*packed.shape[:2], -1, digits, DIGIT_BYTES // bf16.bytes)
    limit = max(limit, one) if digits == 1 else limit
    yield from digit_readings(name, each, 3, limit)
    if sums:
        behind = packed[:, :, pairs:].reshape(*packed.shape[:2], SUM_DIGITS, SUM_BYTES // bf16.bytes)
        found = digit_readings(f"{name}, sums", behind, 2, limit)
        yield from (next(found),) if digits == 1 else found  # sums of rounded values need fewer than three
