"""How tokens lie in memory for wgmma: tiles that a bulk copy brings to shared memory as they are.

`[tile of tokens, block of columns, digit, token, columns]`: a row of a block is 128 bytes, 64 columns of 16 bits or 128
in e4m3; columns are filled up to a multiple of 256 with zeros. Columns of 16 bits stand within a chunk of 16 in the
order in which the lanes of packed weights own them: 0, 1, 4, 5, 8, 9, 12, 13, then the others; those in e4m3 in their
own. A row is eight pieces of 16 bytes; piece p of token r stands at p ^ (r mod 8): wgmma's swizzle of 128 bytes.

e4m3 has scales beside it, f32 `[tile of tokens, groups, token]`: one group a row, or one a block of 128 columns.

f16 `by_row` has even columns of a chunk before odd ones, which is the order of nibbles and bytes that one mask takes
from a word; the unit of each row as such a scale, a power of two in which its largest is 2^14 to 2^15, and its
sums, f16 `[tile of tokens, 256 columns, digit, token, place]`, two digits: the sum of 32 columns over 32, those of
columns 32 s … 32 s + 31 at place 2 (s mod 4) + s div 4. They are B of one product, without a swizzle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dtypes import DType, bf16, f16
from ptxgen.idioms.quantised_rows import LARGEST, TINY, quantise
from ptxgen.launch import Extent

if TYPE_CHECKING:
    import numpy as np

COLUMNS = 64  # of a block, of 16 bits each
ROW_BYTES = 128  # of a token in a block
CHUNK_BYTES = 32  # of it in one product
PADDED = 256  # columns are filled up to a multiple: the widest tile of any format of weights
GROUP = 8  # tokens whose rows are swizzled together
DIGITS = {"fast": 1, "exact": 3}  # numbers that add up to a value of x
DIGITS_BY_ROW = {"fast": 1, "exact": 2}  # the same of f16 in units of a row
EXPONENT = 0x7F800000  # bits of an f32, which alone are the power of two below it
UP_BITS = 14 << 23  # a row's largest becomes at least 2^14
LEAST_EXPONENT = 27 << 23  # 2^-100: rows with nothing larger are in its units
SUMMED = 32  # columns of a sum
SUM_DIGITS = 2
SUMS_BYTES = 2 * SUM_DIGITS * PADDED // SUMMED  # of a token's sums of 256 columns
SCALE_BYTES = 4
SCALE_GROUPS = (0, 128)  # columns that share a scale in e4m3; 0: all
# Scales of groups are powers of four: the exponent is odd, as it is stored, so that the upper byte says all.
EXPONENTS, BELOW, ODD = 0xFF800000, 0x007FFFFF, 0x00800000
TOKENS = (8, 16, 32, 64, 96, 104, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)  # of a tile
BETWEEN = (144, 160, 176, 208, 224, 240)  # of these, counts with which some texts of short sums spill


def columns(dtype: DType) -> int:
    """Columns of a block."""
    return ROW_BYTES // dtype.bytes


def blocks(cols: int, dtype: DType = bf16) -> int:
    """Blocks of a row."""
    return -(-cols // PADDED) * (PADDED // columns(dtype))


def shape(cols: int, tokens: int, digits: int, dtype: DType = bf16, rows: str = "rows") -> tuple[Extent, ...]:
    """The packed array's shape for so many rows, a capacity's name."""
    return (f"ceil_div({rows}, {tokens})", blocks(cols, dtype), digits, tokens, columns(dtype))


def scale_shape(cols: int, tokens: int, group: int) -> tuple[Extent, ...]:
    """That of its scales: one for `group` columns, or with 0 one a row."""
    return (f"ceil_div(rows, {tokens})", -(-cols // PADDED) * PADDED // group if group else 1, tokens)


def sum_shape(cols: int, tokens: int) -> tuple[Extent, ...]:
    """The shape of the sums of rows in their own units."""
    return (f"ceil_div(rows, {tokens})", -(-cols // PADDED), SUM_DIGITS, tokens, PADDED // SUMMED)


def sum_place(sub: int) -> int:
    """Where the sum of columns from 32 · `sub` on stands among those of 256: a lane has sums t and 4 + t."""
    return 2 * (sub % 4) + sub // 4


def _order(width: int, *, apart: bool = False) -> np.ndarray:
    """`[token mod 8, place in a block of so many columns]`: which column of the block stands there. `apart`: even ones
    before odd ones, as `by_row`."""
    import numpy as np

    piece = np.arange(8)
    column = np.arange(width).reshape(8, -1)  # [piece, its columns]
    if width == COLUMNS:
        half = np.array([[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]])
        if apart:
            half = np.arange(16).reshape(8, 2).T
        column = 16 * (piece // 2)[:, None] + half[piece % 2]
    return np.stack([column[piece ^ row].reshape(-1) for row in range(GROUP)])


def _filled(x: np.ndarray, tokens: int) -> np.ndarray:
    """f32 rows, filled up to whole tiles and blocks with zeros."""
    import numpy as np

    rows, cols = x.shape
    whole = np.zeros((-(-rows // tokens) * tokens, -(-cols // PADDED) * PADDED), np.float32)
    whole[:rows, :cols] = x
    return whole


def pack(x: np.ndarray, tokens: int, dtype: DType, digits: int, *, apart: bool = False) -> np.ndarray:
    """f32 `[rows, cols]` as the packed array; rows are filled up with zeros. `apart`: in the order of `by_row`."""
    import numpy as np

    left, out = _filled(x, tokens), []
    for _ in range(digits):
        digit = left.astype(dtype.numpy)
        left = left - digit.astype(np.float32)
        out.append(digit.reshape(-1, tokens, blocks(x.shape[1], dtype), columns(dtype)))
    whole = np.stack(out, 2).transpose(0, 3, 2, 1, 4)  # [tile, block, digit, token, columns]
    order = np.tile(_order(columns(dtype), apart=apart), (tokens // GROUP, 1))
    return np.take_along_axis(whole, np.broadcast_to(order, whole.shape), 4)


def pack_scaled(x: np.ndarray, tokens: int, dtype: DType, group: int) -> tuple[np.ndarray, np.ndarray]:
    """f32 `[rows, cols]` as the packed array and its scales; those of rows that are not there are zero."""
    import numpy as np

    whole = _filled(x, tokens)
    found = _by_powers(whole, dtype, group) if group else quantise(whole, dtype, group)
    scales = found["scales"].reshape(-(-x.shape[0] // tokens), tokens, found["scales"].shape[-1])
    packed = pack(found["out"].astype(np.float32)[: x.shape[0]], tokens, dtype, 1)
    return packed, np.ascontiguousarray(scales.transpose(0, 2, 1))


def _by_powers(x: np.ndarray, dtype: DType, group: int) -> dict[str, np.ndarray]:
    """Rows as `{"out", "scales"}` in units of powers of four, by the kernel's own f32 operations."""
    import numpy as np

    one = np.float32
    grouped = x.reshape(x.shape[0], x.shape[1] // group, group)
    largest = np.fmax.reduce(np.abs(grouped), -1, initial=0).astype(one)
    bits = (largest * one(1 / LARGEST[dtype.name])).view(np.uint32)
    scales = np.where(largest < one(TINY), one(0), ((bits + BELOW | ODD) & EXPONENTS).view(one))
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(scales == 0, one(0), one(1) / scales)
        scaled = np.clip((grouped * inverse[..., None]).reshape(x.shape), -LARGEST[dtype.name], LARGEST[dtype.name])
    return {"out": scaled.astype(dtype.numpy), "scales": scales}


def uneven(rng: np.random.Generator, rows: int, cols: int, group: int) -> np.ndarray:
    """f32 `[rows, cols]`, normal times a power of two from 2^-6 to 2^6 for each group of a row: a token that takes
    another's scale is seen, and none is too small beside the largest for a limit of 1e-6."""
    import numpy as np

    x = rng.standard_normal((rows, cols), np.float32)
    exponents = rng.integers(-6, 7, (rows, -(-cols // group)))
    return np.ldexp(x, np.repeat(exponents, group, 1)[:, :cols])


def no_power_of_four(scales: np.ndarray, rows: int, groups: int) -> str:
    """Where the scales of so many rows and groups are no powers of four, 0 or infinity: "0.37 at row 3, group 2"; ""
    where all are."""
    import numpy as np

    each = np.ascontiguousarray(scales.transpose(0, 2, 1), np.float32).reshape(-1, scales.shape[1])[:rows, :groups]
    bits = each.view(np.uint32)
    wrong = np.argwhere((bits != 0) & (bits & ~np.uint32(EXPONENT) | ~bits & ODD != 0))
    if not wrong.size:
        return ""
    row, group = wrong[0]
    return f"{each[row, group]:g} at row {row}, group {group}"


def pack_by_row(x: np.ndarray, tokens: int, digits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f32 `[rows, cols]` as the packed array of f16, the rows' units and their sums, by the kernel's operations."""
    import numpy as np

    one = np.float32
    whole = _filled(x, tokens)
    exponents = np.fmax.reduce(np.abs(whole), 1, initial=0).view(np.uint32) & EXPONENT  # no NaN, as max.f32
    units = (np.maximum(exponents, LEAST_EXPONENT) - UP_BITS).view(one)
    scaled = whole / units[:, None]
    packed = pack(scaled[: x.shape[0]], tokens, f16, digits, apart=True)
    summed = scaled.astype(f16.numpy).astype(one) if digits == 1 else scaled
    parts = summed.reshape(-1, PADDED // SUMMED, 8, 4)
    sums = ((parts[..., 0] + parts[..., 1]) + parts[..., 2]) + parts[..., 3]
    for _ in range(3):
        sums = sums[..., ::2] + sums[..., 1::2]
    left, out = sums[..., 0] / one(SUMMED), []
    for _ in range(SUM_DIGITS):
        out.append(left.astype(f16.numpy))
        left = left - out[-1].astype(one)
    order = np.argsort([sum_place(sub) for sub in range(PADDED // SUMMED)])
    count = whole.shape[1] // PADDED
    each = np.stack(out)[..., order].reshape(SUM_DIGITS, -1, tokens, count, PADDED // SUMMED)
    return packed, units.reshape(-1, 1, tokens), np.ascontiguousarray(each.transpose(1, 3, 0, 2, 4))


def unpack(
    packed: np.ndarray, rows: int, cols: int, scales: np.ndarray | None = None, *, apart: bool = False
) -> np.ndarray:
    """float64 `[rows, cols]`: the sum of the digits, times their scales. `apart`: of the order of `by_row`."""
    import numpy as np

    tiles, count, _, tokens, width = packed.shape
    back = np.tile(np.argsort(_order(width, apart=apart), 1), (tokens // GROUP, 1))
    plain = np.take_along_axis(packed.astype(np.float64), np.broadcast_to(back, packed.shape), 4)
    rows_of_tiles: np.ndarray = plain.sum(2).transpose(0, 2, 1, 3)
    whole = rows_of_tiles.reshape(tiles * tokens, count * width)
    if scales is not None:
        each = scales.astype(np.float64).transpose(0, 2, 1).reshape(tiles * tokens, scales.shape[1])
        whole = whole * np.repeat(each, count * width // each.shape[1], 1)
    return whole[:rows, :cols]
