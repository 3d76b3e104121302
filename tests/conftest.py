"""What tests share: GPU tests are skipped, with the reason, where there is no device; caches stay in this session."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from ptxgen import generator
from ptxgen.runtime import Device, open_device
from tests.support.sweep import DRAW, FEW, undrawn

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from ptxgen.golden import Goldens

KEPT = 400  # generated texts: all goldens, twice

# No test fails by time, of an example or of drawing one: machines are shared, and coverage slows them down.
settings.register_profile("ptxgen", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ptxgen")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = undrawn(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from ptxgen.doctor import no_gpu

    reason = no_gpu()
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a CUDA device: {reason}"))


def pytest_collection_finish() -> None:
    """Collections of garbage, of which some tests ask for many, do not look at modules and tests."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """One line: how many tests were skipped, and for which reasons; one where cases were drawn."""
    if DRAW > 1:
        said = f"one of {DRAW} cases of tests with more than {FEW} (all: make test DRAW=1)"
        terminalreporter.write_line(said)
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(reason_of(report.longrepr) for report in skipped)
    if reasons:
        listed = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"{len(skipped)} skipped: {listed}")


def reason_of(longrepr: object) -> str:
    """Why a test was skipped, on one line: pytest keeps (file, line, "Skipped: reason")."""
    text = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
    return " ".join(text.removeprefix("Skipped: ").split())


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled code is shared by the tests of this session (its workers included) and by no other.

    `PTXGEN_TEST_CACHE` names a directory for several sessions to share (see tests/tools/sanitize.py). What the caller's
    environment says of tuning and of `CI` (where goldens may not be updated) decides nothing here.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXGEN_CACHE_DIR", os.environ.get("PTXGEN_TEST_CACHE") or str(shared / "ptxgen-cache"))
        for name in ("PTXGEN_DRAW", "PTXGEN_DRAW_FROM", "PTXGEN_TUNING", "PTXGEN_LINE_INFO", "CI"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def _texts_of_other_tests_go() -> Iterator[None]:
    """A process that keeps some ten thousand parsed texts takes seconds for a collection of garbage."""
    yield
    if len(generator._CACHE) > KEPT:
        generator.clear_cache()


@pytest.fixture
def goldens(tmp_path: Path) -> Goldens:
    """A directory of goldens to spoil."""
    from tests.support.golden_copy import make

    return make(tmp_path / "golden_ptx")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """The CPU executor, and the GPU where there is one."""
    return open_device(request.param)


@pytest.fixture
def gpu() -> Device:
    """The GPU, for tests that carry the `gpu` marker."""
    return open_device("cuda")
