"""Kernels that nvcc compiled from CUDA C++ give what NumPy says: on the executor in every mode, and on a GPU."""

from __future__ import annotations

import re

import pytest

from tests.evidence.corpus.case import HERE
from tests.evidence.corpus.cases import CASES
from tests.evidence.devices import open_device
from tests.support.cpu_run import MODES
from tests.support.devices import ExecutorDevice


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_executor(name, mode):
    CASES[name].run(open_device(mode))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_any_order_of_warps_and_blocks_gives_the_same(name, seed):
    CASES[name].run(ExecutorDevice("random", seed=seed, threads=1 + seed))


@pytest.mark.parametrize("name", CASES)
def test_check_mode_finds_nothing_whichever_thread_runs_a_block(name):
    CASES[name].run(ExecutorDevice("check", threads=4))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gpu(name):
    CASES[name].run(open_device("cuda"))


def test_every_entry_of_the_corpus_has_a_case_and_every_source_its_ptx():
    entries = {(p.stem, e) for p in HERE.glob("*.ptx") for e in re.findall(r"\.entry (\w+)", p.read_text())}
    assert entries == {(c.file, c.entry) for c in CASES.values()}
    assert {p.stem for p in HERE.glob("*.cu")} == {p.stem for p in HERE.glob("*.ptx")}


@pytest.mark.parametrize("name", ["warp_sum", "every_atomic", "bulk_pipeline"])
def test_a_case_notices_a_kernel_that_writes_nothing(name):
    class Lazy:
        def array(self, source):
            return type("Same", (), {"numpy": lambda self: source})()

        def module(self, text):
            return {CASES[name].entry: type("Idle", (), {"launch": lambda self, **given: None})()}

    with pytest.raises(AssertionError):
        CASES[name].run(Lazy())
