"""Devices that the corpus, the instruction tests and the fuzzer run on: the executor in each mode, the oracle, a GPU.

All have `array(ndarray)` and `module(text)[entry].launch(grid=, block=, args=, shared=, cluster=)`.
"""

from __future__ import annotations

from typing import Any

from ptxgen.runtime import open_device as runtime_device
from tests.evidence.oracle import Oracle
from tests.support.cpu_run import MODES
from tests.support.devices import ExecutorDevice


def open_device(name: str) -> Any:
    """`fast`, `random`, `check`: the executor; `oracle`; `cpu`, `cuda`: the runtime's devices."""
    if name in MODES:
        return ExecutorDevice(name)
    return Oracle() if name == "oracle" else runtime_device(name)
