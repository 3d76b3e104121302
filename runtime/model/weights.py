"""A Program's weights from a file to the device: packed one by one, never twice in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ptxgen.models.packing import WeightSource, packed
from ptxgen.models.program import Program
from ptxgen.runtime.core.memory.buffer import Buffer

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

Progress = Callable[[int, int], None]
"""Told after every tensor: bytes that are on the device, and bytes of all."""


def load_weights(
    device: Device, program: Program, source: WeightSource, progress: Progress | None = None
) -> dict[str, Buffer]:
    """The weights of a program on the device, by name."""
    weights = program.of_kind("weight")
    total, done = sum(tensor.nbytes for tensor in weights), 0
    found: dict[str, Buffer] = {}
    for tensor in weights:
        buffer = found[tensor.name] = device.empty(tensor.shape, tensor.dtype)
        offset = 0
        for piece in packed(tensor, source):
            buffer.view(piece.shape, piece.dtype, offset).copy_from(piece)
            offset += piece.nbytes
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    return found
