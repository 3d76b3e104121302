"""Every golden kernel on the NumPy oracle against its reference: evidence that shares nothing with the executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.golden import Goldens
from ptxgen.launch import evaluate
from ptxgen.parity import compare, limit_of
from tests.oracle import Array, Oracle
from tests.support.kernels import GOLDENS

CASES = {case.file: case for case in Goldens(GOLDENS).cases()}


def argument(device: Oracle, param: Any, value: Any, capacities: dict[str, int]) -> Any:
    """One argument on the oracle: buffers copied, pointer tables made, workspaces zeroed or poisoned."""
    if param.access == "workspace":
        raw = np.full(max(param.nbytes(capacities), 1), 0 if param.zeroed else 0xFF, np.uint8)
        return device.array(raw)
    if isinstance(value, list):
        return device.array(np.array([device.array(np.asarray(v)).pointer for v in value], np.uint64))
    return device.array(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("file", CASES)
def test_golden_matches_its_reference(file):
    case = CASES[file]
    spec, ptx, device = case.spec, case.generate(), Oracle()
    values = spec.example(np.random.default_rng(7))
    expected = spec.reference(**{n: v.copy() if isinstance(v, np.ndarray) else v for n, v in values.items()})
    args = {p.name: argument(device, p, values.get(p.name), dict(spec.sizes)) for p in ptx.params}
    grid = tuple(evaluate(extent, spec.sizes) for extent in ptx.launch.grid)
    kernel = device.module(ptx.text)[ptx.entry]
    kernel.launch(grid, ptx.launch.block, list(args.values()), ptx.launch.shared, ptx.launch.cluster)
    for name, want in expected.items():
        if isinstance(args[name], Array):
            verdict = compare(name, args[name].numpy(), np.asarray(want), limit_of(spec))
            assert verdict.ok, str(verdict)
