"""Every golden assembles for the architecture it names, at its version; one step lower it is refused."""

from __future__ import annotations

import re

import pytest

from ptxgen.assembler import assemble, available_assemblers, supported_targets
from ptxgen.errors import AssembleError
from ptxgen.golden import Goldens
from ptxgen.golden.case import Case
from ptxgen.targets import ALL_TARGETS, driver_for_ptx
from tests.support import sweep
from tests.support.kernels import GOLDENS, NAMES
from tests.support.marks import needs_assembler

VERSIONS = [(m, n) for m in range(6, 10) for n in range(10) if driver_for_ptx((m, n))]

pytestmark = needs_assembler


def cases(name: str) -> list[Case]:
    known = supported_targets(available_assemblers()[0])
    return [case for case in Goldens(GOLDENS, (name,)).cases() if case.target in known]


@pytest.mark.parametrize("name", NAMES)
def test_assembles_without_spills_or_local_memory(name: str) -> None:
    for case in cases(name):
        ptx = case.generate()
        assert assemble(ptx.text, case.target).resources[ptx.entry].clean, case.file


@pytest.mark.parametrize("name", NAMES)
def test_one_version_lower_is_refused(name: str) -> None:
    for case in cases(name):
        text = case.generate().text
        stated = re.search(r"^\.version (\d)\.(\d)$", text, re.MULTILINE)
        assert stated
        lower = VERSIONS[VERSIONS.index((int(stated[1]), int(stated[2]))) - 1]
        older = text.replace(stated[0], f".version {lower[0]}.{lower[1]}")
        with pytest.raises(AssembleError):
            assemble(older, case.target)


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_every_later_architecture(name: str) -> None:
    """The golden of the lowest target, as it stands, for every third that includes it; in a sweep for all."""
    known = supported_targets(available_assemblers()[0])
    lowest = min(cases(name), key=lambda case: (case.target.major, case.target.minor))
    text = lowest.generate().text
    targets = [t for t in ALL_TARGETS if t in known and not t.suffix and t.includes(lowest.target)]
    for later in targets if sweep.ALL else targets[NAMES.index(name) % 3 :: 3]:
        assert assemble(text, later).resources[lowest.spec.kernel_name].clean, later
