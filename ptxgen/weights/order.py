"""The order of a packed matrix in NumPy: rows and columns as a warp's lanes own them, fields of tiles, records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptxgen.weights.format import CHUNK, OWN, TILE_ROWS


def to_fragments(values: np.ndarray, tile_k: int) -> np.ndarray:
    """`[rows, cols]` as `[record, tile, chunk, g, t, half, 4]`, rows and columns filled up with zeros."""
    rows, cols = values.shape
    records, tiles = -(-rows // TILE_ROWS), -(-cols // tile_k)
    if (records * TILE_ROWS, tiles * tile_k) != (rows, cols):
        padded = np.zeros((records * TILE_ROWS, tiles * tile_k), values.dtype)
        padded[:rows, :cols] = values
        values = padded
    split = values.reshape(records, 2, 8, tiles, tile_k // CHUNK, 4, OWN)
    return np.asarray(split.transpose(0, 3, 4, 2, 5, 1, 6))


def from_fragments(fragments: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """The inverse of `to_fragments`."""
    records, tiles, chunks = fragments.shape[:3]
    whole = fragments.transpose(0, 5, 3, 1, 2, 4, 6).reshape(records * TILE_ROWS, tiles * chunks * CHUNK)
    return np.ascontiguousarray(whole[:rows, :cols])


def to_rows(values: np.ndarray, per_tile: int) -> np.ndarray:
    """Per-row values `[rows, n, …]` as `[record, tile, g, half, per_tile, …]`, filled up with zeros."""
    rows, count, *rest = values.shape
    records, tiles = -(-rows // TILE_ROWS), -(-count // per_tile)
    padded = np.zeros((records * TILE_ROWS, tiles * per_tile, *rest), values.dtype)
    padded[:rows, :count] = values
    split = padded.reshape(records, 2, 8, tiles, per_tile, *rest)
    return np.moveaxis(split, (0, 3, 2, 1, 4), (0, 1, 2, 3, 4))


def from_rows(tiled: np.ndarray, rows: int, count: int) -> np.ndarray:
    """The inverse of `to_rows`."""
    records, tiles, _, _, per_tile, *rest = tiled.shape
    whole = np.moveaxis(tiled, (0, 1, 2, 3, 4), (0, 3, 2, 1, 4)).reshape(records * TILE_ROWS, tiles * per_tile, *rest)
    return np.ascontiguousarray(whole[:rows, :count])


def join(fields: Sequence[np.ndarray]) -> np.ndarray:
    """Tiles from their fields in order, each `[record, tile, …]` of any type: uint8 `[record, tile, bytes]`."""
    parts = []
    for field in fields:
        flat = np.ascontiguousarray(field).reshape(*field.shape[:2], -1)
        parts.append(flat.view(np.uint8))
    return np.concatenate(parts, 2)


def cut(tiles: np.ndarray, offset: int, dtype: np.dtype | type, *shape: int) -> np.ndarray:
    """One field of tiles `[record, tile, bytes]` as `[record, tile, *shape]`."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    piece = np.ascontiguousarray(tiles[:, :, offset : offset + nbytes])
    return piece.view(dtype).reshape(*tiles.shape[:2], *shape)


def interleave(first: np.ndarray, second: np.ndarray, records: int) -> np.ndarray:
    """Two packed matrices of one shape, record by record in turn: what a gated product reads (gate, then up)."""
    both = np.stack([first.reshape(records, -1), second.reshape(records, -1)], 1)
    return both.reshape(-1)


def separate(packed: np.ndarray, records: int) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `interleave`; `records` are those of one of the two."""
    both = packed.reshape(records, 2, -1)
    return both[:, 0].reshape(-1), both[:, 1].reshape(-1)
