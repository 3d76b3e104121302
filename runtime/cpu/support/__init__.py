"""Functions in LLVM IR that emitted kernels call: faults, address look-up, memory, atomics, barriers, the driver.

A kernel's module holds the ones it needs and no others. `@support("ld")` registers a builder for every function whose
name begins with `ld.`; it gets the remaining words of the name (`ld.global.v4.b32` → `"global", "v4", "b32"`) and
returns the function's text. Calls inside the text are followed, so a builder states no dependencies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module

Builder = Callable[..., str]
_BUILDERS: dict[str, Builder] = {}
_CALL = re.compile(r"@((?!llvm\.)[\w.]+)")
_PARTS = (
    "core", "driver", "memory", "atomic", "math", "integer", "convert", "warp", "shadow", "races", "matrix", "cluster", "mbarrier",
    "async_copy", "bulk", "wgmma",
)  # fmt: skip


def support(stem: str) -> Callable[[Builder], Builder]:
    """Register a builder for the functions `stem` and `stem.…`."""

    def register(builder: Builder) -> Builder:
        assert stem not in _BUILDERS, stem
        _BUILDERS[stem] = builder
        return builder

    return register


@lru_cache(maxsize=4096)
def function_text(name: str) -> str:
    """The text of one support function."""
    _load()
    stem, *words = name.split(".")
    return _BUILDERS[stem](*words)


def closure(texts: Iterable[str], stop: Iterable[str] = ()) -> list[str]:
    """Texts of every support function that these texts call, directly or through others; `stop` are left out."""
    _load()
    found: dict[str, str] = {}
    left_out = frozenset(stop)
    todo = [name for text in texts for name in _CALL.findall(text)]
    while todo:
        name = todo.pop()
        if name in found or name in left_out or name.partition(".")[0] not in _BUILDERS:
            continue
        found[name] = function_text(name)
        todo += _CALL.findall(found[name])
    return [found[name] for name in sorted(found)]


@lru_cache(maxsize=1)
def _load() -> None:
    for part in _PARTS:
        import_module(f"{__name__}.{part}")
