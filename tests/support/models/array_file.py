"""A model in memory, as an opened file is: arrays by name, each matrix in a weight format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ptxgen.models.spec import ModelSpec
from ptxgen.weights import weight_format


@dataclass(frozen=True)
class Info:
    format: str
    rows: int
    cols: int


class ArrayFile:
    """`weights` by the names of `ModelSpec.tensors`, quantised to `format` (or to what `formats` says for a name)."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, np.ndarray], format: str = "f32", formats: Mapping[str, str] = {}
    ) -> None:
        self._weights = unfused(spec, weights)
        self.spec = replace(spec, block=replace(spec.block, fused=False))
        self.tensors = {
            name: Info(formats.get(name, format), *values.shape) if values.ndim == 2 else Info("f32", 1, len(values))
            for name, values in self._weights.items()
        }

    def read(self, name: str) -> Mapping[str, np.ndarray]:
        """The arrays of a tensor's format."""
        if self._weights[name].ndim == 1:
            return {"weight": self._weights[name]}
        return weight_format(self.tensors[name].format).quantise(self._weights[name])

    def values(self) -> dict[str, np.ndarray]:
        """What the formats hold, in float32: the weights of a reference."""
        found = {}
        for name, info in self.tensors.items():
            source, kind = self.read(name), weight_format(info.format)
            vector = self._weights[name].ndim == 1
            found[name] = source["weight"] if vector else kind.dequantise(source, info.rows, info.cols)
        return found


def unfused(spec: ModelSpec, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a family's files fuse, apart."""
    found = dict(weights)
    members = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    for name in weights:
        at, _, last = name.rpartition(".")
        if last in members:
            at_row = 0
            for member in members[last]:
                rows = spec.products()[member][0]
                found[f"{at}.{member}"] = weights[name][at_row : at_row + rows]
                at_row += rows
            del found[name]
    return found
