"""Every kernel type, one module each, found by its name: `KvCacheScatter` is in `kv_cache_scatter`.

A module is imported when its kernel type is first asked for; `load_all` imports every one.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any


def module_names() -> list[str]:
    """Names of the modules here, which are the snake-case names of the kernel types."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_all() -> None:
    """Import every module, so that every kernel type is registered."""
    for name in module_names():
        importlib.import_module(f"{__name__}.{name}")


def class_names() -> list[str]:
    """Names of the kernel types here."""
    return ["".join(word.title() for word in module.split("_")) for module in module_names()]


def __dir__() -> list[str]:
    return class_names()


def __getattr__(name: str) -> Any:
    if name == "__all__":  # of `from ptxgen.kernels import *`
        return class_names()
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if name[:1].isupper() and module in module_names():
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"ptxgen.kernels has no kernel type {name!r}; there are {', '.join(class_names())}")
