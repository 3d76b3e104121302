"""What the assembler says that goldens take: read from `resources.json`, or measured here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ptxgen.errors import SpecError
from ptxgen.golden.compare import Record

if TYPE_CHECKING:
    from ptxgen.assembler import Assembler
    from ptxgen.golden.case import Case
    from ptxgen.targets import Target


def assembler_for(where: Target) -> Assembler | None:
    """The first installed assembler that knows this target: it measures all texts for it. None where there is none."""
    from ptxgen.assembler import available_assemblers, supported_targets

    return next((a for a in available_assemblers() if where in supported_targets(a)), None)


class Measured(Mapping[str, Mapping[str, Any]]):
    """Resources of cases by file stem; each is assembled when it is asked for."""

    def __init__(self, cases: Mapping[str, Case]) -> None:
        self._cases = cases

    def __getitem__(self, stem: str) -> dict[str, Any]:
        return measure(self._cases[stem])[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cases)

    def __len__(self) -> int:
        return len(self._cases)


def measure(case: Case) -> tuple[str, dict[str, Any]]:
    """The installed assembler's name, and what the case's entry takes by it."""
    from ptxgen.assembler import assemble

    ptx = case.generate()
    assembly = assemble(ptx.text, case.target, name=case.file, by=assembler_for(case.target))
    return assembly.assembler, asdict(assembly.resources[ptx.entry])


def by_folder(cases: tuple[Case, ...]) -> dict[str, dict[str, Case]]:
    """folder → file stem → case."""
    folders: dict[str, dict[str, Case]] = {}
    for case in cases:
        folders.setdefault(case.folder, {})[case.stem] = case
    return folders


def measured(cases: tuple[Case, ...]) -> dict[str, Record]:
    """A record for each folder of the cases, by the installed assembler."""
    folders = by_folder(cases).items()
    return {f: Record(str(assembler_for(next(iter(m.values())).target) or ""), Measured(m)) for f, m in folders}


def record_text(members: Mapping[str, Case]) -> str:
    """`resources.json` of a folder, measured now. Raises `AssembleError` naming the file that does not assemble."""
    taken, assembler = {}, ""
    for stem, case in members.items():
        assembler, taken[stem] = measure(case)
    return json.dumps({"assembler": assembler, "kernels": taken}, indent=2, sort_keys=True) + "\n"


def read_record(data: bytes, where: str) -> Record:
    """The record that a `resources.json` holds. Raises `SpecError` naming the file."""
    try:
        found = json.loads(data)
        return Record(str(found["assembler"]), {str(stem): dict(taken) for stem, taken in found["kernels"].items()})
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise SpecError(f"{where}: must be JSON that `ptxgen golden update` wrote") from None
