"""Values of the fields that are swept (head_dim, groups of query heads), of every kernel type; in a sweep every one."""

from __future__ import annotations

from itertools import groupby

import pytest

from ptxgen import runtime
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target as parse_target
from tests.support.draws import small, swept
from tests.support.kernels import TYPES
from tests.support.sweep import some

SWEPT = [
    (name, *chosen)
    for name, cls in TYPES.items()
    for _, values in groupby(swept(cls), key=lambda each: each[0])
    for chosen in some(values, 9)
]


@pytest.fixture(scope="module")
def cpu() -> Device:
    return runtime.open_device("cpu")


@pytest.mark.parametrize(("name", "field", "value"), SWEPT)
def test_a_value_agrees_with_the_reference(name: str, field: str, value: object, cpu: Device) -> None:
    cls = TYPES[name]
    target = "sm_80" if parse_target("sm_80").includes(parse_target(cls.lowest_target)) else cls.lowest_target
    trial(small(cls, **{field: value}), cpu, target=target, repeat=False, **cls.trials[-1]).require()
