"""`Snapshot`: the filled part of a KV cache in host memory; saved and loaded as `.npz`. Owns no device memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptxgen.dtypes import DType, f16, s8
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import SpecError
from ptxgen.files.archive import read_arrays, write_arrays
from ptxgen.scales import dequantise

_FORMAT = 1


@dataclass(frozen=True)
class Layer:
    """K and V of one layer, `[n_kv_heads, seq_len, head_dim]` in the cache's dtype; int8 with f16 scales
    `[n_kv_heads, seq_len, ceil(head_dim / 32)]`, which are None for other dtypes. Of a ring the positions from `first`
    on."""

    k: np.ndarray
    v: np.ndarray
    k_scales: np.ndarray | None = None
    v_scales: np.ndarray | None = None
    first: int = 0

    @property
    def seq_len(self) -> int:
        """Positions of the sequence."""
        return self.first + int(self.k.shape[1])

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, without those that are None."""
        return {n: a for n, a in vars(self).items() if a is not None and n != "first"}


@dataclass(frozen=True)
class Snapshot:
    """Every layer's positions. Iterating gives (K, V) per layer in float32, whatever the dtype. `tokens` s32
    `[seq_len]`: those at the positions, where a `Model` took it; a cache knows none. `model`: what tells that `Model`
    from others; "" of a cache."""

    dtype: DType
    layers: tuple[Layer, ...]
    tokens: np.ndarray | None = None
    model: str = ""

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for layer in self.layers:
            yield dequantise(layer.k, layer.k_scales), dequantise(layer.v, layer.v_scales)

    def __len__(self) -> int:
        return len(self.layers)

    def save(self, path: str | Path) -> None:
        """Write an `.npz` file, whole or not at all; bf16 and fp8 are kept as their bits."""
        arrays = {
            f"{i}.{name}": array.view(f"u{array.itemsize}")
            for i, layer in enumerate(self.layers)
            for name, array in layer.arrays().items()
        }
        first = {"first": [layer.first for layer in self.layers]} if any(layer.first for layer in self.layers) else {}
        more = first | ({"model": self.model} if self.model else {})
        head = json.dumps({"ptxgen_snapshot": _FORMAT, "dtype": self.dtype.name, "layers": len(self.layers), **more})
        tokens = {} if self.tokens is None else {"tokens": self.tokens}
        write_arrays(path, {"head": np.array(head), **tokens, **arrays})

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Read what `save` wrote; `SpecError` for any other file, `OSError` where none can be opened."""
        stored = read_arrays(path, "a snapshot file")
        if "head" not in stored:
            raise SpecError(
                f"{path}: must be a snapshot file (it has no head, but {', '.join(sorted(stored)) or 'nothing'})"
            )
        try:
            head = json.loads(str(stored["head"]))
            if head["ptxgen_snapshot"] != _FORMAT:
                raise ValueError(f"of format {head['ptxgen_snapshot']}, and this reads {_FORMAT}")
            dtype = to_dtype(head["dtype"])
            kinds = {"k": dtype, "v": dtype, "k_scales": f16, "v_scales": f16}
            names = list(kinds) if dtype == s8 else ["k", "v"]
            first = head.get("first") or [0] * head["layers"]
            layers = tuple(
                Layer(**{n: _viewed(stored[f"{i}.{n}"], kinds[n]) for n in names}, first=int(first[i]))
                for i in range(head["layers"])
            )
            tokens = stored.get("tokens")
            if tokens is not None and (tokens.ndim != 1 or tokens.dtype != np.int32):
                raise ValueError(f"tokens of {tokens.dtype} {tokens.shape}")
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as wrong:
            raise SpecError(f"{path}: must be a snapshot file ({wrong})") from None
        return cls(dtype, layers, tokens, str(head.get("model", "")))


def _viewed(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Bits as the values they are; `ValueError` for an array that is no layer's."""
    if bits.ndim != 3 or bits.dtype != np.dtype(f"u{dtype.bytes}"):
        raise ValueError(f"an array of {bits.dtype} {bits.shape}, which no layer of {dtype} has")
    return bits.view(dtype.numpy)
