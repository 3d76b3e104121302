"""Every golden of every kernel type, once where targets have one text, in check mode: no finding, right results.

Outputs and workspaces hold NaN (or what no result has) before each launch, and whatever lies past a length too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ptxgen.dtypes import dtype
from ptxgen.golden import Goldens
from ptxgen.golden.case import Case
from ptxgen.kernel import KernelType
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.spec.examples import poison
from tests.support.draws import trials
from tests.support.goldens import different
from tests.support.kernels import GOLDENS, TYPES

CASES = {case.file: case for case in Goldens(GOLDENS).cases()}
Arrays = dict[str, Any]
Fill = Callable[[tuple[int, ...], Any], np.ndarray]


@pytest.fixture(scope="module")
def checked() -> CpuDevice:
    return CpuDevice(mode="check")


def test_every_kernel_type_has_goldens_on_each_of_its_targets() -> None:
    there = {(case.spec.kernel_name, case.target.name) for case in CASES.values()}
    assert there == {(name, where) for name, cls in TYPES.items() for where in cls.golden_targets}


@pytest.mark.parametrize("file", [case.file for case in different()])
def test_golden_runs_without_a_finding_and_matches_its_reference_twice(file: str, checked: CpuDevice) -> None:
    case = CASES[file]
    trial(case.spec, checked, target=case.target, seed=7).require()


# what lies past a length ------------------------------------------------------------------------------------------


def has_past(case: Case) -> bool:
    return type(case.spec).past is not KernelType.past


WITH_PAST = [case.file for case in different() if has_past(case)]


def _arguments(case: Case, sizes: Mapping[str, int], fill: Fill) -> tuple[Arrays, int]:
    """An example whose elements past every length come from `fill`, and how many these are."""
    values = case.spec.example(np.random.default_rng(7), **sizes)
    found = 0
    for array, past in case.spec.past(values):
        shape = array[past].shape
        array[past] = fill(shape, dtype(array.dtype))
        found += int(np.prod(shape))
    return values, found


@pytest.mark.parametrize("file", WITH_PAST)
def test_what_lies_past_a_length_does_not_matter(file: str, checked: CpuDevice) -> None:
    case = CASES[file]
    past = 0
    for sizes in trials(case.spec):
        outputs = []
        for fill in (lambda shape, kind: np.zeros(shape, kind.numpy), poison):
            values, found = _arguments(case, sizes, fill)
            if found:
                made = trial(case.spec, checked, target=case.target, arguments=values, repeat=False, **sizes)
                outputs.append(made.require().outputs)
                written = {param.name for param in case.spec.params() if param.access == "out"}
                past += found
        for name in written if outputs else ():
            assert outputs[0][name].tobytes() == outputs[1][name].tobytes(), (name, sizes)
    assert past, "no trial leaves anything past its lengths"
