"""Two states of a directory of goldens against each other: the findings that `golden check` and `golden diff` show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

RESOURCES = "resources.json"
Delta = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Record:
    """Resources of a folder's texts by file stem, and the assembler that says so (empty where there is none).

    `kernels` may measure when it is read: it is read only where both records come from one assembler.
    """

    assembler: str
    kernels: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Snapshot:
    """One state: texts and manifests by file, records by folder. `word` says which (`committed`, `generated`)."""

    word: str
    files: Mapping[str, bytes]
    records: Mapping[str, Record]


@dataclass(frozen=True)
class Finding:
    """What two states differ in, or could not be compared in.

    `kind`: missing and orphan (`added`, `removed` against a revision), changed, resources, not compared. `old` and
    `new` are the file's contents where they matter, `delta` the resources that differ: name → (before, after).
    """

    kind: str
    file: str
    text: str = ""
    old: bytes | None = None
    new: bytes | None = None
    delta: Delta = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """False only for what could not be compared."""
        return self.kind != "not compared"

    def __str__(self) -> str:
        return f"{self.kind}: {self.file}" + (f": {self.text}" if self.text else "")


def compare(
    old: Snapshot, new: Snapshot, only_new: str = "missing", only_old: str = "orphan", unrecorded: str = ""
) -> Iterator[Finding]:
    """Every finding, ordered by file; `only_new` and `only_old` name the kinds of files that one side lacks.

    `unrecorded` is the kind of a folder whose resources `old` does not have, where it is another than `only_new`.
    """
    for file in sorted(old.files.keys() | new.files.keys()):
        before, after = old.files.get(file), new.files.get(file)
        if before is None:
            yield Finding(only_new, file, f"is {new.word}, but not {old.word}", before, after)
        elif after is None:
            yield Finding(only_old, file, f"is {old.word}, but not {new.word}", before, after)
        elif before != after:
            yield Finding("changed", file, _first_difference(before, after, old.word, new.word), before, after)
    for folder in sorted(old.records.keys() | new.records.keys()):
        file = f"{folder}/{RESOURCES}"
        if folder not in new.records:
            yield Finding(only_old, file, f"is {old.word}, but not {new.word}")
        elif folder not in old.records:
            yield Finding(unrecorded or only_new, file, f"resources are not {old.word}")
        else:
            yield from _stems(file, old.records[folder], new.records[folder], only_new, only_old)
            yield from _resources(file, old.records[folder], new.records[folder], old.word, new.word)


def _first_difference(before: bytes, after: bytes, old_word: str, new_word: str) -> str:
    old, new = (data.decode(errors="replace").splitlines() for data in (before, after))
    if old == new:
        return "differs in its line ends only"
    line = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    shown = [lines[line].strip() if line < len(lines) else "(end)" for lines in (old, new)]
    return f"line {line + 1}: {shown[0]!r} is {old_word}, {shown[1]!r} is {new_word}"


def _stems(file: str, old: Record, new: Record, only_new: str, only_old: str) -> Iterator[Finding]:
    for stem in sorted(old.kernels.keys() - new.kernels.keys()):
        yield Finding(only_old, file, f"records {stem!r}, which is no golden")
    for stem in sorted(new.kernels.keys() - old.kernels.keys()):
        yield Finding(only_new, file, f"does not record {stem!r}")


def _resources(file: str, old: Record, new: Record, old_word: str, new_word: str) -> Iterator[Finding]:
    if old.assembler != new.assembler:
        by = f"{old.assembler} ({old_word}) and {new.assembler or 'nothing, as none is installed'} ({new_word})"
        yield Finding("not compared", file, f"measured by {by}")
        return
    for stem in sorted(old.kernels.keys() & new.kernels.keys()):
        before, after = old.kernels[stem], new.kernels[stem]
        names = [*before, *(name for name in after if name not in before)]
        delta = {n: (before.get(n, 0), after.get(n, 0)) for n in names if before.get(n) != after.get(n)}
        if delta:
            changes = ", ".join(f"{name} {was} → {now}" for name, (was, now) in delta.items())
            yield Finding("resources", f"{file.rpartition('/')[0]}/{stem}.ptx", changes, delta=delta)
