"""What changed between two versions of goldens, as a reviewer wants it: lines, instruction counts, resources."""

from __future__ import annotations

import difflib
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptxgen.errors import PtxgenError, SpecError
from ptxgen.golden import RESOURCES, Case, Goldens, assembler_for, measure, recorded
from ptxgen.nodes import Instruction, Module, Scope, Statement

Delta = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Version:
    """A text and what it takes; both may be unknown."""

    text: str | None = None
    resources: dict[str, Any] = field(default_factory=dict)
    assembler: str = ""


@dataclass(frozen=True)
class Change:
    """A file whose text or resources differ between two versions."""

    file: str
    old: Version
    new: Version

    @property
    def kind(self) -> str:
        """added, removed, changed, or resources (the text is the same)."""
        if self.old.text is None or self.new.text is None:
            return "added" if self.old.text is None else "removed"
        return "changed" if self.old.text != self.new.text else "resources"

    def lines(self, context: int = 3) -> Iterator[str]:
        """The unified diff, without line ends."""
        old, new = (self.old.text or "").splitlines(), (self.new.text or "").splitlines()
        return difflib.unified_diff(old, new, f"a/{self.file}", f"b/{self.file}", n=context, lineterm="")

    def opcodes(self) -> Delta:
        """Instructions whose number differs: opcode → (before, after)."""
        return _delta(*(opcode_counts(v.text) if v.text else {} for v in (self.old, self.new)))

    def resources(self) -> Delta:
        """Resources that differ: name → (before, after); empty where one of them is not known."""
        if not self.old.resources or not self.new.resources:
            return {}
        return _delta(self.old.resources, self.new.resources)


def _delta(old: dict[str, Any], new: dict[str, Any]) -> Delta:
    names = [*old, *(name for name in new if name not in old)]
    return {n: (old.get(n, 0), new.get(n, 0)) for n in names if old.get(n, 0) != new.get(n, 0)}


def opcode_counts(text: str) -> dict[str, int]:
    """How often each opcode, with its modifiers, stands in a text."""
    from ptxgen.parser import parse

    return dict(Counter(i.opcode for i in instructions(parse(text))))


def instructions(module: Module) -> Iterator[Instruction]:
    """Every instruction of every function."""
    for function in module.functions.values():
        yield from _within(function.body or ())


def _within(body: Iterable[Statement]) -> Iterator[Instruction]:
    for item in body:
        if isinstance(item, Instruction):
            yield item
        elif isinstance(item, Scope):
            yield from _within(item.items)


def changes(goldens: Goldens, against: str | None = None) -> Iterator[Change]:
    """Files that differ between what is committed and what is generated now; with `against`, a git revision, between
    that revision's goldens and those in the directory."""
    pairs = _against_git(goldens, against) if against else _against_generated(goldens)
    for file, old, new in pairs:
        same_assembler = old.assembler == new.assembler
        if old.text != new.text or (same_assembler and old.resources and old.resources != new.resources):
            yield Change(file, old, new if same_assembler or not old.assembler else Version(new.text))


def _against_generated(goldens: Goldens) -> Iterator[tuple[str, Version, Version]]:
    for case in goldens.cases():
        path = goldens.root / case.file
        record = recorded(goldens.root, case.folder)
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        yield case.file, _version(text, record, case.file), _generated(case)
    for file in goldens.orphans():
        if file.endswith(".ptx"):
            yield file, Version((goldens.root / file).read_text(encoding="utf-8")), Version()


def _generated(case: Case) -> Version:
    """The text as generated now, measured where an assembler is installed."""
    text = case.generate().text
    if assembler_for(case.target) is None:
        return Version(text)
    assembler, resources = measure(case)
    return Version(text, resources, assembler)


def _version(text: str | None, record: dict[str, Any], file: str) -> Version:
    stem = file.rpartition("/")[2].removesuffix(".ptx")
    return Version(text, record.get("kernels", {}).get(stem, {}), record.get("assembler", ""))


def _against_git(goldens: Goldens, revision: str) -> Iterator[tuple[str, Version, Version]]:
    root = goldens.root
    listed = _git(root, "ls-tree", "-r", "--name-only", revision, "--", ".").splitlines()
    here = {p.relative_to(root).as_posix() for p in root.rglob("*.ptx")}
    for file in sorted(here | {f for f in listed if f.endswith(".ptx")}):
        if not goldens.covers(file):
            continue
        folder = file.rpartition("/")[0]
        record = f"{folder}/{RESOURCES}"
        old_text = _git(root, "show", f"{revision}:./{file}") if file in listed else None
        old_record = json.loads(_git(root, "show", f"{revision}:./{record}")) if record in listed else {}
        new_text = (root / file).read_text(encoding="utf-8") if file in here else None
        yield file, _version(old_text, old_record, file), _version(new_text, recorded(root, folder), file)


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PtxgenError("golden diff --against: needs git on PATH") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["?"])[0].removeprefix("fatal: ")
        raise SpecError(f"golden diff --against: git {arguments[0]}: {reason}")
    return done.stdout
