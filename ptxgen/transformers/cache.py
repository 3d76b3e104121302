"""A cache that grows in place: transformers' `DynamicCache`, but layers that keep all positions have room for more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

LEAST_ROOM = 256  # positions behind those that are held
SHARE = 8  # or one for so many that are held: a position is copied about so many times in all


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values are the beginnings of larger tensors, to which positions are appended; a `DynamicLayer` copies
    all of them for each token. Whatever else changes them leaves tensors of their own, which are moved once."""

    keys: Any
    values: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._rooms: list[Tensor | None] = [None, None]

    def update(self, key_states: Tensor, value_states: Tensor, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """Append key and value `[batch, kv_heads, new, dim]`; all of them, `[batch, kv_heads, positions, dim]`."""
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            return super().update(key_states, value_states, *given, **more)  # type: ignore[no-any-return]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._appended(0, self.keys, key_states)
        self.values = self._appended(1, self.values, value_states)
        return self.keys, self.values

    def _appended(self, number: int, held: Tensor, new: Tensor) -> Tensor:
        room = self._rooms[number]
        batch, heads, count, dim = new.shape
        rows = held.shape[2] if held.numel() else 0
        total = rows + count
        if room is None or not _begins(held, room, rows) or total > room.shape[2] or room.shape[0] != batch:
            more = total + max(LEAST_ROOM, total // SHARE)
            room = self._rooms[number] = new.new_empty((batch, heads, more, dim))
            if rows:
                room[:, :, :rows] = held
        room[:, :, rows:total] = new
        return room[:, :, :total]

    def offload(self) -> None:
        """To the CPU, without the room."""
        super().offload()
        self._rooms = [None, None]


class GrowingCache(DynamicCache):  # type: ignore[misc]
    """What to give a model as `past_key_values` in place of a `DynamicCache`, made as one is (`config=model.config`).
    It appends keys and values in place, where a `DynamicCache` copies all of them for every token, and takes up to an
    eighth more memory, or room for 256 positions. Layers with a window are transformers' own."""

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


def _begins(held: Tensor, room: Tensor, rows: int) -> bool:
    """Whether the first rows of a room are what is held."""
    return rows == 0 or (held.data_ptr() == room.data_ptr() and held.stride() == room.stride())
