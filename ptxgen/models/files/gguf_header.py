"""A GGUF file's header, every count, length and offset held against the file's size before it is used.

The `gguf` package gives the tables of types; its reader does not check the file, so the bytes are read here. Format:
github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.errors import FileError, brief

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMS = 4
_LARGEST_ALIGNMENT = 1 << 20
_LONGEST_NAME = 1 << 16
_LARGEST_DIM = 1 << 40
_LEAST_ENTRY = 8 + 4 + 1  # bytes of the smallest metadata entry, and a bound below that of a tensor's
# What no model needs and would take long to read: the largest vocabularies have half a million merges.
_MOST_ENTRIES, _MOST_TENSORS, _MOST_STRINGS = 1 << 14, 1 << 14, 1 << 20


@dataclass(frozen=True)
class GgufTensor:
    """A tensor: its type as GGUF names it ("Q4_K", or a number that the package does not know), its shape with the
    rows first, and where its bytes lie in the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """The metadata by key, the tensors by name, and the mapped bytes."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    data: np.ndarray

    def bytes_of(self, tensor: GgufTensor) -> np.ndarray:
        """A tensor's bytes, a view."""
        return self.data[tensor.offset : tensor.offset + tensor.nbytes]


def read_gguf(path: Path) -> GgufFile:
    """The header of the file at `path`. Raises `FileError` naming the place of the first fault."""
    if path.stat().st_size < len(b"GGUF") + 4 + 8 + 8:
        raise FileError(f"{path}: is too short for a GGUF file ({path.stat().st_size} bytes)")
    data = np.memmap(path, np.uint8, "r")
    walk = _Walk(path, data.data)
    if (magic := bytes(walk.take(4))) != b"GGUF":
        raise FileError(f"{path}: is no GGUF file (it begins with {magic!r})")
    version = walk.number("I", "version")
    if version not in (2, 3):
        swapped = version & 0xFFFF == 0
        raise FileError(f"{path}: version: must be 2 or 3 (got {'a big-endian file' if swapped else version})")
    tensors = walk.count("tensor count", _LEAST_ENTRY, _MOST_TENSORS)
    entries = walk.count("metadata count", _LEAST_ENTRY, _MOST_ENTRIES)
    fields: dict[str, Any] = {}
    for _ in range(entries):
        key = walk.string("a metadata key", _LONGEST_NAME)
        if key in fields:
            raise FileError(f"{path}: {brief(key)}: stands twice in the metadata")
        fields[key] = walk.value(key)
    found = [walk.tensor() for _ in range(tensors)]
    return GgufFile(path, fields, _placed(path, walk, fields, found), np.asarray(data))


class _Walk:
    """A cursor over the bytes that never leaves them."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.at = path, data, 0
        self.strings_left = _MOST_STRINGS  # of all arrays

    def fail(self, what: str, rule: str) -> FileError:
        return FileError(f"{self.path}: {what}: {rule} (at byte {self.at})")

    def take(self, n: int, what: str = "header") -> memoryview:
        if n > len(self.data) - self.at:
            raise self.fail(brief(what), f"the file ends within it, {n} bytes are due")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, kind: str, what: str) -> Any:
        return struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind), what))[0]

    def count(self, what: str, each: int, most: int = 1 << 62) -> int:
        """A number of things that take `each` bytes or more: not more than the rest of the file holds, nor `most`."""
        n: int = self.number("Q", what)
        if n * each > len(self.data) - self.at:
            raise self.fail(brief(what), f"{n} cannot be, the rest of the file is {len(self.data) - self.at} bytes")
        if n > most:
            raise self.fail(brief(what), f"must be at most {most} (got {n})")
        return n

    def string(self, what: str, longest: int = 1 << 62) -> str:
        n = self.count(f"length of {what}", 1)
        if n > longest:
            raise self.fail(what, f"must be at most {longest} bytes (got {n})")
        try:
            return str(self.take(n, what), "utf-8")
        except UnicodeDecodeError:
            raise self.fail(brief(what), "must be UTF-8") from None

    def strings(self, key: str) -> list[str]:
        """An array of them."""
        n = self.count(key, 8, self.strings_left)
        self.strings_left -= n
        data, at, length, found = self.data, self.at, struct.Struct("<Q").unpack_from, []
        try:
            for _ in range(n):
                end = at + 8 + length(data, at)[0]
                if end > len(data):
                    break
                found.append(str(data[at + 8 : end], "utf-8"))
                at = end
        except (struct.error, UnicodeDecodeError):
            pass
        self.at = at
        for _ in range(n - len(found)):  # the first of these raises
            self.string(key)
        return found

    def value(self, key: str) -> Any:
        kind = self.number("I", key)
        if kind == _STRING:
            return self.string(key)
        if kind != _ARRAY:
            return self.number(self.scalar(kind, key), key)
        kind = self.number("I", key)
        if kind == _STRING:
            return self.strings(key)
        code = self.scalar(kind, key)
        dtype = np.dtype(code).newbyteorder("<")
        return np.frombuffer(self.take(self.count(key, dtype.itemsize) * dtype.itemsize, key), dtype)

    def scalar(self, kind: int, key: str) -> str:
        if kind not in _SCALARS:
            raise self.fail(brief(key), f"a metadata type must be 0 to 12, in an array no array (got {kind})")
        return _SCALARS[kind]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape with the rows first, type, offset in the data part."""
        name = self.string("a tensor name", _LONGEST_NAME)
        n_dims = self.number("I", name)
        if not 1 <= n_dims <= _MOST_DIMS:
            raise self.fail(brief(name), f"must have 1 to {_MOST_DIMS} dimensions (got {n_dims})")
        dims = [self.number("Q", name) for _ in range(n_dims)]
        if any(not 1 <= dim <= _LARGEST_DIM for dim in dims):
            raise self.fail(brief(name), f"a dimension must be from 1 to {_LARGEST_DIM} (got {brief(dims)})")
        return name, tuple(reversed(dims)), self.number("I", name), self.number("Q", name)


def _placed(
    path: Path, walk: _Walk, fields: Mapping[str, Any], found: list[tuple[str, tuple[int, ...], int, int]]
) -> dict[str, GgufTensor]:
    """The tensors with the places of their bytes: aligned, within the file, and none over another."""
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise FileError(f"{path}: general.alignment: must be a power of two (got {brief(alignment)})")
    begin = -(-walk.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in found:
        where = f"{path}: {brief(name)}"
        if name in tensors:
            raise FileError(f"{where}: stands twice in the file")
        if offset % alignment:
            raise FileError(f"{where}: its offset must be a multiple of {alignment} (got {offset})")
        title, block, size = _type(kind)
        if shape[-1] % block:
            raise FileError(f"{where}: a row of {title} must be a multiple of {block} (got {shape[-1]})")
        tensors[name] = GgufTensor(name, title, shape, begin + offset, math.prod(shape) // block * size)
        if tensors[name].offset + tensors[name].nbytes > len(walk.data):
            raise FileError(f"{where}: ends behind the end of the file ({title} {list(shape)}, offset {offset})")
    placed = sorted(tensors.values(), key=lambda one: one.offset)
    for before, after in itertools.pairwise(placed):
        if before.offset + before.nbytes > after.offset:
            raise FileError(f"{path}: {brief(after.name)}: lies over {brief(before.name)} (at byte {after.offset})")
    return tensors


def _type(number: int) -> tuple[str, int, int]:
    """A type's name, elements of a block and bytes of a block; of one that the package does not know, its number."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        return f"type {number}", 1, 0
    return (kind.name, *GGML_QUANT_SIZES[kind])
