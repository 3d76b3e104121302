"""Where rows of K and V lie: one cache, one a sequence, or pages of one; with int8 the scales beside them.

Owns strides and the shapes of the parameters; the instructions that find a row are the loops' loaders'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ptxgen.attention.problem import Problem
from ptxgen.dtypes import DType, f16, s8, s32
from ptxgen.launch import Extent, Param, buffer, scalar
from ptxgen.scales import scale_groups

if TYPE_CHECKING:
    import numpy as np


class RowLayout(NamedTuple):
    """Rows of K, or of V: `dim` elements, `pitch` elements from a row to the next, `heads` rows of a position side by
    side; int8 has scales beside them."""

    dim: int
    dtype: DType
    pitch: int
    heads: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes from a row to the next."""
        return self.pitch * self.dtype.bytes

    @property
    def bytes(self) -> int:
        """Bytes from a position to the next."""
        return self.heads * self.row_bytes

    @property
    def scale_groups(self) -> int:
        """Scales of a row."""
        return scale_groups(self.dim)

    @property
    def row_scale_bytes(self) -> int:
        """Bytes from a row's scales to the next's."""
        return f16.bytes * scale_groups(self.pitch)

    @property
    def scale_bytes(self) -> int:
        """Bytes from a position's scales to the next's."""
        return self.heads * self.row_scale_bytes


@dataclass(frozen=True)
class Cache:
    """The rows of K and V of a problem, for its KV heads and positions 0 … max_len − 1.

    K and V are `[n_kv_heads, max_len, dim]`; `batched`: `["batch", n_kv_heads, max_len, dim]`; `page_size`:
    `["pages", n_kv_heads, page_size, dim]` with `page_table ["batch", ceil(max_len / page_size)]`, in the layout "nhd"
    `["pages", page_size, n_kv_heads, dim]`. `ring`: so many rows in place of max_len, position p in row p % ring. A
    `max_len` of 0: rows as they come from a projection, `["n_keys", n_kv_heads, dim]` where the problem's queries lie
    `by_token`, else `[n_kv_heads, "n_keys", dim]`.
    `strided`: caches `["batch", n_kv_heads, "n_keys", dim]`, n_keys given at launch as kv_rows; sequence s begins in
    row `starts[s]`. Where V lies in K there is one buffer.
    """

    problem: Problem
    max_len: int
    batched: bool = False
    page_size: int = 0
    page_layout: str = "hnd"
    ring: int = 0
    strided: bool = False

    @property
    def quantised(self) -> bool:
        """Whether rows carry scales."""
        return self.problem.kv_dtype == s8

    @property
    def by_token(self) -> bool:
        """Whether rows lie as a projection leaves them, those of a token side by side."""
        return self.problem.by_token and not self.max_len

    @property
    def k(self) -> RowLayout:
        """The layout of K's rows."""
        problem = self.problem
        return RowLayout(problem.qk_dim, problem.kv_dtype, problem.qk_dim, self._side_by_side)

    @property
    def v(self) -> RowLayout:
        """The layout of V's rows."""
        problem = self.problem
        pitch = problem.qk_dim if problem.v_in_k else problem.v_dim
        return RowLayout(problem.v_dim, problem.kv_dtype, pitch, self._side_by_side)

    @property
    def _side_by_side(self) -> int:
        return self.problem.n_kv_heads if self.heads_inside else 1

    @property
    def heads_inside(self) -> bool:
        """Whether pages hold the heads of a position side by side."""
        return bool(self.page_size) and self.page_layout == "nhd"

    @property
    def page_positions(self) -> int:
        """From a page to the next, in steps from a position to its next."""
        return self.page_size * (1 if self.heads_inside else self.problem.n_kv_heads)

    def ragged(self, tile: int) -> bool:
        """Whether a whole tile of so many positions may reach past the rows that exist."""
        return self.strided or (self.max_len % tile != 0 and not (self.page_size or self.ring))

    @property
    def rows(self) -> int:
        """Rows of a head's cache."""
        return self.ring or self.max_len

    @property
    def sides(self) -> dict[str, RowLayout]:
        """The sides K and V by their names."""
        return {"k": self.k, "v": self.v}

    @property
    def buffers(self) -> dict[str, RowLayout]:
        """The sides that have a buffer of their own: V inside K has none."""
        return {"k": self.k} if self.problem.v_in_k else self.sides

    @property
    def pages(self) -> int:
        """Entries of a sequence's page table."""
        return -(-self.max_len // self.page_size)

    @property
    def rows_per_position(self) -> int:
        """Rows from a head's position to its next."""
        return self.problem.n_kv_heads if self.by_token else 1

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The shape of K and V but for a row's elements."""
        heads = self.problem.n_kv_heads
        if self.page_size:
            axes = (self.page_size, heads) if self.heads_inside else (heads, self.page_size)
            return ("pages", *axes)
        if self.by_token:
            return ("n_keys", heads)
        rows = "n_keys" if self.strided else self.rows or "n_keys"
        return (*(("batch",) if self.batched else ()), heads, rows)

    def params(self, suffix: str = "_cache") -> Iterator[Param]:
        """K and V, with int8 their scales, with pages the page table."""
        for name, rows in self.buffers.items():
            yield buffer(f"{name}{suffix}", self.problem.kv_dtype, *self.extents, rows.dim)
        if self.quantised:
            for name, rows in self.buffers.items():
                yield buffer(f"{name}_scales", f16, *self.extents, rows.scale_groups, align=2)
        if self.page_size:
            yield buffer("page_table", s32, "batch", self.pages, align=4)
        if self.strided:
            yield buffer("starts", s32, "batch", align=4, doc="first row of each sequence: its position 0")
            yield scalar("kv_rows", s32, doc="rows from head to head of the caches: n_keys")

    # -- of an example -------------------------------------------------------------------------------------------------

    def given_scales(self, rng: np.random.Generator, sizes: Any, low: float, high: float) -> dict[str, np.ndarray]:
        """Scales of int8 rows, equally likely between `low` and `high`; nothing for other types."""
        import numpy as np

        if not self.quantised:
            return {}
        rows = tuple(sizes[e] if isinstance(e, str) else e for e in self.extents)
        return {
            f"{name}_scales": rng.uniform(low, high, (*rows, side.scale_groups)).astype(np.float16)
            for name, side in self.buffers.items()
        }

    def given_table(self, rng: np.random.Generator, sizes: Any, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Pages in random order, shared where there are too few, and −1 where a sequence has none."""
        import numpy as np

        if not self.page_size:
            return {}
        numbers = rng.permutation(sizes["pages"]).astype(np.int32)
        table = np.resize(numbers, (sizes["batch"], self.pages))
        used = -(-np.clip(lengths, 0, self.max_len) // self.page_size)
        return {"page_table": np.where(np.arange(self.pages) < used[:, None], table, -1).astype(np.int32)}
