"""Trials of PackTokens and PackedGemm on the CPU executor, and how far results may be off."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxgen.generator import generate
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.launch import evaluate
from ptxgen.runtime import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial

EXACT = 1e-6  # of a result whose every product is f32
FAST = 4e-3  # of one whose factors are rounded to bf16
WHERE = "sm_90a"


def tried(spec: PackedGemm | PackTokens, mode: str, rows: int, limit: float | None, **more: Any) -> Any:
    """The outcome of a trial in a mode of the executor, which must be within `limit` (None: the spec's own); options as
    `trial` has them."""
    where = WHERE if isinstance(spec, PackedGemm) else "sm_80"
    return trial(spec, CpuDevice(mode=mode), target=where, rows=rows, limit=limit, **more).require()


def counters_are_left_clear(spec: PackedGemm, rows: int) -> None:
    """Three launches with one workspace, in check mode: each leaves the counters as it found them, and equal bytes."""
    device = CpuDevice(mode="check")
    values = spec.example(np.random.default_rng(0), rows=rows)
    counters = next(p for p in generate(spec, WHERE).params if p.name == "given").shape
    given = device.zeros(tuple(evaluate(extent, {"rows": rows}) for extent in counters), "u32")
    arrays = {name: value if name == "n_rows" else device.array(value) for name, value in values.items()}
    bound = device.load(spec, WHERE).bind(**arrays, given=given)
    found = []
    for _ in range(3):
        bound.launch()
        device.synchronize()
        assert not given.numpy().any()
        found.append(arrays["out"].numpy().tobytes())
    assert len(set(found)) == 1


def launches_share_a_workspace(device: Device, spec: PackedGemm, rows: int) -> None:
    """40 launches back to back, of which the next may begin while CTAs of the last still run, give the bytes of one."""
    values = spec.example(np.random.default_rng(0), rows=rows)
    arrays = {name: value if name == "n_rows" else device.array(value) for name, value in values.items()}
    bound = device.load(spec, WHERE).bind(**arrays)
    bound.launch()
    device.synchronize()
    once = arrays["out"].numpy().tobytes()
    arrays["out"].fill(0)
    for _ in range(40):
        bound.launch()
    device.synchronize()
    assert arrays["out"].numpy().tobytes() == once
