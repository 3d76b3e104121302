"""Faults put into every golden, one at a time: at least 95 % are reported; each of the others has a known reason."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from ptxgen.golden import Goldens
from ptxgen.kernel import kernel_types
from tests.mutations import Mutation, SpecSubject, deletions, dropped_options, far_off

SHARE = 0.95
NEVER = "does not matter: "
# What is not reported, by subject and mutation, and why.
REASONS = {
    r"incremental_attention.* barrier .*tickets_param": NEVER + "every record tells by itself whether it is there",
    r"incremental_attention/l48_d80.* barrier .*%tile_next": NEVER + "no warp of so short a cache has a third tile",
    r"precise=True": "below the rounding of f16",
    r"multi_head_attention.* barrier .*%scan_mine": NEVER + "keeps warps in step, for the assembler",
    r"multi_head_attention.*no_causal_batched.* barrier .*%out_at": "orders a warp's lanes, where there are no keys",
}


@cache
def unique() -> tuple[SpecSubject, ...]:
    """The goldens, without those whose text differs from an earlier one in its header only."""
    found: dict[str, SpecSubject] = {}
    for case in Goldens(Path(__file__).resolve().parent.parent / "golden_ptx").cases():
        subject = SpecSubject(case.spec, case.target)
        found.setdefault(re.sub(r"(?m)^(//.*|\.target.*|\.version.*)$", "", subject.ptx.text), subject)
    return tuple(found.values())


def equivalent(subject: SpecSubject, mutation: Mutation) -> bool:
    """Whether a stride belongs to an index that is always 0: then any stride would do."""
    return mutation.kind == "stride" and not subject.noticed(far_off(subject.ptx.text, mutation))


@pytest.mark.parametrize("kernel", kernel_types())
def test_faults_are_reported(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    tried, missed = Counter[str](), []
    for subject in unique():
        for mutation in subject.mutations() if subject.spec.kernel_name == kernel else ():
            if subject.noticed(mutation.text):
                tried[mutation.kind] += 1
            elif not equivalent(subject, mutation):
                tried[mutation.kind] += 1
                missed.append(f"{subject.name} {mutation}")
    with capsys.disabled():
        print(f"\n{kernel}: {tried.total() - len(missed)} of {tried.total()} faults reported", dict(tried))
        for text in missed:
            print(f"  not: {text}: {reason_of(text) or 'no known reason'}")
    assert tried, "there is nothing to spoil"
    assert not [text for text in missed if reason_of(text) is None]


def test_what_has_a_reason_is_less_than_one_in_twenty() -> None:
    """Of the deletions and dropped options that matter, without running any; strides are all reported."""
    everything = [
        f"{subject.name} {mutation}"
        for subject in unique()
        for mutation in (*deletions(subject.ptx.text), *dropped_options(subject.spec, subject.target))
    ]
    mattering = [text for text in everything if not (reason_of(text) or "").startswith(NEVER)]
    excused = [text for text in mattering if reason_of(text)]
    assert len(excused) <= (1 - SHARE) * len(mattering), "\n".join(excused)
    for pattern in REASONS:
        assert any(re.search(pattern, text) for text in everything), f"{pattern} excuses nothing"


def reason_of(text: str) -> str | None:
    """Why a mutation goes unreported, if that is known."""
    return next((reason for pattern, reason in REASONS.items() if re.search(pattern, text)), None)
