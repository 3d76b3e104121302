"""How tokens lie in memory for wgmma: 16-bit tiles that a bulk copy brings to shared memory as they are.

`[tile of tokens, block of 64 columns, digit, token, 64]`, columns filled up to a multiple of 256 with zeros. Within a
block, columns of a chunk of 16 stand in the order in which the lanes of packed weights own them: 0, 1, 4, 5, 8, 9, 12,
13, then the others. A row of 128 bytes is eight pieces of 16 bytes; piece p of token r stands at p ^ (r mod 8):
wgmma's swizzle of 128 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dtypes import DType
from ptxgen.launch import Extent

if TYPE_CHECKING:
    import numpy as np

COLUMNS = 64  # of a block
ROW_BYTES = 128  # of a token in a block
PADDED = 256  # columns are filled up to a multiple: the widest tile of any format of weights
GROUP = 8  # tokens whose rows are swizzled together
DIGITS = {"fast": 1, "exact": 3}  # 16-bit numbers that add up to a value of x
TOKENS = (8, 16, 32, 64, 96, 128, 192, 256)  # of a tile


def blocks(cols: int) -> int:
    """Blocks of a row."""
    return -(-cols // PADDED) * (PADDED // COLUMNS)


def shape(cols: int, tokens: int, digits: int) -> tuple[Extent, ...]:
    """The packed array's shape, for "rows" rows."""
    return (f"ceil_div(rows, {tokens})", blocks(cols), digits, tokens, COLUMNS)


def _order() -> np.ndarray:
    """`[token mod 8, place in a block]`: which column of the block stands there."""
    import numpy as np

    piece = np.arange(8)
    half = np.array([[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]])
    columns = 16 * (piece // 2)[:, None] + half[piece % 2]  # [piece, 8]
    return np.stack([columns[piece ^ row].reshape(-1) for row in range(GROUP)])


def pack(x: np.ndarray, tokens: int, dtype: DType, digits: int) -> np.ndarray:
    """f32 `[rows, cols]` as the packed array; rows are filled up with zeros."""
    import numpy as np

    rows, cols = x.shape
    tiles = -(-rows // tokens)
    left = np.zeros((tiles * tokens, blocks(cols) * COLUMNS), np.float32)
    left[:rows, :cols] = x
    out = []
    for _ in range(digits):
        digit = left.astype(dtype.numpy)
        left = left - digit.astype(np.float32)
        out.append(digit.reshape(tiles, tokens, -1, COLUMNS))
    whole = np.stack(out, 2).transpose(0, 3, 2, 1, 4)  # [tile, block, digit, token, 64]
    order = np.tile(_order(), (tokens // GROUP, 1))
    return np.take_along_axis(whole, np.broadcast_to(order, whole.shape), 4)


def unpack(packed: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """float64 `[rows, cols]`: the sum of the digits."""
    import numpy as np

    tokens = packed.shape[3]
    back = np.tile(np.argsort(_order(), 1), (tokens // GROUP, 1))
    plain = np.take_along_axis(packed.astype(np.float64), np.broadcast_to(back, packed.shape), 4)
    rows_of_tiles: np.ndarray = plain.sum(2).transpose(0, 2, 1, 3)
    return rows_of_tiles.reshape(packed.shape[0] * tokens, -1)[:rows, :cols]
