"""Round f32 rows to a narrower type, with a scale a row or a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxgen.builder.values import RegArray
from ptxgen.dtypes import DType, e4m3, f16, f32
from ptxgen.idioms import quantised_rows
from ptxgen.idioms.dot import multiply
from ptxgen.idioms.quantised_rows import GROUP, QuantisedRows, magnitude, over_scale
from ptxgen.idioms.reduce import halves, over_lanes
from ptxgen.idioms.row_kernel import Rows
from ptxgen.idioms.rows import RowShare
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Param

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder


@kernel_type
class Quantize(QuantisedRows, KernelType):
    """out = x / scale, rounded to the nearest, ties to even.

    x f32 `[rows, dim]`, out `[rows, dim]`. e4m3 and s8: scales f32 `[rows, dim / group]`, or `[rows, 1]` with group 0,
    max|x| / 448 or / 127 of each group; a group with nothing above 1e-35 has scale 0 and zeros. A NaN is NaN, in s8 0.
    """

    dim: int = field(doc="elements of a row")
    dtype: DType = field(default=f16, doc="element type of out")
    group: int = field(default=0, like=GROUP)
    programmatic: bool = False

    sizes = {"rows": 2}
    goldens = (
        dict(dim=100),
        dict(dim=256, dtype=e4m3, group=64, programmatic=True),
        dict(dim=77, dtype="s8"),
        dict(dim=9000, dtype=e4m3),
    )

    @property
    def share(self) -> RowShare:
        """A CTA takes a row whose elements share a scale; else several do."""
        return RowShare.of(self.dim, f32.bytes) if self.whole_rows else self.spread

    def params(self) -> tuple[Param, ...]:
        return self.row("x"), self.row("out", self.dtype, "out"), *self.scales("out")

    def build(self, b: Builder) -> None:
        rows = self.rows(b)
        values = rows.array("value")
        if self.whole_rows:
            self._by_row(b, rows, values)
            return
        with b.fragment("load", "load the thread's elements of the row"):
            rows.step()
            rows.load("x", values)
        with b.fragment("store", f"store the elements{' over the scales of their groups' if self.group else ''}"):
            if self.group:
                self._by_group(b, rows, values)
            rows.store("out", values)

    def _by_row(self, b: Builder, rows: Rows, values: RegArray) -> None:
        """Fragments of two loops over the row: its largest magnitude, then the elements."""
        largest = b.reg("largest", "f32")
        with b.fragment("begin"):
            b.op("mov.f32", largest, 0.0)
        with rows.each("measure", "the largest magnitude of a pass of the row", more="more_sizes"):
            rows.load("x", values)
            magnitude(b, largest, values)
        rows.reduce("sizes", "max.f32", largest)
        with b.fragment("scale", "the row's scale and its inverse; back to the row's start"):
            inverse = over_scale(b, largest, self.dtype)
            first = b.op("setp.eq.u32", "first", rows.thread, 0)
            b.op("st.global.f32", rows.base("scales")[0], largest, pred=first)
            rows.begin()
        with rows.each("store", f"store a pass of the row over the scale, as {self.dtype}", more="more_outputs"):
            if self.share.passes > 1:
                rows.load("x", values)
            multiply(b, values, inverse)
            rows.store("out", values)

    def _by_group(self, b: Builder, rows: Rows, values: RegArray) -> None:
        """Scale the vectors of neighbouring lanes that make a group; the first of them stores its scale."""
        vector, walk = self.share.vector, rows.walk
        largest, leads = b.reg("largest", "f32"), b.reg("leads", "pred")
        lane, at = b.reg("lane_of_group", "u32"), b.reg("scale_at", "u64")
        group = b.reg("group", "u32")
        b.op("and.b32", lane, rows.thread, self.lanes - 1)
        for i in range(self.share.flight):
            mine = values[i * vector : (i + 1) * vector]
            b.op("mov.f32", largest, 0.0)
            magnitude(b, largest, mine)
            over_lanes(b, "max.f32", largest, halves(self.lanes))
            inverse = over_scale(b, largest, self.dtype)
            multiply(b, mine, inverse)
            exists = walk.exists[i]
            if exists is None:
                b.op("setp.eq.u32", leads, lane, 0)
            else:
                b.op("setp.eq.and.u32", leads, lane, 0, exists)
            walk.number(group, i)
            b.op("shr.u32", group, group, self.group.bit_length() - 1)
            b.op("mad.wide.u32", at, group, f32.bytes, rows.base("scales"))
            b.op("st.global.f32", at[0], largest, pred=leads)

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        return quantised_rows.quantise(a["x"], self.dtype, self.group)
