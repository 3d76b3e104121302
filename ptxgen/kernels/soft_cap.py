"""cap · tanh(x / cap) of logits, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import f32
from ptxgen.idioms.log2 import LOG2E
from ptxgen.idioms.row_kernel import RowKernel
from ptxgen.idioms.rows import RowShare
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Param

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


@kernel_type
class SoftCap(RowKernel, KernelType):
    """x = cap · tanh(x / cap), element by element, in place; x f32 `[rows, dim]`. Absolute error 1e-6 of the cap."""

    dim: int = field(doc="elements of a row")
    cap: float = field(default=30.0, draws=(30.0, 1.0), refuses=(0.0, float("inf")), doc="what no result exceeds")
    programmatic: bool = False

    sizes = {"rows": 2}
    goldens = (dict(dim=64), dict(dim=5001, cap=50.0, programmatic=True))

    def rules(self) -> Iterator[str]:
        yield from rules.between("dim", self.dim, 1, 1 << 20)
        yield from rules.between("cap", self.cap, 1e-3, 1e6)

    @property
    def share(self) -> RowShare:
        """Every CTA takes a part of a row."""
        return RowShare.spread(self.dim, f32.bytes)

    def params(self) -> tuple[Param, ...]:
        return (self.row("x", access="inout"),)

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        values = rows.array("value")
        with b.fragment("load", "load the thread's elements of the row"):
            rows.step()
            rows.load("x", values)
        with b.fragment("cap"):
            b.note("cap * tanh(y) = cap - 2 cap / (1 + e^2y); e^2y may be infinite, and the quotient 0")
            for value in values:
                b.op("mul.f32", value, value, 2 * LOG2E / self.cap)
                b.op("ex2.approx.f32", value, value)
                b.op("add.f32", value, value, 1.0)
                b.op("rcp.rn.f32", value, value)
                b.op("fma.rn.f32", value, value, -2 * self.cap, self.cap)
            rows.store("x", values)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        x = a["x"].astype(np.float64)
        return {"x": (self.cap * np.tanh(x / self.cap)).astype(np.float32)}
