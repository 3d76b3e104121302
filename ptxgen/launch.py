"""What a launch needs: parameters and geometry, as functions of the spec and of named capacities.

A *capacity* is a size that buffers have and the text does not: `batch`, `rows`, `positions`. Geometry and free shapes
are integers, or formulas of capacities in a notation that any language can evaluate: `+ - * //`, `min`, `max`,
`ceil_div`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError

__all__ = ["Extent", "Launch", "Param", "buffer", "capacities_of", "evaluate", "grid3", "scalar", "workspace"]

Extent = int | str
_FUNCTIONS = {"min": min, "max": max, "ceil_div": lambda a, b: -(-a // b)}
_NODES = (
    ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Call, ast.Name, ast.Load, ast.Constant,
)  # fmt: skip


def formula_tree(formula: str) -> ast.Expression:
    """A formula as Python reads it.

    CPython up to 3.11 counts for all threads together how deep the trees are that it makes (its issue 106905): a tree
    that another thread begins in the meantime is a `SystemError` here, and the next attempt succeeds.
    """
    for _ in range(100):
        try:
            return ast.parse(formula, mode="eval")
        except SystemError:
            continue
    return ast.parse(formula, mode="eval")


@lru_cache(maxsize=512)
def _compiled(formula: str) -> tuple[CodeType, frozenset[str]]:
    tree = formula_tree(formula)
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or (isinstance(node, ast.Constant) and type(node.value) is not int):
            raise SpecError(f"formula {formula!r}: only + - * //, {', '.join(_FUNCTIONS)}, integers and capacities")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _FUNCTIONS.keys()
    return compile(tree, "<formula>", "eval"), frozenset(names)


def capacities_of(extent: Extent) -> frozenset[str]:
    """Names of the capacities that an extent depends on."""
    return _compiled(extent)[1] if isinstance(extent, str) else frozenset()


def evaluate(extent: Extent, capacities: Mapping[str, int]) -> int:
    """The value of an extent. Raises `SpecError` naming a capacity that is missing."""
    if isinstance(extent, int):
        return extent
    code, names = _compiled(extent)
    missing = names - capacities.keys()
    if missing:
        raise SpecError(f"{extent!r}: needs {', '.join(sorted(missing))} (got {dict(capacities)})")
    return int(eval(code, {"__builtins__": {}, **_FUNCTIONS}, {n: capacities[n] for n in names}))


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kernel: it drives the signature, the packing, the checks at bind and the manifest.

    `kind`: "buffer" (a pointer), "pointers" (a pointer to an array of pointers), "scalar". `access`: "in", "out",
    "inout", or "workspace" (allocated at bind; zeroed once where `zeroed`, and left zeroed by the kernel).
    `shape`: extents, the last contiguous; () for a scalar. `align` in bytes is assumed by the text and checked at bind.
    """

    name: str
    dtype: DType
    kind: str = "buffer"
    access: str = "in"
    shape: tuple[Extent, ...] = ()
    align: int = 16
    zeroed: bool = False
    doc: str = ""

    @property
    def ptx_type(self) -> str:
        """Type in the signature: `u64` for pointers; 8- and 16-bit scalars and halves as their storage."""
        if self.kind != "scalar":
            return "u64"
        return self.dtype.storage if self.dtype.bits == 16 and self.dtype.is_float else self.dtype.name

    @property
    def declaration(self) -> str:
        """The parameter as it stands in the entry's signature."""
        if self.kind == "scalar":
            return f".param .{self.ptx_type} {self.name}_param"
        return f".param .u64 .ptr .global .align {self.align} {self.name}_param"

    def elements(self, capacities: Mapping[str, int]) -> int:
        """Number of elements of the buffer."""
        count = 1
        for extent in self.shape:
            count *= evaluate(extent, capacities)
        return count

    def nbytes(self, capacities: Mapping[str, int]) -> int:
        """Size of the buffer in bytes."""
        return self.elements(capacities) * (8 if self.kind == "pointers" else self.dtype.bytes)


def buffer(name: str, dtype: DType, *shape: Extent, access: str = "in", **more: Any) -> Param:
    """A `Param` for a buffer of that shape."""
    return Param(name, dtype, "buffer", access, shape, **more)


def scalar(name: str, dtype: DType, **more: Any) -> Param:
    """A `Param` for a value passed at launch."""
    return Param(name, dtype, "scalar", "in", (), dtype.bytes, **more)


def workspace(name: str, dtype: DType, *shape: Extent, **more: Any) -> Param:
    """A `Param` for scratch memory, sized exactly."""
    return Param(name, dtype, "buffer", "workspace", shape, **more)


@dataclass(frozen=True, slots=True)
class Launch:
    """Geometry of a launch: `grid` in CTAs, `block` in threads, `cluster` in CTAs, `shared` dynamic bytes.

    `resident`: so many CTAs of a multiprocessor must find registers; the assembler sees to it. `programmatic`: the text
    uses griddepcontrol and may be launched with programmatic stream serialization. `together`: CTAs wait for each
    other, so a device must hold all of the grid at once. Two such launches that nothing orders may each
    get a part of the multiprocessors, and then fail, as their waits give up after some seconds.
    """

    grid: tuple[Extent, Extent, Extent]
    block: tuple[int, int, int]
    shared: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    programmatic: bool = False
    resident: int = 1
    together: bool = False

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    def at(self, capacities: Mapping[str, int]) -> Launch:
        """The same launch with the formulas of its grid evaluated."""
        x, y, z = (evaluate(extent, capacities) for extent in self.grid)
        return replace(self, grid=(x, y, z))

    @property
    def capacities(self) -> frozenset[str]:
        """Names that the grid depends on."""
        return frozenset().union(*(capacities_of(extent) for extent in self.grid))


def grid3(*extents: Extent) -> tuple[Extent, Extent, Extent]:
    """Pad to three extents with 1."""
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def __dir__() -> list[str]:
    return list(__all__)
