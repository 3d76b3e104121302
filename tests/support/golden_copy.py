"""A small directory of goldens to spoil: one kernel type on one target, as it is generated now."""

from __future__ import annotations

import json
from pathlib import Path

from ptxgen.golden import Goldens
from ptxgen.golden.compare import RESOURCES, Finding

ONE = "kv_cache_scatter"
FOLDER = f"sm_80/{ONE}"


def make(root: Path) -> Goldens:
    """The directory, without a difference."""
    made = Goldens(root, only=(ONE,), targets=("sm_80",))
    changed, removed = made.update(init=True)
    assert len(changed) == len(made.cases()) + 1
    assert removed == []
    assert not failing(made)
    return made


def failing(goldens: Goldens) -> list[Finding]:
    return [f for f in goldens.check() if f.fails]


def edit_resources(goldens: Goldens, **changes: object) -> dict[str, dict[str, object]]:
    path = goldens.root / FOLDER / RESOURCES
    record: dict[str, dict[str, object]] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(record))
    return record
