"""What kernels print: `vprintf`'s formats and arguments as text on standard output, as soon as a lane prints."""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.run.global_memory import Memory

PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d*)(?:\.(\*|\d*))?(hh|h|ll|l|j|z|t|L|q)?([diouxXcsSpfFeEgGaA%])")
_LONGEST = 4096  # characters of a string


def printer(memory: Memory) -> object:
    """The function that native code calls: (format, arguments, bytes of them) → how many there were, or -1."""

    def say(format_: int, place: int, size: int) -> int:
        try:
            text, count = _formatted(memory, format_, place, size)
            sys.stdout.write(text)
        except (ValueError, struct.error, OverflowError):
            return -1
        return count

    return PRINT(say)


def _string(memory: Memory, address: int) -> str:
    found = memory.find(address)
    if found is None:
        return "(null)" if not address else "?"
    data = ctypes.string_at(address, min(found.end - address, _LONGEST))
    return data.partition(b"\0")[0].decode("utf-8", "replace")


def _formatted(memory: Memory, format_: int, place: int, size: int) -> tuple[str, int]:
    """The text, and the number of arguments. `size`: bytes there are at `place`; 0: as many as an allocation has."""
    if place and not size:
        found = memory.find(place)
        size = found.end - place if found is not None else 0
    data = ctypes.string_at(place, min(size, 1 << 10)) if place and size > 0 else b""
    given = _Arguments(data)
    parts, end = [], 0
    text = _string(memory, format_)
    for match in _CONVERSION.finditer(text):
        parts += [text[end : match.start()], _converted(memory, match, given)]
        end = match.end()
    return "".join([*parts, text[end:]]), given.count


class _Arguments:
    """Values one after the other, each aligned to its size."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.count = data, 0, 0

    def take(self, form: str) -> int | float:
        size = struct.calcsize(form)
        self.at = -(-self.at // size) * size
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += size
        self.count += 1
        return value  # type: ignore[no-any-return]


def _converted(memory: Memory, match: re.Match[str], given: _Arguments) -> str:
    flags, width, precision, length, kind = match.groups()
    if kind == "%":
        return "%"
    width, precision = (str(int(given.take("i"))) if part == "*" else part for part in (width, precision))
    head = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
    if kind in "fFeEgG":
        return f"{head}{kind}" % given.take("d")
    if kind in "aA":
        return float(given.take("d")).hex()
    if kind in "sS":
        return f"{head}s" % _string(memory, int(given.take("Q")))
    if kind == "p":
        return f"%{flags.replace('0', '')}{width}s" % hex(int(given.take("Q")))
    if kind == "c":
        return f"%{flags.replace('0', '')}{width}s" % chr(int(given.take("i")) & 0xFF)
    wide = length in ("l", "ll", "j", "z", "t", "q")
    value = int(given.take(("q" if kind in "di" else "Q") if wide else ("i" if kind in "di" else "I")))
    bits = {"hh": 8, "h": 16}.get(length or "")
    if bits:
        value &= (1 << bits) - 1
        value -= (value >> (bits - 1) << bits) if kind in "di" else 0
    return f"{head}{'d' if kind in 'diu' else kind}" % value
