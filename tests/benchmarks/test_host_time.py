"""The benchmark of what the host adds to a token, on the CPU executor and on a driver whose kernels do nothing."""

from __future__ import annotations

import pytest

from benchmarks.host_time import measure, table
from ptxgen.runtime import Device, Model
from ptxgen.runtime.cpu.device import CpuDevice
from tests.support.fake_cuda import fake_device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec


@pytest.mark.parametrize("device", [CpuDevice(), fake_device()[0]], ids=["cpu", "fake"])
def test_every_part_of_a_token_is_measured(device: Device) -> None:
    spec = small_spec("llama")
    found = measure(Model(ArrayFile(spec, random_weights(spec)), device, "f32", chunk=8), 60)  # more than one sequence
    assert found.keys() == {"call", "device", "host", "issued", "driver", "python"}
    assert min(found[name] for name in ("call", "device", "issued", "driver")) > 0
    assert found["host"] == found["call"] - found["device"]
    rows = [{"case": {"model": "kjv"}, "impl": name, "us": us} for name, us in found.items()]
    assert table(rows).count("\n| kjv | ") == len(found)
