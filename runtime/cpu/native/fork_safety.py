"""What a forked process needs of the executor: locks that no thread holds. Owns no lock."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Locked(Protocol):
    """Something with a lock that a thread may hold while another one forks."""

    def renew_lock(self) -> None:
        """Replace the lock: its holder is not in this process."""


_all: weakref.WeakSet[Locked] = weakref.WeakSet()


def renewed_in_children(one: Locked) -> None:
    """From now on, renew its lock in every forked process, as long as it lives."""
    _all.add(one)


def _after_fork() -> None:
    for one in list(_all):
        one.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
