"""What a launch needs: parameters and geometry, as functions of the spec and of named capacities.

A *capacity* is a size that buffers have and the text does not: `batch`, `rows`, `positions`. Geometry and free shapes
are integers, or formulas of capacities in a notation that any language can evaluate: `+ - * //`, `min`, `max`,
`ceil_div`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError, brief, nearest

__all__ = ["Extent", "Launch", "Param", "buffer", "capacities_of", "evaluate", "grid3", "scalar", "workspace"]

Extent = int | str
_FUNCTIONS = {"min": min, "max": max, "ceil_div": lambda a, b: -(-a // b)}
_ACCESS = ("in", "out", "inout", "workspace")
_KINDS = ("buffer", "pointers", "scalar")
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
    try:
        tree = formula_tree(formula)
    except (SyntaxError, ValueError) as wrong:
        raise SpecError(f"formula {formula!r}: cannot be read ({getattr(wrong, 'msg', wrong)})") from None
    called = set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or (isinstance(node, ast.Constant) and type(node.value) is not int):
            raise SpecError(f"formula {formula!r}: only + - * //, {', '.join(_FUNCTIONS)}, integers and capacities")
        if isinstance(node, ast.Call):
            _check_call(formula, node)
            called.add(node.func)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called}
    if functions := names & _FUNCTIONS.keys():
        raise SpecError(f"formula {formula!r}: {', '.join(sorted(functions))} is a function, and no capacity")
    return compile(tree, "<formula>", "eval"), frozenset(names)


def _check_call(formula: str, call: ast.Call) -> None:
    """A function that there is, with as many arguments as it takes."""
    name = ast.unparse(call.func)
    if name not in _FUNCTIONS:
        known = ", ".join(_FUNCTIONS)
        raise SpecError(
            f"formula {formula!r}: function must be one of {known} (got {name!r}{nearest(name, _FUNCTIONS)})"
        )
    most = 2 if name == "ceil_div" else len(call.args)
    if call.keywords or not 2 <= len(call.args) <= most:
        takes = "two arguments" if name == "ceil_div" else "two arguments or more"
        raise SpecError(f"formula {formula!r}: {name} takes {takes} (got {ast.unparse(call)})")


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
    values = {n: capacities[n] for n in names}
    try:
        return int(eval(code, {"__builtins__": {}, **_FUNCTIONS}, values))
    except ZeroDivisionError:
        raise SpecError(f"formula {extent!r}: divides by 0 (with {values})") from None


def _check_extents(what: str, extents: Sequence[Extent]) -> None:
    """Extents are integers from 0 on, or formulas that can be read."""
    for extent in extents:
        if isinstance(extent, str):
            try:
                _compiled(extent)
            except SpecError as wrong:
                raise SpecError(f"{what}: {wrong}") from None
        elif type(extent) is not int or extent < 0:
            raise SpecError(f"{what}: an extent must be an int from 0 on, or a formula (got {brief(extent)})")


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

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isascii() and self.name.isidentifier()):
            raise SpecError(f"parameter: a name is letters, digits and _, no digit first (got {brief(self.name)})")
        about = f"parameter {self.name}"
        _check_dtype(self.name, self.dtype)
        for member, value, known in (("kind", self.kind, _KINDS), ("access", self.access, _ACCESS)):
            if value not in known:
                near = nearest(value, known)
                raise SpecError(f"{about}: {member} must be one of {', '.join(known)} (got {brief(value)}{near})")
        if type(self.align) is not int or self.align < 1 or self.align & (self.align - 1):
            raise SpecError(f"{about}: align must be a power of two, in bytes (got {brief(self.align)})")
        _check_extents(about, self.shape)

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


def _check_dtype(name: str, dtype: object) -> None:
    if not isinstance(dtype, DType):
        raise SpecError(f"parameter {name}: dtype must be a DType, such as f32 of ptxgen.dtypes (got {brief(dtype)})")


def buffer(name: str, dtype: DType, *shape: Extent, access: str = "in", **more: Any) -> Param:
    """A `Param` for a buffer of that shape."""
    return Param(name, dtype, "buffer", access, shape, **more)


def scalar(name: str, dtype: DType, **more: Any) -> Param:
    """A `Param` for a value passed at launch."""
    _check_dtype(name, dtype)
    return Param(name, dtype, "scalar", "in", (), dtype.bytes, **more)


def workspace(name: str, dtype: DType, *shape: Extent, **more: Any) -> Param:
    """A `Param` for scratch memory, sized exactly."""
    return Param(name, dtype, "buffer", "workspace", shape, **more)


@dataclass(frozen=True, slots=True)
class Launch:
    """Geometry of a launch: `grid` in CTAs, `block` in threads, `cluster` in CTAs, `shared` dynamic bytes.

    `resident`: so many CTAs of a multiprocessor must find registers; the assembler sees to it, and takes all that these
    leave. 0: it aims at as many as it likes, and may spill for one more. `programmatic`: the text uses griddepcontrol
    and may be launched with programmatic stream serialization. `together`: CTAs wait for each other, so a device must
    hold all of the grid at once. Two such launches that nothing orders may each get a part of the multiprocessors, and
    then fail, as their waits give up after some seconds.
    """

    grid: tuple[Extent, Extent, Extent]
    block: tuple[int, int, int]
    shared: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    programmatic: bool = False
    resident: int = 0
    together: bool = False

    def __post_init__(self) -> None:
        for member, extents in (("grid", self.grid), ("block", self.block), ("cluster", self.cluster)):
            if isinstance(extents, str) or not isinstance(extents, Sequence) or len(extents) != 3:
                raise SpecError(f"Launch.{member}: must be three extents, x, y and z (got {brief(extents)})")
        _check_extents("Launch.grid", self.grid)
        for member, numbers in (("block", self.block), ("cluster", self.cluster)):
            if wrong := [number for number in numbers if type(number) is not int or number < 1]:
                raise SpecError(f"Launch.{member}: must be ints from 1 on (got {brief(wrong[0])})")
        if type(self.shared) is not int or self.shared < 0:
            raise SpecError(f"Launch.shared: must be an int from 0 on, in bytes (got {brief(self.shared)})")

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


def check_declared(kernel: str, params: Sequence[Param], launch: Launch, sizes: Mapping[str, int]) -> None:
    """Whether a kernel type's parameters and its launch fit together. Raises `SpecError`.

    A capacity of the grid, or of a workspace, is one that the shape of a buffer names that a caller brings, or one of
    `sizes`; parameters have different names, and one of them at least is written.
    """
    names = [param.name for param in params]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise SpecError(f"{kernel}.params: parameters must have different names (got {twice[0]} twice)")
    written_of(kernel, params)
    brought = [extent for param in params if param.access != "workspace" for extent in param.shape]
    known = sorted(sizes.keys() | frozenset().union(*map(capacities_of, brought)))
    used: list[tuple[str, Extent]] = [("launch: grid", extent) for extent in launch.grid]
    used += [(f"params: {param.name}", extent) for param in params if param.access == "workspace"
             for extent in param.shape]  # fmt: skip
    for where, extent in used:
        for name in sorted(capacities_of(extent).difference(known)):
            listed = f"be one of {', '.join(known)}" if known else "be in the shape of a buffer"
            found = f"got {name!r} in {extent!r}{nearest(name, known)}"
            raise SpecError(f"{kernel}.{where}: a capacity must {listed} ({found})")


def written_of(kernel: str, params: Sequence[Param]) -> list[str]:
    """Names of the parameters that a kernel writes for its caller. Raises `SpecError` where there is none."""
    written = [param.name for param in params if param.access in ("out", "inout")]
    if not written:
        listed = ", ".join(f"{param.name} {param.access}" for param in params)
        raise SpecError(f'{kernel}.params: one at least must have access="out" or "inout" (got {listed or "none"})')
    return written


def grid3(*extents: Extent) -> tuple[Extent, Extent, Extent]:
    """Pad to three extents with 1."""
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def __dir__() -> list[str]:
    return list(__all__)
