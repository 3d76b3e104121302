"""Trials of PackTokens and PackedGemm on the CPU executor, and how far results may be off."""

from __future__ import annotations

from typing import Any

from ptxgen.kernels import PackedGemm, PackTokens
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
