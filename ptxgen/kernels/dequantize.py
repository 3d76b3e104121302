"""Widen rows of a narrower type to f32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, e4m3, f16, f32
from ptxgen.idioms import quantised_rows
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.quantised_rows import GROUP, QuantisedRows
from ptxgen.idioms.row_kernel import Rows
from ptxgen.idioms.rows import RowShare
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Param

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


@kernel_type
class Dequantize(QuantisedRows, KernelType):
    """out = x · scale; the other way of `Quantize`.

    x `[rows, dim]`, out f32 `[rows, dim]`. e4m3 and s8: scales f32 `[rows, dim / group]`, or `[rows, 1]` with group 0.
    """

    dim: int = field(doc="elements of a row")
    dtype: DType = field(default=f16, doc="element type of x")
    group: int = field(default=0, like=GROUP)
    programmatic: bool = False

    sizes = {"rows": 2}
    goldens = (
        dict(dim=100),
        dict(dim=256, dtype=e4m3, group=64, programmatic=True),
        dict(dim=5001, dtype="s8"),
    )

    @property
    def share(self) -> RowShare:
        """Several CTAs take a row."""
        return self.spread

    def params(self) -> tuple[Param, ...]:
        return self.row("x", self.dtype), *self.scales(), self.row("out", access="out")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        values = rows.array("value")
        with b.fragment("load", "load the thread's packed elements, and widen them"):
            rows.step()
            rows.load("x", values)
        with b.fragment("store", f"store the elements{' times their scales' if self.scaled else ''}"):
            for i in range(self.share.flight if self.scaled else 0):
                scale = self._scale(b, rows, i)
                for value in values[i * self.share.vector : (i + 1) * self.share.vector]:
                    b.op("mul.f32", value, value, scale)
            rows.store("out", values)

    def _scale(self, b: Builder, rows: Rows, i: int) -> Reg:
        """That of a vector; where it does not exist any."""
        scale = scratch(b, "scale", "f32")
        if not self.group:
            if i == 0:
                b.op("ld.global.f32", scale, rows.base("scales")[0])
            return scale
        group = rows.walk.number(scratch(b, "group", "u32"), i)
        b.op("shr.u32", group, group, self.group.bit_length() - 1)
        at = b.op("mad.wide.u32", scratch(b, "scale_at", "u64"), group, f32.bytes, rows.base("scales"))
        b.op("mov.f32", scale, 0.0)
        b.op("ld.global.f32", scale, at[0], pred=rows.walk.exists[i])
        return scale

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Rows as `Quantize` leaves them."""
        import numpy as np

        made = quantised_rows.quantise(
            rng.standard_normal((sizes["rows"], self.dim)).astype(np.float32), self.dtype, self.group
        )
        return {"x": made["out"], "scales": made.get("scales")}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        return {"out": quantised_rows.dequantise(a["x"], a.get("scales"))}
