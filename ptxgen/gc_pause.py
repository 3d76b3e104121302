"""A pause of garbage collection while many objects are made that are all kept."""

from __future__ import annotations

import gc
import os
from threading import Lock


class _State:
    """How many contexts are open, in all threads, and whether the collector ran before the first."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.open = 0
        self.ran = False


_state = _State()


class GcPause:
    """A context in which the collector of garbage does not run; after all threads' last one it does, if it did before.

    It would look at every object of the process again and again and find nothing to free. What was garbage before, and
    what is afterwards, it finds at its next run.
    """

    def __enter__(self) -> None:
        self._entered = state = _state
        with state.lock:
            if not state.open:
                state.ran = gc.isenabled()
                gc.disable()
            state.open += 1

    def __exit__(self, *raised: object) -> None:
        state = self._entered
        with state.lock:
            state.open -= 1
            if not state.open and state.ran and state is _state:
                gc.enable()


def _begin_anew() -> None:
    """In a child process: contexts of other threads never end there."""
    global _state
    before, _state = _state, _State()
    if before.open and before.ran:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
