"""What `bind` checks and packs: names, capacities, shapes, dtypes, devices, alignment, workspaces."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from ptxgen.dtypes import dtype
from ptxgen.errors import SpecError
from ptxgen.lengths import MOST
from ptxgen.runtime.core.launches.arguments import Capacities
from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.runtime.core.param_block import ParamBlock, Slot
from ptxgen.runtime.core.scalars import pack_scalar
from ptxgen.runtime.cuda.device import CudaDevice
from tests.support.fake_cuda import Binding, fake_device
from tests.support.fake_spec import Generator, Sample


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> tuple[Kernel, CudaDevice, Binding]:
    monkeypatch.setattr("ptxgen.generator.generate", Generator())
    device, binding = fake_device()
    return device.load(Sample()), device, binding


def arguments(device: CudaDevice, batch: int = 3) -> dict[str, Any]:
    return {
        "q": device.zeros((batch, 2, 64), "f16"),
        "caches": [device.zeros(16, "f32") for _ in range(batch)],
        "out": device.zeros((batch, 2, 64), "f32"),
        "length": 7,
        "scale": 0.5,
    }


def test_arguments_are_packed_in_order_and_the_grid_follows_the_batch(fake: tuple[Any, ...]) -> None:
    kernel, device, binding = fake
    given = arguments(device)
    bound = kernel.bind(**given)
    bound.launch()
    (launch,) = binding.launched
    assert (launch.grid, launch.block) == ((2, 2, 1), (64, 1, 1))
    q, caches, out, length, scale, tickets = launch.arguments
    assert q == struct.pack("<Q", given["q"].pointer)
    assert out == struct.pack("<Q", given["out"].pointer)
    assert (length, scale) == (struct.pack("<i", 7), struct.pack("<f", 0.5))
    listed = struct.unpack("<3Q", bytes(binding.memory_at(struct.unpack("<Q", caches)[0], 24)))
    assert list(listed) == [c.pointer for c in given["caches"]]
    assert bytes(binding.memory_at(struct.unpack("<Q", tickets)[0], 3 * 16)) == bytes(48), "workspace made and zeroed"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"extra": 1}, r"sample\.bind: takes q, caches, out, length, scale, tickets, batch \(got extra\)"),
        ({"scale": None}, r"bind\(scale\): must be one f32 value \(got None\)"),
        ({"length": 1.5}, r"bind\(length\): must be an integer within -2147483648 … 2147483647 \(got 1.5\)"),
        ({"length": 2**31}, r"bind\(length\): must be an integer .*\(got 2147483648\)"),
        ({"length": True}, r"bind\(length\): must be one s32 value \(got True\)"),
        ({"length": [1, 2]}, r"bind\(length\): must be one s32 value"),
        ({"batch": 4}, "capacity batch is 4 by batch=, and 3 by the shape of q"),
        ({"batch": 0}, r"bind\(batch\): a capacity must be an int ≥ 1 \(got 0\)"),
        ({"q": 4096 + 8}, r"bind\(q\): must be aligned to 16 bytes \(got address 0x1008\)"),
        ({"q": -1}, "within 64 bits"),
        ({"q": True}, r"bind\(q\): must be a buffer, an array or an address \(got True\)"),
        ({"q": "x"}, r"bind\(q\): must be a Buffer, or have __dlpack__"),
        ({"q": np.zeros((3, 2, 64), np.float16)}, r"must be memory of cuda:0 \(got a NumPy array"),
        ({"caches": [1, 2, 3]}, r"bind\(caches\): a list of pointers must hold buffers \(got 1\)"),
    ],
)
def test_each_wrong_argument_is_named(fake: tuple, change: dict[str, object], says: str) -> None:
    kernel, device, _ = fake
    given = arguments(device) | change
    with pytest.raises(SpecError, match=says):
        kernel.bind(**given)


@pytest.mark.parametrize(
    ("name", "shape", "kind", "says"),
    [
        ("q", (3, 2, 64), "f32", r"bind\(q\): must be f16 \(got f32, shape \[3, 2, 64\]\)"),
        ("q", (3, 2, 32), "f16", r"bind\(q\): must have shape \[batch=3, 2, 64\] \(got \[3, 2, 32\]\)"),
        ("out", (2, 2, 64), "f32", "capacity batch is 3 by the shape of q, and 2 by the shape of out"),
        ("q", (384,), "f16", r"bind\(q\): must have shape \[batch=3, 2, 64\] \(got \[384\]\)"),
        ("tickets", (11,), "s32", r"bind\(tickets\): must have shape \[batch \* 4=12\] \(got \[11\]\)"),
        ("tickets", (12,), "f32", r"bind\(tickets\): must be s32"),
        ("q", (3, 2, 64), "s64", r"bind\(q\): must be f16 \(got s64"),
        ("caches", (3,), "f32", r"bind\(caches\): must be u64 \(got f32, shape \[3\]\)"),
    ],
)
def test_shape_and_dtype(fake: tuple, name: str, shape: tuple[int, ...], kind: str, says: str) -> None:
    kernel, device, _ = fake
    with pytest.raises(SpecError, match=says):
        kernel.bind(**arguments(device) | {name: device.zeros(shape, kind)})


@pytest.mark.parametrize("kind", ["u64", "s64"])
def test_pointers_may_be_given_as_an_array_of_addresses(fake: tuple[Any, ...], kind: str) -> None:
    kernel, device, binding = fake
    listed = device.zeros(3, kind)
    kernel.bind(**arguments(device) | {"caches": listed}).launch()
    assert binding.launched[-1].arguments[1] == struct.pack("<Q", listed.pointer)


def test_workspaces_are_made_and_known(fake: tuple[Any, ...]) -> None:
    kernel, device, binding = fake
    bound = kernel.bind(**arguments(device))
    assert {index: tuple(made.shape) for index, made in bound.workspaces().items()} == {5: (12,)}
    bound.launch()
    assert binding.launched[-1].arguments[5] == struct.pack("<Q", bound.workspaces()[5].pointer)
    own = device.zeros(12, "s32")
    assert kernel.bind(**arguments(device), tickets=own).workspaces() == {5: own}


def test_a_list_of_buffers_says_how_many_there_are(fake: tuple[Any, ...]) -> None:
    kernel, device, binding = fake
    listed = [device.zeros(16, "f32") for _ in range(5)]
    kernel.bind(q=0x1000, caches=listed, out=0x3000, length=1, scale=1).launch()
    assert binding.launched[-1].grid == (2, 3, 1)
    with pytest.raises(SpecError, match=r"bind\(q\): must be a Buffer, or have __dlpack__"):
        kernel.bind(**arguments(device) | {"q": listed})


def test_each_buffer_of_a_list_is_checked(fake: tuple[Any, ...]) -> None:
    kernel, device, _ = fake
    good, others = device.zeros(16, "f32"), fake_device(Binding())[0]
    for wrong in (device.zeros(16, "f16"), others.zeros(16, "f32")):
        with pytest.raises(SpecError, match=r"bind\(caches\): each must be f32 on cuda:0 \(got "):
            kernel.bind(**arguments(device) | {"caches": [good, wrong, good]})
    odd = device.zeros(17, "f32").view((16,), offset=4)
    with pytest.raises(SpecError, match=r"bind\(caches\): must be aligned to 8 bytes"):
        kernel.bind(**arguments(device) | {"caches": [good, odd, good]})


def test_limits_hold_for_every_size_that_is_not_known(fake: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = fake[0]
    monkeypatch.setattr(Sample, "sizes", ("lines",))
    ranges = {"length": lambda lines: (-lines, 0), "scale": lambda lines: (lines, 5 * MOST)}
    monkeypatch.setattr(Sample, "ranges", lambda self, sizes: {n: of(sizes["lines"]) for n, of in ranges.items()})
    assert kernel._limits(Capacities({})) == {"length": (-MOST, 0), "scale": (1, 5 * MOST)}
    assert kernel._limits(Capacities({"lines": 3})) == {"length": (-3, 0), "scale": (3, 5 * MOST)}


def test_missing_arguments_are_listed(fake: tuple[Any, ...]) -> None:
    with pytest.raises(SpecError, match=r"sample\.bind: needs caches, out, scale"):
        fake[0].bind(q=0, length=1)


def test_raw_addresses_need_the_capacity_by_name(fake: tuple[Any, ...]) -> None:
    kernel, _, binding = fake
    raw = {"q": 0x1000, "caches": 0x2000, "out": 0x3000, "length": 1, "scale": 1}
    with pytest.raises(SpecError, match=r"needs batch .*give it as a keyword"):
        kernel.bind(**raw)
    kernel.bind(**raw, batch=5).launch()
    assert binding.launched[-1].grid == (2, 3, 1)


def test_other_devices_memory_is_refused(fake: tuple[Any, ...]) -> None:
    kernel, device, _ = fake
    other = fake_device(Binding())[0]
    with pytest.raises(SpecError, match=r"bind\(q\): must be on cuda:0"):
        kernel.bind(**arguments(device) | {"q": other.zeros((3, 2, 64), "f16")})


def test_misaligned_view_is_refused(fake: tuple[Any, ...]) -> None:
    kernel, device, _ = fake
    q = device.zeros(3 * 2 * 64 + 1, "f16").view((3, 2, 64), offset=2)
    with pytest.raises(SpecError, match="must be aligned to 16 bytes"):
        kernel.bind(**arguments(device) | {"q": q})


def test_update_is_checked_like_bind(fake: tuple[Any, ...]) -> None:
    kernel, device, binding = fake
    bound = kernel.bind(**arguments(device))
    with pytest.raises(SpecError, match=r"bind\(q\): must have shape \[batch=3, 2, 64\] \(got \[4, 2, 64\]\)"):
        bound.update(q=device.zeros((4, 2, 64), "f16"))
    with pytest.raises(SpecError, match=r"takes q, caches, .* \(got nonsense\)"):
        bound.update(nonsense=1)
    bound.update(length=9).launch()
    assert binding.launched[-1].arguments[3] == struct.pack("<i", 9)


def test_kernel_whose_text_disagrees_with_its_spec_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.generator.generate", Generator())
    short = ".target sm_80\n.entry sample(.param .u64 q)"
    monkeypatch.setattr("tests.support.fake_spec.sample_text", lambda spec, target: short)
    with pytest.raises(SpecError, match=r"parameters must have \(8, 8, 8, 4, 4, 8\) bytes by its spec"):
        fake_device()[0].load(Sample())


@pytest.mark.parametrize(
    ("value", "kind", "data"),
    [
        (1, "u8", b"\x01"),
        (-1, "s16", b"\xff\xff"),
        (np.int64(5), "u32", b"\x05\0\0\0"),
        (1.5, "f16", struct.pack("<e", 1.5)),
        (1.0, "bf16", b"\x80\x3f"),
        (2, "f64", struct.pack("<d", 2)),
        (2**63, "u64", struct.pack("<Q", 2**63)),
        (float("inf"), "f32", struct.pack("<f", float("inf"))),
    ],
)
def test_scalars(value: object, kind: str, data: bytes) -> None:
    assert pack_scalar("x", value, dtype(kind)) == data


@pytest.mark.parametrize(("value", "kind"), [(256, "u8"), (-1, "u32"), (1.0, "s32"), ("1", "f32"), (1j, "f32")])
def test_scalars_that_do_not_fit(value: object, kind: str) -> None:
    with pytest.raises(SpecError, match=r"^x: must be"):
        pack_scalar("x", value, dtype(kind))


def test_parameter_block_keeps_offsets_and_copies() -> None:
    block = ParamBlock([Slot(0, 8), Slot(8, 4), Slot(16, 8)])
    block.set(1, b"abcd")
    twin = block.copy()
    block.set(1, b"wxyz")
    assert block.size == 24
    assert block.tobytes()[8:12] == b"wxyz"
    assert twin.tobytes()[8:12] == b"abcd"
    with pytest.raises(AssertionError, match="parameter 0 has 8 bytes"):
        block.set(0, b"1234")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 2, 1), (2,), (0, 3), ()])
def test_numbers_are_written_where_their_parameters_lie(order: tuple[int, ...]) -> None:
    block = ParamBlock([Slot(0, 8), Slot(8, 4), Slot(12, 4), Slot(24, 8), Slot(32, 8)])
    for index, slot in enumerate(block.slots):
        block.set(index, bytes([index + 1]) * slot.size)
    before = block.tobytes()
    block.writer(order)([100 + index for index in order])
    after = block.tobytes()
    for index, slot in enumerate(block.slots):
        found, old = (whole[slot.offset : slot.offset + slot.size] for whole in (after, before))
        assert found == ((100 + index).to_bytes(slot.size, "little") if index in order else old)
    with pytest.raises(struct.error):
        block.writer([1])([1 << 32])
