"""Other processes stand still while something is timed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SESSION = 3  # of the fields of /proc/PID/stat behind the name


@contextmanager
def paused(processes: Iterable[subprocess.Popen[Any] | None]) -> Iterator[None]:
    """Stop processes that have not ended, each the leader of a session, with all of that session: ninja puts every
    compiler into a group of its own. They go on at the end. What they had begun on a GPU ends by itself."""
    sessions = {each.pid for each in processes if each is not None and each.poll() is None}
    stopped: set[int] = set()
    try:
        while more := members(sessions) - stopped:  # until none has started another meanwhile
            stopped |= more
            _signal(more, signal.SIGSTOP)
        yield
    finally:
        _signal(stopped, signal.SIGCONT)


def members(sessions: set[int]) -> set[int]:
    """Every process of these sessions."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[SESSION]) in sessions:
                found.add(int(stat.parent.name))
    return found


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
