"""Products of several sequences that rotate and append q, k and v in their launch: what they leave unwritten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.kernels import DigitQkvAppend, PackedQkvAppend
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial

SHAPE: dict[str, Any] = {"max_len": 70, "head_dim": 32, "n_heads": 6, "n_kv_heads": 2, "k": 256}
PRODUCTS = pytest.mark.parametrize(
    ("kind", "target"),
    [(DigitQkvAppend, "sm_90"), (PackedQkvAppend, "sm_90a")],
    ids=["digit_qkv_append", "packed_qkv_append"],
)


@PRODUCTS
def test_a_sequence_without_a_position_in_the_cache_appends_nothing(kind: type[Any], target: str) -> None:
    spec = kind(**SHAPE, precise=True, precision="fast")
    given = spec.example(np.random.default_rng(0), rows=4)
    del given["q"]
    given["positions"] = np.array([3, -1, 70, 69], np.int32)
    out = trial(spec, CpuDevice(mode="check"), target=target, arguments=given, rows=4).require().outputs
    for name in ("k_cache", "v_cache"):
        same = [(out[name][row] == given[name][row]).all() for row in range(4)]
        assert same == [False, True, True, False], name
    assert np.isfinite(out["q"]).all()  # attention loads it, whatever the length


@PRODUCTS
def test_rows_past_the_last_write_nothing(kind: type[Any], target: str) -> None:
    spec = kind(**SHAPE, norm="rms")
    given = spec.example(np.random.default_rng(0), rows=6, n_rows=2)
    out = trial(spec, CpuDevice(mode="check"), target=target, arguments=given, rows=6).require().outputs
    for name in ("k_cache", "v_cache"):
        assert out[name][2:].tobytes() == given[name][2:].tobytes(), name
    assert not np.isnan(out["q"][:2]).any()
    assert np.isnan(out["q"][2:]).all()
