"""Root-mean-square normalisation of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.idioms.dot import add, dot
from ptxgen.idioms.row_kernel import EPS, HEADS, RESIDUAL, RowKernel, norm_rules
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Param

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


@kernel_type
class RmsNorm(RowKernel, KernelType):
    """out = x / sqrt(mean(x²) + eps) · (offset + weight), row by row; out may be x itself.

    x, out f32 `[rows, dim]`, weight f32 `[dim]`. `residual`: residual `[rows, dim]` becomes residual + x, and that is
    normalised. `heads`: of every row so many heads are normalised, each by itself: all are `[rows, heads, dim]`.
    `added`: the normalised row is added to out, which is not x then.
    """

    dim: int = field(doc="elements of a row")
    eps: float = field(default=1e-6, like=EPS, doc="added to the mean of squares")
    offset: float = field(default=0.0, draws=(0.0, 1.0), doc="added to the weights: 1 in Gemma")
    residual: bool = field(default=False, like=RESIDUAL)
    heads: int = field(default=0, like=HEADS)
    added: bool = field(default=False, doc="results are added to out: a norm behind a product, and the residual stream")
    programmatic: bool = False

    sizes = {"rows": 2}
    early = ("weight",)
    goldens = (
        dict(dim=1024),
        dict(dim=77, residual=True, offset=1.0),
        dict(dim=64, heads=3, eps=0.01, programmatic=True),
        dict(dim=20000, residual=True),
        dict(dim=77, added=True, offset=1.0),
        dict(dim=20000, added=True),
    )

    def rules(self) -> Iterator[str]:
        yield from norm_rules(self.dim, self.eps, self.heads)
        yield from rules.between("offset", self.offset, -1e3, 1e3)
        if self.added and self.residual:
            yield "added: needs residual=False (got added=True, residual=True; nearest: False)"

    @property
    def may_alias(self) -> Mapping[str, str]:  # type: ignore[override]
        """Not of an out that is read, too."""
        return {} if self.added else {"out": "x"}

    def params(self) -> tuple[Param, ...]:
        residual = (self.row("residual", access="inout"),) if self.residual else ()
        return self.row("x"), self.common("weight"), *residual, self.row("out", access="inout" if self.added else "out")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        values, gains, total = rows.array("value"), rows.array("gain"), b.reg("total", "f32")
        sums = rows.array("sum") if self.added else None
        with b.fragment("begin", f"clear the sum{', load the weights' if self.share.passes == 1 else ''}"):
            b.op("mov.f32", total, 0.0)
            if self.share.passes == 1:  # the weights wait for no kernel before this one
                rows.step()
                rows.load("weight", gains)
        with rows.each("load", "load a pass of the row, and add up its squares", more="more_squares"):
            rows.load("x", values)
            if self.residual:
                before = rows.array("before")
                rows.load("residual", before)
                add(b, values, before)
                rows.store("residual", values)
            if sums is not None and self.share.passes == 1:
                rows.load("out", sums)
            dot(b, total, values, values)
        rows.reduce("squares", "add.f32", total)
        with b.fragment("mean", "1 / sqrt(mean + eps); back to the row's start"):
            factor = b.op("fma.rn.f32", "factor", total, 1 / self.dim, self.eps)
            b.op("rsqrt.approx.f32", factor, factor)
            rows.begin()
        with rows.each("scale", "normalise a pass of the row, and store it", more="more_outputs"):
            if self.share.passes > 1:
                rows.load("residual" if self.residual else "x", values)
                rows.load("weight", gains)
                if sums is not None:
                    rows.load("out", sums)
            for value, gain in zip(values, gains, strict=True):
                b.op("mul.f32", value, value, factor)
                if self.offset:
                    b.op("add.f32", gain, gain, self.offset)
                b.op("mul.f32", value, value, gain)
            if sums is not None:
                add(b, values, sums)
            rows.store("out", values)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out = {"residual": a["residual"] + a["x"]} if self.residual else {}
        x = out.get("residual", a["x"]).astype(np.float64)
        factor = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        normed = x * factor * (self.offset + a["weight"])
        return {**out, "out": ((a["out"] if self.added else 0) + normed).astype(np.float32)}
