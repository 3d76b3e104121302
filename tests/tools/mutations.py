"""Mutations of kernels: a barrier, an arrival, a wait, a fence, a stride or an option of a text spoiled, and whether
the executor tells. Owns the changes of the text and the subjects they are tried on; the shares are asserted in
test_mutations.py.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ptxgen.errors import ExecutionError, SpecError
from ptxgen.generator import Ptx, generate
from ptxgen.kernel import KernelType, supports
from ptxgen.parity import judge
from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import behind_a_writer, bind_example
from ptxgen.spec.fields import domain
from ptxgen.targets import Target
from tests.evidence.corpus.case import Case
from tests.support.devices import ExecutorDevice
from tests.support.draws import trials

RANDOM_SEEDS = (1, 2, 3)  # tried where check mode finds nothing
STRIDES = 2  # spoiled in each kernel
LOUD = 6.0  # of queries: a soft cap must show
_WORDS = r"^\s*(?:@!?%?[\w$]+\s+)?(?P<opcode>{})(?=[\s;])"
_KINDS = {
    "barrier": r"(?:bar|barrier)\.(?!cluster\.wait|red|cta\.red|arrive)[\w.:]+",
    "wait": r"(?:cp\.async\.(?:wait_|bulk\.wait_)|(?:griddepcontrol|barrier\.cluster|wgmma)\.wait)[\w.:]*",
    "arrival": r"(?:(?:cp\.async\.)?mbarrier\.arrive(?!_drop)|(?:bar|barrier)\.(?:cta\.)?arrive)[\w.:]*",
    "fence": r"(?:fence|membar)\.[\w.:]+|wgmma\.fence[\w.]*",
}  # fmt: skip
_DELETED = {kind: re.compile(_WORDS.format(opcode)) for kind, opcode in _KINDS.items()}
_TRY_WAIT = re.compile(r"^\s*mbarrier\.(?:try|test)_wait[\w.:]*\s+(?P<predicate>%?[\w$]+),")
_SELECT = re.compile(r"^\s*selp\.\w+\s+(?P<result>%?\w+), 1, 0, (?P<predicate>%?\w+)")
_BRANCH = re.compile(r"^\s*(?:@!?(?P<predicate>%?[\w$]+)\s+)?bra(?:\.uni)?\s+[\w$]+;")
_ORDER = re.compile(r"(?<=\.)(?:acq_rel|acquire|release)(?=\.)")
_ORDERED = re.compile(_WORDS.format(r"(?:atom|red|ld|st)[\w.:]*\.(?:acq_rel|acquire|release)\.[\w.:]+"))
_STRIDE = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:mad|mul)\.(?:wide|lo)\.[us](?:32|64)\s+%\w+, %\w+, (?P<n>\d+)\b")
_FAR = 1 << 24  # a stride that leads out of every buffer, wherever its index is not 0


@dataclass(frozen=True)
class Mutation:
    """A text with one fault. `line` counts from 1 in the sound text; `what` is the line's own text (for a barrier the
    next one's too), or the option."""

    kind: str
    line: int
    what: str
    text: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.line}: {self.what}" if self.line else f"{self.kind}: {self.what}"


