"""Every golden on a real GPU: what its reference says, the same bytes twice, and what the CPU executor gives.

What lies past a length holds NaN. These are the launches that the sanitizers see first (tests/tools/sanitize.py): the
goldens are chosen so that every branch of every template is in one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

import pytest

from ptxgen.golden.case import Case
from ptxgen.parity import judge
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import Trial, trial
from ptxgen.spec.examples import poison
from tests.golden.test_goldens_run import CASES, _arguments, has_past
from tests.support.draws import trials

pytestmark = pytest.mark.gpu
NONE: Mapping[str, int] = MappingProxyType({})


def launched(case: Case, device: Device, sizes: Mapping[str, int] = NONE) -> Trial:
    """The golden's text on a device, with arguments that are the same for every device; of its first trial, or of
    `sizes`."""
    given: dict[str, Any] = {"seed": 7, **sizes}
    if has_past(case):
        sizes = sizes or case.spec.trials[0]
        given |= {**sizes, "arguments": _arguments(case, sizes, poison)[0]}
    return trial(case.spec, device, target=case.target, **given).require()


def need(case: Case, gpu: Device) -> None:
    if not gpu._runs(case.target):
        pytest.skip(f"{case.target} does not run on {gpu.target}")


@pytest.mark.parametrize("file", CASES)
def test_golden_matches_its_reference(file: str, gpu: Device) -> None:
    need(CASES[file], gpu)
    launched(CASES[file], gpu)


@pytest.mark.parametrize("file", [file for file, case in CASES.items() if len(case.spec.trials) > 1])
def test_golden_matches_its_reference_in_all_trials(file: str, gpu: Device) -> None:
    """Which reach what the first does not: loops for sums that overflow, other splits, lengths of none."""
    need(CASES[file], gpu)
    for sizes in islice(trials(CASES[file].spec), 1, None):
        launched(CASES[file], gpu, sizes)


@pytest.fixture(scope="module")
def executor() -> Device:
    return open_device("cpu")


@pytest.mark.parametrize("file", CASES)
def test_golden_gives_what_the_executor_gives(file: str, gpu: Device, executor: Device) -> None:
    case = CASES[file]
    need(case, gpu)
    here, there = launched(case, executor), launched(case, gpu)
    assert here.outputs.keys() == there.outputs.keys()
    for verdict in judge(case.spec, there.outputs, here.outputs):
        assert verdict.ok, f"executor: {verdict}"
