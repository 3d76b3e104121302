"""A case of the collection: one launch of one kernel that another compiler has made, and what NumPy says of it.

Texts lie in `texts/COMPILER.SM.json.xz` by the case's name, as `python -m tests.tools.compile_texts` wrote them.
"""

from __future__ import annotations

import json
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.evidence.corpus.case import Work, compare

TEXTS = Path(__file__).parent / "texts"
VERSIONS = TEXTS / "versions.json"
TARGETS = ("sm_75", "sm_80", "sm_90")
CASES: dict[tuple[str, str], Case] = {}
# What check mode finds with reason: the PTX ISA forbids what the compiler wrote, as docs/compilers.md explains
FOUND = {
    ("triton", "matmul f16 sums"): "registers of wgmma without a wait",
}


@dataclass(frozen=True)
class Case:
    """One kernel of one compiler's. `how` is what its driver compiles: signature, constants, options.

    `pointers` leads from an argument to arrays whose addresses fill it. `least` is the lowest target it is made for.
    """

    compiler: str
    name: str
    grid: tuple[int, ...]
    make: Callable[[np.random.Generator], Work]
    block: tuple[int, ...] = ()
    how: dict[str, Any] = field(default_factory=dict)
    least: str = "sm_75"
    shared: int = 0

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of the collection that have it."""
        return TARGETS[TARGETS.index(self.least) :]

    def work(self) -> Work:
        """Inputs and expectations, the same on every call."""
        return self.make(np.random.default_rng(zlib.crc32(self.name.encode())))

    def run(self, device: Any, text: dict[str, Any]) -> None:
        """Launches a text of it on `device`, and raises `AssertionError` on a difference."""
        work = self.work()
        arrays = [device.array(a) if isinstance(a, np.ndarray) else np.int32(a) if type(a) is int else a
                  for a in [*work.args, *work.hidden]]  # fmt: skip
        count = len(work.args)
        for position, (where, first) in getattr(work, "pointers", {}).items():
            addresses = np.array([arrays[count + first + n].pointer for n in range(where)], np.int64)
            arrays[position] = device.array(addresses)
        scratch = int(text.get("scratch", 0)) * int(np.prod(self.grid))
        extra = [device.array(np.zeros(max(scratch, 16), np.uint8)), 0][: text.get("hidden", 0)]
        block = self.block or (32 * text["warps"],)
        kernel = device.module(text["ptx"])[text["entry"]]
        kernel.launch(self.grid, block, [*arrays[:count], *extra], shared=text.get("shared", 0) or self.shared)
        for position, expected in work.expected.items():
            compare(f"{self.name}: argument {position}", arrays[position].numpy(), expected)


@dataclass(frozen=True)
class Pointing(Work):
    """Work with an argument that holds the addresses of some `hidden` arrays: position → (count, first)."""

    pointers: dict[int, tuple[int, int]] = field(default_factory=dict)


def case(
    compiler: str, name: str, grid: int | tuple[int, ...], block: int | tuple[int, ...] = (), *, least: str = "sm_75",
    shared: int = 0, **how: Any,
) -> Callable[[Callable[[np.random.Generator], Work]], Callable[[np.random.Generator], Work]]:  # fmt: skip
    """Registers the decorated maker as a case."""

    def register(make: Callable[[np.random.Generator], Work]) -> Callable[[np.random.Generator], Work]:
        assert (compiler, name) not in CASES, f"two cases are named {name}"
        dims = (grid if isinstance(grid, tuple) else (grid,), block if isinstance(block, tuple) else (block,))
        CASES[compiler, name] = Case(compiler, name, dims[0], make, dims[1], how, least, shared)
        return make

    return register


def versions() -> dict[str, str]:
    """The version of each compiler that made the texts, by its name."""
    found: dict[str, str] = json.loads(VERSIONS.read_text(encoding="utf-8"))
    return found


@cache
def texts(compiler: str, target: str) -> dict[str, dict[str, Any]]:
    """The texts of a compiler for a target, by case; none where there is no such file."""
    path = TEXTS / f"{compiler}.{target}.json.xz"
    found: dict[str, dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}
    return found
