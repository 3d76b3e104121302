"""How the executor notices faults that are put into the goldens and the foreign corpus, in figures.

python -m tests.tools.mutation_figures                 writes the tables of docs/cpu-executor.md anew
python -m tests.tools.mutation_figures NAME…           writes the lines of these kernel types (or of the corpus) anew
python -m tests.tools.mutation_figures --show NAME…    prints every fault and how it is noticed, and writes nothing
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmarks.report.sentence import in_a_sentence, show_help
from ptxgen.errors import ExecutionNote, SpecError, brief
from ptxgen.kernel import KernelType
from tests.evidence.corpus.cases import CASES
from tests.support.goldens import different
from tests.tools.mutations import CorpusSubject, Mutation, Noticed, SpecSubject, Subject, far_off

Seen = tuple[Subject, Mutation, Noticed | None]
ROOT = Path(__file__).resolve().parents[2]
ORDER = ("barrier", "arrival", "wait", "fence")
NEVER = "does not matter: "
STRONG = "its data are volatile too, and strong accesses are not compared with each other"
# What check mode does not report in the corpus, by subject and mutation, and why; kernel types say theirs themselves.
REASONS = {
    r"corpus/named_barriers fence": NEVER + "a barrier orders what its arrivals come after",
    r"corpus/.* fence .*mbarrier_init": NEVER + "the proxy fence or the cluster barrier beside it suffices",
    r"corpus/tensor_\w+ fence .*proxy": NEVER + "the fence.mbarrier_init before it does the same",
    r"corpus/(cluster_push|multicast|tensor_multicast|remote_stores) (barrier|wait)":
        NEVER + "a CTA ends when all that others send to it has come",
    r"corpus/tensor_sum barrier": NEVER + "only the lane that initialises the mbarrier uses it",
    r"corpus/arrival_counts barrier 226": "the lanes' arrivals come in one order here, seeds or not",
    r"corpus/arrival_counts barrier": NEVER + "the other barrier, or the wait before it, does the same",
    r"corpus/gemm_mma barrier": NEVER + "no copy follows: the matrices are three tiles deep",
    r"corpus/gemm_ldmatrix barrier 230": NEVER + "nothing follows the last tile",
    r"corpus/(single_launch_sum|lookback_scan|lane_lock) fence": STRONG,
    r"corpus/token_pipeline barrier": "what it orders are copies: a wrong result",
}  # fmt: skip
FOUND, RANDOM = "finding in check mode", "random mode"
CORPUS = "tests/evidence/corpus"
DOCUMENT = ROOT / "docs" / "cpu-executor.md"
COMMAND = "written by python -m tests.tools.mutation_figures"
ORDER_MARKS = (f"<!-- order faults: {COMMAND} -->", "<!-- end of order faults -->")
OTHER_MARKS = (f"<!-- other faults: {COMMAND} -->", "<!-- end of other faults -->")
ORDER_KINDS = ("all", "matter", FOUND, "result in check mode", RANDOM, "nothing")
ORDER_HEAD = (
    "", "left out", "of those, may matter", "a finding in check mode", "only a wrong result in check mode",
    "only in random order", "nothing",
)  # fmt: skip
OTHER_HEAD = ("", *(f"{kind}: {how}" for kind in ("strides", "options")
                    for how in ("a finding", "only a wrong result", "nothing")))  # fmt: skip


@cache
def unique() -> tuple[SpecSubject, ...]:
    """The goldens, without those whose text differs from an earlier one in its header only."""
    return tuple(SpecSubject(case.spec, case.target) for case in different())


@cache
def corpus() -> tuple[CorpusSubject, ...]:
    """Every kernel of the foreign corpus."""
    return tuple(map(CorpusSubject, CASES.values()))


def faults_of(subjects: Iterable[Subject]) -> Iterator[tuple[Subject, Mutation]]:
    """Every mutation of each subject."""
    return ((subject, mutation) for subject in subjects for mutation in subject.mutations())


def noticed_of(faults: Iterable[tuple[Subject, Mutation]]) -> Iterator[Seen]:
    """Those of the mutations that are one, and what was noticed of each."""
    for subject, mutation in faults:
        noticed = subject.noticed(mutation.text)
        if noticed or not equivalent(subject, mutation):
            yield subject, mutation, noticed


def equivalent(subject: Subject, mutation: Mutation) -> bool:
    """Whether a stride belongs to an index that is always 0, so that any would do; or a line of the corpus is dead."""
    if isinstance(subject, SpecSubject):
        return mutation.kind == "stride" and not subject.noticed(far_off(subject.ptx.text, mutation))
    return isinstance(subject, CorpusSubject) and not subject.reaches(mutation)


def reason_of(subject: Subject, mutation: Mutation) -> str | None:
    """Why check mode does not report a mutation, if that is known."""
    pattern = pattern_of(subject, mutation)
    return None if pattern is None else _known(subject)[pattern]


def pattern_of(subject: Subject, mutation: Mutation) -> str | None:
    """The pattern that has the reason."""
    text = f"{subject.name} {mutation}"
    return next((pattern for pattern in _known(subject) if re.search(pattern, text)), None)


def _known(subject: Subject) -> Mapping[str, str]:
    """Reasons by pattern."""
    return unreported(type(subject.spec)) if isinstance(subject, SpecSubject) else REASONS


@cache
def unreported(cls: type[KernelType]) -> Mapping[str, str]:
    """A kernel type's own reasons by pattern. Raises `SpecError` for what is neither."""
    given: object = cls.unreported
    about = f"{cls.__name__}.unreported"
    if not isinstance(given, Mapping):
        form = 'such as {r" barrier .*%x_digit0": "does not matter: …"}'
        raise SpecError(f"{about}: must be a dict from patterns to reasons, {form} (got {brief(given)})")
    for pattern, reason in given.items():
        if not isinstance(reason, str) or not reason.removeprefix(NEVER.strip()).strip():
            raise SpecError(f"{about}[{pattern!r}]: must say why check mode is silent (got {brief(reason)})")
        try:
            re.compile(pattern)
        except (re.error, TypeError) as wrong:
            raise SpecError(f"{about}: must be regular expressions (got {brief(pattern)}: {wrong})") from None
    return given


