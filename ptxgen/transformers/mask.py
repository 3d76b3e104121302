"""What a forward pass of transformers says of its mask, as the kernels want it: where a sequence's keys begin and end.

Owns the form of it: int32 `[batch, 1, 1 + window, columns]`, the same for every index of the third axis. One column has
ends, two have first keys and ends, none says that all keys count; so does no tensor, where there is no window. Every
query of a sequence sees the keys from its first one on; the last query stands at the last key. The window stands in the
shape because not all models tell their attention of it, and values lie on the device.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from ptxgen.transformers.sources import reads_masks

_AND = masking_utils.and_masks().__code__
_WINDOW = masking_utils.sliding_window_overlay(1).__code__


def bounds_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """The bounds, where the mask is causal, with a window or not, and padding lies on the left; else what sdpa takes:
    bool `[batch, 1, q_length, kv_length]`. Arguments are those of `transformers.masking_utils.sdpa_mask`. Models that
    attend by code of their own, or make masks of this one, get what eager attention adds.

    A padding mask is read on the host, unless torch traces or captures: then it must have its padding on the left.
    """
    if attends_itself(type(options.get("config"))):
        added: Tensor | None = masking_utils.eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, local_size=local_size,
            use_vmap=use_vmap, device=device, **options,
        )  # fmt: skip
        return added
    bidirectional = "allow_is_bidirectional_skip" in options
    plain = not (use_vmap or bidirectional) and _is_plain(mask_function, q_length, local_size, options.get("config"))
    if plain:
        end = q_offset + (q_length - kv_offset)
        first = _first_keys(attention_mask, kv_length, kv_offset, end)
        if first is not False:
            window = 0 if local_size is None or local_size >= kv_length else local_size
            bounds = _bounds(batch_size, kv_length, end, first, device)
            if bounds is None and window:
                bounds = torch.empty(batch_size, 1, 1, 0, dtype=torch.int32, device=device)
            return bounds if bounds is None else bounds.expand(-1, -1, 1 + window, -1)
    options.pop("allow_is_causal_skip", None)
    mask: Tensor | None = masking_utils.sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, local_size,
        allow_is_causal_skip=False, use_vmap=use_vmap, device=device, **options,
    )  # fmt: skip
    return mask


@torch.compiler.assume_constant_result
def attends_itself(config: type) -> bool:
    """Whether models of this configuration never ask which attention to use, or look into masks: what they do with a
    mask is their own, and ours says nothing to them. One warning says so."""
    return attends_itself_by(config)


@cache
def attends_itself_by(config: type) -> bool:
    models = sys.modules.get(config.__module__.replace("configuration_", "modeling_"))
    if models is None or models.__name__ == config.__module__:
        return False
    if hasattr(models, "ALL_ATTENTION_FUNCTIONS"):
        if not _reads_masks(models):
            return False
        why = "makes other masks of ours"
    else:
        parts = getattr(config, "sub_configs", {}).values()
        if any(part.__module__ != config.__module__ for part in parts):  # those attend, by their own modules' code
            return False
        why = "attends by itself"
    warnings.warn(f"ptxgen attention: {models.__name__} {why}; our kernels are not used", stacklevel=4)
    return True


def _reads_masks(models: ModuleType) -> bool:
    """Whether a model looks into the mask that it is given, in place of handing it to attention: then it must be one
    that transformers knows."""
    try:
        return reads_masks(inspect.getsource(models))
    except (OSError, TypeError):  # without a source
        return False


def are_bounds(mask: Tensor | None) -> bool:
    """Whether a mask is one of ours."""
    return mask is not None and mask.dtype == torch.int32


def opened(mask: Tensor | None, window: int) -> tuple[Tensor | None, int]:
    """Of a mask of ours the bounds `[batch, 1, 1, 1 or 2]`, None where all keys count, and its window; `window` is the
    layer's own, which counts where the mask has none. Other masks are as they were."""
    if mask is None or not are_bounds(mask):
        return mask, window
    bounds = mask[:, :, :1] if mask.shape[-1] else None
    return bounds, mask.shape[2] - 1 or window


def visible(bounds: Tensor | None, q_length: int, kv_length: int, window: int, causal: bool, like: Tensor) -> Tensor:
    """The bool mask `[batch or 1, 1, q_length, kv_length]` of bounds, on the device of `like`."""
    key = torch.arange(kv_length, device=like.device)
    first, end = 0, kv_length
    if bounds is not None:
        first, end = bounds[..., :1] if bounds.shape[-1] == 2 else 0, bounds[..., -1:]
    query = torch.arange(q_length, device=like.device)[:, None] + (end - q_length)
    seen = (key >= first) & (key < end) & (query > -kv_length)
    if causal:
        seen = seen & (key <= query)
    if window:
        seen = seen & (key > query - window)
    return seen.reshape(-1, 1, q_length, kv_length)


def _is_plain(function: Callable[..., Any], q_length: int, local_size: int | None, config: Any) -> bool:
    """Whether a mask function is causal, with a window of `local_size` where that is given, and nothing else."""
    if local_size is None:
        return function is masking_utils.causal_mask_function
    if torch.compiler.is_compiling():  # closures cannot be looked into; for one query a window is all there can be
        return q_length == 1 and local_size == getattr(config, "sliding_window", None)
    if function.__code__ is not _AND or function.__closure__ is None:
        return False
    parts = function.__closure__[0].cell_contents
    return len(parts) == 2 and parts[0].__code__ is _WINDOW and parts[1] is masking_utils.causal_mask_function


def _first_keys(
    padding: Tensor | None, kv_length: int, kv_offset: int | Tensor, end: int | Tensor
) -> Tensor | bool | None:
    """The first key of every sequence int32 `[batch]`; None where there is no padding, False where some lies
    elsewhere than on the left."""
    if padding is None:
        return None
    if padding.dim() != 2:
        return False
    if isinstance(kv_offset, Tensor) or kv_offset:
        at = torch.arange(kv_length, device=padding.device) + kv_offset
        padding = padding[:, at.clamp(max=padding.shape[1] - 1)]
    if not is_tracing(padding) and padding.all():
        return None
    padding = padding.bool()
    first = padding.int().argmax(-1)
    key = torch.arange(padding.shape[1], device=padding.device)
    if is_tracing(padding):
        return first.int()
    fits = (padding | (key < first[:, None]) | (key >= end)).all() & padding.any(-1).all()
    return first.int() if fits else False


def _bounds(
    batch: int, kv_length: int, end: int | Tensor, first: Tensor | bool | None, device: torch.device | str
) -> Tensor | None:
    if first is None and not isinstance(end, Tensor) and end == kv_length:
        return None
    if isinstance(end, Tensor):
        ends = end.to(device=device, dtype=torch.int32).expand(batch)
    else:
        ends = torch.full((batch,), end, dtype=torch.int32, device=device)
    if not isinstance(first, Tensor):
        return ends.contiguous().view(batch, 1, 1, 1)
    return torch.stack([first, ends]).t()[:, None, None, :]  # each column lies in one piece
