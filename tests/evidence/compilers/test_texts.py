"""Texts of other compilers run as they are: what NumPy says, and no finding. A selection; `compilers_report` runs all.

Of every kernel the newest target's text runs in check mode and in ten random orders; the others' by turns, in fast mode
and in ten random orders.
"""

from __future__ import annotations

import re
import zlib

import pytest

import tests.evidence.compilers.all_cases  # noqa: F401
from ptxgen.errors import ExecutionError
from ptxgen.runtime import open_device
from tests.evidence.compilers.case import CASES, FOUND, TARGETS, TEXTS, texts, versions

COMPILERS = sorted({compiler for compiler, _ in CASES})
IN_CHECK = [(c, name) for c in COMPILERS for name in texts(c, "sm_90")]
IN_FAST = [(c, t, n) for c in COMPILERS for t in ("sm_75", "sm_80") for n in texts(c, t)
           if zlib.crc32(n.encode()) % 4 == TARGETS.index(t)]  # fmt: skip


IN_RANDOM = [(c, "sm_90", name) for c, name in IN_CHECK] + IN_FAST
SEEDS = range(10)


def quietly(
    compiler: str, target: str, name: str, mode: str, capsys: pytest.CaptureFixture[str], seed: int | None = None
) -> None:
    device = open_device("cpu", mode=mode, threads=1) if seed is None else open_device("cpu", mode=mode, seed=seed)
    CASES[compiler, name].run(device, texts(compiler, target)[name])
    capsys.readouterr()  # what kernels print


@pytest.mark.filterwarnings("ignore::ptxgen.errors.VersionWarning", "ignore::ptxgen.errors.ExecutionNote")
@pytest.mark.parametrize(("compiler", "name"), IN_CHECK)
def test_in_check_mode(compiler, name, capsys):
    if (compiler, name) in FOUND:
        with pytest.raises(ExecutionError, match=FOUND[compiler, name]):
            quietly(compiler, "sm_90", name, "check", capsys)
        return
    quietly(compiler, "sm_90", name, "check", capsys)


@pytest.mark.filterwarnings("ignore::ptxgen.errors.VersionWarning")
@pytest.mark.parametrize(("compiler", "target", "name"), IN_FAST)
def test_in_fast_mode(compiler, target, name, capsys):
    quietly(compiler, target, name, "fast", capsys)


@pytest.mark.filterwarnings("ignore::ptxgen.errors.VersionWarning")
@pytest.mark.parametrize(("compiler", "target", "name"), IN_RANDOM)
def test_in_ten_random_orders(compiler, target, name, capsys):
    for seed in SEEDS:
        quietly(compiler, target, name, "random", capsys, seed)


def test_versions_of_the_compilers_are_beside_their_texts():
    assert sorted(versions()) == COMPILERS
    assert all(re.fullmatch(r"\d+\.\d+(\.\d+)?", version) for version in versions().values())


def test_every_case_has_a_text_for_every_target_and_every_text_a_case():
    for compiler in COMPILERS:
        for target in TARGETS:
            made = {name for (c, name), case in CASES.items() if c == compiler and target in case.targets}
            assert set(texts(compiler, target)) == made


def test_the_texts_are_small_and_name_no_path_of_a_machine():
    assert sum(path.stat().st_size for path in TEXTS.iterdir()) < 1_500_000
    for compiler in COMPILERS:
        for target in TARGETS:
            for name, text in texts(compiler, target).items():
                assert not re.search(r'"/(?:home|tmp|root|opt|usr)', text["ptx"]), (compiler, target, name)
