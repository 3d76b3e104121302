"""Rows of the layers of a KV cache: one for every position, or a ring; and which positions a ring has lost. Owns no
memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import numpy as np

from ptxgen.errors import CapacityError, SpecError, brief
from ptxgen.integers import as_index
from ptxgen.spec.cache_fields import ring_rows


class Rings:
    """`windows` by layer (0: none; None: no layer has one), `appended` rows that join at a time before queries read.

    A layer with a window has a ring of `window + appended − 1` rows, rounded up, where that is fewer than `max_len`:
    position p lies in row p % ring. `sizes` are the rings' rows, 0 for a layer without.
    """

    def __init__(self, windows: Iterable[int] | None, n_layers: int, appended: int, max_len: int) -> None:
        listed = isinstance(windows, Iterable) and not isinstance(windows, Mapping | Set | bytes)
        given = [0] * n_layers if windows is None else list(windows) if listed else []
        if len(given) != n_layers or any((as_index(window) or 0) < 0 or as_index(window) is None for window in given):
            raise SpecError(f"KvCache.windows: must be an int ≥ 0 for each of {n_layers} layers (got {brief(windows)})")
        # a window as long as the cache is none
        self.windows = tuple(int(window) if window < max_len else 0 for window in given)
        self.appended, self.max_len = appended, max_len
        self.sizes = tuple(ring_rows(window, appended, max_len) for window in self.windows)

    def rows(self, layer: int) -> int:
        """Rows of a head's cache."""
        return self.sizes[layer] or self.max_len

    def held(self, layer: int, length: int) -> tuple[int, int]:
        """The first position that is there, and the end."""
        return max(0, length - self.rows(layer)), length

    def slots(self, layer: int, first: int, end: int) -> np.ndarray:
        """The rows of positions."""
        return np.arange(first, end) % self.rows(layer)

    def takes(self, layer: int, rows: int) -> int:
        """How many of so many rows may join before queries have to read."""
        return min(rows, self.sizes[layer] - self.windows[layer] + 1) if self.sizes[layer] else rows

    def check(self, label: str, layer: int, length: int, written: int) -> None:
        """Refuse a length behind which queries would need positions that others of `written` took the rows of."""
        needed = max(0, length - self.windows[layer] + 1)
        if self.sizes[layer] and 0 < length < written and needed < written - self.sizes[layer]:
            raise CapacityError(
                f"{label}: the ring of layer {layer} holds {self.sizes[layer]} positions up to {written}, and those "
                f"from {needed} on are needed; nothing was changed (0 empties it)"
            )
