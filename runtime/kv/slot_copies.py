"""What to copy, and where to, when one sequence's cache becomes a slot of a batched one. Copies nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.kv.strided import Blocks

Pair = tuple[Blocks, Blocks]


def blocks_of_slot(
    source: Buffer, target: Buffer, slot: int, pages: Sequence[int] | None, seq_len: int, heads_inside: bool = False
) -> Iterator[Pair]:
    """The first positions of every head of `source`, and where they go in a batch: contiguous, or in the slot's pages
    in order, which with `heads_inside` have the heads of a position side by side."""
    if pages is None:
        return slot_blocks(source, target, slot, seq_len)
    return (page_rows if heads_inside else page_blocks)(source, target, pages, seq_len)


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
    """The first positions of every head: into `[n_pages, n_kv_heads, page_size, width]`, by `pages` in order.

    Full pages go head by head over runs of consecutive pages, or page by page over all heads: whichever is fewer.
    """
    heads, length, width = source.shape
    row, size = width * source.dtype.bytes, target.shape[2]
    page = size * row

    def across(entry: int, rows: int) -> Pair:
        here = Blocks(source, entry * page, rows * row, heads, length * row)
        return here, Blocks(target, pages[entry] * heads * page, rows * row, heads, page)

    whole, rest = divmod(seq_len, size)
    runs = list(_runs(pages[:whole]))
    if heads * len(runs) < whole:
        for entry, count in runs:
            for head in range(heads):
                yield (
                    Blocks(source, (head * length + entry * size) * row, page, count, page),
                    Blocks(target, (pages[entry] * heads + head) * page, page, count, heads * page),
                )
    else:
        yield from (across(entry, size) for entry in range(whole))
    if rest:
        yield across(whole, rest)


def page_rows(source: Buffer, target: Buffer, pages: Sequence[int], seq_len: int) -> Iterator[Pair]:
    """The first positions of every head: into `[n_pages, page_size, n_kv_heads, width]`, head by head over runs of
    consecutive pages."""
    heads, length, width = source.shape
    row, size = width * source.dtype.bytes, target.shape[1]
    for entry, count in _runs(pages[: -(-seq_len // size)]):
        rows = min(seq_len - entry * size, count * size)
        for head in range(heads):
            yield (
                Blocks(source, (head * length + entry * size) * row, row, rows, row),
                Blocks(target, (pages[entry] * size * heads + head) * row, row, rows, heads * row),
            )


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first entry, entries) of each run of consecutive page numbers."""
    start = 0
    for entry in range(1, len(pages) + 1):
        if entry == len(pages) or pages[entry] != pages[entry - 1] + 1:
            yield start, entry - start
            start = entry
