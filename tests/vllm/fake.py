"""As much of vLLM as the record says: abstract classes, enumerations, the registry. Put into `sys.modules`."""

from __future__ import annotations

import enum
import json
import types
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

CONTRACT: dict[str, Any] = json.loads((Path(__file__).parent / "contract.json").read_text(encoding="utf-8"))


def modules() -> dict[str, types.ModuleType]:
    """The fake modules by name."""
    backend: Any = types.ModuleType("vllm.v1.attention.backend")
    for name, methods in CONTRACT["abstract"].items():
        setattr(backend, name, _abstract(name, methods))
    backend.AttentionType = types.SimpleNamespace(**CONTRACT["attention_types"])
    backend.AttentionCGSupport = types.SimpleNamespace(**CONTRACT["cudagraph_support"])
    backend.MultipleOf = type("MultipleOf", (), {"__init__": lambda self, base: setattr(self, "base", base)})
    registry: Any = types.ModuleType("vllm.v1.attention.backends.registry")
    overridden: dict[Any, str | None] = {}

    class Slot(enum.Enum):
        CUSTOM = None

        def is_overridden(self) -> bool:
            return self in overridden

    def register_backend(backend: Any, class_path: str | None = None, is_mamba: bool = False) -> Any:
        overridden[backend] = class_path

    registry.AttentionBackendEnum, registry.register_backend, registry.overridden = Slot, register_backend, overridden
    root: Any = types.ModuleType("vllm")
    root.envs = types.SimpleNamespace(VLLM_BATCH_INVARIANT=False)
    packages = ("vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends")
    return {
        "vllm": root, **{name: types.ModuleType(name) for name in packages}, backend.__name__: backend,
        registry.__name__: registry,
    }  # fmt: skip


def _abstract(name: str, methods: list[str]) -> type:
    def method(*_: Any) -> None: ...

    def keep(self: Any, *given: Any) -> None:
        for key, value in zip(CONTRACT["parameters"][name]["__init__"], given, strict=True):
            setattr(self, key, value)

    found = {m: abstractmethod(keep if m == "__init__" and "Builder" in name else method) for m in methods}
    return type(name, (ABC,), found)
