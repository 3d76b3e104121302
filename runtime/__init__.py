"""Loads and launches PTX: on a GPU through the driver API, or on the CPU executor, with one API.

Nothing here touches a GPU, llvmlite or the CUDA bindings before a device is opened.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "Batch": "model.batch",
    "BatchedKvCache": "kv.batched",
    "BoundKernel": "core.launches.bound",
    "Buffer": "core.memory.buffer",
    "Device": "core.device",
    "Event": "core.stream",
    "Executor": "attention.executor",
    "Graph": "core.launches.graph",
    "Kernel": "core.launches.kernel",
    "KvCache": "kv.kvcache",
    "Model": "model.model",
    "Module": "core.launches.module",
    "ModuleCache": "core.launches.modulecache",
    "Sampling": "model.sampling",
    "Snapshot": "kv.snapshot",
    "Stream": "core.stream",
    "TensorMap": "core.memory.tensor_map",
    "compile_cuda": "cuda.nvrtc",
    "open_device": "opening",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
