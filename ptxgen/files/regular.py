"""Files from anybody, by their kind: a pipe or a device has no size and may never end, also behind a link; and what a
checkout without Git LFS has in place of a large file."""

from __future__ import annotations

import stat
from pathlib import Path

from ptxgen.errors import FileError


def size_of(path: Path) -> int:
    """The bytes of a regular file. Raises `FileError` for anything else, `OSError` where there is nothing."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path}: must be a regular file")
    return found.st_size


_POINTER, _LONGEST_POINTER = b"version https://git-lfs", 1024


def check_pulled(path: Path) -> None:
    """Raise `FileError` for a pointer of Git LFS."""
    if size_of(path) > _LONGEST_POINTER:
        return
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise FileError(f"{path}: is a pointer of Git LFS, not the file; `git lfs pull` fetches that")
