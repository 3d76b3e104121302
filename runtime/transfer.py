"""What to copy, and where to, when one sequence's cache becomes a slot of a batched one. Copies nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptxgen.runtime.blocks import Blocks
from ptxgen.runtime.buffer import Buffer

Pair = tuple[Blocks, Blocks]


def slot_blocks(source: Buffer, target: Buffer, slot: int, seq_len: int) -> Iterator[Pair]:
    """The first positions of every head: `[n_kv_heads, max_len, width]` into `[batch, n_kv_heads, max_len, width]`."""
    heads, length, width = source.shape
    row = width * source.dtype.bytes
    pitch = target.shape[2] * row
    yield (
        Blocks(source, 0, seq_len * row, heads, length * row),
        Blocks(target, slot * heads * pitch, seq_len * row, heads, pitch),
    )


def page_blocks(source: Buffer, target: Buffer, pages: Sequence[int], seq_len: int) -> Iterator[Pair]:
    """The first positions of every head, page by page: into `[n_pages, n_kv_heads, page_size, width]`."""
    heads, length, width = source.shape
    row, size = width * source.dtype.bytes, target.shape[2]
    for entry, first in enumerate(range(0, seq_len, size)):
        part = min(size, seq_len - first) * row
        yield (
            Blocks(source, first * row, part, heads, length * row),
            Blocks(target, pages[entry] * heads * size * row, part, heads, size * row),
        )
