"""Rows of narrower elements, with scales where they need them: what Quantize and Dequantize share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ptxgen import rules
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, f32
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.row_kernel import RowKernel
from ptxgen.idioms.rows import RowShare
from ptxgen.launch import Param, buffer
from ptxgen.spec.fields import Said

if TYPE_CHECKING:
    import numpy as np

DTYPES = ("f16", "bf16", "e4m3", "s8")
LARGEST = {"e4m3": 448.0, "s8": 127.0}  # what the largest of a group becomes
GROUPS = (0, 32, 64, 128)
GROUP = Said(doc="elements that share a scale; 0: a row's", draws=GROUPS, refuses=(-1, 48))
TINY = 1e-35  # a group with nothing larger counts as zeros: the inverse of its scale would be infinite


class QuantisedRows(RowKernel):
    """Base, beside `KernelType`, of a kernel type with these fields. An element stands for itself times its scale:
    e4m3 and s8 have one for `group` elements of a row, or with 0 one a row; f16 and bf16 have none."""

    dtype: DType
    group: int

    def rules(self) -> Iterator[str]:
        """Reasons against these fields."""
        yield from rules.between("dim", self.dim, 1, 1 << 20)
        yield from rules.one_of("dtype", self.dtype.name, DTYPES)
        yield from rules.one_of("group", self.group, GROUPS)
        if self.group and not self.scaled:
            yield f"group: must be 0 with dtype {self.dtype}, which has no scales (got {self.group})"
        elif self.group in GROUPS and self.group and self.dim % self.group:
            below = self.dim // self.group * self.group
            yield f"dim: must be a multiple of group={self.group} (got {self.dim}; nearest: {below or self.group})"

    @property
    def scaled(self) -> bool:
        """Whether there are scales."""
        return self.dtype.name in LARGEST

    @property
    def whole_rows(self) -> bool:
        """Whether the elements of a row need each other."""
        return self.scaled and not self.group

    @property
    def spread(self) -> RowShare:
        """CTAs of one pass each."""
        return RowShare.spread(self.dim, f32.bytes)

    @property
    def lanes(self) -> int:
        """Threads whose vectors make a group."""
        return self.group // self.spread.vector

    def scales(self, access: str = "in") -> tuple[Param, ...]:
        """The scales, f32 `[rows, dim / group]`, or `[rows, 1]`."""
        groups = self.dim // self.group if self.group else 1
        return (buffer("scales", f32, "rows", groups, access=access, align=4),) if self.scaled else ()


def over_scale(b: Builder, largest: Reg, dtype: DType) -> Reg:
    """The inverse of a group's scale from its largest magnitude, which becomes the scale."""
    inverse, tiny = scratch(b, "inverse_scale", "f32"), scratch(b, "is_tiny", "pred")
    b.op("setp.lt.f32", tiny, largest, TINY)
    b.op("mov.f32", inverse, LARGEST[dtype.name])
    b.op("div.rn.f32", inverse, inverse, largest)
    b.op("selp.f32", inverse, 0.0, inverse, tiny)
    b.op("mul.f32", largest, largest, 1 / LARGEST[dtype.name])
    b.op("selp.f32", largest, 0.0, largest, tiny)
    return inverse


def magnitude(b: Builder, largest: Reg, values: Sequence[Reg]) -> None:
    """`largest` becomes the largest magnitude of itself and of the values; a NaN does not count."""
    size = scratch(b, "magnitude", "f32")
    for value in values:
        b.op("abs.f32", size, value)
        b.op("max.f32", largest, largest, size)


def quantise(x: np.ndarray, dtype: DType, group: int) -> dict[str, np.ndarray]:
    """Rows as `{"out", "scales"}` in NumPy, by the kernel's own f32 operations."""
    import numpy as np

    if dtype.name not in LARGEST:
        with np.errstate(over="ignore"):  # to infinity, as the kernel does
            return {"out": x.astype(dtype.numpy)}
    one = np.float32
    width = group or x.shape[1]
    grouped = x.reshape(x.shape[0], x.shape[1] // width, width)
    largest = np.fmax.reduce(np.abs(grouped), -1, initial=0).astype(one)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest < one(TINY), one(0), one(LARGEST[dtype.name]) / largest).astype(one)
        scaled = (grouped * inverse[..., None]).reshape(x.shape)
        if dtype.name == "s8":
            scaled = np.nan_to_num(np.clip(np.rint(scaled), -128, 127))
        else:
            scaled = np.clip(scaled, -448, 448)
    scales = np.where(largest < one(TINY), one(0), largest * one(1 / LARGEST[dtype.name]))
    return {"out": scaled.astype(dtype.numpy), "scales": scales.astype(one)}


def dequantise(x: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """The f32 rows of elements and scales `[rows, groups]` in NumPy."""
    import numpy as np

    wide = x.astype(np.float32)
    return wide if scales is None else wide * np.repeat(scales, x.shape[1] // scales.shape[1], 1)
