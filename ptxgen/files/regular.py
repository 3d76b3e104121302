"""Files from anybody, by their kind: a pipe or a device has no size and may never end, also behind a link."""

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
