"""The f16 scales of int8 rows: one for every 32 values along head_dim, the last group of a row may be shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SCALE_GROUP = 32  # values of a row that share a scale


def scale_groups(head_dim: int) -> int:
    """Scales of one row."""
    return -(-head_dim // SCALE_GROUP)


def spread(scales: np.ndarray, head_dim: int) -> np.ndarray:
    """Scales `[…, scale_groups]` as one for each value, `[…, head_dim]`."""
    import numpy as np

    return np.repeat(scales, SCALE_GROUP, -1)[..., :head_dim]


def dequantise(values: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """Rows `[…, head_dim]` of any dtype as float32; int8 ones times their scales."""
    import numpy as np

    wide = values.astype(np.float32)
    return wide if scales is None else wide * spread(scales.astype(np.float32), values.shape[-1])
