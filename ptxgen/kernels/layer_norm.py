"""Layer normalisation of rows: mean and variance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms.convert import RUN
from ptxgen.idioms.dot import add, dot
from ptxgen.idioms.row_kernel import EPS, HEADS, RESIDUAL, RowKernel, Rows, norm_rules
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Param

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


@kernel_type
class LayerNorm(RowKernel, KernelType):
    """out = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias, row by row; out may be x itself.

    x, out f32 `[rows, dim]`, weight, bias f32 `[dim]`; the variance is that around the mean, not a difference of sums.
    `residual`: residual `[rows, dim]` becomes residual + x, and that is normalised. `heads`: of every row so many heads
    are normalised, each by itself: all are `[rows, heads, dim]`.
    """

    dim: int = field(doc="elements of a row")
    eps: float = field(default=1e-5, like=EPS, doc="added to the variance")
    bias: bool = field(default=True, doc="a bias is added")
    residual: bool = field(default=False, like=RESIDUAL)
    heads: int = field(default=0, like=HEADS)
    programmatic: bool = False

    sizes = {"rows": 2}
    may_alias = {"out": "x"}
    early = ("weight", "bias")
    goldens = (
        dict(dim=1024),
        dict(dim=77, residual=True, bias=False),
        dict(dim=64, heads=3, eps=0.01, programmatic=True),
        dict(dim=20000, residual=True),
    )

    def rules(self) -> Iterator[str]:
        yield from norm_rules(self.dim, self.eps, self.heads)

    def params(self) -> tuple[Param, ...]:
        bias = (self.common("bias"),) if self.bias else ()
        residual = (self.row("residual", access="inout"),) if self.residual else ()
        return self.row("x"), self.common("weight"), *bias, *residual, self.row("out", access="out")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        values, gains, shifts = rows.array("value"), rows.array("gain"), rows.array("shift") if self.bias else None
        mean, square = b.reg("mean", "f32"), b.reg("square", "f32")
        with b.fragment("begin", f"clear the sums{', load the weights' if self.share.passes == 1 else ''}"):
            b.op("mov.f32", mean, 0.0)
            b.op("mov.f32", square, 0.0)
            if self.share.passes == 1:  # the weights wait for no kernel before this one
                rows.step()
                self._load_weights(rows, gains, shifts)
        with rows.each("load", "load a pass of the row, and add it up", more="more_sums"):
            rows.load("x", values)
            if self.residual:
                before = rows.array("before")
                rows.load("residual", before)
                add(b, values, before)
                rows.store("residual", values)
            for value in values:
                b.op("add.f32", mean, mean, value)
        rows.reduce("sums", "add.f32", mean)
        with b.fragment("divide", "the mean; back to the row's start"):
            b.op("mul.f32", mean, mean, 1 / self.dim)
            rows.begin()
        with b.fragment("centre", "subtract the mean from a pass, and add up the squares"):
            self._centred(b, rows, values, mean)
            b.note("the squares", after=RUN)
            rows.only(values)
            dot(b, square, values, values)
            rows.advance("more_squares")
        rows.reduce("squares", "add.f32", square)
        with b.fragment("deviation", "1 / sqrt(variance + eps); back to the row's start"):
            factor = b.op("fma.rn.f32", "factor", square, 1 / self.dim, self.eps)
            b.op("rsqrt.approx.f32", factor, factor)
            rows.begin()
        with b.fragment("scale", "normalise a pass of the row, and store it"):
            rows.step()
            if self.share.passes > 1:
                self._centred(b, rows, values, mean)
                self._load_weights(rows, gains, shifts)
            for i, value in enumerate(values):
                b.note("times the deviation's inverse and the weight", after=RUN)
                b.op("mul.f32", value, value, factor)
                if shifts is None:
                    b.op("mul.f32", value, value, gains[i])
                else:
                    b.op("fma.rn.f32", value, value, gains[i], shifts[i])
            rows.store("out", values)
            rows.advance("more_outputs")

    def _load_weights(self, rows: Rows, gains: RegArray, shifts: RegArray | None) -> None:
        rows.load("weight", gains)
        if shifts is not None:
            rows.load("bias", shifts)

    def _centred(self, b: Builder, rows: Rows, values: RegArray, mean: Reg) -> None:
        """The elements of a pass less the mean; where one pass takes the row they are still in registers."""
        rows.step()
        if self.share.passes > 1:
            rows.load("residual" if self.residual else "x", values)
        b.note("less the mean", after=RUN)
        for value in values:
            b.op("sub.f32", value, value, mean)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out = {"residual": a["residual"] + a["x"]} if self.residual else {}
        x = out.get("residual", a["x"]).astype(np.float64)
        centred = x - x.mean(-1, keepdims=True)
        factor = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + self.eps)
        result = centred * factor * a["weight"] + (a["bias"] if self.bias else 0.0)
        return {**out, "out": result.astype(np.float32)}
