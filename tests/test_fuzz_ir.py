"""A few dozen of the fuzzer's programs; `python -m tests.fuzz --count 10000` is the long run."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tests.devices import open_device
from tests.fuzz import backends
from tests.fuzz.__main__ import difference, run
from tests.fuzz.program import make


@pytest.mark.parametrize("start", range(0, 32, 8))
def test_random_programs_give_the_same_on_the_executor_and_on_this_machine(start):
    assert run(range(start, start + 8), open_device("fast")) == []


def test_random_programs_run_clean_and_the_same_in_check_mode():
    assert run(range(100, 108), open_device("check")) == []


def test_random_programs_give_the_same_on_the_oracle():
    assert run(range(200, 224), open_device("oracle")) == []


def test_a_seed_always_makes_the_same_program_and_different_seeds_different_ones():
    assert make(5) == make(5)
    assert len({make(s).body for s in range(20)}) == 20


def test_programs_see_threads_apart_and_write_most_types():
    results = backends.on_host([make(s) for s in range(8)])
    for out in results:
        assert len(np.unique(out.view(np.uint64).reshape(48, 8), axis=0)) > 10


@pytest.mark.parametrize(("old", "new"), [("xor.b32", "or.b32"), ("min.NaN", "max.NaN"), ("mul.rn.f32", "mul.rz.f32"),
                                          ("div.rn.f64", "div.rz.f64"), ("cvt.rni", "cvt.rzi")])  # fmt: skip
def test_a_wrong_instruction_is_noticed(old, new, monkeypatch):
    plain = backends.to_ptx
    seeds = (s for s in range(400) if old in plain([make(s)], 1))
    programs = [make(s) for s in islice(seeds, 8)]
    monkeypatch.setattr(backends, "to_ptx", lambda *given: plain(*given).replace(old, new))
    wrong = backends.on_device(programs, open_device("oracle"), 1)
    right = backends.on_host(programs)
    assert any(difference(p, a, b) for p, a, b in zip(programs, wrong, right, strict=True))
