"""As much of vLLM as the record says of a version: abstract classes, enumerations, the registry. Put into
`sys.modules`."""

from __future__ import annotations

import enum
import json
import types
from abc import ABC, abstractmethod
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "contract.json").read_text(encoding="utf-8"))
SHARED: dict[str, Any] = RECORD["shared"]
VERSIONS = ("0.25", "0.33")


def modules(version: str) -> dict[str, types.ModuleType]:
    """The fake modules by name."""
    contract = RECORD[version]
    backend: Any = types.ModuleType("vllm.v1.attention.backend")
    for name, methods in contract["abstract"].items():
        builds = contract["parameters"][name]["__init__"] if "Builder" in name else []
        setattr(backend, name, _abstract(name, methods, builds))
    backend.AttentionType = types.SimpleNamespace(**SHARED["attention_types"])
    backend.AttentionCGSupport = types.SimpleNamespace(**SHARED["cudagraph_support"])
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
    found = {"vllm": root, **{name: types.ModuleType(name) for name in packages}}
    found |= {backend.__name__: backend, registry.__name__: registry}
    if "kv_cache_layouts" in contract:
        caches: Any = types.ModuleType("vllm.v1.kv_cache_interface")
        orders = contract["kv_cache_layouts"].items()
        layouts = {name: types.SimpleNamespace(name=name, value=tuple(order)) for name, order in orders}
        caches.KVCacheLayout = types.SimpleNamespace(**layouts)
        caches.AttentionSpec = make_dataclass("AttentionSpec", contract["kv_cache_spec"], frozen=True)
        found[caches.__name__] = caches
    return found


def kv_cache(layout: Any, spec: Any, blocks: int) -> Any:
    """A layer's cache of NaN as 0.33 hands it out: `[blocks, slots, block_size, content]` in the order of a layout."""
    import torch

    slots = spec.num_head_slots or spec.num_kv_heads
    content = (spec.state_content_bytes or 2 * spec.head_size * spec.dtype.itemsize) // spec.dtype.itemsize
    shape = (1, blocks, slots, spec.block_size, content)
    whole = torch.full([shape[dim] for dim in layout.value], float("nan"), dtype=spec.dtype)
    return whole.permute([layout.value.index(dim) for dim in range(5)])[0]


def _abstract(name: str, methods: list[str], builds: list[str]) -> type:
    def method(*_: Any) -> None: ...

    def keep(self: Any, *given: Any) -> None:
        for key, value in zip(builds, given, strict=True):
            setattr(self, key, value)

    found = {m: abstractmethod(keep if m == "__init__" and "Builder" in name else method) for m in methods}
    return type(name, (ABC,), found)
