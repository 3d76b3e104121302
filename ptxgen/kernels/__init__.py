"""Every kernel type, one module each. A module placed here is found by itself."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    for _name, _value in vars(importlib.import_module(f"{__name__}.{_module.name}")).items():
        if getattr(_value, "kernel_name", "") and _value.__module__ == f"{__name__}.{_module.name}":
            globals()[_name] = _value


def __getattr__(name: str) -> type:
    raise AttributeError(f"ptxgen.kernels has no kernel type {name!r}; there are {', '.join(_kernel_names())}")


def _kernel_names() -> list[str]:
    return sorted(name for name, value in globals().items() if getattr(value, "kernel_name", ""))
