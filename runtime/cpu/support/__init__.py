"""Functions in LLVM IR that emitted kernels call: faults, address look-up, memory, atomics, barriers, the driver.

A kernel's module holds the ones it needs and no others. `@support("ld")` registers a builder for every function whose
name begins with `ld.`; it gets the remaining words of the name (`ld.global.v4.b32` → `"global", "v4", "b32"`) and
returns the function's text. Calls inside the text are followed, so a builder states no dependencies. A function has
two texts, with and without what `if_(CHECKING)` adds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module

from ptxgen.runtime.cpu.native.ir import of_mode

Builder = Callable[..., str]
_BUILDERS: dict[str, Builder] = {}
_CALL = re.compile(r"@((?!llvm\.)[\w.]+)")
_PARTS = (
    "support.faults", "support.parking", "support.scheduler", "support.next_block",
    "support.watched_access", "support.load_store", "support.atomic", "support.transcendental",
    "support.float_extremes", "support.integer",
    "support.convert", "support.warp", "support.matrix", "support.tiles", "support.cluster", "support.mbarrier",
    "support.async_copy", "support.bulk", "support.tensor_boxes", "support.tensor_copy", "support.wgmma",
    "support.register_pool", "support.printing",
    "check.shadow", "check.shared_cells", "check.vector_clocks", "check.shared_races", "check.async_proxy",
    "check.release_records", "check.record_rows", "check.release_acquire", "check.global_races", "check.global_reads",
    "check.deferred_reductions", "check.remote_shared", "check.late_lanes", "check.made_maps", "check.lane_turns",
    "support.equal_stores",
)  # fmt: skip


def support(stem: str) -> Callable[[Builder], Builder]:
    """Register a builder for the functions `stem` and `stem.…`."""

    def register(builder: Builder) -> Builder:
        assert stem not in _BUILDERS, stem
        _BUILDERS[stem] = builder
        return builder

    return register


@lru_cache(maxsize=4096)
def function_text(name: str, check: bool) -> str:
    """The text of one support function, for check mode or for the others."""
    return of_mode(_written(name), check)


@lru_cache(maxsize=4096)
def _written(name: str) -> str:
    _load()
    stem, *words = name.split(".")
    return _BUILDERS[stem](*words)


@lru_cache(maxsize=4096)
def called_by(text: str) -> tuple[str, ...]:
    """Names of the support functions that a text calls or mentions."""
    _load()
    return tuple(dict.fromkeys(name for name in _CALL.findall(text) if name.partition(".")[0] in _BUILDERS))


def closure(texts: Iterable[str], check: bool) -> dict[str, None]:
    """Names, sorted, of every support function that these texts call, directly or through others."""
    found: set[str] = set()
    todo = [name for text in texts for name in called_by(text)]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += called_by(function_text(name, check))
    return dict.fromkeys(sorted(found))


@lru_cache(maxsize=1)
def _load() -> None:
    for part in _PARTS:
        import_module(f"ptxgen.runtime.cpu.{part}")
