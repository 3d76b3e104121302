"""The report of the GPU suite: written from rows alone, which a plugin of the tests collects."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ptxgen.parity import LIMITS
from tests.tools.gpu_report import EXECUTOR, Compared, Figures, document

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu-report.md"
GOLDENS = Path(__file__).resolve().parents[1] / "cuda" / "test_goldens.py"


def test_the_page_is_what_the_rows_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == "\n".join(document()) + "\n"


def test_figures_of_other_processes_are_added() -> None:
    there, here = Figures(), Figures()
    there.errors["rope", "reference"] += [Compared(1e-7, 1e-6), Compared(0.0, 0.0)]
    config = SimpleNamespace(workeroutput={})
    there.pytest_sessionfinish(SimpleNamespace(config=config))
    here.errors["rope", "reference"] += [Compared(2e-7, 1e-6)]
    here.pytest_testnodedown(SimpleNamespace(workeroutput=config.workeroutput))
    assert here.errors["rope", "reference"] == [Compared(2e-7, 1e-6), *there.errors["rope", "reference"]]


def test_figures_are_kept_by_file_and_by_kernel_type() -> None:
    figures = Figures()
    golden = SimpleNamespace(params={"file": "sm_80/rope/some.ptx"})
    assert f"def {EXECUTOR}(" in GOLDENS.read_text(encoding="utf-8")
    for test in ("test_golden_matches_its_reference", EXECUTOR):
        figures.pytest_runtest_setup(SimpleNamespace(path=GOLDENS, callspec=golden, originalname=test))
        figures.compare("q", np.ones(4, np.float32), np.full(4, 1.000001, np.float32), LIMITS["f32"])
    figures.pytest_runtest_setup(SimpleNamespace(path=Path("tests/cuda/test_gpu.py"), originalname="test_x"))
    figures.compare("x", np.ones(4, np.int32), np.ones(4, np.int32), 0.0)
    assert {key: len(found) for key, found in figures.errors.items()} == {
        ("rope", "reference"): 1,
        ("rope", "executor"): 1,
        ("cuda/gpu", "reference"): 1,
    }
    figures.compare("x", np.full(4, np.nan, np.float32), np.ones(4, np.float32), np.inf)  # which judges nothing
    assert len(figures.errors["cuda/gpu", "reference"]) == 1
    for when, outcome in (("setup", "passed"), ("call", "passed"), ("call", "failed"), ("setup", "skipped")):
        report = SimpleNamespace(nodeid="tests/cpu/test_a.py::test[1]", when=when, outcome=outcome, duration=0.5)
        figures.pytest_runtest_logreport(report)
    assert dict(figures.outcomes["cpu/test_a"]) == {"passed": 1, "failed": 1, "skipped": 1}
    assert figures.seconds["cpu/test_a"] == 2.0
