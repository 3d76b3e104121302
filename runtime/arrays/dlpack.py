"""DLPack in ctypes: the structures of its C header, capsules taken and given. Owns no device logic.

Source: DLPack 1.1, dlpack.h; Python array API standard, `__dlpack__`.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Final

import numpy as np

from ptxgen.dtypes import DTYPES, DType
from ptxgen.errors import SpecError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
_INT, _UINT, _FLOAT, _BFLOAT, _E4M3FN, _E5M2 = 0, 1, 2, 4, 10, 12  # DLDataTypeCode
_CODES = {
    DTYPES[name]: code
    for code, names in {
        _INT: ("s8", "s16", "s32", "s64"),
        _UINT: ("u8", "u16", "u32", "u64"),
        _FLOAT: ("f16", "f32", "f64"),
        _BFLOAT: ("bf16",),
        _E4M3FN: ("e4m3",),
        _E5M2: ("e5m2",),
    }.items()
    for name in names
}
_TYPES = {(code, dtype.bits): dtype for dtype, code in _CODES.items()}
_SINCE_1_1 = frozenset({_E4M3FN, _E5M2})
_READ_ONLY = 1  # bit of DLManagedTensorVersioned.flags
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_USED: Final = {_PLAIN: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}


class Tensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Plain(ctypes.Structure):
    """DLPack's DLManagedTensor, before version 1."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    """DLPack's DLManagedTensorVersioned, from version 1 on."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _api(name: str, result: Any, *arguments: Any) -> Any:
    """A prototype of its own, so that other users of ctypes.pythonapi keep theirs."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer_of = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


def _name_of(capsule: object) -> bytes:
    for name in (_VERSIONED, _PLAIN):
        if _is_valid(capsule, name):
            return name
    raise SpecError(f"__dlpack__: must return an unused DLPack capsule (got {capsule!r})")


def _managed(capsule: object, name: bytes) -> Plain | Versioned:
    return (Versioned if name == _VERSIONED else Plain).from_address(_pointer_of(capsule, name))


class Taken:
    """What a producer's capsule holds; the producer is told when this object goes."""

    def __init__(self, capsule: object) -> None:
        name = _name_of(capsule)
        managed = _managed(capsule, name)
        if isinstance(managed, Versioned) and managed.major != 1:
            raise SpecError(f"__dlpack__: version must be 1.x (got {managed.major}.{managed.minor})")
        _rename(capsule, _USED[name])
        self._address, self._deleter = ctypes.addressof(managed), managed.deleter
        tensor = managed.tensor
        self.readonly = bool(isinstance(managed, Versioned) and managed.flags & _READ_ONLY)
        self.device = (tensor.device_type, tensor.device_id)
        self.pointer = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
        self.dtype = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
        self.type_words = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"

    def __del__(self, prototype: Any = _DELETER) -> None:  # a global may be gone when the interpreter goes down
        deleter = getattr(self, "_deleter", None)
        if deleter:
            prototype(deleter)(self._address)


class _Carrier:
    """Memory as NumPy's array interface describes it; NumPy does not touch it."""

    def __init__(self, owner: object, interface: dict[str, object]) -> None:
        self.owner = owner
        self.__array_interface__ = interface


def give(
    owner: object,
    pointer: int,
    shape: tuple[int, ...],
    dtype: DType,
    device: tuple[int, int],
    readonly: bool,
    versioned: bool,
) -> object:
    """A capsule over memory that `owner` keeps alive, until the consumer is done with it.

    It is NumPy's capsule for an array of the same layout, told where the memory is and what its elements are: what
    takes it back is C, and works from any thread, under any exception, and while the interpreter goes down.
    """
    if dtype not in _CODES:
        raise BufferError(f"DLPack has no element type for {dtype}")
    if readonly and not versioned:
        raise BufferError("read-only memory needs a consumer of DLPack 1.0 or later")
    interface = {"version": 3, "shape": shape, "typestr": f"<u{dtype.bytes}", "data": (pointer, readonly)}
    capsule = _export(np.asarray(_Carrier(owner, interface)), versioned)
    name = _name_of(capsule)
    managed = _managed(capsule, name)
    tensor = managed.tensor
    tensor.device_type, tensor.device_id = device
    tensor.code = _CODES[dtype]
    if isinstance(managed, Versioned) and tensor.code in _SINCE_1_1:
        managed.minor = 1
    return capsule


def _export(array: Any, versioned: bool) -> object:
    """NumPy's own capsule. Before 2.1 it has no version, which every consumer takes, and is never read-only."""
    if versioned:
        with contextlib.suppress(TypeError):
            return array.__dlpack__(max_version=(1, 1))
    return array.__dlpack__()
