"""Element types: their PTX names, sizes and NumPy counterparts. Owns no conversion code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.errors import SpecError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type of a buffer or a scalar argument.

    `name` is also the PTX type suffix where PTX has one (`f32`, `s8`); `bits` is the size of one element.
    `numpy_name` is looked up in NumPy, or in ml_dtypes where NumPy has no such type.
    """

    name: str
    bits: int
    numpy_name: str
    is_float: bool = False

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return self.bits // 8

    @property
    def storage(self) -> str:
        """PTX type that moves one element without interpreting it (`b8` … `b64`)."""
        return f"b{self.bits}"

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype; bf16, e4m3 and e5m2 need the package ml_dtypes."""
        import numpy as np

        if self.name not in _ML_DTYPES:
            return np.dtype(self.numpy_name)
        try:
            import ml_dtypes
        except ImportError as missing:
            raise SpecError(
                f"{self.name}: NumPy has no such type; install ml_dtypes (pip install 'ptxgen[models]')"
            ) from missing
        found: np.dtype = np.dtype(getattr(ml_dtypes, self.numpy_name))
        return found

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


f64 = DType("f64", 64, "float64", True)
f32 = DType("f32", 32, "float32", True)
f16 = DType("f16", 16, "float16", True)
bf16 = DType("bf16", 16, "bfloat16", True)
e4m3 = DType("e4m3", 8, "float8_e4m3fn", True)
e5m2 = DType("e5m2", 8, "float8_e5m2", True)
s8 = DType("s8", 8, "int8")
u8 = DType("u8", 8, "uint8")
s16 = DType("s16", 16, "int16")
u16 = DType("u16", 16, "uint16")
s32 = DType("s32", 32, "int32")
u32 = DType("u32", 32, "uint32")
s64 = DType("s64", 64, "int64")
u64 = DType("u64", 64, "uint64")

_ML_DTYPES = frozenset({"bf16", "e4m3", "e5m2"})
DTYPES: dict[str, DType] = {t.name: t for t in (f64, f32, f16, bf16, e4m3, e5m2, s8, u8, s16, u16, s32, u32, s64, u64)}
_ALIASES = {
    "int8": "s8", "i8": "s8", "q8": "s8", "uint8": "u8", "int16": "s16", "uint16": "u16", "int32": "s32",
    "uint32": "u32", "int64": "s64", "uint64": "u64", "float16": "f16", "half": "f16", "bfloat16": "bf16",
    "float32": "f32", "float": "f32", "float64": "f64", "fp8": "e4m3", "fp8_e4m3": "e4m3",
    "float8_e4m3fn": "e4m3", "fp8_e5m2": "e5m2", "float8_e5m2": "e5m2",
}  # fmt: skip


def dtype(value: object) -> DType:
    """The `DType` that a name (`"f16"`, `"bfloat16"`, `"int8"`), a DType, or anything with such a `.name` stands for.

    Raises `SpecError` for anything else, and for a NumPy dtype in another byte order than the machine's.
    """
    if isinstance(value, DType):
        return value
    if not getattr(value, "isnative", True):
        raise SpecError(f"dtype: must be in native byte order (got {value!r}); x.astype(x.dtype.newbyteorder()) is")
    name = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None)
    found = DTYPES.get(_ALIASES.get(str(name), str(name)))
    if found is None:
        raise SpecError(f"dtype: must be one of {', '.join(DTYPES)} (got {value!r})")
    return found
