"""Golden PTX: the committed text and resources of some specs, against what is generated now. Only `update` writes.

A directory of goldens holds `<target>/<kernel_type>/<slug>.ptx` and a `resources.json` beside them. Its cases are the
kernel types' own `goldens`, of every package that it holds a kernel type of; or those of its `index.json`, where it has
one (as `ptxgen generate --config` writes).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ptxgen.errors import PtxgenError, SpecError
from ptxgen.files.output import check_below, write_files
from ptxgen.golden.case import Case, golden_file
from ptxgen.golden.compare import RESOURCES, Finding, Snapshot, compare
from ptxgen.golden.record import by_folder, measured, read_record, record_text
from ptxgen.kernel import KernelType, kernel_types, make_spec, supports
from ptxgen.packages import failures, package_of
from ptxgen.targets import target
from ptxgen.views.manifest import manifest

INDEX = "index.json"


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
        for case in _indexed(index) if index.is_file() else self._declared():
            other = by_file.setdefault(case.file, case)
            if other is not case:
                raise SpecError(f"{case.file}: two goldens have this name: {other.spec!r} and {case.spec!r}")
        return tuple(by_file[file] for file in sorted(by_file) if self.covers(file))

    def _declared(self) -> Iterator[Case]:
        """Every golden of its kernel types, on each of their targets that supports it."""
        for cls in self._kernel_types():
            for fields in cls.goldens:
                try:
                    spec = cls(**fields)
                except (TypeError, SpecError) as wrong:
                    golden = f"{cls.__name__}.goldens: {dict(fields)}"
                    raise SpecError("\n".join(f"{golden}: {line}" for line in str(wrong).splitlines())) from None
                for name in cls.golden_targets:
                    if supports(spec, name):
                        yield Case(spec, target(name), golden_file(spec, target(name)))

    def _kernel_types(self) -> list[type[KernelType]]:
        """Those chosen; else all of the packages of which the directory holds a kernel type; of any, where of none."""
        every = kernel_types()
        if self.only:
            return [cls for name, cls in every.items() if name in self.only]
        there = {package_of(every[path.name]) for path in self.root.glob("*/*") if path.name in every}
        return [cls for cls in every.values() if not there or package_of(cls) in there]

    def check(self) -> Iterator[Finding]:
        """Every finding of what is committed against what is generated now: files, manifests, resources, orphans.

        What `ptxgen generate --config` has just written holds no resources at all: they are not compared then.
        """
        fresh = (self.root / INDEX).is_file() and not any(self.root.glob(f"*/*/{RESOURCES}"))
        return compare(self.committed(), self.generated(), unrecorded="not compared" if fresh else "")

    def is_there(self) -> bool:
        """Whether the directory is one of goldens: it has an index, or a text or a record in TARGET/KERNEL."""
        found = (self.root.glob(f"*/*/{name}") for name in ("*.ptx", RESOURCES))
        return (self.root / INDEX).is_file() or any(map(any, found))

    def committed(self, word: str = "committed") -> Snapshot:
        """What lies in the directory."""
        return self.snapshot(word, {file: (self.root / file).read_bytes() for file in self._there()})

    def _there(self) -> list[str]:
        """Chosen files of the kinds that goldens have, the index left out."""
        files = (p for p in self.root.rglob("*") if p.suffix in (".ptx", ".json") and p.is_file())
        names = (p.relative_to(self.root).as_posix() for p in files)
        return sorted(name for name in names if name != INDEX and self.covers(name))

    def snapshot(self, word: str, files: Mapping[str, bytes]) -> Snapshot:
        """A state of the directory, as far as it is chosen and is not the index."""
        chosen = {file: data for file, data in files.items() if self.covers(file) and file != INDEX}
        records = {file: data for file, data in chosen.items() if file.rpartition("/")[2] == RESOURCES}
        texts = {file: data for file, data in chosen.items() if file not in records}
        read = {f.rpartition("/")[0]: read_record(data, str(self.root / f)) for f, data in records.items()}
        return Snapshot(word, texts, read)

    def generated(self) -> Snapshot:
        """What an update would write there."""
        chosen = self.cases()
        texts = {file: text.encode() for case in chosen for file, text in expected(case).items()}
        return Snapshot("generated", texts, measured(chosen))

    def orphans(self) -> list[str]:
        """Files of the kinds that goldens have that no case owns."""
        owned = {f"{case.folder}/{RESOURCES}" for case in self.cases()}
        for case in self.cases():
            owned |= {case.file, case.manifest or case.file}
        return [file for file in self._there() if file not in owned]

    def update(self, *, init: bool = False) -> tuple[list[str], list[str]]:
        """Write every file and the resources, remove what was recorded and is no golden any more; returns both lists.

        A directory without an index must hold goldens already, unless `init` says to make it one. Refused where the
        environment says `CI`: a machine must not bless its own output. Raises `AssembleError` when a text does not
        assemble; nothing is written then.
        """
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            raise PtxgenError("golden update: refused where CI is set; run it on your machine and commit the result")
        if not init and not (self.root / INDEX).is_file() and not any(self.root.glob(f"*/*/{RESOURCES}")):
            holds = f"{INDEX} or TARGET/KERNEL/{RESOURCES}"
            raise SpecError(f"{self.root}: must be a directory of goldens, which has {holds}; --init makes it one")
        removed = self._outdated()
        if removed and failures():
            raise SpecError("\n".join([f"golden update: would remove {removed[0]}, but not every kernel type is there:",
                                       *failures()]))  # fmt: skip
        chosen = self.cases()
        files: dict[str, str] = {}
        for case in chosen:
            files |= expected(case)
        for folder, members in by_folder(chosen).items():
            files[f"{folder}/{RESOURCES}"] = record_text(members)
        there = {path: self.root / path for path in files}
        changed = {f: t for f, t in files.items() if not there[f].is_file() or there[f].read_bytes() != t.encode()}
        check_below(self.root, [*files, *removed])
        write_files(self.root, changed)
        for file in removed:
            (self.root / file).unlink()
        return sorted(changed), removed

    def _outdated(self) -> list[str]:
        """Orphans that an update wrote: their folder's record names them. Nothing else is ever removed."""
        mine: set[str] = set()
        for record in (file for file in self._there() if file.rpartition("/")[2] == RESOURCES):
            folder = record.rpartition("/")[0]
            with contextlib.suppress(SpecError):  # not a record: not ours
                stems = read_record((self.root / record).read_bytes(), record).kernels
                mine |= {record, *(f"{folder}/{stem}{suffix}" for stem in stems for suffix in (".ptx", ".json"))}
        return [file for file in self.orphans() if file in mine]

    def covers(self, file: str) -> bool:
        """Whether a file belongs to the chosen kernel types and targets."""
        where, _, rest = file.partition("/")
        kernel = rest.partition("/")[0]
        return (not self.only or kernel in self.only) and (not self.targets or where in self.targets)


def _indexed(index: Path) -> Iterator[Case]:
    try:
        for entry in json.loads(index.read_text(encoding="utf-8"))["kernels"]:
            spec = make_spec(entry["kernel_type"], entry["spec"])
            named = [entry["file"], *filter(None, [entry.get("manifest")])]
            if any(Path(name).is_absolute() or ".." in Path(name).parts for name in named):
                raise SpecError(f"{index}: files must lie below it (got {', '.join(named)})")
            yield Case(spec, target(entry["target"]), *named)
    except SpecError:
        raise
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise SpecError(f"{index}: must be an index that `ptxgen generate --config` wrote") from None


def expected(case: Case) -> dict[str, str]:
    """Every file of a case but its resources, with its content as it would be written now."""
    ptx = case.generate()
    files = {case.file: ptx.text}
    if case.manifest:
        files[case.manifest] = json.dumps(manifest(ptx), indent=2) + "\n"
    return files
