"""What stands in a shard of a Hugging Face folder: its tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stored:
    """A tensor of a shard: its type and shape there, and its bytes, a view of the mapped file."""

    name: str
    type: str
    shape: tuple[int, ...]
    raw: np.ndarray
