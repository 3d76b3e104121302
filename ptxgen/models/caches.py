"""How a model keeps its keys and values: pages, rings, element type; and what that takes. Owns no memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ptxgen.dtypes import dtype, f16, s8
from ptxgen.errors import SpecError
from ptxgen.models.config.shape import LayerKind, ModelShape
from ptxgen.scales import scale_groups
from ptxgen.spec.cache_fields import PAGE_LAYOUTS, ring_rows


@dataclass(frozen=True)
class CacheForm:
    """`page_size`: caches of batches are in pages of so many positions (0: no pages), with axes in the order of
    `page_layout`. `rings`: layers with a window keep a ring with room for appends of up to so many rows (0: they keep
    all positions)."""

    page_size: int = 0
    page_layout: str = PAGE_LAYOUTS[0]
    rings: int = 0

    def __post_init__(self) -> None:
        if self.page_layout != PAGE_LAYOUTS[0] and not self.page_size:
            raise SpecError(f"page_layout: needs a page_size (got {self.page_layout!r})")

    def ring(self, shape: ModelShape, kind: LayerKind) -> int:
        """Rows of the ring of these layers; 0: they keep all positions."""
        return ring_rows(kind.window, self.rings, shape.max_len)

    def check_rings(self, shape: ModelShape) -> None:
        """Raise `SpecError` where rings are asked for and no layer of the model would keep one."""
        if not self.rings or any(self.ring(shape, kind) for kind in shape.kinds):
            return
        windows = sorted({kind.window for kind in shape.kinds} - {0})
        why = "no layer of this model has a window shorter than its cache"
        if windows:
            said = f"{' and '.join(map(str, windows))} positions"
            why = f"with windows of {said} they would be no smaller than the cache of {shape.max_len}"
        raise SpecError(f"rings: must be 0: {why} (got {self.rings})")

    @property
    def batched(self) -> dict[str, Any]:
        """Options of the kernels of batches; pages that come again in the table are a ring."""
        if not self.page_size:
            return {"batched": True}
        return {"batched": True, "page_size": self.page_size, "page_layout": self.page_layout, "ring": 0}

    def said(self, shape: ModelShape, kv_dtype: object, batch: int = 1) -> dict[str, Any]:
        """What the caches take, as plain data: rows and bytes by kind of layer, and the bytes of all `batch` sequences.

        A page table's entry e of a layer with `ring_pages` is page e % ring_pages of the sequence's own.
        """
        kinds = [self._kind(shape, kind, kv_dtype) for kind in shape.kinds]
        total = sum(kind["bytes_per_layer"] * len(kind["layers"]) for kind in kinds)
        return {
            "dtype": dtype(kv_dtype).name, "page_size": self.page_size, "page_layout": self.page_layout,
            "kinds": kinds, "batch": batch, "bytes_per_sequence": total, "bytes": batch * total,
        }  # fmt: skip

    def _kind(self, shape: ModelShape, kind: LayerKind, kv_dtype: object) -> dict[str, Any]:
        ring, size = self.ring(shape, kind), self.page_size
        rows = ring or shape.max_len
        pages = -(-rows // size) if size else 0
        said = {"name": kind.name, "layers": list(kind.layers), "window": kind.window, "rows": rows, "ring": bool(ring)}
        if pages:
            said |= {"pages": pages} | ({"ring_pages": pages} if ring else {})
        return said | {"bytes_per_layer": cache_bytes(shape, pages * size or rows, kv_dtype)}


def cache_bytes(shape: ModelShape, rows: int, kv_dtype: object) -> int:
    """K and V of so many positions of a layer, with their scales."""
    kind = dtype(kv_dtype)
    scales = f16.bytes * scale_groups(shape.head_dim) if kind == s8 else 0
    return 2 * shape.n_kv_heads * rows * (shape.head_dim * kind.bytes + scales)
