"""A cache that grows in place: transformers' `DynamicCache`, but layers that keep all positions have room for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

LEAST_ROOM = 256  # positions behind those that are held
SHARE = 8  # or one for so many that are held: a position is copied about so many times in all


@dataclass
class Room:
    """A tensor `[batch, kv_heads, positions, dim]`, of which so many first positions were handed out: those are never
    written again, so that tensors taken from a cache keep their values whatever is appended later."""

    tensor: Tensor
    filled: int

    def takes(self, held: Tensor, new: Tensor) -> bool:
        """Whether `new` can stand behind what is held: that ends where the room's content ends, and there is room."""
        rows = held.shape[2] if held.numel() else 0
        return (
            rows == self.filled > 0
            and rows + new.shape[2] <= self.tensor.shape[2]
            and held.data_ptr() == self.tensor.data_ptr()
            and held.stride() == self.tensor.stride()
            and (torch.is_inference_mode_enabled() or not self.tensor.is_inference())
        )


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values are the beginnings of larger tensors, to which positions are appended; a `DynamicLayer` copies
    all of them for each token. Whatever else changes them leaves tensors of their own, which are moved once. Where
    gradients are enabled, where torch compiles, and for tensors that do not go together, it is a `DynamicLayer`."""

    keys: Any
    values: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._rooms: list[Room | None] = [None, None]

    def update(self, key_states: Tensor, value_states: Tensor, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """Append key and value `[batch, kv_heads, new, dim]`; all of them, `[batch, kv_heads, positions, dim]`."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            return self._copied(key_states, value_states, *given, **more)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if not (_alike(self.keys, key_states) and _alike(self.values, value_states)):
            return self._copied(key_states, value_states, *given, **more)
        self.keys = self._appended(0, self.keys, key_states)
        self.values = self._appended(1, self.values, value_states)
        return self.keys, self.values

    def _copied(self, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
        self._leave()
        return super().update(*given, **more)  # type: ignore[no-any-return]

    def _appended(self, number: int, held: Tensor, new: Tensor) -> Tensor:
        room = self._rooms[number]
        rows = held.shape[2] if held.numel() else 0
        total = rows + new.shape[2]
        if room is None or not room.takes(held, new):
            self._rooms[number] = None  # before there is a larger one
            more = total + max(LEAST_ROOM, total // SHARE)
            room = self._rooms[number] = Room(new.new_empty((*new.shape[:2], more, new.shape[3])), rows)
            if rows:
                room.tensor[:, :, :rows] = held
        room.tensor[:, :, rows:total] = new
        room.filled = total
        return room.tensor[:, :, :total]

    def _leave(self) -> None:
        """Keep no room: what is held is, or will be, elsewhere."""
        self._rooms = [None, None]

    def offload(self) -> None:
        """To the CPU, without the room."""
        super().offload()
        self._leave()

    def reset(self) -> None:
        """Forget all, the room with it."""
        super().reset()
        self._leave()

    def reorder_cache(self, beam_idx: Any) -> None:
        """Sequences of these numbers, copied."""
        super().reorder_cache(beam_idx)
        self._leave()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence so many times, copied."""
        super().batch_repeat_interleave(repeats)
        self._leave()

    def batch_select_indices(self, indices: Any) -> None:
        """Sequences of these numbers alone, copied."""
        super().batch_select_indices(indices)
        self._leave()


class GrowingCache(DynamicCache):  # type: ignore[misc]
    """What to give a model as `past_key_values` in place of a `DynamicCache`, made as one is (`config=model.config`).
    It appends keys and values in place, where a `DynamicCache` copies all of them for every token, and keeps room for
    an eighth more positions, or for 256. Layers with a window are transformers' own."""

    layers: list[Any]
    layer_class_to_replicate: Any

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        if self.layer_class_to_replicate is DynamicLayer:
            self.layer_class_to_replicate = GrowingLayer
        self.layers = [_growing(layer) if type(layer) is DynamicLayer else layer for layer in self.layers]


def _growing(layer: DynamicLayer) -> GrowingLayer:
    """A layer that holds the same."""
    made = GrowingLayer()
    if layer.is_initialized:
        made.update(layer.keys, layer.values)
    return made


def _alike(held: Tensor, new: Tensor) -> bool:
    """Whether `new` differs from what is held in nothing but its positions; empty ones of one axis hold nothing."""
    if new.dim() != 4 or held.dtype != new.dtype or held.device != new.device:
        return False
    return bool(held.shape == (0,) or (held.shape[:2] == new.shape[:2] and held.shape[3] == new.shape[3]))
