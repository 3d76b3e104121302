"""Faults put into every golden and into the foreign corpus, one at a time: what is noticed of them, and how.

Deleted barriers, waits and fences ("order") are what check mode is for; strides and options change results, too.
"""

from __future__ import annotations

import re

import pytest

from tests.support.kernels import TYPES
from tests.tools import mutation_figures as figures
from tests.tools.mutation_figures import FOUND, ORDER, REASONS, corpus, counts, reason_of, tried, unique
from tests.tools.mutations import SpecSubject, Subject

SHARE = 0.95  # of the order faults that matter: noticed in check mode
FINDINGS = 0.9  # and by a finding, not only by a wrong result
TEXT = figures.DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("subject", [*unique(), *corpus()], ids=lambda subject: subject.name)
def test_nothing_is_amiss_without_a_fault(subject: Subject) -> None:
    text = subject.ptx.text if isinstance(subject, SpecSubject) else vars(subject)["case"].text
    assert subject.outcome(text, "check") is None


@pytest.mark.parametrize("kernel", [*TYPES, "corpus"])
def test_what_is_not_reported_has_a_reason(kernel: str) -> None:
    subjects = corpus() if kernel == "corpus" else figures.goldens_of(kernel)
    seen = [(subject, mutation, noticed) for subject in subjects for mutation, noticed in tried(subject)]
    unexplained = [
        f"{noticed or 'nothing'}: {subject.name} {mutation}"
        for subject, mutation, noticed in seen
        if (noticed is None or (mutation.kind in ORDER and str(noticed) != FOUND))
        and reason_of(subject, mutation) is None
    ]
    assert not unexplained, "\n".join(unexplained)


@pytest.mark.parametrize("subjects", [unique, corpus])
def test_the_share_of_order_faults_that_check_mode_notices(subjects) -> None:
    seen = counts(subjects())
    assert seen[FOUND] >= FINDINGS * seen["matter"], seen
    assert seen[FOUND] + seen["result in check mode"] >= SHARE * seen["matter"], seen


@pytest.mark.parametrize("name", [*figures.rows(TEXT, figures.ORDER_MARKS)])
def test_the_document_says_how_many_are_noticed_and_how(name: str) -> None:
    """Of each kernel type that it lists; `python -m tests.tools.mutation_figures` lists all."""
    subjects = corpus() if name == "tests/corpus" else figures.goldens_of(name)
    assert subjects, "the kernel type is gone"
    assert figures.rows(TEXT, figures.ORDER_MARKS)[name] == figures.order_row(name, subjects)
    if name != "tests/corpus":
        assert figures.rows(TEXT, figures.OTHER_MARKS)[name] == figures.other_row(name, subjects)


def test_every_reason_excuses_something() -> None:
    every = [f"{s.name} {m}" for s in corpus() for m, n in tried(s) if str(n) != FOUND]
    assert not [pattern for pattern in REASONS if not any(re.search(pattern, text) for text in every)]


@pytest.mark.parametrize("kernel", [name for name, cls in TYPES.items() if cls.unreported])
def test_every_reason_of_a_kernel_type_excuses_something(kernel: str) -> None:
    every = [f"{s.name} {m}" for s in figures.goldens_of(kernel) for m, n in tried(s) if str(n) != FOUND]
    for pattern in TYPES[kernel].unreported:
        assert any(re.search(pattern, text) for text in every), pattern
