"""Two products with an RMS norm between them, which the first leaves for the second or a launch of its own makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ptxgen.kernel import KernelType
from ptxgen.runtime.core.device import Device
from ptxgen.weights import weight_format

N = 512  # columns and outputs


class Chain(NamedTuple):
    """Kernels of one kind: `product` and `packing` by their fields, which have the precision; `pack` rows by that, as a
    product reads them; `squares`: the shape of sums beside `rows` rows."""

    product: Callable[..., KernelType]
    packing: Callable[..., KernelType]
    pack: Callable[[np.ndarray, str], np.ndarray]
    squares: tuple[int, ...]
    rows: int
    target: str


def _results(
    chain: Chain, device: Device, scale: float, weights: str, fields: Mapping[str, Any], *, left: bool
) -> tuple[np.ndarray, np.ndarray]:
    """x + A·u, normed, then B·; results of kernels, and of float64. `left`: by the first product."""
    rng, kind, rows = np.random.default_rng(5), weight_format(weights), chain.rows
    first, second = (rng.standard_normal((N, N), np.float32) * np.float32(N**-0.5) for _ in "ab")
    packed = [kind.pack(kind.quantise(each), N, N).reshape(N // 16, -1) for each in (first, second)]
    first, second = (kind.values(each.reshape(-1), N, N).astype(np.float64) for each in packed)
    u, x = rng.standard_normal((rows, N), np.float32), np.float32(scale) * rng.standard_normal((rows, N), np.float32)
    gain, given = rng.uniform(0.1, 3.0, N).astype(np.float32), chain.pack(u, fields["precision"])
    stream, out, gains = device.array(x), device.empty((rows, N), "f32"), device.array(gain)
    between, squares = device.empty(given.shape, "bf16"), device.empty(chain.squares, "f32")
    beside = {"norm_weight": gains, "digits": between, "out_squares": squares} if left else {}
    spec = chain.product(n=N, k=N, **fields, residual=True, norm_out=left)
    bound = device.load(spec, chain.target).bind(
        x=device.array(given), weight=device.array(packed[0]), out=stream, n_rows=rows, **beside
    )
    bound.launch()
    if not left:
        packing = device.load(chain.packing(fields["precision"]), chain.target)
        packing.bind(x=stream, norm_weight=gains, out=between, n_rows=rows).launch()
    spec = chain.product(n=N, k=N, **fields, norm="rms" if left else "")
    reads = {"squares": squares} if left else {}
    bound = device.load(spec, chain.target).bind(
        x=between, weight=device.array(packed[1]), out=out, n_rows=rows, **reads
    )
    bound.launch()
    sums = x.astype(np.float64) + u.astype(np.float64) @ first.T
    sums = sums / np.sqrt((sums**2).mean(1, keepdims=True) + 1e-6) * gain
    return out.numpy().astype(np.float64), sums @ second.T


def assert_as_exact_as_a_norm_before(
    chain: Chain, device: Device, scale: float, limits: Mapping[str, float], weights: str = "bf16", **shape: Any
) -> None:
    """By precision within its limit, and no half as much again as with a launch that norms; `shape`: of products."""
    for precision, limit in limits.items():
        found = {}
        for left in (True, False):
            fields = {"weights": weights, "precision": precision, **shape}
            got, want = _results(chain, device, scale, weights, fields, left=left)
            found[left] = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert found[True] < limit, (precision, found)
        assert found[True] < 1.5 * found[False], (precision, found)
