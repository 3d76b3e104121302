"""The host threads of the executor: those that run CTAs, and one that regularly makes native code return
to Python.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ptxgen.runtime.cpu.native.layout import LAUNCH

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.run.native_state import Block

_LOOK_SECONDS = 0.05  # from one look at signals to the next, in a launch that runs in the calling thread
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_running: set[Block] = set()  # LAUNCH structures
_wanted = threading.Event()
_asker: threading.Thread | None = None


def thread_pool() -> ThreadPoolExecutor:
    """The threads that CTAs are spread over; made at first use, one for each CPU."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(os.cpu_count() or 1, 2), thread_name_prefix="ptxgen-cpu")
        return _pool


def asked_to_look(launch: Block, running: bool) -> None:
    """From now on (until it is told that it runs no more) a launch is asked to look up every `_LOOK_SECONDS`.

    A flag in memory, because Python handles a signal only between its own instructions, in its main thread, and a clock
    costs more to read than a turn of a warp may take.
    """
    global _asker
    if not running:
        _running.discard(launch)
        return
    _running.add(launch)
    if not _wanted.is_set():
        with _lock:
            if _asker is None:
                _asker = threading.Thread(target=_ask, name="ptxgen-cpu-look", daemon=True)
                _asker.start()
        _wanted.set()


def _ask() -> None:
    while True:
        _wanted.wait()
        time.sleep(_LOOK_SECONDS)
        for launch in list(_running):
            launch.put("I", LAUNCH["look"], 1)
        if not _running:
            _wanted.clear()
            if _running:  # it came between the two
                _wanted.set()


def _without_threads() -> None:
    """A forked process has none of its parent's threads."""
    global _pool, _lock, _running, _wanted, _asker
    _pool, _lock, _running, _wanted, _asker = None, threading.Lock(), set(), threading.Event(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_without_threads)
