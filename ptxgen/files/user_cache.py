"""The directory of this user's caches, files there that no other user can write, and how they are read and written.
Owns no cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path


def default_directory(environment: dict[str, str] | None = None) -> Path | None:
    """The directory of all caches of this user, or None when caching on disk is off, or this user has no home that it
    would lie in; nothing is created.

    `PTXGEN_CACHE_DIR` names it (`off` turns the disk off), else `XDG_CACHE_HOME/ptxgen`, else the platform's place. A
    relative one is below the working directory of now, also after that has changed.
    """
    place = os.path.expanduser(_named(environment))
    if not place or place.startswith("~"):
        return None
    try:
        return Path(os.path.abspath(place))
    except OSError:  # relative to a directory that is gone
        return None


def _named(environment: dict[str, str] | None) -> str:
    """The directory as the environment has it; nothing when it is off."""
    env = os.environ if environment is None else environment
    chosen = env.get("PTXGEN_CACHE_DIR", "")
    if chosen.lower() == "off":
        return ""
    if chosen:
        return chosen
    if env.get("XDG_CACHE_HOME"):
        return os.path.join(env["XDG_CACHE_HOME"], "ptxgen")
    home = env.get("HOME") or "~"
    if sys.platform == "win32":
        return os.path.join(env.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local"), "ptxgen")
    return os.path.join(home, "Library/Caches" if sys.platform == "darwin" else ".cache", "ptxgen")


def make_private(directory: Path) -> None:
    """The directory, and what is missing above it, for this user alone.

    Raises `PermissionError`, and makes nothing, where what is there may be changed by another user.
    """
    missing = [*reversed([one for one in (directory, *directory.parents) if not one.exists()])]
    if missing:
        _demand_above(missing[0])
    for one in missing:
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(one, 0o700)


def read_own(path: Path) -> bytes:
    """What a file holds that no other user can have written; `OSError` for another."""
    demand_own_directory(path.parent)
    flags = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))  # a pipe would wait
    file = os.open(path, sum(flags, os.O_RDONLY))
    with open(file, "rb") as opened:
        demand_own(os.fstat(file), path.name)
        return opened.read()


def write_own(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file for this user alone, whole or not at all, and the directories that are missing above it."""
    make_private(path.parent)
    demand_own_directory(path.parent)
    write_whole(path, data, opener=_private, sync=sync)


def write_whole(path: Path, data: bytes, *, opener: Callable[[str, int], int] | None = None, sync: bool) -> None:
    """Write a file that others may be reading or writing: whole, by way of `.NAME.….tmp` beside it, or not at all."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.{os.urandom(6).hex()}.tmp"
    file = open(temporary, "xb", opener=opener)  # noqa: SIM115  # one that is there is another's, and stays
    try:
        with file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _private(path: str, flags: int) -> int:
    """An opener of files for this user alone."""
    return os.open(path, flags, 0o600)


def demand_own_directory(directory: Path) -> None:
    """Raise `PermissionError` for a directory in which, or in the place of which, another user may put something."""
    demand_own(os.stat(directory), "the directory")
    _demand_above(directory)


def _demand_above(directory: Path) -> None:
    """Raise `PermissionError` where another user may rename what is on the way to a directory."""
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
