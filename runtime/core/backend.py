"""What a backend (CUDA, CPU executor) gives to the shared half of the runtime: values and four small protocols.

A backend is a `Device` subclass whose underscored methods speak in these terms. Owns no behaviour beyond checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ptxgen.errors import SpecError, brief
from ptxgen.integers import as_index
from ptxgen.runtime.core.param_block import Slot
from ptxgen.runtime.core.stream import Stream

Dim3 = tuple[int, int, int]
FirstUse = Callable[[Stream], None]
Stopped = Callable[[], None]
_GRID_LIMIT: Dim3 = (2**31 - 1, 65535, 65535)
_BLOCK_LIMIT: Dim3 = (1024, 1024, 64)
MOST_SHARED = 227 << 10  # bytes of a CTA, static and dynamic, on the architectures that have most (sm_90, sm_100)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A launch with numbers only: CTAs, threads, dynamic shared memory in bytes, CTAs of a cluster; `together`: CTAs
    wait for each other, so the device must hold all of them at once."""

    grid: Dim3
    block: Dim3
    shared: int = 0
    cluster: Dim3 = (1, 1, 1)
    programmatic: bool = False
    together: bool = False

    @classmethod
    def of(
        cls,
        grid: object,
        block: object,
        shared: int = 0,
        cluster: object = None,
        programmatic: bool = False,
        together: bool = False,
    ) -> Geometry:
        """From ints or tuples of one to three ints, checked against the limits every architecture shares.

        Raises `SpecError` (CUDA C++ Programming Guide, technical specifications per compute capability).
        """
        made = cls(
            dim3("grid", grid, _GRID_LIMIT),
            dim3("block", block, _BLOCK_LIMIT),
            _shared(shared),
            dim3("cluster", 1 if cluster is None else cluster, (16, 16, 16)),
            bool(programmatic),
            together,
        )
        if made.threads > 1024:
            raise SpecError(f"Geometry.block: must be at most 1024 threads (got {made.block}: {made.threads})")
        if math.prod(made.cluster) > 16:
            raise SpecError(f"Geometry.cluster: must be at most 16 CTAs (got {made.cluster})")
        if any(g % c for g, c in zip(made.grid, made.cluster, strict=True)):
            raise SpecError(f"Geometry.grid: must be a multiple of the cluster {made.cluster} (got {made.grid})")
        return made

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]


def dim3(label: str, value: object, limit: Dim3) -> Dim3:
    """An int or a tuple of one to three ints, as three ints within `limit`."""
    found = [as_index(one) for one in value] if isinstance(value, tuple | list) else [as_index(value)]
    parts = tuple(one for one in found if one is not None)
    if len(parts) != len(found):
        raise SpecError(f"Geometry.{label}: must be an int or up to three ints (got {value!r})")
    full = (*parts, 1, 1, 1)[:3] if 1 <= len(parts) <= 3 else ()
    if len(full) != 3 or any(not 1 <= v <= top for v, top in zip(full, limit, strict=True)):
        raise SpecError(f"Geometry.{label}: each of one to three values must be 1 … {limit} (got {value!r})")
    return full


def _shared(value: object) -> int:
    nbytes = as_index(value)
    if nbytes is None or not 0 <= nbytes <= MOST_SHARED:
        raise SpecError(f"Geometry.shared: must be 0 … {MOST_SHARED} bytes (227 KiB) as an int (got {brief(value)})")
    return nbytes


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of `height` rows of `width` bytes; pitches are the bytes from one row to the next.

    `dst` and `src` are addresses; `direction` says which of them is host memory: "in" the source, "out" the
    destination, "on" neither.
    """

    direction: Literal["in", "out", "on"]
    dst: int
    src: int
    width: int
    height: int = 1
    dst_pitch: int = 0
    src_pitch: int = 0


@dataclass(frozen=True, slots=True)
class Resources:
    """What one entry needs, as its compiler reports it; 0 where a backend cannot know."""

    registers: int = 0
    local_bytes: int = 0
    static_shared: int = 0
    max_threads: int = 1024


class Function(Protocol):
    """One entry of a loaded module."""

    @property
    def name(self) -> str:
        """Name of the entry."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """One slot per parameter, in order; offsets as in the `.param` space of the entry."""

    @property
    def resources(self) -> Resources:
        """Registers, stack, static shared memory, largest CTA."""


class Code(Protocol):
    """A module that a device has loaded, of one text."""

    @property
    def origin(self) -> str:
        """Where the machine code came from: one word for the log and for tests."""

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries, in the text's order."""

    def function(self, name: str) -> Function:
        """The entry of that name; `ModuleLoadError` names the entries there are."""

    def unload(self) -> None:
        """Drop the machine code; functions of it may not be launched any more."""


class Launcher(Protocol):
    """One prepared launch: a function, a geometry and the parameter block it reads at every launch."""

    def launch(self, stream: Stream | None = None) -> None:
        """Submit to `stream` (None: the device's default stream); no allocation, copy or synchronisation."""

    def close(self, reason: str) -> None:
        """From now on `launch` raises with this reason."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Device memory in bytes: free and total of the device, used and reserved by this process's pool."""

    free: int
    total: int
    used: int
    reserved: int

    @property
    def available(self) -> int:
        """What another allocation of this process can have: free memory, and what its pool holds without using it."""
        return self.free + self.reserved - self.used
