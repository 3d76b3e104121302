"""The host threads of the executor. Owns nothing else."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def thread_pool() -> ThreadPoolExecutor:
    """The threads that CTAs are spread over; made at first use, one for each CPU."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(os.cpu_count() or 1, 2), thread_name_prefix="ptxgen-cpu")
        return _pool


def _without_threads() -> None:
    """A forked process has none of its parent's threads."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_without_threads)
