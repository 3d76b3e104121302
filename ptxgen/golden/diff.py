"""Findings of a comparison of goldens as a reviewer wants them: lines, instruction counts, resources; and revisions."""

from __future__ import annotations

import difflib
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ptxgen.errors import IsaError, PtxgenError, SpecError
from ptxgen.golden import Goldens
from ptxgen.golden.compare import Delta, Finding, compare
from ptxgen.nodes import instructions


@dataclass(frozen=True)
class Change:
    """A file and all that was found about it: its text, its resources, or both."""

    file: str
    findings: tuple[Finding, ...]

    @property
    def kind(self) -> str:
        """That of the finding about the text, where there is one."""
        return self.findings[0].kind

    @property
    def texts(self) -> tuple[str, str]:
        """Before and after; empty where there is none."""
        first = self.findings[0]
        old, new = (data.decode(errors="replace") if data else "" for data in (first.old, first.new))
        return old, new

    def lines(self, context: int = 3) -> Iterator[str]:
        """The unified diff, without line ends."""
        old, new = (text.splitlines() for text in self.texts)
        return difflib.unified_diff(old, new, f"a/{self.file}", f"b/{self.file}", n=context, lineterm="")

    def opcodes(self) -> Delta:
        """Instructions whose number differs: opcode → (before, after); none where a text cannot be read."""
        if not self.file.endswith(".ptx"):
            return {}
        try:
            old, new = (opcode_counts(text, self.file) if text else {} for text in self.texts)
        except IsaError:
            return {}
        names = [*old, *(name for name in new if name not in old)]
        return {n: (old.get(n, 0), new.get(n, 0)) for n in names if old.get(n, 0) != new.get(n, 0)}

    def resources(self) -> Delta:
        """Resources that differ: name → (before, after)."""
        return {name: values for finding in self.findings for name, values in finding.delta.items()}


def opcode_counts(text: str, file: str = "<ptx>") -> dict[str, int]:
    """How often each opcode, with its modifiers, stands in a text."""
    from ptxgen.parser import parse

    functions = parse(text, file).functions.values()
    return dict(Counter(i.opcode for function in functions for i in instructions(function.body or ())))


def findings(goldens: Goldens, against: str | None = None) -> list[Finding]:
    """What `golden check` finds; with `against`, a git revision, what the directory changes since it."""
    if against is None:
        return list(goldens.check())
    before = goldens.snapshot(f"at {against}", _tree(goldens.root, against))
    return list(compare(before, goldens.committed("here"), "added", "removed"))


def changes(found: Iterable[Finding]) -> list[Change]:
    """The findings by file, in order; those about a text come before those about its resources."""
    files: dict[str, list[Finding]] = {}
    for finding in found:
        files.setdefault(finding.file, []).append(finding)
    return [Change(file, tuple(each)) for file, each in files.items()]


def _tree(root: Path, revision: str) -> dict[str, bytes]:
    """The files below a directory at a revision."""
    if not _git(root, "ls-tree", "-r", "--name-only", revision, "--", "."):
        return {}
    with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", revision))) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if member.isfile()]
        return {name: file.read() for name, file in members if file and name.endswith((".ptx", ".json"))}


def _git(root: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        raise PtxgenError("golden diff --against: needs git on PATH") from None
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["?"])[0].removeprefix("fatal: ")
        raise SpecError(f"golden diff --against: git {arguments[0]}: {reason}")
    return done.stdout
