"""Golden PTX: the committed text and resources of some specs, against what is generated now. Only `update` writes.

A directory of goldens holds `<target>/<kernel_type>/<slug>.ptx` and a `resources.json` beside them. Its cases are the
kernel types' own `goldens`; or those of its `index.json`, where it has one (as `ptxgen generate --config` writes).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ptxgen.errors import AssembleError, PtxgenError, SpecError
from ptxgen.generator import Ptx, generate
from ptxgen.kernel import KernelType, kernel_types, make_spec, supports
from ptxgen.manifest import manifest
from ptxgen.output import write_files
from ptxgen.targets import ALL_TARGETS, Target, target

INDEX = "index.json"
RESOURCES = "resources.json"


@dataclass(frozen=True)
class Case:
    """A spec and a target; `file` is where its text lies, `manifest` where its manifest does (if it has one)."""

    spec: KernelType
    target: Target
    file: str
    manifest: str | None = None

    @property
    def folder(self) -> str:
        """Directory of the file."""
        return self.file.rpartition("/")[0]

    def generate(self) -> Ptx:
        """The kernel as it is generated now."""
        return generate(self.spec, self.target)


@dataclass(frozen=True)
class Finding:
    """Something that `check` has to say about a file. `kind`: missing, orphan, changed, resources, not compared."""

    kind: str
    file: str
    text: str = ""

    @property
    def fails(self) -> bool:
        """False only for what could not be compared."""
        return self.kind != "not compared"

    def __str__(self) -> str:
        return f"{self.kind}: {self.file}" + (f": {self.text}" if self.text else "")


def golden_file(spec: KernelType, where: Target) -> str:
    """`<target>/<kernel_type>/<slug>.ptx`."""
    return f"{where}/{spec.kernel_name}/{spec.slug}.ptx"


@dataclass(frozen=True)
class Goldens:
    """A directory of goldens. `only` and `targets` narrow every method to these kernel types and targets."""

    root: Path
    only: Collection[str] = ()
    targets: Collection[str] = ()

    def cases(self) -> tuple[Case, ...]:
        """The cases, ordered by file. Raises `SpecError` when two have the same file."""
        index = self.root / INDEX
        by_file: dict[str, Case] = {}
        for case in _indexed(index) if index.is_file() else _declared():
            other = by_file.setdefault(case.file, case)
            if other is not case:
                raise SpecError(f"{case.file}: two goldens have this name: {other.spec!r} and {case.spec!r}")
        return tuple(by_file[file] for file in sorted(by_file) if self.covers(file))

    def check(self) -> Iterator[Finding]:
        """Compare every file and every resource, and name files that belong to no case."""
        chosen = self.cases()
        for case in chosen:
            for file, text in expected(case).items():
                yield from _compare(self.root / file, file, text)
        yield from check_resources(self.root, chosen)
        yield from (Finding("orphan", file, "no golden case has this name") for file in self.orphans())

    def orphans(self) -> list[str]:
        """Files of the kinds that goldens have that no case owns."""
        owned = {INDEX}
        for case in self.cases():
            owned |= {case.file, case.manifest or case.file, f"{case.folder}/{RESOURCES}"}
        there = (p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.suffix in (".ptx", ".json"))
        return sorted(file for file in there if file not in owned and self.covers(file))

    def update(self) -> tuple[list[str], list[str]]:
        """Write every file and the resources, remove orphans; returns what changed and what was removed.

        Refused where the environment says `CI`: a machine must not bless its own output. Raises `AssembleError` when a
        text does not assemble; nothing is written then.
        """
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            raise PtxgenError("golden update: refused where CI is set; run it on your machine and commit the result")
        chosen = self.cases()
        files: dict[str, str] = {}
        for case in chosen:
            files |= expected(case)
        for folder, members in _by_folder(chosen).items():
            files[f"{folder}/{RESOURCES}"] = _record(members)
        changed = {f: t for f, t in files.items() if not _same(self.root / f, t)}
        write_files(self.root, changed)
        removed = [file for file in self.orphans() if _is_ours(file)]
        for file in removed:
            (self.root / file).unlink()
        return sorted(changed), removed

    def covers(self, file: str) -> bool:
        """Whether a file belongs to the chosen kernel types and targets."""
        where, _, rest = file.partition("/")
        kernel = rest.partition("/")[0]
        return (not self.only or kernel in self.only) and (not self.targets or where in self.targets)


def _is_ours(file: str) -> bool:
    """Whether a file lies where goldens lie; nothing else is ever removed."""
    parts = file.split("/")
    return len(parts) == 3 and parts[0] in {t.name for t in ALL_TARGETS}


def _declared() -> Iterator[Case]:
    """Every golden of every kernel type, on each of its targets that supports it."""
    for cls in kernel_types().values():
        for fields in cls.goldens:
            spec = cls(**fields)
            for name in cls.golden_targets:
                if supports(spec, name):
                    yield Case(spec, target(name), golden_file(spec, target(name)))


def _indexed(index: Path) -> Iterator[Case]:
    try:
        for entry in json.loads(index.read_text(encoding="utf-8"))["kernels"]:
            spec = make_spec(entry["kernel_type"], entry["spec"])
            named = [entry["file"], *filter(None, [entry.get("manifest")])]
            if any(Path(name).is_absolute() or ".." in Path(name).parts for name in named):
                raise SpecError(f"{index}: files must lie below it (got {', '.join(named)})")
            yield Case(spec, target(entry["target"]), *named)
    except (json.JSONDecodeError, KeyError, TypeError) as wrong:
        raise SpecError(f"{index}: must be an index that `ptxgen generate --config` wrote ({wrong!r})") from None


def expected(case: Case) -> dict[str, str]:
    """Every file of a case but its resources, with its content as it would be written now."""
    ptx = case.generate()
    files = {case.file: ptx.text}
    if case.manifest:
        files[case.manifest] = json.dumps(manifest(ptx), indent=2) + "\n"
    return files


# -- check -----------------------------------------------------------------------------------------------------------


def _compare(path: Path, file: str, text: str) -> Iterator[Finding]:
    if not path.is_file():
        yield Finding("missing", file, "is generated, but not committed")
        return
    if not _same(path, text):
        old, new = path.read_text(encoding="utf-8", errors="replace").splitlines(), text.splitlines()
        if old == new:
            yield Finding("changed", file, "differs in its line ends only")
            return
        line = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        shown = [lines[line].strip() if line < len(lines) else "(end)" for lines in (old, new)]
        yield Finding("changed", file, f"line {line + 1}: {shown[0]!r} is committed, {shown[1]!r} is generated")


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


# -- resources -------------------------------------------------------------------------------------------------------


def assembler_for(where: Target) -> str | None:
    """Name and version of the installed assembler that `assemble` takes for this target; None where there is none."""
    from ptxgen.assembler import available_assemblers, supported_targets

    return next((str(a) for a in available_assemblers() if where in supported_targets(a)), None)


def measure(case: Case) -> tuple[str, dict[str, Any]]:
    """The installed assembler's name, and what the case's entry takes by it."""
    from ptxgen.assembler import assemble

    ptx = case.generate()
    assembly = assemble(ptx.text, case.target)
    return assembly.assembler, asdict(assembly.resources[ptx.entry])


def recorded(root: Path, folder: str) -> dict[str, Any]:
    """`{"assembler": …, "kernels": {file stem: {registers, spills, …}}}` of a directory; empty where there is none."""
    path = root / folder / RESOURCES
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as wrong:
        raise SpecError(f"{path}: must be JSON (line {wrong.lineno}: {wrong.msg})") from None
    return found


def check_resources(root: Path, chosen: Iterable[Case]) -> Iterator[Finding]:
    """Compare registers, spills, stack, shared memory and barriers where the recording assembler is installed."""
    for folder, members in _by_folder(chosen).items():
        here = assembler_for(members[0].target)
        file, record = f"{folder}/{RESOURCES}", recorded(root, folder)
        if not record:
            yield Finding("missing", file, "resources are not recorded")
            continue
        kernels = record.get("kernels", {})
        stems = {_stem(case): case for case in members}
        yield from (Finding("orphan", file, f"records {s!r}, which no case is") for s in kernels.keys() - stems.keys())
        yield from (Finding("missing", file, f"does not record {s!r}") for s in stems.keys() - kernels.keys())
        if record.get("assembler") != here:
            yield Finding("not compared", file, f"recorded with {record.get('assembler')}, installed: {here or 'none'}")
            continue
        for stem in sorted(stems.keys() & kernels.keys()):
            _, now = measure(stems[stem])
            changes = [f"{k} {kernels[stem].get(k)} → {v}" for k, v in now.items() if kernels[stem].get(k) != v]
            if changes:
                yield Finding("resources", stems[stem].file, ", ".join(changes))


def _by_folder(chosen: Iterable[Case]) -> dict[str, list[Case]]:
    folders: dict[str, list[Case]] = {}
    for case in chosen:
        folders.setdefault(case.folder, []).append(case)
    return folders


def _stem(case: Case) -> str:
    return case.file.rpartition("/")[2].removesuffix(".ptx")


def _record(members: list[Case]) -> str:
    measured, assembler = {}, ""
    for case in members:
        try:
            assembler, measured[_stem(case)] = measure(case)
        except AssembleError as refused:
            raise AssembleError(f"{case.file}: {refused}") from None
    return json.dumps({"assembler": assembler, "kernels": measured}, indent=2, sort_keys=True) + "\n"
