"""Tensor maps: what bulk tensor copies know of an array in global memory and of the boxes that they move.

Owns the rules, which are those of cuTensorMapEncodeTiled (CUDA driver API, "Tensor Map Object Management") for tile
mode; the 128 bytes come from the device. Interleaved layouts are for CUDA devices only; im2col is not offered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.dtypes import DType
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import SpecError

MAP_BYTES = 128
MOST_DIMENSIONS = 5
BEGIN_ALIGN = 16  # bytes: a copy's innermost coordinate is a multiple of them
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes -> CUtensorMapSwizzle
INTERLEAVES = {0: 0, 16: 1, 32: 2}  # bytes -> CUtensorMapInterleave
PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}  # bytes -> CUtensorMapL2promotion
FILLS = {"zero": 0, "nan": 1}  # -> CUtensorMapFloatOOBfill
# -> CUtensorMapDataType; types that the hardware does not know travel as their bits
DATA_TYPES = {"u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
_AS_BITS = {"s8": "u8", "e4m3": "u8", "e5m2": "u8", "s16": "u16"}


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a tensor map says, innermost dimension first; strides in bytes, of all dimensions but the innermost."""

    address: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    promotion: int
    fill: str

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return to_dtype(self.dtype).bytes

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy puts into shared memory, elements outside of the array included: what mbarriers count."""
        steps = (1, *self.element_strides[1:])
        return self.element_bytes * math.prod(-(-b // s) for b, s in zip(self.box, steps, strict=True))


def tiling(
    address: int,
    shape: Sequence[int],
    kind: DType,
    box: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    element_strides: Sequence[int] | None = None,
    swizzle: int = 0,
    interleave: int = 0,
    oob_fill: str = "zero",
    l2_promotion: int = 0,
) -> Tiling:
    """What a map of an array at an address says; all lists outermost dimension first. Raises `SpecError`."""
    dims = tuple(int(n) for n in shape)
    steps = (1,) * len(dims) if element_strides is None else tuple(int(n) for n in element_strides)
    pitches = _contiguous(dims, kind) if strides is None else tuple(int(n) for n in strides)
    for name, given, count in (
        ("box", box, len(dims)), ("element_strides", steps, len(dims)), ("strides", pitches, len(dims) - 1),
    ):  # fmt: skip
        require(len(given) == count, name, f"must have {count} numbers, for an array of shape {list(dims)}", given)
    made = Tiling(
        address, _AS_BITS.get(kind.name, kind.name), dims[::-1], pitches[::-1], tuple(int(n) for n in box)[::-1],
        steps[::-1], interleave, swizzle, l2_promotion, oob_fill,
    )  # fmt: skip
    check(made, kind)
    return made


def _contiguous(dims: tuple[int, ...], kind: DType) -> tuple[int, ...]:
    return tuple(kind.bytes * math.prod(dims[n + 1 :]) for n in range(len(dims) - 1))


def require(holds: bool, field: str, rule: str, got: object) -> None:
    """Raise `SpecError` for a field of a tensor map unless the rule holds."""
    if not holds:
        shown = list(got) if isinstance(got, tuple) else got
        raise SpecError(f"TensorMap.{field}: {rule} (got {shown!r})")


def check(t: Tiling, kind: DType) -> None:
    """Raise `SpecError` for the first rule that a tiling breaks. Lists are shown outermost dimension first."""
    require(t.dtype in DATA_TYPES, "dtype", f"must be one of {', '.join([*DATA_TYPES, *_AS_BITS])}", kind.name)
    for field, value, legal in (
        ("swizzle", t.swizzle, SWIZZLES), ("interleave", t.interleave, INTERLEAVES),
        ("l2_promotion", t.promotion, PROMOTIONS), ("oob_fill", t.fill, FILLS),
    ):  # fmt: skip
        require(value in legal, field, f"must be one of {', '.join(map(str, legal))}", value)
    least = 3 if t.interleave else 1
    require(least <= t.rank <= MOST_DIMENSIONS, "shape", f"must have {least} … {MOST_DIMENSIONS} dimensions", t.rank)
    require(all(1 <= n <= 1 << 32 for n in t.dims), "shape", "each dimension must be 1 … 2^32", t.dims[::-1])
    align = 32 if t.interleave == 32 else 16
    require(t.address % align == 0, "array", f"must begin at a multiple of {align} bytes", hex(t.address))
    require(
        all(0 < n < 1 << 40 and n % align == 0 for n in t.strides), "strides",
        f"must be multiples of {align} bytes, below 2^40", t.strides[::-1],
    )  # fmt: skip
    require(all(1 <= n <= 256 for n in t.box), "box", "each dimension must be 1 … 256 elements", t.box[::-1])
    require(all(1 <= n <= 8 for n in t.element_strides), "element_strides", "must be 1 … 8", t.element_strides[::-1])
    require(t.fill == "zero" or (kind.is_float and kind.bits > 8), "oob_fill", "must be zero for integers", t.fill)
    _check_rows(t)


def _check_rows(t: Tiling) -> None:
    row = t.box[0] * t.element_bytes
    if t.interleave:
        require(t.interleave != 32 or t.swizzle == 32, "swizzle", "must be 32 for an interleave of 32", t.swizzle)
        return
    require(t.element_strides[0] == 1, "element_strides", "must be 1 in the last dimension", t.element_strides[::-1])
    require(row % 16 == 0, "box", "must be a multiple of 16 bytes in the last dimension", f"{row} bytes")
    rule = f"must be {t.swizzle} bytes in the last dimension, as the swizzle"
    require(t.swizzle in (0, row), "box", rule, f"{row} bytes")


__all__ = ["DATA_TYPES", "FILLS", "INTERLEAVES", "MAP_BYTES", "PROMOTIONS", "SWIZZLES", "Tiling", "tiling"]
