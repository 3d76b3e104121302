"""A launch's geometry: what the native structures depend on, besides the entry, and whether the entry allows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxgen.errors import SpecError
from ptxgen.runtime.core import backend
from ptxgen.runtime.cpu.compile.entry import Entry
from ptxgen.runtime.cpu.native.layout import SHARED_BASE, WARP_LANES

_MULTIPROCESSORS = 148  # of a B200
Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Numbers of CTAs, threads and bytes that a GPU would take."""

    grid: Dim3
    block: Dim3
    cluster: Dim3
    shared: int  # dynamic, bytes

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return (self.threads + WARP_LANES - 1) // WARP_LANES

    @property
    def ctas_per_gang(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def gangs(self) -> int:
        """Clusters of the grid."""
        return self.ctas // self.ctas_per_gang

    def resident(self, entry: Entry) -> int:
        """Clusters that the largest GPU holds at a time, at least one: there is no end of room here."""
        a_multiprocessor = min(32, 2048 // (WARP_LANES * self.warps), (228 << 10) // (shared_bytes(entry, self) + 1024))
        return max(_MULTIPROCESSORS * a_multiprocessor // self.ctas_per_gang, 1)


def shared_bytes(entry: Entry, geometry: Geometry) -> int:
    """Shared memory of a CTA: static, and dynamic where there is any."""
    return entry.dynamic_start - SHARED_BASE + geometry.shared if geometry.shared else entry.static_shared


def fitted(entry: Entry, asked: backend.Geometry) -> Geometry:
    """A launch's geometry, held against what the entry demands of it; raises `SpecError`."""
    made = Geometry(asked.grid, asked.block, asked.cluster, asked.shared)
    demanded = entry.limit("reqnctapercluster")
    if demanded and made.cluster == (1, 1, 1):
        asked = backend.Geometry.of(made.grid, made.block, made.shared, demanded)
        made = Geometry(asked.grid, asked.block, asked.cluster, asked.shared)
    required, most = entry.limit("reqntid"), entry.limit("maxntid")
    if required and _padded(required) != made.block:
        raise SpecError(f"launch.block: kernel {entry.name} requires {_padded(required)} (got {made.block})")
    if most and made.threads > int(np.prod(most)):
        raise SpecError(f"launch.block: kernel {entry.name} allows {int(np.prod(most))} threads (got {made.threads})")
    if shared_bytes(entry, made) - entry.reserved_shared > backend.MOST_SHARED:
        raise SpecError(
            f"launch.shared: must leave static and dynamic shared memory within {backend.MOST_SHARED} bytes "
            f"(got {entry.static_shared - entry.reserved_shared} + {made.shared})"
        )
    return made


def _padded(numbers: tuple[int, ...]) -> Dim3:
    return (*numbers, 1, 1, 1)[:3]  # type: ignore[return-value]
