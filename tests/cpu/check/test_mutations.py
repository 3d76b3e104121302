"""Faults put into the goldens and the foreign corpus, one at a time: what is noticed of them, and how.

Deleted barriers, arrivals, waits and fences ("order") are what check mode is for; strides and options change results,
too. Of the kernel types that are drawn some faults are tried that differ in more than numbers; `make sweep` tries all
of every golden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import pytest

from tests.support import sweep
from tests.support.kernels import TYPES
from tests.tools import mutation_figures as figures
from tests.tools.mutation_figures import CORPUS, FOUND, ORDER, REASONS, Seen, corpus, reason_of, unique
from tests.tools.mutations import Mutation, SpecSubject, Subject

SHARE = 0.95  # of the order faults that matter: noticed in check mode
FINDINGS = 0.9  # and by a finding, not only by a wrong result
FAULTS = 8  # of a kernel type that are tried, besides those with a known reason
TEXT = figures.DOCUMENT.read_text(encoding="utf-8")
# What is noted beside a kernel's results is noted of a spoiled one too.
pytestmark = pytest.mark.filterwarnings("ignore::ptxgen.errors.ExecutionNote")


def subjects_of(name: str) -> Sequence[Subject]:
    return corpus() if name == CORPUS else figures.goldens_of(name)


def seen(name: str) -> Iterator[Seen]:
    """What was noticed of each fault that is tried: of a kernel type some, of the corpus those that are drawn; and for
    each known reason one of each kind (which differ in more than numbers), and more until one is not noticed."""
    every = list(figures.faults_of(subjects_of(name)))
    if sweep.ALL or (name == CORPUS and sweep.DRAW == 1):
        yield from figures.noticed_of(every)
        return
    reasons: dict[str | None, dict[str, list[tuple[Subject, Mutation]]]] = {}
    for fault in every:
        kinds = reasons.setdefault(figures.pattern_of(*fault), {})
        kinds.setdefault(re.sub(r"\d+", "", fault[1].what), []).append(fault)
    others = reasons.pop(None, {}).values()
    drawn = sweep.drawn(chain(*others)) if name == CORPUS else sweep.some((faults[0] for faults in others), FAULTS)
    yield from figures.noticed_of(drawn)
    for kinds in reasons.values():
        first = [*figures.noticed_of(faults[0] for faults in kinds.values())]
        yield from first
        excuses = any(str(noticed) != FOUND for *_, noticed in first)
        rest = figures.noticed_of(fault for faults in kinds.values() for fault in faults[1:])
        while not excuses and (one := next(rest, None)):
            yield one
            excuses = str(one[2]) != FOUND


@pytest.mark.parametrize("subject", [*unique(), *corpus()], ids=lambda subject: subject.name)
def test_nothing_is_amiss_without_a_fault(subject: Subject) -> None:
    text = subject.ptx.text if isinstance(subject, SpecSubject) else vars(subject)["case"].text
    assert subject.outcome(text, "check") is None


def explained(name: str) -> tuple[Seen, ...]:
    """What was noticed of each fault: all that is not reported has a reason, and every reason excuses something."""
    every = tuple(seen(name))
    unexplained = [
        f"{noticed or 'nothing'}: {subject.name} {mutation}"
        for subject, mutation, noticed in every
        if (noticed is None or (mutation.kind in ORDER and str(noticed) != FOUND))
        and reason_of(subject, mutation) is None
    ]
    assert not unexplained, "\n".join([
        "faults put into goldens that must be noticed, and what noticed them. Of an option: does the text depend on "
        "it? Where results do not, its field says silent=. Of others `unreported` says why check mode is silent:",
        *unexplained,
    ])  # fmt: skip
    others = [f"{subject.name} {mutation}" for subject, mutation, noticed in every if str(noticed) != FOUND]
    reasons = REASONS if name == CORPUS else figures.unreported(TYPES[name])
    assert not [pattern for pattern in reasons if not any(re.search(pattern, text) for text in others)]
    return every


@pytest.mark.parametrize("name", [*TYPES])
def test_what_is_not_reported_has_a_reason_and_every_reason_excuses_something(name: str) -> None:
    """And the document says how many are noticed and how (`python -m tests.tools.mutation_figures` writes it): its rows
    of kernel types are of all faults of all goldens."""
    every = explained(name)
    order, other = (figures.rows(TEXT, marks) for marks in (figures.ORDER_MARKS, figures.OTHER_MARKS))
    if sweep.ALL and name in order:
        assert order[name] == figures.order_row(name, every)
        assert other[name] == figures.other_row(name, every)


def test_faults_of_the_foreign_corpus() -> None:
    """Reasons, and of all of them the document's row."""
    every = explained(CORPUS)
    if sweep.DRAW == 1:
        assert figures.rows(TEXT, figures.ORDER_MARKS)[CORPUS] == figures.order_row(CORPUS, every)


def test_the_share_of_order_faults_that_check_mode_notices() -> None:
    """As the document's rows state it, one for each kernel type that has goldens."""
    stated = figures.stated(TEXT)
    assert stated.keys() - {CORPUS} <= {subject.spec.kernel_name for subject in unique()}
    for names in (stated.keys() - {CORPUS}, {CORPUS}):
        matter, found, wrong = (sum(stated[name][kind] for name in names)
                                for kind in ("matter", FOUND, "result in check mode"))  # fmt: skip
        assert found >= FINDINGS * matter > 0
        assert found + wrong >= SHARE * matter