def deletions(text: str) -> Iterator[Mutation]:
    """Every barrier, arrival, wait and fence left out, one at a time, and every ordered access made relaxed."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        for kind, pattern in _DELETED.items():
            if pattern.match(line):
                made = _changed(kind, lines, {number: ""})
                after = next((text.strip() for text in lines[number + 1 :] if text.strip()[:2] not in ("", "//")), "")
                yield dataclasses.replace(made, what=f"{made.what} {after}") if kind == "barrier" else made
        if _TRY_WAIT.match(line):
            yield _changed("wait", lines, dict.fromkeys(_wait_loop(lines, number), ""))
        if _ORDERED.match(line):
            yield _changed("fence", lines, {number: _ORDER.sub("relaxed", line)})


def _changed(kind: str, lines: list[str], changes: dict[int, str]) -> Mutation:
    first = min(changes)
    text = "\n".join(changes.get(number, line) for number, line in enumerate(lines))
    return Mutation(kind, first + 1, lines[first].strip(), text)


def _wait_loop(lines: list[str], first: int) -> list[int]:
    """The lines of `try_wait` and of the branches that repeat it; a result kept in a register becomes true."""
    match = _TRY_WAIT.match(lines[first])
    assert match
    gone, predicate = [first], match["predicate"]
    for number in range(first + 1, min(first + 4, len(lines))):
        branch = _BRANCH.match(lines[number])
        if not branch or branch["predicate"] not in (None, predicate):
            break
        gone.append(number)
    return gone


def strides(text: str, count: int = STRIDES) -> Iterator[Mutation]:
    """`count` strides of the text, each exchanged for the kernel's next larger one (the largest is doubled)."""
    lines = text.split("\n")
    matches = ((number, _STRIDE.match(line)) for number, line in enumerate(lines))
    found = [(number, match) for number, match in matches if match and int(match["n"]) > 1]
    sizes = sorted({int(match["n"]) for _, match in found})
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    for place in sorted(rng.choice(len(found), min(count, len(found)), replace=False)):
        number, match = found[place]
        size = int(match["n"])
        other = next((n for n in sizes if n > size), 2 * size)
        yield _changed("stride", lines, {number: _with_stride(lines[number], other)})


def _with_stride(line: str, size: int) -> str:
    match = _STRIDE.match(line)
    assert match
    return line[: match.start("n")] + str(size) + line[match.end("n") :]


def far_off(text: str, mutation: Mutation) -> str:
    """The sound text with the mutation's stride so large that only an index that is always 0 hides it."""
    lines = text.split("\n")
    lines[mutation.line - 1] = _with_stride(lines[mutation.line - 1], _FAR)
    return "\n".join(lines)


def dropped_options(spec: KernelType, target: Target) -> Iterator[Mutation]:
    """The text without one option (a field back at its default), where the launch and the parameters stay the same."""
    for one in dataclasses.fields(spec):
        if one.default is dataclasses.MISSING or getattr(spec, one.name) == one.default:
            continue
        if domain(type(spec), one.name).silent:
            continue
        try:
            plain = dataclasses.replace(spec, **{one.name: one.default})  # type: ignore[type-var]
        except SpecError:
            continue
        if supports(plain, target) and _interface(plain, target) == _interface(spec, target):
            yield Mutation("option", 0, f"{one.name}={getattr(spec, one.name)}", generate(plain, target).text)


def _interface(spec: KernelType, target: Target) -> tuple[Any, ...]:
    """What a launch of the one needs to be a launch of the other."""
    launch = spec.launch(target)
    return launch.block, launch.cluster, *((param.name, param.kind, param.dtype) for param in spec.params())


@dataclass(frozen=True)
class Noticed:
    """What was amiss with a text: a `finding`, or only a wrong `result`, in a mode; and what was said of it."""

    how: str
    mode: str
    said: str

    def __str__(self) -> str:
        return f"{self.how} in {self.mode} mode"


class Subject:
    """A kernel with inputs and expected results; `outcome` says what was noticed of another text in its place."""

    name: str

    def mutations(self) -> Iterator[Mutation]:
        """Every mutation that it is tried with."""
        raise NotImplementedError

    def run(self, text: str, mode: str, seed: int) -> str | None:
        """How the result differs; None where it is right. Raises `ExecutionError` for a finding."""
        raise NotImplementedError

    def outcome(self, text: str, mode: str, seed: int = 1) -> Noticed | None:
        """What is noticed of a text in a mode; None when nothing is amiss."""
        try:
            wrong = self.run(text, mode, seed)
        except ExecutionError as report:
            return Noticed("finding", mode, str(report))
        return Noticed("result", mode, wrong) if wrong else None

    def noticed(self, text: str) -> Noticed | None:
        """The first thing that check mode, or random mode with a few seeds, has to say of a text."""
        found = self.outcome(text, "check")
        for seed in RANDOM_SEEDS:
            found = found or self.outcome(text, "random", seed)
        return found


