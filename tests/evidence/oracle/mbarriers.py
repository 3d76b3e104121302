"""Mbarriers of the oracle (PTX ISA 9.7.13.15): arrivals, bytes, phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.evidence.oracle.machine import Machine
from tests.evidence.oracle.memory import OracleFault
from tests.evidence.oracle.program import Place


@dataclass
class Barrier:
    """An mbarrier: arrivals expected per phase, arrivals and bytes still to come in this one, phases completed."""

    expected: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def update(self, arrivals: int, transactions: int) -> None:
        """Counts, and turns to the next phase when nothing is left to come."""
        self.pending -= arrivals
        self.bytes += transactions
        if self.pending < 0:
            raise OracleFault("more arrivals on an mbarrier than it expects")
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.phase = self.expected, self.phase + 1


def barriers_at(m: Machine, place: Place, space: str = "shared") -> list[Barrier]:
    """The mbarrier of each active thread; a fault where none was initialised."""
    at = m.spaces.place(m.at(place, space), 8, m.active)
    missing = [int(a) for a in at if int(a) not in m.mbarriers]
    if missing:
        raise OracleFault(f"no mbarrier was initialised at {missing[0]:#x}")
    return [m.mbarriers[int(a)] for a in at]


def complete(m: Machine, place: Place, sizes: Any) -> None:
    """complete_tx of `sizes` bytes by each active thread."""
    for barrier, size in zip(barriers_at(m, place), np.broadcast_to(sizes, m.active.shape), strict=True):
        barrier.update(0, -int(size))
