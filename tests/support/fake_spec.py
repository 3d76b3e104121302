"""A kernel type that is not registered, and a generator for it: parameters of every kind, a body that does nothing."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass

from ptxgen.dtypes import DType, f16, f32, s32
from ptxgen.generator import Ptx
from ptxgen.kernel import KernelType
from ptxgen.launch import Launch, Param, buffer, grid3, scalar, workspace
from ptxgen.targets import Target


@dataclass(frozen=True)
class Sample(KernelType):
    """`q [batch, n, dim]`, caches by pointer, `out`, one int and one float, a workspace of `batch * 4` zeroed words."""

    dim: int = 64
    n: int = 2
    dtype: DType = f16
    kernel_name = "sample"

    def params(self) -> tuple[Param, ...]:
        return (
            buffer("q", self.dtype, "batch", self.n, self.dim),
            Param("caches", f32, "pointers", "inout", ("batch",), 8),
            buffer("out", f32, "batch", self.n, self.dim, access="out"),
            scalar("length", s32),
            scalar("scale", f32),
            workspace("tickets", s32, "batch * 4", zeroed=True, align=4),
        )

    def launch(self, target: Target) -> Launch:
        return Launch(grid3(self.n, "ceil_div(batch, 2)"), (64, 1, 1))


def sample_text(spec: Sample, target: Target) -> str:
    """A module whose entry takes the parameters of the spec and returns."""
    params = ", ".join(f".param .{p.ptx_type} {p.name}" for p in spec.params())
    head = f"// {spec!r}\n.version 8.0\n.target {target}\n.address_size 64\n"
    return head + f".visible .entry sample({params})\n{{ ret; }}\n"


class Generator:
    """Stands in for `ptxgen.generator.generate`; counts its calls, and takes `seconds` for each."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.calls: list[tuple[object, Target]] = []
        self.lines: list[bool] = []  # whether line info was asked for, call by call
        self.seconds = seconds
        self.fail: list[Exception] = []
        self._lock = threading.Lock()

    def __call__(self, spec: Sample, target: Target, line_info: bool = False) -> Ptx:
        with self._lock:
            self.calls.append((spec, target))
            self.lines.append(line_info)
        time.sleep(self.seconds)
        if self.fail:
            raise self.fail.pop(0)
        text = sample_text(spec, target)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Ptx(spec, target, "sample", text, spec.params(), spec.launch(target), None, digest, None)