@dataclass(frozen=True)
class Work:
    """Arguments of one launch and what its buffers must hold afterwards."""

    sizes: Mapping[str, int]
    arguments: dict[str, Any]
    expected: dict[str, np.ndarray]


@dataclass(frozen=True)
class SpecSubject(Subject):
    """A spec on a target against its reference, with the sizes of its `trials`."""

    spec: KernelType
    target: Target

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.target}/{self.spec.kernel_name}/{self.spec.slug}"

    @cached_property
    def ptx(self) -> Ptx:
        """The sound kernel."""
        return generate(self.spec, self.target)

    @cached_property
    def works(self) -> tuple[Work, ...]:
        """Every launch it is tried with."""
        return tuple(map(self._work, trials(self.spec)))

    def _work(self, sizes: Mapping[str, int]) -> Work:
        values = self.spec.example(np.random.default_rng(7), **sizes)
        if "q" in values and getattr(self.spec, "soft_cap", 0):
            values["q"] = (values["q"].astype(np.float32) * LOUD).astype(values["q"].dtype)
        given, expected = values, {}
        for _ in range(self.launches):
            copies = {n: [v.copy() for v in a] if isinstance(a, list) else np.copy(a) for n, a in given.items()}
            expected = self.spec.reference(**copies)
            given = given | {n: np.asarray(a).reshape(given[n].shape) for n, a in expected.items() if n in given}
        return Work(sizes, values, expected)

    @property
    def launches(self) -> int:
        """How often it is launched: after itself, where it may begin before the launch that writes its buffers ends."""
        return 2 if getattr(self.spec, "programmatic", False) else 1

    def mutations(self) -> Iterator[Mutation]:
        yield from deletions(self.ptx.text)
        yield from strides(self.ptx.text)
        yield from dropped_options(self.spec, self.target)

    def run(self, text: str, mode: str, seed: int) -> str | None:
        device = CpuDevice(mode, seed, threads=1)
        kernel = Kernel(device, self.ptx, device._load(text, self.name).function(self.ptx.entry))
        return next(filter(None, (self._launched(kernel, work) for work in self.works)), None)

    def _launched(self, kernel: Kernel, work: Work) -> str | None:
        bound, arguments = bind_example(kernel, work.arguments, work.sizes)
        behind_a_writer(kernel, arguments)
        for _ in range(self.launches):
            bound.launch()
        wanted = {name: np.asarray(want) for name, want in work.expected.items()}
        verdicts = judge(self.spec, {name: arguments[name].numpy() for name in wanted}, wanted)
        return next((str(v) for v in verdicts if not v.ok), None)


@dataclass(frozen=True)
class CorpusSubject(Subject):
    """A kernel of the foreign corpus."""

    case: Case

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"corpus/{self.case.name}"

    def mutations(self) -> Iterator[Mutation]:
        begin, end = _entry_lines(self.case.text, self.case.entry)
        yield from (m for m in deletions(self.case.text) if begin <= m.line <= end)

    def reaches(self, mutation: Mutation) -> bool:
        """Whether the case executes the line that a mutation begins with."""
        lines = self.case.text.split("\n")
        lines[mutation.line - 1] = "trap;"
        return self.outcome("\n".join(lines), "fast") is not None

    def run(self, text: str, mode: str, seed: int) -> str | None:
        device = ExecutorDevice(mode, seed, threads=1)
        try:
            self.case.run(device, device.module(text))
        except AssertionError as wrong:
            return str(wrong).strip()
        return None


def _entry_lines(text: str, entry: str) -> tuple[int, int]:
    """The first and last line of an entry."""
    lines = text.split("\n")
    begin = next(n for n, line in enumerate(lines, 1) if re.search(rf"\.entry\s+{entry}\b", line))
    end = next((n for n, line in enumerate(lines[begin:], begin + 1) if ".entry" in line), len(lines))
    return begin, end
