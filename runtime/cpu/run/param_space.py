"""A launch's arguments as the bytes of its `.param` space."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ptxgen.errors import ExecutionError
from ptxgen.runtime.cpu.compile.entry import Entry

_FORMATS = {
    "u8": "B", "s8": "b", "b8": "B", "u16": "H", "s16": "h", "b16": "H", "u32": "I", "s32": "i", "b32": "I", "u64": "Q",
    "s64": "q", "b64": "Q", "f32": "f", "f64": "d", "f16": "e",
}  # fmt: skip


def pack(entry: Entry, args: Sequence[object]) -> np.ndarray:
    """The parameter block of an entry; raises `ExecutionError` naming the parameter that does not fit."""
    if len(args) != len(entry.params):
        names = ", ".join(name for name, _, _, _ in entry.params)
        raise ExecutionError(f"launch.args: kernel {entry.name} takes {len(entry.params)} ({names}) (got {len(args)})")
    block = np.zeros(entry.param_bytes, np.uint8)
    for (name, kind, offset, size), value in zip(entry.params, args, strict=True):
        data = _bytes_of(name, kind, size, value)
        block[offset : offset + size] = np.frombuffer(data, np.uint8)
    return block


def _bytes_of(name: str, kind: str, size: int, value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
    elif isinstance(value, np.generic | np.ndarray):
        data = value.tobytes()
    else:
        data = _number(name, kind, size, value)
    if len(data) != size:
        raise ExecutionError(f"launch.args: parameter {name} (.{kind}) has {size} bytes (got {len(data)}: {value!r})")
    return data


def _number(name: str, kind: str, size: int, value: object) -> bytes:
    if hasattr(value, "value"):  # ctypes
        value = value.value
    form = _FORMATS.get(kind)
    if form is None or struct.calcsize(form) != size:
        raise ExecutionError(f"launch.args: parameter {name} of {size} bytes needs bytes or an array (got {value!r})")
    try:
        if form in "efd":
            return struct.pack("<" + form, float(value))  # type: ignore[arg-type]
        number = int(value)  # type: ignore[call-overload]
        half = 1 << 8 * size - 1
        if form.isupper() and -half <= number < 0:
            number += 2 * half
        elif form.islower() and half <= number < 2 * half:
            number -= 2 * half
        return struct.pack("<" + form, number)
    except (struct.error, TypeError, ValueError, OverflowError) as error:
        raise ExecutionError(f"launch.args: parameter {name} is .{kind} (got {value!r}: {error})") from None
