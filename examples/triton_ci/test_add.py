"""A test of a Triton kernel that runs without a GPU: `PTXGEN_TRITON=check pytest examples/triton_ci`."""

from __future__ import annotations

import os

import numpy as np
import pytest

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.skipif(not os.environ.get("PTXGEN_TRITON"), reason="PTXGEN_TRITON is not set")


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


def test_add():
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    out = np.empty_like(x)
    add[(4,)](x, y, out, 1000, BLOCK=256)
    np.testing.assert_array_equal(out, x + y)
