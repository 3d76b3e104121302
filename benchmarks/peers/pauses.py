"""Other processes stand still while something is timed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def paused(processes: Iterable[subprocess.Popen[Any] | None]) -> Iterator[None]:
    """Stop processes that have not ended, each the leader of a process group, with that group; let them go on at the
    end. What they had begun on a GPU ends by itself."""
    stopped = [each.pid for each in processes if each is not None and each.poll() is None]
    try:
        for group in stopped:
            _signal(group, signal.SIGSTOP)
        yield
    finally:
        for group in stopped:
            _signal(group, signal.SIGCONT)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.killpg(group, number)
