"""Fields that kernel types on a KV cache share: what is known of them, and the rules of pages and rings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.spec.fields import Said

if TYPE_CHECKING:
    import numpy as np

Q_DTYPES = ("f32", "f16", "bf16")
KV_DTYPES = ("f32", "f16", "bf16", "e4m3", "s8")
PAGE_LAYOUTS = ("hnd", "nhd")
RING = 64  # a ring holds a multiple of so many rows: of every tile


def _rings(drawn: Mapping[str, Any]) -> Sequence[object]:
    window = drawn.get("window") or (0 if "window" in drawn else 1)
    rows = -(-window // RING) * RING
    return (0,) if drawn.get("page_size") or not window else (0, rows, rows + 2 * RING)


# What is known of fields of kernel types on a cache.
CAPACITY = Said(local=True, silent="no result depends on it within the capacity")
KV_HEADS = Said(local=True)
INDIRECT = Said(doc="lengths or positions are read from device memory")
PAGE_SIZE = Said(doc="positions of a page of the cache; 0: no pages", draws=(0, 16, 48, 64), refuses=(-1,))
PAGE_LAYOUT = Said(
    doc="order of a page's axes: hnd (head, position, element) or nhd (position, head, element)", later=True,
    draws=lambda drawn: PAGE_LAYOUTS if drawn.get("page_size") else PAGE_LAYOUTS[:1], refuses=("?",),
)  # fmt: skip
RING_ROWS = Said(
    doc="rows of a cache that holds the window's positions in turn, a multiple of 64; 0: all positions", later=True,
    draws=_rings, refuses=(-1, 63),
)  # fmt: skip
KEPT = Said(
    doc="the first n_kept positions keep their rows: appending to them writes nothing", later=True,
    draws=lambda drawn: (False, True) if drawn.get("indirect") and not drawn.get("batched") else (False,),
)  # fmt: skip
STRIDED = Said(
    doc="rows from head to head are the scalar kv_rows, and a sequence's first row is its starts[s]", later=True,
    draws=lambda drawn: (False, True) if drawn.get("batched") and not (drawn.get("page_size") or drawn.get("ring"))
    else (False,),
)  # fmt: skip
ONE_CACHE = Said(
    doc="the queries of a batch are of one sequence, whose cache they read", later=True,
    draws=lambda drawn: (False, True) if drawn.get("batched") and not (drawn.get("page_size") or drawn.get("strided"))
    else (False,),
)  # fmt: skip


HEAD_SCALES = Said(
    doc="e4m3 keys and values count times a scale of each KV head, from parameters", later=True,
    draws=lambda drawn: (False, True) if str(drawn.get("kv_dtype", "")) == "e4m3" else (False,),
)  # fmt: skip


def given_head_scales(rng: np.random.Generator, n_kv_heads: int) -> dict[str, np.ndarray]:
    """Scales of an example's KV heads."""
    import numpy as np

    return {name: rng.uniform(0.5, 2.0, n_kv_heads).astype(np.float32) for name in ("k_scale", "v_scale")}


def head_scales_rules(head_scales: bool, kv_dtype: str) -> Iterator[str]:
    """Reasons against scales of KV heads for elements of this type."""
    if head_scales and kv_dtype != "e4m3":
        yield f"head_scales: is of e4m3 caches (got kv_dtype={kv_dtype}; nearest: False)"


def head_rules(n_heads: int, n_kv_heads: int, most: int) -> Iterator[str]:
    """Reasons against so many heads of queries over so many of keys: at most so many, in whole groups."""
    yield from rules.between("n_heads", n_heads, 1, most)
    yield from rules.between("n_kv_heads", n_kv_heads, 1, most)
    yield from rules.divides("n_kv_heads", n_kv_heads, "n_heads", n_heads)


def kept_rules(kept: bool, indirect: bool) -> Iterator[str]:
    """Reasons against positions that keep their rows."""
    if kept and not indirect:
        yield "kept: needs indirect=True (got kept=True, indirect=False; nearest: False)"


def place_rules(page_size: int, page_layout: str, ring: int, window: int) -> Iterator[str]:
    """Reasons against pages in this layout, or a ring, for layers with this window."""
    yield from rules.one_of("page_layout", page_layout, PAGE_LAYOUTS)
    if page_layout != PAGE_LAYOUTS[0] and page_layout in PAGE_LAYOUTS and not page_size:
        yield f"page_layout: needs a page_size (got {page_layout!r}; nearest: {PAGE_LAYOUTS[0]!r})"
    if ring:
        yield from rules.multiple_of("ring", ring, RING, RING, 1 << 24)
        if page_size:
            yield f"ring: pages that come again in the table are one (got ring={ring}, page_size={page_size})"
        if not window or ring < window:
            yield f"ring: must hold the window, so there must be one (got ring={ring}, window={window}; nearest: 0)"


def strided_rules(batched: bool, page_size: int, ring: int, programmatic: bool) -> Iterator[str]:
    """Reasons against a strided cache beside these fields."""
    if not batched:
        yield "strided: needs batched=True (got batched=False; nearest: False)"
    if page_size or ring:
        yield f"strided: rows lie one after the other (got page_size={page_size}, ring={ring}; nearest: False)"
    if programmatic:
        yield "strided: needs programmatic=False (got programmatic=True; nearest: False)"


def one_cache_rules(batched: bool, page_size: int, strided: bool, programmatic: bool) -> Iterator[str]:
    """Reasons against one cache for all queries beside these fields."""
    if not batched:
        yield "one_cache: needs batched=True (got batched=False; nearest: False)"
    if page_size or strided:
        yield f"one_cache: has no pages and no strides (got page_size={page_size}, strided={strided}; nearest: False)"
    if programmatic:  # it would read more than one position of those that the kernel ahead appends
        yield "one_cache: needs programmatic=False (got programmatic=True; nearest: False)"


def ring_rows(window: int, appended: int, max_len: int) -> int:
    """Rows of the ring of layers with a window, where up to `appended` positions join at a time before their queries
    read; 0 where there is no window, or a ring would be no smaller than the cache."""
    rows = -(-(window + appended - 1) // RING) * RING
    return rows if window and appended and rows < max_len else 0
