"""Lengths and pages of a KV cache as kernel types on one share them: their ranges, and what of a cache lies past them.

For `KernelType.ranges` and `KernelType.past`. Owns no code of a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MOST = (1 << 31) - 1

Past = Iterator[tuple["np.ndarray", Any]]
"""Arrays, and what to index them with."""


def written_rows(max_len: int, batched: bool, sizes: Mapping[str, int], ring: int = 0) -> dict[str, tuple[int, int]]:
    """Ranges of what a kernel that writes `rows` of a cache (0: of no cache) takes: rows, positions, pages."""
    rows, pages = sizes.get("rows", 1), sizes.get("pages", 1)
    return {
        "rows": (1, min(max_len, ring or max_len) if max_len and not batched else MOST),
        "position": (0, max(0, (max_len or MOST) - rows)),
        "n_kept": (0, max_len or MOST),
        "positions": (0, (max_len or MOST) - 1),
        "n_pages": (0, pages),
        "page_table": (-MOST - 1, MOST),  # pages that do not exist are skipped
    }


def past_lengths(caches: Sequence[np.ndarray], lengths: Iterable[int]) -> Past:
    """What lies past the lengths in caches `[n, n_kv_heads, max_len, …]`."""
    yield from ((cache, (n, slice(None), slice(length, None))) for cache in caches for n, length in enumerate(lengths))


def past_pages(
    caches: Sequence[np.ndarray], tables: np.ndarray, lengths: Iterable[int], heads_inside: bool = False
) -> Past:
    """The rows of pages, `[pages, n_kv_heads, page_size, …]`, that no sequence has a position in; `heads_inside`: of
    pages `[pages, page_size, n_kv_heads, …]`."""
    import numpy as np

    page_size = caches[0].shape[1 if heads_inside else 2]
    used = np.zeros((caches[0].shape[0], page_size), bool)
    for table, length in zip(tables, lengths, strict=True):
        positions = np.arange(min(length, len(table) * page_size))  # a longer one counts as full
        used[table[positions // page_size], positions % page_size] = True
    pages, rows = np.nonzero(~used)
    every = slice(None)
    yield from ((cache, (pages, rows) if heads_inside else (pages, every, rows)) for cache in caches)
