"""A Program's weights from a file to the device: packed one by one, never twice in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ptxgen.errors import SpecError, brief
from ptxgen.models.packing import WeightSource, packed
from ptxgen.models.program import Program
from ptxgen.runtime.core.memory.buffer import Buffer

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

Progress = Callable[[int, int], None]
"""Told after every tensor: bytes that are on the device, and bytes of all."""


class Weights(dict[str, Buffer]):
    """The weights of a program on the device, by name; `formats`: those of its matrices."""

    def __init__(self, program: Program, buffers: Mapping[str, Buffer]) -> None:
        super().__init__(buffers)
        self.formats = {tensor.name: tensor.format for tensor in program.of_kind("weight")}


def load_weights(device: Device, program: Program, source: WeightSource, progress: Progress | None = None) -> Weights:
    """The weights of a program on the device."""
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
    return Weights(program, found)


def shared_weights(program: Program, weights: Mapping[str, Buffer]) -> Weights:
    """Another model's weights as those of a program. Raises `SpecError` for ones that this program has not got."""
    for tensor in program.of_kind("weight"):
        held = weights.get(tensor.name) if isinstance(weights, Mapping) else None
        if not isinstance(held, Buffer) or held.nbytes != tensor.nbytes:
            got = f"{held.nbytes:,} bytes" if isinstance(held, Buffer) else brief(held)
            want = f"{tensor.nbytes:,} bytes of {tensor.name}, as another model of the same source has them"
            raise SpecError(f"Model.weights: must hold {want} (got {got})")
        has = weights.formats.get(tensor.name, tensor.format) if isinstance(weights, Weights) else tensor.format
        if has != tensor.format:
            raise SpecError(f"Model.weights: must hold {tensor.name} in {tensor.format} (got it in {has})")
    return Weights(program, weights)
