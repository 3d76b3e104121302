"""What is served of the models whose `config.json` lie in a folder: attention kernels, served, warned of, or refused,
with the reason; and whether the whole model decodes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ptxgen.errors import ConfigWarning, SpecError
from ptxgen.models.config.reader import load_config
from ptxgen.models.plan import plan
from ptxgen.models.spec import load_spec


@dataclass(frozen=True)
class Verdict:
    """`verdict`, of attention kernels, is "served", "warned" or "refused"; `reasons`: a sentence each, none where it is
    served. `decodes`: whether such a model can be run (`complete`) and its other kernels be had (`--weights`)."""

    model: str
    verdict: str
    reasons: tuple[str, ...] = ()
    decodes: bool = False


def survey(path: str | Path, target: str = "sm_90", max_len: int | None = None) -> Iterator[Verdict]:
    """A verdict on each configuration at `path`: a file, or the .json files of a folder that name a `model_type`.

    A model is served when every kernel of its attention can be had on the target. Raises `SpecError` where a folder has
    no configuration.
    """
    root = Path(path)
    files = [root] if root.is_file() else [file for file in sorted(root.rglob("*.json")) if _is_config(file)]
    if not files:
        raise SpecError(f"{path}: must be a config.json or a folder with some (got none that names a model_type)")
    for file in files:
        yield _verdict(file, file.name if file == root else str(file.relative_to(root)), target, max_len)


def _is_config(file: Path) -> bool:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "model_type" in found


def _verdict(file: Path, name: str, target: str, max_len: int | None) -> Verdict:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        try:
            plan(load_config(file, max_len), target)
        except SpecError as wrong:
            return Verdict(name, "refused", tuple(_without(file, line) for line in str(wrong).splitlines()))
    said = tuple(_without(file, str(one.message)) for one in caught if issubclass(one.category, ConfigWarning))
    return Verdict(name, "warned" if said else "served", said, _decodes(file, max_len))


def _decodes(file: Path, max_len: int | None) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        try:
            load_spec(file, max_len)
        except SpecError:
            return False
    return True


def _without(file: Path, reason: str) -> str:
    """A reason without the file, which the row names."""
    return reason.removeprefix(f"{file}: ")
