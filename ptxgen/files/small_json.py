"""JSON files of a sane size, from anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ptxgen.errors import FileError
from ptxgen.files.regular import size_of

LARGEST_JSON = 4 << 20  # of a configuration, an index, a shard's header: thousands of tensors take less than one


def read_json(path: Path) -> Any:
    """A JSON file of a sane size."""
    try:
        nbytes = size_of(path)
        if nbytes <= LARGEST_JSON:
            return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as wrong:
        raise FileError(f"{path}: cannot be read ({wrong.strerror or wrong})") from None
    except (ValueError, RecursionError) as wrong:
        raise FileError(f"{path}: must be JSON ({str(wrong).splitlines()[0]})") from None
    raise FileError(f"{path}: must be at most {LARGEST_JSON >> 20} MiB (got {nbytes} bytes)")
