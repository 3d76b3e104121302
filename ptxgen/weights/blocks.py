"""What the GGUF formats share: raw blocks `[rows, bytes]` as their fields, nibbles in fragment order, 6-bit scales."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ptxgen.errors import SpecError
from ptxgen.weights.format import Piece
from ptxgen.weights.order import cut, from_fragments, to_fragments


def raw_blocks(source: Mapping[str, np.ndarray], rows: int, count: int, nbytes: int) -> np.ndarray:
    """The raw blocks of a tensor as `[rows, count, nbytes]`."""
    blocks = np.asarray(source["blocks"])
    if blocks.dtype != np.uint8 or blocks.size != rows * count * nbytes:
        raise SpecError(f"blocks: must be uint8 [{rows}, {count * nbytes}] (got {blocks.dtype} {list(blocks.shape)})")
    return blocks.reshape(rows, count, nbytes)


def field(blocks: np.ndarray, offset: int, count: int, dtype: np.dtype | type = np.uint8) -> np.ndarray:
    """A field of raw blocks, `[rows, blocks, count]`."""
    size = count * np.dtype(dtype).itemsize
    return np.ascontiguousarray(blocks[:, :, offset : offset + size]).view(dtype)


def whole_blocks(*fields: np.ndarray) -> np.ndarray:
    """Raw blocks `[rows, bytes]` of their fields, each `[rows, blocks, …]`."""
    flat = [np.ascontiguousarray(each).reshape(*each.shape[:2], -1).view(np.uint8) for each in fields]
    return np.concatenate(flat, 2).reshape(flat[0].shape[0], -1)


def pack_nibbles(codes: np.ndarray, tile_k: int) -> np.ndarray:
    """4-bit codes `[rows, cols]`: 64 columns p at p·512 + lane·16 (in a tile of 32 at lane·8), a word a chunk; of its
    byte b the low nibble is row g, the high one row g + 8, column 4t + b."""
    fragments = to_fragments(codes, tile_k)
    both = fragments[..., 0, :] | (fragments[..., 1, :] << 4)
    split = both.reshape(*both.shape[:2], -1, _words(tile_k), *both.shape[3:])
    return np.asarray(split.transpose(0, 1, 2, 4, 5, 3, 6))


def unpack_nibbles(tiles: np.ndarray, tile_k: int, rows: int, cols: int) -> np.ndarray:
    """The inverse of `pack_nibbles`, from tiles that begin with them."""
    words = _words(tile_k)
    both = cut(tiles, 0, np.uint8, tile_k // 16 // words, 8, 4, words, 4).transpose(0, 1, 2, 5, 3, 4, 6)
    both = both.reshape(*both.shape[:2], tile_k // 16, 8, 4, 4)
    return from_fragments(np.stack([both & 15, both >> 4], 5), rows, cols)


def _words(tile_k: int) -> int:
    """Of nibbles that are neighbours for a lane."""
    return min(4, tile_k // 16)


def nibble_pieces(tile_k: int) -> tuple[Piece, ...]:
    """What a lane reads of the nibbles of a tile."""
    words = _words(tile_k)
    return tuple(Piece(128 * words * p, 4 * words, words=words) for p in range(tile_k // 16 // words))


def pack_fifth(bits: np.ndarray, tile_k: int) -> np.ndarray:
    """Fifth bits of codes `[rows, cols]`: 64 columns p at lane·tile_k/16 + p·4, a word; of its byte b, bits 0 … 3 are
    row g in chunks 4p … 4p + 3, column 4t + b; bits 4 … 7 row g + 8. In a tile of 32 columns half a word: of its nibble
    i + 2 · half, bit b is column 4t + b of chunk i."""
    shifts, kept = _fifth_shifts(tile_k)
    fragments = to_fragments(bits, tile_k)  # [record, tile, chunk, g, t, half, 4]
    split = fragments.reshape(*fragments.shape[:2], -1, len(shifts), *fragments.shape[3:])
    reduced = tuple({3, 6, 7} - {kept})
    packed = np.bitwise_or.reduce(split << shifts, reduced)  # [record, tile, p, g, t, byte]
    return np.asarray(packed.transpose(0, 1, 3, 4, 2, 5))


def unpack_fifth(tiles: np.ndarray, at: int, tile_k: int, rows: int, cols: int) -> np.ndarray:
    """The inverse of `pack_fifth`, from tiles that have them at `at`."""
    shifts, kept = _fifth_shifts(tile_k)
    chunks, nbytes = tile_k // 16, {6: 2, 7: 4}[kept]
    packed = cut(tiles, at, np.uint8, 8, 4, chunks // len(shifts), nbytes).transpose(0, 1, 4, 2, 3, 5)
    split = np.expand_dims(packed, (3, 6 if kept == 7 else 7)) >> shifts & 1
    return from_fragments(split.reshape(*split.shape[:2], chunks, *split.shape[4:]), rows, cols)


def _fifth_shifts(tile_k: int) -> tuple[np.ndarray, int]:
    """Where fifth bits lie in their byte, by `[chunk, 1, 1, half, column]`, and which axis of `[record, tile, p, chunk,
    g, t, half, column]` the bytes are: columns of a word, or halves of half a word."""
    chunk, half, column = np.ogrid[: min(4, tile_k // 16), :2, :4]
    at, kept = (chunk + 4 * half, 7) if tile_k > 32 else (column + 4 * chunk, 6)
    return at[:, None, None].astype(np.uint8), kept


def fifth_pieces(at: int, tile_k: int) -> tuple[Piece, ...]:
    """What a lane reads of the fifth bits of a tile, which are at `at`."""
    words = max(1, tile_k // 64)
    return (Piece(at, tile_k // 16, words=words, half=tile_k < 64),)


def sides(at: int, nbytes: int, tile_k: int) -> tuple[Piece, ...]:
    """What lane t reads of `nbytes` for each block of 32 columns of its rows, of those that it has the sums of: blocks
    t div 2 and, in a tile of 128 columns, two further on."""
    by, count = {128: ("side", 2), 64: ("pair", 1)}.get(tile_k, ("row", 1))
    return tuple(Piece(at + 2 * nbytes * i, nbytes, by, 1, half=nbytes < 4) for i in range(count))


def split_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and mins, 8 of 6 bits each, of the 12 bytes that K-blocks have: `[…, 12]` as two of `[…, 8]`."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    return scales, mins


def join_scales(scales: np.ndarray, mins: np.ndarray) -> np.ndarray:
    """The inverse of `split_scales`."""
    first = scales[..., :4] | (scales[..., 4:] >> 4 << 6)
    second = mins[..., :4] | (mins[..., 4:] >> 4 << 6)
    third = (scales[..., 4:] & 15) | ((mins[..., 4:] & 15) << 4)
    return np.concatenate([first, second, third], -1)


def in_blocks(values: np.ndarray, size: int) -> np.ndarray:
    """`[rows, cols]` as `[rows, blocks, size]`."""
    return values.reshape(values.shape[0], -1, size)


def ratio(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    """`values / by`, 0 where `by` is 0."""
    return np.asarray(np.divide(values, by, out=np.zeros(np.broadcast(values, by).shape, np.float32), where=by != 0))
