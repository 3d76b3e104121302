"""The JSON that lists a directory's kernels (`index.json`, `manifest.json`), when there is one already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ptxgen.errors import SpecError, brief


def merged(path: Path, text: str) -> str:
    """A listing with the kernels that the file at `path` lists besides; a file of the same name is listed once.

    What it says by target (`targets`) is kept of the targets that are not written now.

    Raises `SpecError` where that file is no listing, or one of another model or format, or says otherwise of a target:
    nothing is lost in silence, and its kernels are those of one step.
    """
    if not path.is_file():
        return text
    new = json.loads(text)
    by_target = new.pop("targets", None)
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        kernels = {_file(kernel): kernel for kernel in (*old["kernels"], *new["kernels"])}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise SpecError(f"{path}: is no list of kernels; write to another directory, or remove it") from None
    for key in new:
        if key != "kernels" and old.get(key) != new[key]:
            which = f"other {key}" if key.endswith("s") else f"another {key}"
            differs = _difference(old.get(key), new[key])
            raise SpecError(f"{path}: is of {which} ({differs}); write to another directory, or remove it")
    if by_target is not None:
        there = old.get("targets", {})
        if wrong := [name for name in by_target if there.get(name, by_target[name]) != by_target[name]]:
            where = ", ".join(wrong)
            raise SpecError(f"{path}: is of another decode step on {where}; write to another directory, or remove it")
        new["targets"] = {**there, **by_target}
    return json.dumps({**old, **new, "kernels": list(kernels.values())}, indent=2) + "\n"


def _file(kernel: dict[str, Any]) -> str:
    return str(kernel["file"] if "file" in kernel else kernel["files"]["ptx"])


def _difference(old: object, new: object) -> str:
    """`max_len: 4096 there, 8192 here`; of lists, that they differ."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{brief(old)} there, {brief(new)} here"
    names = [*new, *(name for name in old if name not in new)]
    differing = {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}
    return "; ".join(
        name if isinstance(there, list | dict) else f"{name}: {brief(there)} there, {brief(here)} here"
        for name, (there, here) in differing.items()
    )
