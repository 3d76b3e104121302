"""A Program as it grows: tensors by name, ops with their kernels. Owns no architecture: that is `decode.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ptxgen.dtypes import DType, f32, u8
from ptxgen.errors import SpecError
from ptxgen.kernel import KernelType, find_kernel_type, supports
from ptxgen.launch import Param, evaluate
from ptxgen.models.program import Op, Part, Program, Ref, Tensor
from ptxgen.weights import weight_format

Formats = str | Mapping[str, str]


@dataclass(kw_only=True)
class Draft:
    """Names are those of `layer` while it is not negative. `formats`: of every matrix by its file's name, or one for
    all. `programmatic`: kernels that can overlap on `target` do."""

    rows: int
    formats: Formats
    target: str
    programmatic: bool
    layer: int = -1
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    params: dict[KernelType, tuple[Param, ...]] = field(default_factory=dict)
    specs: dict[tuple[Any, ...], KernelType] = field(default_factory=dict)

    def program(self) -> Program:
        """What has been said so far."""
        return Program(self.tensors, tuple(self.ops))

    # tensors ----------------------------------------------------------------------------------------------------------
    def tensor(self, name: str, kind: str, shape: tuple[int, ...], of: DType = f32, **more: Any) -> str:
        """Name a tensor, once."""
        self.tensors.setdefault(name, Tensor(name, of, shape, kind, **more))
        return name

    def at(self, name: str) -> str:
        """The whole name of one of this layer's tensors."""
        return name if self.layer < 0 else f"layers.{self.layer}.{name}"

    def scratch(self, name: str, width: int, rows: int = 0) -> str:
        """Scratch memory `[rows, width]` of this layer."""
        return self.tensor(self.at(name), "scratch", (rows or self.rows, width))

    def format_of(self, file_name: str) -> str:
        """The format of a file's matrix."""
        name = self.formats if isinstance(self.formats, str) else self.formats.get(file_name)
        if name is None:
            raise SpecError(f"{file_name}: is not in the file")
        return name

    def matrix(self, name: str, parts: Sequence[Part], cols: int, gated: bool = False) -> str:
        """A weight of one or several matrices of one format."""
        (kind,) = {self.format_of(part.name) for part in parts}
        chosen = weight_format(kind)
        for part in parts:
            for reason in chosen.rules(part.rows, cols):
                raise SpecError(f"{part.name}: {chosen.name}: {reason}")
        size = sum(chosen.nbytes(part.rows, cols) for part in parts)
        more = {"format": chosen.name, "cols": cols, "parts": tuple(parts), "gated": gated}
        return self.tensor(name, "weight", (size,), u8, **more)

    def vector(self, name: str, *parts: Part) -> str:
        """A weight in f32, of one or several vectors."""
        return self.tensor(name, "weight", (sum(part.rows for part in parts),), parts=parts)

    # ops --------------------------------------------------------------------------------------------------------------
    def op(
        self, kernel: str, role: str, given: Mapping[str, str | Ref], sizes: Mapping[str, int], **fields: Any
    ) -> None:
        """Append an op. Scratch memory that the kernel asks for becomes a tensor: one of a spec where it must begin as
        zeros, as ops run one after the other; else one of the op. A scalar is the capacity of its name (`n_rows`:
        `rows`), as all rows count."""
        spec = self._spec(kernel, fields)
        refs = {name: ref if isinstance(ref, Ref) else Ref(ref) for name, ref in given.items()}
        params = self._params(spec)
        for param in params:
            if param.access == "workspace" and param.name not in refs:
                shape = tuple(evaluate(extent, sizes) for extent in param.shape)
                if param.zeroed:
                    name = f"workspace.{kernel}.{self._number(spec)}.{param.name}"
                    self.tensor(name, "state", shape, param.dtype, zeroed=True)
                else:
                    name = self.tensor(self.at(f"{role}.{param.name}"), "scratch", shape, param.dtype)
                refs[param.name] = Ref(name)
        scalars = {p.name: sizes[p.name.removeprefix("n_")] for p in params if p.kind == "scalar"}
        self.ops.append(Op(spec, refs, dict(sizes), scalars, role, self.layer, params))

    def _params(self, spec: KernelType) -> tuple[Param, ...]:
        """Of a spec, asked for once."""
        if spec not in self.params:
            self.params[spec] = spec.params()
        return self.params[spec]

    def _number(self, spec: KernelType) -> int:
        """Which of the specs of its type this is."""
        alike = list(dict.fromkeys(op.spec for op in self.ops if type(op.spec) is type(spec)))
        return alike.index(spec) if spec in alike else len(alike)

    def _spec(self, kernel: str, fields: Mapping[str, Any]) -> KernelType:
        """The spec of these fields, made once."""
        key = (kernel, *sorted(fields.items()))
        if key not in self.specs:
            self.specs[key] = self._made(kernel, fields)
        return self.specs[key]

    def _made(self, kernel: str, fields: Mapping[str, Any]) -> KernelType:
        cls = find_kernel_type(kernel)
        overlaps = self.programmatic and "programmatic" not in fields
        if overlaps and "programmatic" in cls.__dataclass_fields__:  # type: ignore[attr-defined]
            overlapping = cls(**fields, programmatic=True)  # type: ignore[call-arg]
            if supports(overlapping, self.target):
                return overlapping
        return cls(**fields)
