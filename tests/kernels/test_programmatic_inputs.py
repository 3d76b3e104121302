"""What a programmatic launch reads before it waits for the kernel ahead is what its kernel type says, and no more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, SpecError, TargetError
from ptxgen.kernel import KernelType, kernel_types
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import bind_example, trial

EARLY = "use of what the kernel before may still write"
KINDS = {
    name: kind
    for name, kind in kernel_types().items()
    if "programmatic" in {each.name for each in dataclasses.fields(kind)}
}


def programmatic(kind: type[KernelType]) -> Iterator[KernelType]:
    """The specs of its goldens, launched so."""
    for golden in kind.goldens:
        try:
            yield kind(**{**golden, "programmatic": True})
        except SpecError:  # a golden that cannot be
            continue


def reads_early(spec: KernelType, name: str) -> bool:
    """Whether check mode finds that it reads this input too early, if the kernel ahead has written it."""
    device = CpuDevice(mode="check")
    try:
        kernel = device.load(spec, "sm_90a")
    except TargetError:
        return False
    launch, bound = bind_example(kernel, spec.example(np.random.default_rng(0)), {})
    buffer = bound.get(name)
    if not isinstance(buffer, Buffer):
        return False
    device.synchronize()
    device.launch_that_writes([buffer])
    try:
        launch.launch()
    except ExecutionError as found:
        return EARLY in str(found)
    return False


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.early])
def test_what_is_early_is_read_early_by_a_golden(name: str) -> None:
    kind = KINDS[name]
    missing = set(kind.early)
    for spec in programmatic(kind):
        missing -= {each for each in missing if reads_early(spec, each)}
        if not missing:
            return
    assert not missing, f"{kind.__name__}.early: no golden reads {', '.join(sorted(missing))} before it waits"


def test_a_trial_finds_an_input_that_is_read_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel whose author has forgotten the wait: an early input that its type does not name."""
    kind = KINDS["rms_norm"]
    spec = next(programmatic(kind))
    trial(spec, CpuDevice(mode="check"), target="sm_90").require()
    monkeypatch.setattr(kind, "early", ())
    with pytest.raises(ExecutionError, match=EARLY):
        trial(spec, CpuDevice(mode="check"), target="sm_90")
    trial(spec, CpuDevice(mode="fast"), target="sm_90").require()
