"""Add rows to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import f32
from ptxgen.idioms.row_kernel import RowKernel
from ptxgen.idioms.rows import RowShare
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Param

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


@kernel_type
class ResidualAdd(RowKernel, KernelType):
    """residual += scale · x, in f32 with one rounding; x, residual `[rows, dim]`."""

    dim: int = field(doc="elements of a row")
    scale: float = field(default=1.0, draws=(1.0, 0.25), refuses=(float("inf"),), doc="factor of x")
    programmatic: bool = False

    sizes = {"rows": 2}
    goldens = (dict(dim=64), dict(dim=5001, scale=0.5, programmatic=True))

    def rules(self) -> Iterator[str]:
        yield from rules.between("dim", self.dim, 1, 1 << 20)
        yield from rules.between("scale", self.scale, -1e6, 1e6)

    @property
    def share(self) -> RowShare:
        """Every CTA takes a part of a row."""
        return RowShare.spread(self.dim, f32.bytes)

    def params(self) -> tuple[Param, ...]:
        return self.row("x"), self.row("residual", access="inout")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        values, totals = rows.array("value"), rows.array("total")
        with b.fragment("load", "load the thread's elements of x and residual"):
            rows.step()
            rows.load("x", values)
            rows.load("residual", totals)
        with b.fragment("add", "add x to residual"):
            for value, total in zip(values, totals, strict=True):
                b.op("fma.rn.f32", total, value, self.scale, total)
            rows.store("residual", totals)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        return {"residual": (a["residual"] + self.scale * a["x"].astype(np.float64)).astype(np.float32)}
