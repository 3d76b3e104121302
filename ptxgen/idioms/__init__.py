"""Instruction sequences that several kernel types share. Each takes the builder first and appends to its fragment.

- Elements: `elements`, `convert` (between types), `quantised_rows`; `dot`, `reduce`, `activation`, `log2`.
- Threads over rows: `threads`, `rows`, `row_kernel`; `division` (of indices by constants).
- Heads and caches: `rope/`, `kv_cache`.
- The choice of a token: `sampling/`.
- Between CTAs and launches: `polls`, `programmatic`.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def __dir__() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> Any:
    """A module of idioms, when it is first used."""
    if name in __dir__():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
