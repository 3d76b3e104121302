"""Writes files all or none: everything goes to temporaries first and is renamed when all of it is on the disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ptxgen.errors import SpecError


def write_files(root: Path, files: Mapping[str, str | bytes]) -> tuple[Path, ...]:
    """Write `files` (path below `root` → content, text as UTF-8) and return their paths, sorted.

    After an `OSError` none of the new files is left, nor are directories that were made for them.
    """
    made: list[Path] = []
    staged: list[tuple[str, Path]] = []
    new: list[Path] = []
    try:
        for name in sorted(files):
            path = root / name
            made += _make_directories(path.parent)
            content = files[name]
            data = content.encode() if isinstance(content, str) else content
            if path.exists() and not path.is_file() and not path.is_dir():
                with _about(path):
                    path.write_bytes(data)  # a device or a pipe is written to, never replaced
            else:
                staged.append((_stage(path, data), path))
        for temporary, path in staged:
            existed = path.exists()
            with _about(path):
                os.replace(temporary, path)
            new += [] if existed else [path]
    except BaseException:
        for leftover in [*(Path(temporary) for temporary, _ in staged), *new]:
            with contextlib.suppress(OSError):
                leftover.unlink()
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return tuple(root / name for name in sorted(files))


def check_below(root: Path, names: Iterable[str]) -> None:
    """Raise `SpecError` for a file that would lie outside of `root`, through a link or dots."""
    real = root.resolve()
    for name in names:
        path = root / name
        if path.is_symlink() or not path.parent.resolve().is_relative_to(real):
            raise SpecError(f"{path}: must lie below {root} itself (got a link to {path.resolve()})")


def check_place(path: Path) -> None:
    """Raise the `OSError` that `write_files` would, where it can be told before there is something to write."""
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))
    if not os.access(path if path.exists() and not path.is_file() else folder, os.W_OK):
        raise PermissionError(13, "Permission denied", str(path))


def _make_directories(folder: Path) -> list[Path]:
    """Create a directory and its parents; returns those that were not there, outermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    missing.reverse()
    for one in missing:
        one.mkdir(exist_ok=True)
    return missing


def _stage(path: Path, content: bytes) -> str:
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    with _about(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, 0o666 & ~_UMASK)  # mkstemp makes files that only their owner can read
        except BaseException:
            os.unlink(temporary)
            raise
    return temporary


@contextlib.contextmanager
def _about(path: Path) -> Iterator[None]:
    """An `OSError` names the file that was asked for, not the temporary one."""
    try:
        yield
    except OSError as wrong:
        if wrong.errno is None:
            raise
        raise OSError(wrong.errno, wrong.strerror, str(path)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_UMASK = _umask()