def shown(name: str, seen: Sequence[Seen]) -> Iterator[str]:
    """Every fault and how it was noticed; what is not reported with its reason, and how much each reason covers."""
    yield f"{name}: {len(seen)} faults"
    covered: dict[str, list[tuple[str, bool]]] = {}
    for subject, mutation, noticed in seen:
        pattern, how = pattern_of(subject, mutation), str(noticed or "nothing")
        if pattern is not None:
            covered.setdefault(pattern, []).append((mutation.kind, how == FOUND))
        silent = how != FOUND if mutation.kind in ORDER else noticed is None
        excuse = reason_of(subject, mutation) or "no reason: sizes in `trials`, or a line in `unreported`"
        yield f"  {how}: {subject.name} {mutation}{f' [{excuse}]' if silent else ''}"
    kinds = Counter(mutation.kind for _, mutation, _ in seen)
    for pattern, faults in covered.items():
        counted = Counter(kind for kind, _ in faults).items()
        of = ", ".join(f"{n if n < kinds[kind] else 'all'} of {kinds[kind]} {kind} faults" for kind, n in counted)
        found = sum(found for _, found in faults)
        wide = f"; {found} of these are found: name the line more closely" if found else ""
        yield f"  unreported {pattern!r}: {of}{wide}"


def counts(seen: Iterable[Seen]) -> Counter[str]:
    """Of the order faults that are reached: how each was noticed; `matter` are all but those that never do."""
    total: Counter[str] = Counter()
    for subject, mutation, noticed in seen:
        if mutation.kind in ORDER:
            reason = reason_of(subject, mutation) or ""
            total["all"] += 1
            total["matter"] += bool(noticed) or not reason.startswith(NEVER)
            how = "nothing" if not noticed else RANDOM if noticed.mode == "random" else str(noticed)
            total[how] += bool(noticed) or not reason.startswith(NEVER)
    return total


