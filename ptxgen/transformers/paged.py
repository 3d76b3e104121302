"""What transformers' continuous batching calls: attention over its paged cache."""

from __future__ import annotations
from typing import Any
import torch
from torch import Tensor


def paged_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    raise NotImplementedError
