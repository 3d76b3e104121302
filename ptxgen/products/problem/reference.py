"""Packed weights for an example of a product, and the product in float64: what the references of all products share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxgen.idioms import activation as activations
from ptxgen.weights.order import interleave, separate

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.products.problem.weighted import Multiplied
    from ptxgen.weights.format import WeightFormat


def drawn_weight(rng: np.random.Generator, kind: WeightFormat, n: int, k: int, parts: int = 1) -> np.ndarray:
    """A packed matrix, uint8 `[parts · records, bytes of a record]`, of normal values / √k; two are interleaved."""
    import numpy as np

    packed = []
    for _ in range(parts):
        values = rng.standard_normal((n, k), np.float32) * np.float32(k**-0.5)
        packed.append(kind.pack(kind.quantise(values), n, k))
    records = kind.records(n)
    whole = interleave(packed[0], packed[1], records) if parts == 2 else packed[0]
    return whole.reshape(parts * records, -1)


def multiplied(spec: Multiplied, x: np.ndarray, arguments: Mapping[str, Any]) -> np.ndarray:
    """Float64 `[rows, n]` of x `[rows, k]`: the product with `weight`, bias, activation and gate."""
    import numpy as np

    packed = arguments["weight"].reshape(-1)
    packs = separate(packed, spec.kind.records(spec.n)) if spec.gated else (packed,)
    sums = [x @ spec.kind.values(each, spec.n, spec.k).astype(np.float64).T for each in packs]
    y: np.ndarray = sums[0] + (arguments["bias"].astype(np.float64) if spec.bias else 0.0)
    if spec.activation:
        y = activations.reference(spec.activation, y)
    return y * sums[1] if spec.gated else y


def normed(x: np.ndarray, eps: float, offset: float, weight: np.ndarray) -> np.ndarray:
    """x / sqrt(mean(x²) + eps) · (offset + weight) of every row, in float64."""
    import numpy as np

    mean = np.mean(x**2, 1, keepdims=True)
    found: np.ndarray = x / np.sqrt(mean + eps) * (offset + weight.astype(np.float64))
    return found