def goldens_of(kernel: str) -> list[SpecSubject]:
    """The different goldens of a kernel type."""
    return [subject for subject in unique() if subject.spec.kernel_name == kernel]


def order_row(name: str, seen: Iterable[Seen]) -> str:
    """The line of a table: how order faults were noticed."""
    found = counts(seen)
    return _line(f"`{name}`", *(found[kind] for kind in ORDER_KINDS))


def other_row(name: str, seen: Iterable[Seen]) -> str:
    """The line of a table: how spoiled strides and dropped options were noticed."""
    found = Counter((m.kind, n.how if n else "nothing") for _, m, n in seen if m.kind not in ORDER)
    return _line(
        f"`{name}`", *(found[kind, how] for kind in ("stride", "option") for how in ("finding", "result", "nothing"))
    )


def stated(text: str) -> dict[str, dict[str, int]]:
    """What a document's table of order faults says of each of its names, as `counts` has it."""
    lines = rows(text, ORDER_MARKS)
    numbers = {name: map(int, line.strip("| ").split(" | ")[1:]) for name, line in lines.items()}
    return {name: dict(zip(ORDER_KINDS, found, strict=True)) for name, found in numbers.items()}


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Iterable[str]) -> str:
    """A table of Markdown."""
    return "\n".join(["", _line(*head), _line(*("---" for _ in head)), *rows, ""]) + "\n"


def inside(text: str, marks: tuple[str, str]) -> str:
    """What stands between two marks."""
    _, first, rest = text.partition(marks[0] + "\n")
    found, second, _ = rest.partition(marks[1])
    assert first, marks
    assert second, marks
    return found


def rows(text: str, marks: tuple[str, str]) -> Mapping[str, str]:
    """The lines of the table between two marks, by what they begin with."""
    lines = [line for line in inside(text, marks).splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in lines}


def main(words: Sequence[str]) -> None:
    """Write both tables of the document: a line for every kernel type that has goldens, and the corpus."""
    chosen = [word if word == CORPUS else word.replace("-", "_") for word in words if word != "--show"]
    names = sorted({subject.spec.kernel_name for subject in unique()})
    if unknown := set(chosen) - {*names, CORPUS}:
        raise SystemExit(f"{', '.join(sorted(unknown))}: is no kernel type with goldens, nor {CORPUS}")
    if len(chosen) < len(words):
        if not chosen:
            raise SystemExit("--show: needs the name of a kernel type")
        warnings.simplefilter("ignore", ExecutionNote)  # which sound texts have as well
        for name in chosen:
            subjects = corpus() if name == CORPUS else goldens_of(name)
            print("\n".join(shown(name, tuple(noticed_of(faults_of(subjects))))))
        return
    seen = {name: tuple(noticed_of(faults_of(goldens_of(name)))) for name in names if not chosen or name in chosen}
    order = {name: order_row(name, found) for name, found in seen.items()}
    if not chosen or CORPUS in chosen:
        order[CORPUS] = order_row(CORPUS, noticed_of(faults_of(corpus())))
    other = {name: other_row(name, found) for name, found in seen.items()}
    text = DOCUMENT.read_text(encoding="utf-8")
    for marks, head, made in ((ORDER_MARKS, ORDER_HEAD, order), (OTHER_MARKS, OTHER_HEAD, other)):
        lines = {**rows(text, marks), **made} if chosen else made
        written = table(head, (lines[name] for name in (*names, CORPUS) if name in lines))
        old, new = (f"{marks[0]}\n{between}{marks[1]}" for between in (inside(text, marks), written))
        text = text.replace(old, new)
    DOCUMENT.write_text(text, encoding="utf-8")
    what = f"the lines of {', '.join(chosen)}" if chosen else "both tables"
    print(f"{DOCUMENT.relative_to(ROOT)}: wrote {what}")


if __name__ == "__main__":
    show_help(__doc__)
    in_a_sentence(lambda: main(sys.argv[1:]))
