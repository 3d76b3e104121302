"""Every head_dim and every group of query heads, of every kernel type that has them, against its reference."""

from __future__ import annotations

import pytest

from ptxgen import runtime
from ptxgen.kernel import KernelType, kernel_types, make_spec
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial

HEAD_DIMS = range(8, 513, 8)
GROUPS = (*range(1, 17), 24, 32, 64)
SMALL = dict(max_len=24, head_dim=16, n_heads=2, n_kv_heads=1, q_dtype="f16", kv_dtype="f16")  # where a type has them
SIZES = {"n_tokens": 5, "q_len": 5, "kv_len": 19, "n_keys": 19, "seq_len": 19, "rows": 3, "batch": 1}


def types_with(*fields: str) -> list[str]:
    return [name for name, cls in kernel_types().items() if {*fields} <= cls.__dataclass_fields__.keys()]


def small(name: str, **chosen: object) -> KernelType:
    known = kernel_types()[name].__dataclass_fields__
    return make_spec(name, {field: value for field, value in (SMALL | chosen).items() if field in known})


@pytest.fixture(scope="module")
def cpu() -> Device:
    return runtime.open_device("cpu")


def agrees(spec: KernelType, device: Device) -> None:
    sizes = {name: SIZES[name] for name in spec.sizes if name in SIZES}
    trial(spec, device, target="sm_80", repeat=False, **sizes).require()


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("name", types_with("head_dim"))
def test_every_head_dim(name: str, head_dim: int, cpu: Device) -> None:
    agrees(small(name, head_dim=head_dim), cpu)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", types_with("n_heads", "n_kv_heads"))
def test_every_group(name: str, group: int, cpu: Device) -> None:
    agrees(small(name, n_heads=2 * group, n_kv_heads=2), cpu)
