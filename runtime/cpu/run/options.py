"""What a program or a device is told about running: mode, seed, threads, limit of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxgen.errors import SpecError, brief
from ptxgen.integers import as_index

MODES = ("fast", "random", "check")


@dataclass(frozen=True, slots=True)
class Options:
    """Checked when made: `SpecError` names the option that is wrong.

    `mode`: "fast"; "random" (a seeded order of CTAs and warps); "check" (all findings; what it costs depends on
    the kernel: docs/cpu-executor.md). `threads`: host threads that CTAs are spread over; None is one for each CPU. One
    thread is deterministic.
    `time_limit`: seconds of wall time after which a launch is given up as "no progress"; None is never.
    `most_findings`: in check mode a launch goes on until so many places in the code are found at fault; the other modes
    stop at the first. `equal_stores`: unordered stores of equal values are a "note" (an `ExecutionNote` is warned of)
    or a "finding".
    """

    mode: str = "fast"
    seed: int = 0
    threads: int | None = None
    time_limit: float | None = None
    most_findings: int = 20
    equal_stores: str = "note"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SpecError(f"mode: must be one of {', '.join(MODES)} (got {brief(self.mode)})")
        _whole("seed", self.seed, 0)
        if self.threads is not None:
            _whole("threads", self.threads, 1)
        _whole("most_findings", self.most_findings, 1)
        if self.equal_stores not in ("note", "finding"):
            raise SpecError(f'equal_stores: must be "note" or "finding" (got {brief(self.equal_stores)})')
        limit = self.time_limit
        if limit is not None and (not isinstance(limit, int | float | np.number) or not limit > 0):
            raise SpecError(f"time_limit: must be seconds > 0, or None (got {brief(limit)})")


def _whole(name: str, value: object, least: int) -> None:
    number = as_index(value)
    if number is None or number < least:
        raise SpecError(f"{name}: must be an int ≥ {least} (got {brief(value)})")
