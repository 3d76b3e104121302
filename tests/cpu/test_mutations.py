"""Faults put into every golden and into the foreign corpus, one at a time: what is noticed of them, and how.

Deleted barriers, waits and fences ("order") are what check mode is for; strides and options change results, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from ptxgen.golden import Goldens
from ptxgen.kernel import kernel_types
from tests.corpus.cases import CASES
from tests.tools.mutations import CorpusSubject, Mutation, Noticed, SpecSubject, Subject, far_off

ROOT = Path(__file__).resolve().parents[2]
ORDER = ("barrier", "wait", "fence")
SHARE = 0.95  # of the order faults that matter: noticed in check mode
FINDINGS = 0.9  # and by a finding, not only by a wrong result
NEVER = "does not matter: "
STRONG = "its data are volatile too, and strong accesses are not compared with each other"
# What check mode does not report, by subject and mutation, and why.
REASONS = {
    r"incremental_attention.* barrier .*tickets_param": NEVER + "every record tells by itself whether it is there",
    r"incremental_attention/l48_d80.* barrier .*%tile_next, %tile_next": NEVER + "so short a cache has no third tile",
    r"incremental_attention/l48_d80.* barrier .*%tile_next, %tile;": "the relaxed loads behind it may be flags",
    r"precise=True": "below the rounding of f16",
    r"multi_head_attention.* barrier .*%scan_mine": NEVER + "keeps warps in step, for the assembler",
    r"multi_head_attention.*no_causal_batched.* barrier .*%out_at": "orders a warp's lanes, where there are no keys",
    r"arg_max.* fence .*atom.acq_rel": "found by the reductions that come late: a wrong result",
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
    r"corpus/tensor_sum wait .*wait_group.read": "what it keeps is overwritten by a copy: a wrong result",
}  # fmt: skip
FOUND = "finding in check mode"


@cache
def unique() -> tuple[SpecSubject, ...]:
    """The goldens, without those whose text differs from an earlier one in its header only."""
    found: dict[str, SpecSubject] = {}
    for case in Goldens(ROOT / "golden_ptx").cases():
        subject = SpecSubject(case.spec, case.target)
        found.setdefault(re.sub(r"(?m)^(//.*|\.target.*|\.version.*)$", "", subject.ptx.text), subject)
    return tuple(found.values())


@cache
def corpus() -> tuple[CorpusSubject, ...]:
    """Every kernel of the foreign corpus."""
    return tuple(map(CorpusSubject, CASES.values()))


@cache
def tried(subject: Subject) -> tuple[tuple[Mutation, Noticed | None], ...]:
    """Every mutation of a subject that is one, and what was noticed of it."""
    found = ((mutation, subject.noticed(mutation.text)) for mutation in subject.mutations())
    return tuple((mutation, noticed) for mutation, noticed in found if noticed or not equivalent(subject, mutation))


def equivalent(subject: Subject, mutation: Mutation) -> bool:
    """Whether a stride belongs to an index that is always 0, so that any would do; or a line of the corpus is dead."""
    if isinstance(subject, CorpusSubject):
        return not subject.reaches(mutation)
    return mutation.kind == "stride" and not subject.noticed(far_off(subject.ptx.text, mutation))


def reason_of(subject: Subject, mutation: Mutation) -> str | None:
    """Why check mode does not report a mutation, if that is known."""
    text = f"{subject.name} {mutation}"
    return next((reason for pattern, reason in REASONS.items() if re.search(pattern, text)), None)


def counts(subjects: Iterable[Subject]) -> Counter[str]:
    """Of the order faults that are reached: how each was noticed; `matter` are all but those that never do."""
    total: Counter[str] = Counter()
    for subject in subjects:
        for mutation, noticed in tried(subject):
            if mutation.kind in ORDER:
                reason = reason_of(subject, mutation) or ""
                total["all"] += 1
                total["matter"] += bool(noticed) or not reason.startswith(NEVER)
                total[str(noticed) if noticed else "nothing"] += bool(noticed) or not reason.startswith(NEVER)
    return total


@pytest.mark.parametrize("subject", [*unique(), *corpus()], ids=lambda subject: subject.name)
def test_nothing_is_amiss_without_a_fault(subject: Subject) -> None:
    text = subject.ptx.text if isinstance(subject, SpecSubject) else subject.case.text
    assert subject.outcome(text, "check") is None


@pytest.mark.parametrize("kernel", [*kernel_types(), "corpus"])
def test_what_is_not_reported_has_a_reason(kernel: str) -> None:
    subjects = corpus() if kernel == "corpus" else [s for s in unique() if s.spec.kernel_name == kernel]
    seen = [(subject, mutation, noticed) for subject in subjects for mutation, noticed in tried(subject)]
    assert seen, "there is nothing to spoil"
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


def test_the_document_says_how_many_are_noticed_and_how() -> None:
    text = (ROOT / "docs" / "cpu-executor.md").read_text(encoding="utf-8")
    for name, subjects in (("golden kernels", unique()), ("foreign corpus", corpus())):
        seen = counts(subjects)
        kinds = ("all", "matter", FOUND, "result in check mode", "finding in random mode", "nothing")
        assert f"| {name} | {' | '.join(str(seen[kind]) for kind in kinds)} |" in text
    others = Counter((m.kind, n.how if n else "nothing") for s in unique() for m, n in tried(s) if m.kind not in ORDER)
    for kind in ("stride", "option"):
        row = " | ".join(str(others[kind, how]) for how in ("finding", "result", "nothing"))
        assert f"| {kind}s | {row} |" in text


def test_every_reason_excuses_something() -> None:
    every = [f"{s.name} {m}" for s in (*unique(), *corpus()) for m, n in tried(s) if str(n) != FOUND]
    assert not [pattern for pattern in REASONS if not any(re.search(pattern, text) for text in every)]
