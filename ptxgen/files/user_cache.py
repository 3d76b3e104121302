"""The directory of this user's caches, and whether what lies there is this user's own. Owns no cache."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path


def default_directory(environment: dict[str, str] | None = None) -> Path | None:
    """The directory of all caches of this user, or None when caching on disk is off; nothing is created.

    `PTXGEN_CACHE_DIR` names it (`off` turns the disk off), else `XDG_CACHE_HOME/ptxgen`, else the platform's place.
    """
    env = os.environ if environment is None else environment
    chosen = env.get("PTXGEN_CACHE_DIR", "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(os.path.expanduser(chosen))  # as it is where there is no such user
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]) / "ptxgen"
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    if sys.platform == "win32":
        return Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local") / "ptxgen"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ptxgen"


def make_private(directory: Path) -> None:
    """The directory, and what is missing above it, for this user alone."""
    missing = [*reversed([one for one in (directory, *directory.parents) if not one.exists()])]
    for one in missing:
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(one, 0o700)


def private(path: str, flags: int) -> int:
    """An opener of files for this user alone."""
    return os.open(path, flags, 0o600)


def demand_own_directory(directory: Path) -> None:
    """Raise `PermissionError` for a directory in which, or in the place of which, another user may put something."""
    demand_own(os.stat(directory), "the directory")
    if not hasattr(os, "geteuid"):
        return
    given = Path(os.path.abspath(directory))
    for above in dict.fromkeys((*given.parents, *Path(os.path.realpath(given)).parents)):
        status = os.stat(above)
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, f"{above} above it belongs to user {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)  # of a sticky directory (/tmp) others cannot rename what is ours
            raise PermissionError(errno.EPERM, f"{above} above it may be written by others (mode {mode:o})")


def demand_own(status: os.stat_result, name: str) -> None:
    """Raise `PermissionError` for what is another user's, or what group or others may write."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"{name} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, f"{name} may be written by others (mode {stat.S_IMODE(status.st_mode):o})")
