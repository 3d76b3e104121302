"""A launch of any PTX, in every mode of the executor and several orders: all that is found, and results that differ.

Owns the runs and what they have in common; how that is shown is the caller's.
"""

from __future__ import annotations

import io
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from ptxgen.errors import ExecutionError, ExecutionNote, SpecError, VersionWarning
from ptxgen.finding import Finding
from ptxgen.runtime.core.launches.module import Entry, Module
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.cpu.compile.entry import Entry as Described
from ptxgen.runtime.cpu.device import CpuDevice, CpuFunction
from ptxgen.runtime.tools.arguments import Argument, counted

DIFFERENT = "results differ"
Given = Argument | np.ndarray | np.generic | bytes | int
_POINTER = 8  # bytes


class TooFewArguments(SpecError):
    """A launch has fewer arguments than its entry takes."""


@dataclass(frozen=True)
class Launch:
    """What is launched: a text, an entry (None: the only one), its geometry and arguments.

    `block` None is what the entry's `.reqntid` says. `name` is what findings call the text.
    """

    text: str
    name: str
    entry: str | None = None
    grid: object = 1
    block: object = None
    arguments: Sequence[Given] = ()
    shared: int = 0
    cluster: object = None
    data_seed: int = 0

    def chosen(self, device: CpuDevice) -> tuple[str, object]:
        """(entry, block); `SpecError` where the text leaves them open."""
        module = device.module(self.text, self.name)
        names = module.entries
        name = self.entry if self.entry is not None else names[0] if len(names) == 1 else None
        if self.entry is not None and self.entry not in names:
            raise SpecError(f"{self.name}: has no entry {self.entry!r} (it has {', '.join(names) or 'none'})")
        if name is None:
            if not names:
                raise SpecError(f"{self.name}: has no entry to launch")
            raise SpecError(f"{self.name}: has {len(names)} entries ({', '.join(names)}); --entry names one")
        if self.block is not None:
            return name, self.block
        needed = _described(module[name]).limit("reqntid")
        if not needed:
            raise SpecError(f"{self.name}: entry {name} has no .reqntid; --block says how many threads a CTA has")
        return name, needed

    def parameters(self, device: CpuDevice) -> list[str]:
        """Names of the entry's parameters."""
        name, _ = self.chosen(device)
        return [param[0] for param in _described(device.module(self.text, self.name)[name]).params]


def _described(entry: Entry) -> Described:
    """What the executor knows of an entry."""
    assert isinstance(entry.function, CpuFunction)
    return entry.function.entry


@dataclass(frozen=True)
class Run:
    """One launch in one mode: what was found, and the buffers' bytes afterwards by the names of their parameters."""

    mode: str
    seed: int | None
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    results: dict[str, np.ndarray]
    seconds: float

    @property
    def label(self) -> str:
        """`random (seed 3)`."""
        return self.mode if self.seed is None else f"{self.mode} (seed {self.seed})"


@dataclass(frozen=True)
class Seen:
    """A finding, and in which runs it was seen."""

    finding: Finding
    runs: tuple[str, ...]
    note: bool = False


