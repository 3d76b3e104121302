"""What stands in a folder of Hugging Face: JSON files of a sane size, and the tensors of its shards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.errors import FileError

LARGEST_JSON = 4 << 20  # of a configuration, an index, a shard's header: thousands of tensors take less than one


@dataclass(frozen=True)
class Stored:
    """A tensor of a shard: its type and shape there, and its bytes, a view of the mapped file."""

    name: str
    type: str
    shape: tuple[int, ...]
    raw: np.ndarray


def read_json(path: Path) -> Any:
    """A JSON file of a sane size."""
    try:
        nbytes = path.stat().st_size
        if nbytes <= LARGEST_JSON:
            return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as wrong:
        raise FileError(f"{path}: cannot be read ({wrong.strerror or wrong})") from None
    except (ValueError, RecursionError) as wrong:
        raise FileError(f"{path}: must be JSON ({str(wrong).splitlines()[0]})") from None
    raise FileError(f"{path}: must be at most {LARGEST_JSON >> 20} MiB (got {nbytes} bytes)")
