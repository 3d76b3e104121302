"""`Program`: a step of a model as data. Tensors by name, and ops in the order in which they run; no memory, no device.

Everything reads this one value: generation, the arena, the launches of a step, the profile, the export. `step/` makes
it from a model. A mixture of experts needs nothing new here: its weights are one matrix whose `parts` are the experts'
rows, and which of them a product reads is a tensor of its own, an operand of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ptxgen.dtypes import DType, u64
from ptxgen.errors import SpecError
from ptxgen.kernel import KernelType
from ptxgen.launch import Param, evaluate

if TYPE_CHECKING:
    import numpy as np

KINDS = ("weight", "state", "input", "output", "scratch")


@dataclass(frozen=True)
class Pairs:
    """Rows of heads of `head_dim`, whose first `rotary_dim` rotate in pairs: the two of a pair lie side by side, where
    the file has them half of `rotary_dim` apart."""

    head_dim: int
    rotary_dim: int

    def order(self, rows: int) -> np.ndarray:
        """The file's row of every row, of heads of `rows` rows in all."""
        import numpy as np

        half = self.rotary_dim // 2
        head = np.arange(self.head_dim)
        head[: self.rotary_dim] = head[: self.rotary_dim].reshape(2, half).T.reshape(-1)
        return (np.arange(0, rows, self.head_dim)[:, None] + head).reshape(-1)


@dataclass(frozen=True)
class Part:
    """A tensor of a file with its rows (a vector: its elements); `pairs`: in another order than the file's."""

    name: str
    rows: int
    pairs: Pairs | None = None


@dataclass(frozen=True)
class Tensor:
    """A named array of a Program. `kind`:

    "weight": read from a file: a vector in f32, its `parts` one after the other; or matrices of `cols` columns, each
    packed in `format` by itself, one after the other (`gated`: two of them, record by record in turn). "state": kept
    from step to step; `zeroed` says that it begins as zeros. "input" and "output": written and read by the host.
    "scratch": between ops of one step.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    kind: str
    format: str = ""
    cols: int = 0
    parts: tuple[Part, ...] = ()
    gated: bool = False
    zeroed: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.bytes


@dataclass(frozen=True)
class Ref:
    """What an op reads or writes: a whole tensor, or with an `offset` in bytes what begins there."""

    tensor: str
    offset: int | None = None


@dataclass(frozen=True)
class Op:
    """One launch. `tensors` by parameter; `sizes` are the capacities that shapes and geometry take; `role` says what it
    does, `layer` where (−1: outside of the layers). `params`: the spec's, which ops of one spec share."""

    spec: KernelType
    tensors: Mapping[str, Ref]
    sizes: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, int | float] = field(default_factory=dict)
    role: str = ""
    layer: int = -1
    params: tuple[Param, ...] = ()

    def __post_init__(self) -> None:
        if not self.params:
            object.__setattr__(self, "params", self.spec.params())

    @property
    def name(self) -> str:
        """`layers.3.q_proj`."""
        return self.role if self.layer < 0 else f"layers.{self.layer}.{self.role}"

    def buffers(self) -> Iterator[tuple[Param, Ref]]:
        """The parameters that are memory, with what they get."""
        for param in self.params:
            if param.kind != "scalar":
                yield param, self.tensors[param.name]


@dataclass(frozen=True)
class Program:
    """A step. Raises `SpecError` unless every op's tensors are there, of its parameters' dtype and size, and no scratch
    memory is read before it is written."""

    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        for reason in _reasons(self):
            raise SpecError(f"Program: {reason}")

    def of_kind(self, kind: str) -> tuple[Tensor, ...]:
        """The tensors of a kind, in the order in which ops first use them."""
        return tuple(tensor for tensor in self.tensors.values() if tensor.kind == kind)

    def specs(self) -> tuple[KernelType, ...]:
        """The kernels, each once, in the order of first use."""
        return tuple(dict.fromkeys(op.spec for op in self.ops))


def _reasons(program: Program) -> Iterator[str]:
    """Why a program is not one."""
    tensors = program.tensors
    for name, tensor in tensors.items():
        if tensor.kind not in KINDS or tensor.name != name:
            yield f"{name}: must be a tensor of that name and one of {', '.join(KINDS)} (got {tensor})"
    written: set[str] = {name for name, tensor in tensors.items() if tensor.kind != "scratch"}
    used: set[str] = set()
    for op in program.ops:
        yield from _arguments(op, tensors)
        for param, ref in op.buffers():
            kind = tensors[ref.tensor].kind
            used.add(ref.tensor)
            if param.access in ("in", "inout") and ref.tensor not in written:
                yield f"{op.name}: {ref.tensor} is read before it is written ({param.name} of {op.spec!r})"
            if param.access != "in" and kind in ("weight", "input"):
                yield f"{op.name}: {ref.tensor} is a {kind} and cannot be written ({param.name} of {op.spec!r})"
            if param.zeroed and not (kind == "state" and tensors[ref.tensor].zeroed):
                yield f"{op.name}: {ref.tensor} must be a zeroed state ({param.name} of {op.spec!r})"
        written |= {ref.tensor for param, ref in op.buffers() if param.access != "in"}
    for name in tensors.keys() - used:
        yield f"{name}: no op uses it"


def _arguments(op: Op, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Why an op's arguments are not its parameters'."""
    params = {param.name: param for param in op.params}
    memory = {name for name, param in params.items() if param.kind != "scalar"}
    if op.tensors.keys() != memory or op.scalars.keys() != params.keys() - memory:
        want, got = ", ".join(params), ", ".join([*op.tensors, *op.scalars])
        yield f"{op.name}: {type(op.spec).__name__} takes {want} (got {got})"
        return
    for name, ref in op.tensors.items():
        param, tensor = params[name], tensors.get(ref.tensor)
        dtype = u64 if param.kind == "pointers" else param.dtype
        if tensor is None or tensor.dtype != dtype:
            got = "none" if tensor is None else str(tensor.dtype)
            yield f"{op.name}: {name} must be a tensor of {dtype} (got {ref.tensor}: {got})"
            return
        shape = tuple(evaluate(extent, op.sizes) for extent in param.shape)
        nbytes = math.prod(shape) * dtype.bytes
        if ref.offset is None and nbytes != tensor.nbytes:
            yield f"{op.name}: {name} must have shape {list(shape)} (got {ref.tensor}: {list(tensor.shape)})"
        elif ref.offset is not None and not 0 <= ref.offset <= tensor.nbytes - nbytes:
            yield f"{op.name}: {name} must lie within {ref.tensor} (got {nbytes} of {tensor.nbytes} from {ref.offset})"
        elif (ref.offset or 0) % param.align:
            yield f"{op.name}: {name} must be aligned to {param.align} bytes (got {ref.tensor} + {ref.offset})"
