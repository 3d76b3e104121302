"""The squared rectifier: an activation between the two products of a feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import DType, f32
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Launch, Param, buffer

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.kernel import Arrays
    from ptxgen.targets import Target

THREADS = 128


@kernel_type
class SquaredRelu(KernelType):
    """out = max(x, 0)² element by element, or with `leak` also leak · x where x is negative. A NaN gives 0.

    x, out `[rows, dim]`. `dim`: elements of a row. `leak`: slope below zero; 0: none.
    """

    dim: int
    dtype: DType = f32
    leak: float = field(default=0.0, draws=(0.0, 0.01), refuses=(-1.0,))

    sizes = {"rows": 3}
    goldens = (dict(dim=64), dict(dim=200, leak=0.125))
    golden_targets = ("sm_80",)

    def rules(self) -> Iterator[str]:
        yield from rules.between("dim", self.dim, 1, 65536)
        yield from rules.one_of("dtype", self.dtype.name, ("f32",))
        yield from rules.between("leak", self.leak, 0.0, 1.0)

    def params(self) -> tuple[Param, ...]:
        row = ("rows", self.dim)
        return buffer("x", self.dtype, *row), buffer("out", self.dtype, *row, access="out")

    def launch(self, target: Target) -> Launch:
        return Launch(("rows", -(-self.dim // THREADS), 1), (THREADS, 1, 1))

    def build(self, b: Builder) -> None:
        with b.fragment("locate"):
            row = b.op("mov.u32", "row", b.special("ctaid.x"))
            part = b.op("mov.u32", "part", b.special("ctaid.y"))
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            column = b.op("mad.lo.u32", "column", part, THREADS, thread)
            b.op("setp.lt.u32", "inside", column, self.dim)
        with b.fragment("activate"):
            x, out = b.ld_param("x"), b.ld_param("out")
            at = b.op("mul.wide.u32", "at", row, self.dim * self.dtype.bytes)
            b.op("mad.wide.u32", at, column, self.dtype.bytes, at)
            value = b.op("ld.global.nc.f32", "value", b.op("add.u64", x, x, at)[0])
            result = b.op("max.f32", "result", value, 0.0)
            b.op("mul.f32", result, result, result)
            if self.leak:
                b.op("min.f32", value, value, 0.0)
                b.op("fma.rn.f32", result, value, self.leak, result)
            b.op("st.global.f32", b.op("add.u64", out, out, at)[0], result)

    def reference(self, **arguments: Any) -> Arrays:
        import numpy as np

        x = arguments["x"]
        return {"out": np.fmax(x, 0) ** 2 + self.leak * np.fmin(x, 0)}
