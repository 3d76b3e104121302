"""Faults put into the goldens and the foreign corpus, one at a time: what is noticed of them, and how.

Deleted barriers, arrivals, waits and fences ("order") are what check mode is for; strides and options change results,
too. Of each kernel type some faults are tried that differ in more than numbers; `make sweep` tries all of every golden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from tests.support import sweep
from tests.support.kernels import TYPES
from tests.tools import mutation_figures as figures
from tests.tools.mutation_figures import CORPUS, FOUND, ORDER, REASONS, Seen, corpus, reason_of, unique
from tests.tools.mutations import Mutation, SpecSubject, Subject

SHARE = 0.95  # of the order faults that matter: noticed in check mode
FINDINGS = 0.9  # and by a finding, not only by a wrong result
FAULTS = 8  # of a kernel type that are tried, besides those that are not reported
TEXT = figures.DOCUMENT.read_text(encoding="utf-8")
# What is noted beside a kernel's results is noted of a spoiled one too.
pytestmark = pytest.mark.filterwarnings("ignore::ptxgen.errors.ExecutionNote")


def subjects_of(name: str) -> Sequence[Subject]:
    return corpus() if name == CORPUS else figures.goldens_of(name)


def drawn(name: str) -> Iterator[tuple[Subject, Mutation]]:
    """The faults that are tried: all of the corpus; of a kernel type all with a known reason, and some others."""
    every = list(figures.faults_of(subjects_of(name)))
    if sweep.ALL or name == CORPUS:
        yield from every
        return
    excused = [fault for fault in every if reason_of(*fault)]
    unlike: dict[str, tuple[Subject, Mutation]] = {}
    for subject, mutation in every:
        if (subject, mutation) not in excused:
            unlike.setdefault(re.sub(r"\d+", "", mutation.what), (subject, mutation))
    yield from excused
    yield from sweep.some(unlike.values(), FAULTS)


@cache
def seen(name: str) -> tuple[Seen, ...]:
    """What was noticed of each fault."""
    return tuple(figures.noticed_of(drawn(name)))


@pytest.mark.parametrize("subject", [*unique(), *corpus()], ids=lambda subject: subject.name)
def test_nothing_is_amiss_without_a_fault(subject: Subject) -> None:
    text = subject.ptx.text if isinstance(subject, SpecSubject) else vars(subject)["case"].text
    assert subject.outcome(text, "check") is None


@pytest.mark.parametrize("name", [*TYPES, CORPUS])
def test_what_is_not_reported_has_a_reason_and_every_reason_excuses_something(name: str) -> None:
    unexplained = [
        f"{noticed or 'nothing'}: {subject.name} {mutation}"
        for subject, mutation, noticed in seen(name)
        if (noticed is None or (mutation.kind in ORDER and str(noticed) != FOUND))
        and reason_of(subject, mutation) is None
    ]
    assert not unexplained, "\n".join(unexplained)
    others = [f"{subject.name} {mutation}" for subject, mutation, noticed in seen(name) if str(noticed) != FOUND]
    reasons = REASONS if name == CORPUS else TYPES[name].unreported
    assert not [pattern for pattern in reasons if not any(re.search(pattern, text) for text in others)]


# The rows of kernel types hold for all faults of all goldens.
@pytest.mark.parametrize("name", [*figures.rows(TEXT, figures.ORDER_MARKS)] if sweep.ALL else [CORPUS])
def test_the_document_says_how_many_are_noticed_and_how(name: str) -> None:
    """`python -m tests.tools.mutation_figures` writes it."""
    assert subjects_of(name), "the kernel type is gone"
    assert figures.rows(TEXT, figures.ORDER_MARKS)[name] == figures.order_row(name, seen(name))
    if name != CORPUS:
        assert figures.rows(TEXT, figures.OTHER_MARKS)[name] == figures.other_row(name, seen(name))


def test_the_share_of_order_faults_that_check_mode_notices() -> None:
    """As the document's rows state it, one for each kernel type that has goldens."""
    stated = figures.stated(TEXT)
    assert stated.keys() - {CORPUS} <= {subject.spec.kernel_name for subject in unique()}
    for names in (stated.keys() - {CORPUS}, {CORPUS}):
        matter, found, wrong = (sum(stated[name][kind] for name in names)
                                for kind in ("matter", FOUND, "result in check mode"))  # fmt: skip
        assert found >= FINDINGS * matter > 0
        assert found + wrong >= SHARE * matter
