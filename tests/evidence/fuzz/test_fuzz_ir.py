"""A few dozen of the fuzzer's programs; `python -m tests.evidence.fuzz --count 10000` is the long run."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest

from benchmarks.documents.cpu_executor import fuzz_rows
from tests.evidence.devices import open_device
from tests.evidence.fuzz import backends
from tests.evidence.fuzz.__main__ import difference, run
from tests.evidence.fuzz.program import make
from tests.support import sweep


@pytest.mark.parametrize("start", range(0, sweep.examples(16, 128), 8))
def test_random_programs_give_the_same_on_the_executor_and_on_this_machine(start):
    assert run(range(start, start + 8), open_device("fast")) == []


def test_random_programs_run_clean_and_the_same_in_check_mode():
    assert run(range(100, 108), open_device("check")) == []


def test_random_programs_give_the_same_on_the_oracle():
    assert run(range(200, 200 + sweep.examples(12, 96)), open_device("oracle")) == []


def test_a_seed_always_makes_the_same_program_and_different_seeds_different_ones():
    assert make(5) == make(5)
    assert len({make(s).body for s in range(20)}) == 20


def test_programs_hold_every_kind_of_instruction():
    text = "".join(backends.to_ptx([make(s) for s in range(8 * n, 8 * n + 8)], n % 3) for n in range(12))
    kinds = ("ld.global", "st.global", "ld.local", "st.local", "ld.shared", "st.shared", "ld.global.v4", "cvta.shared",
             "atom.shared", "call", "brx.idx", "bra", "selp", "setp", "shfl.sync.idx", "shfl.sync.up", "shfl.sync.down",
             "shfl.sync.bfly", "vote.sync.ballot", "vote.sync.any", "vote.sync.all", "redux.sync", "mad", "fma.rn.f32",
             "fma.rn.f64", "cvt.rzi", "cvt.rn.f32", "cvt.rn.f16", "div.rn", "sqrt.rn", "prmt",
             "shf.l", "popc", "clz", "brev", "mul.hi", "rem", "copysign")  # fmt: skip
    assert [kind for kind in kinds if kind not in text] == []


def test_programs_see_threads_apart_and_write_most_types():
    results = backends.on_host([make(s) for s in range(8)])
    for out in results:
        assert len(np.unique(out.view(np.uint64).reshape(48, 8), axis=0)) > 10


@cache
def compiled(seed):
    return backends.to_ptx([make(seed)], 1)


@pytest.mark.parametrize(("old", "new"), [("xor.b32", "or.b32"), ("max.f32", "min.f32"), ("mul.rn.f32", "mul.rz.f32"),
                                          ("div.rn.f64", "div.rz.f64"), ("cvt.rni", "cvt.rzi"),
                                          ("shfl.sync.up", "shfl.sync.bfly"), ("vote.sync.all", "vote.sync.any"),
                                          ("redux.sync.min", "redux.sync.max"), ("atom.shared.min", "atom.shared.max"),
                                          ("st.shared.b16", "st.shared.b8")])  # fmt: skip
def test_a_wrong_instruction_is_noticed(old, new, monkeypatch):
    plain = backends.to_ptx
    programs = list(islice((make(s) for s in range(400) if old in compiled(s)), 8))
    monkeypatch.setattr(backends, "to_ptx", lambda *given: plain(*given).replace(old, new))
    wrong = backends.on_device(programs, open_device("oracle"), 1)
    right = backends.on_host(programs)
    assert any(difference(p, a, b) for p, a, b in zip(programs, wrong, right, strict=True))


def test_ten_thousand_programs_without_a_difference_are_on_record():
    long = [row for row in fuzz_rows() if row["case"]["programs"] >= 10_000 and row["case"]["device"] == "fast"]
    assert long[-1]["differences"] == 0
