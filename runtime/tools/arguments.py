"""Arguments of a foreign entry in words: `u32[64]=index`, `f32[32x128]=random`, `u32=7`, or the arrays of an .npz."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import DTYPES, DType
from ptxgen.errors import SpecError, brief

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

FORM = "TYPE=NUMBER, TYPE[N], TYPE[NxM]=NUMBER, …=index or …=random"
_TEXT = re.compile(r"(?P<type>\w+)(?:\[(?P<shape>\d+(?:x\d+)*)\])?(?:=(?P<fill>\S+))?", re.ASCII)
_MOST_BYTES = 1 << 34


@dataclass(frozen=True)
class Argument:
    """One argument: a scalar (`shape` is None), or a buffer that is filled in a way.

    `fill`: a number; "index" (0, 1, 2, …); "random" (floats: normal; integers: 0 to 255); "" leaves memory as it is
    found, which check mode reports where it is read.
    """

    kind: DType
    shape: tuple[int, ...] | None
    fill: str

    @classmethod
    def parse(cls, text: str) -> Argument:
        """From its text; `SpecError` says what the text must be."""
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise SpecError(f"--arg: must be {FORM} (got {brief(text)})")
        kind = re.sub(r"^i(?=\d)", "s", found["type"])  # Triton's and LLVM's notation
        if kind not in DTYPES:
            raise SpecError(f"--arg: the type must be one of {', '.join(DTYPES)} (got {found['type']})")
        shape = None if found["shape"] is None else tuple(int(n) for n in found["shape"].split("x"))
        made = cls(DTYPES[kind], shape, found["fill"] or "")
        if shape is not None and not 0 < math.prod(shape) * made.kind.bytes <= _MOST_BYTES:
            raise SpecError(f"--arg: a buffer must have 1 byte to {_MOST_BYTES:,} (got {brief(text)})")
        if shape is None or made.fill not in ("index", "random", ""):
            _number(text, made.fill)
        return made

    def host(self, rng: np.random.Generator) -> np.ndarray | np.generic | None:
        """The scalar, or the buffer's contents; None where nothing is to be written."""
        kind = self.kind.numpy
        if self.shape is None:
            return _cast(self.fill, kind)
        if self.fill == "":
            return None
        if self.fill == "index":
            return np.arange(math.prod(self.shape)).astype(kind).reshape(self.shape)
        if self.fill == "random":
            drawn = rng.standard_normal(self.shape) if self.kind.is_float else rng.integers(0, 128, self.shape)
            return drawn.astype(kind)
        return np.full(self.shape, _cast(self.fill, kind), kind)

    def on(self, device: Device, rng: np.random.Generator) -> object:
        """What an `Entry` takes on this device."""
        host = self.host(rng)
        if self.shape is None:
            return host
        return device.empty(self.shape, self.kind) if host is None else device.array(host, self.kind)


def from_arrays(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray | np.generic]:
    """The arrays of a file, by the names of an entry's parameters, else in the file's order; those without a dimension
    are scalars. `SpecError` where their number is another."""
    if len(arrays) != len(names):
        raise SpecError(f"takes {counted(names)}; the file has {len(arrays)}")
    ordered = [arrays[name] for name in names] if set(names) == set(arrays) else list(arrays.values())
    return [array[()] if array.ndim == 0 else array for array in ordered]


def counted(names: Sequence[str]) -> str:
    """The arguments of an entry, as a sentence says them: `2 arguments (x, out)`."""
    return f"{len(names)} argument{'' if len(names) == 1 else 's'} ({', '.join(names) or 'none'})"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return bool(re.fullmatch(r"-?0x[0-9a-fA-F]+", text))
    return True


def _number(text: str, fill: str) -> float | int:
    if not _is_number(fill):
        raise SpecError(f"--arg: must be {FORM} (got {brief(text)})")
    try:
        return int(fill, 0)
    except ValueError:
        return float(fill)


def _cast(fill: str, kind: np.dtype) -> np.generic:
    """A number as an element; `SpecError` where the type cannot hold it."""
    try:
        number = _number(fill, fill)
        if kind.kind in "iu":
            np.array([number], kind)  # raises where it does not fit
            if number != int(number):
                raise ValueError
        made: np.generic = np.array([number]).astype(kind)[0]
    except (OverflowError, ValueError, TypeError):
        raise SpecError(f"--arg: {kind.name} has no value {fill}") from None
    return made