@dataclass(frozen=True)
class Report:
    """What came of all runs; `ok`: no finding (notes are none)."""

    launch: Launch
    entry: str
    runs: tuple[Run, ...]
    seen: tuple[Seen, ...] = field(default=())

    @property
    def findings(self) -> tuple[Seen, ...]:
        """The findings that are wrong, without the notes."""
        return tuple(one for one in self.seen if not one.note)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def check(
    launch: Launch,
    seeds: int = 5,
    first_seed: int = 0,
    time_limit: float | None = None,
    equal_stores: str = "note",
    differences: str = "finding",
    most_findings: int = 20,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Report:
    """Launch in fast mode, in random order with so many seeds, and in check mode; on one host thread each time.

    `equal_stores` and `most_findings` as in `Options`; `differences`: results that depend on the order are a "finding"
    or a "note". `on_run` is told of each run as it ends. Raises `SpecError` and `ModuleLoadError` for what cannot run.
    """
    if differences not in ("finding", "note"):
        raise SpecError(f'differences: must be "finding" or "note" (got {differences!r})')
    plan: list[tuple[str, int | None]] = [("fast", None)]
    plan += [("random", first_seed + n) for n in range(seeds)]
    plan.append(("check", None))
    runs: list[Run] = []
    entry = ""
    for mode, seed in plan:
        device = CpuDevice(
            mode=mode, seed=seed or 0, threads=1, time_limit=time_limit, most_findings=most_findings,
            equal_stores=equal_stores,
        )  # fmt: skip
        with warnings.catch_warnings():
            if runs:  # said once
                warnings.simplefilter("ignore", VersionWarning)
            entry, run = one_run(launch, device, seed, printed=None if runs else sys.stderr)
        runs.append(run)
        on_run(run)
    return Report(launch, entry, tuple(runs), (*_merged(runs), *_differences(launch, entry, runs, differences)))


def one_run(
    launch: Launch,
    device: CpuDevice,
    seed: int | None = None,
    module: Module | None = None,
    printed: TextIO | None = None,
) -> tuple[str, Run]:
    """(the entry's name, what came of the launch on this device); `module`: the text, where it is loaded already;
    `printed`: where to write what the kernel prints (None: nowhere)."""
    name, block = launch.chosen(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VersionWarning)  # `chosen` has said it
        entry = (module or device.module(launch.text, launch.name))[name]
    rng = np.random.default_rng(launch.data_seed)
    given = [_on_device(value, device, rng) for value in launch.arguments]
    params = _described(entry).params
    names = [param[0] for param in params]
    if len(given) != len(names):
        wrong = TooFewArguments if len(given) < len(names) else SpecError
        raise wrong(f"{name}: takes {counted(names)} (got {len(given)})")
    for (param, _, _, size), value in zip(params, given, strict=True):
        if size != (value.nbytes if isinstance(value, np.generic) else _POINTER):
            buffer = ", or a buffer" if size == _POINTER else ""
            raise SpecError(f"{name}: argument {param} must be a number of {size} bytes{buffer} (got {value!r})")
    bound = entry.bind(launch.grid, block, given, launch.shared, launch.cluster)
    found: tuple[Any, ...] = ()
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as noted, redirect_stdout(printed or io.StringIO()):
        warnings.simplefilter("always", ExecutionNote)
        try:
            bound.launch()
        except ExecutionError as error:
            found = error.findings
    seconds = time.perf_counter() - begun
    notes = tuple(one.message.args[0] for one in noted if isinstance(one.message, ExecutionNote))
    results = {names[n]: value.numpy() for n, value in enumerate(given) if isinstance(value, Buffer)}
    return name, Run(device.mode, seed, tuple(found), notes, results, seconds)


def _on_device(value: Given, device: CpuDevice, rng: np.random.Generator) -> object:
    if isinstance(value, Argument):
        return value.on(device, rng)
    return device.array(value) if isinstance(value, np.ndarray) else value


def _merged(runs: Sequence[Run]) -> list[Seen]:
    """Each kind of finding once for a place; check mode says most of it."""
    found: dict[tuple[str, int, bool], tuple[Finding, list[str]]] = {}
    for run in sorted(runs, key=lambda run: run.mode != "check"):
        for note, those in ((False, run.findings), (True, run.notes)):
            for one in those:
                found.setdefault((one.kind, one.line, note), (one, []))[1].append(run.label)
    return [Seen(one, tuple(dict.fromkeys(labels)), note) for (_, _, note), (one, labels) in found.items()]


def _differences(launch: Launch, entry: str, runs: Sequence[Run], how: str) -> list[Seen]:
    """Buffers that another order leaves with other bytes, where the runs came to their end."""
    whole = [run for run in runs if not run.findings]
    if len(whole) < 2:
        return []
    first, seen = whole[0], []
    for name, expected in first.results.items():
        others = [run for run in whole[1:] if run.results[name].tobytes() != expected.tobytes()]
        if others:
            where = _first_difference(expected, others[0].results[name])
            text = (
                f"{DIFFERENT} in kernel {entry}\n  {where} of {name}: {first.label} and {others[0].label}\n"
                "  the result depends on the order in which CTAs, warps or lanes run"
            )
            made = Finding(
                text, DIFFERENT, entry, launch.name, buffer=name, memory=where, advice=text.splitlines()[-1].strip()
            )
            seen.append(Seen(made, tuple(run.label for run in others), how == "note"))
    return seen


def _first_difference(a: np.ndarray, b: np.ndarray) -> str:
    left, right = (np.frombuffer(x.tobytes(), np.uint8).reshape(x.size, -1) for x in (a, b))
    bad = np.flatnonzero((left != right).any(axis=1))
    at = int(bad[0])
    return f"element {at} is {a.reshape(-1)[at]} or {b.reshape(-1)[at]} ({bad.size} of {a.size} differ)"
