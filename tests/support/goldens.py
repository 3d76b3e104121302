"""The goldens that differ in more than their header: what tests of the code run over."""

from __future__ import annotations

import re
from functools import cache

from ptxgen.golden import Goldens
from ptxgen.golden.case import Case
from tests.support.kernels import GOLDENS


def body(text: str) -> str:
    """A text without its comments, version and target."""
    return re.sub(r"(?m)^ *(//.*|\.target.*|\.version.*)$", "", text)


@cache
def different() -> tuple[Case, ...]:
    """One case for each body of the committed texts, the first by its file."""
    found: dict[str, Case] = {}
    for case in Goldens(GOLDENS).cases():
        found.setdefault(body((GOLDENS / case.file).read_text(encoding="utf-8")), case)
    return tuple(found.values())
