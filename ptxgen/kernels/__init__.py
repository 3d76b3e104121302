"""Every kernel type, one module each, found by its name: `KvCacheScatter` is in `kv_cache_scatter`.

A module is imported when its kernel type is first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

from ptxgen.packages import class_name, own_modules, snake_case


def class_names() -> list[str]:
    """Names of the kernel types here."""
    return [class_name(module) for module in own_modules()]


def __dir__() -> list[str]:
    return class_names()


def __getattr__(name: str) -> Any:
    if name == "__all__":  # of `from ptxgen.kernels import *`
        return class_names()
    module = snake_case(name)
    if name[:1].isupper() and module in own_modules() and class_name(module) == name:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"ptxgen.kernels has no kernel type {name!r}; there are {', '.join(class_names())}")
