"""Products of digits: what tests of their two kinds share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxgen.kernels import DigitGemm
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.weights import weight_format


def assert_same_bits_among_others(
    spec: DigitGemm, target: str, tokens: int, pack: Callable[[np.ndarray], np.ndarray]
) -> None:
    """A token has the same results alone, among `tokens`, and in their reverse order. `pack` gives x of rows."""
    rng, kind = np.random.default_rng(3), weight_format(spec.weights)
    values = rng.standard_normal((spec.n, spec.k), np.float32)
    weight = kind.pack(kind.quantise(values), spec.n, spec.k).reshape(kind.records(spec.n), -1)
    x = rng.standard_normal((tokens, spec.k), np.float32)
    device = CpuDevice(mode="fast")

    def rows(given: np.ndarray) -> np.ndarray:
        out = device.empty((len(given), spec.n), "f32")
        arrays = {"x": device.array(pack(given)), "weight": device.array(weight)}
        device.load(spec, target).bind(**arrays, out=out, n_rows=len(given)).launch()
        return np.asarray(out.numpy())

    whole = rows(x)
    assert (rows(x[4:5])[0] == whole[4]).all()
    assert (rows(x[::-1])[tokens - 5] == whole[4]).all()
