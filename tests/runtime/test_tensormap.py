"""Facts about tensor maps: their rules on every device, and what the CUDA driver is told."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime import open_device


def devices():
    """The CPU, and a CUDA device over a fake driver."""
    yield "cpu", open_device("cpu")
    fake = pytest.importorskip("tests.support.fake_cuda")
    yield "cuda", fake.fake_device()[0]


WRONG = {
    "box of 24 bytes": (dict(box=(4, 6)), r"TensorMap.box: must be a multiple of 16 bytes .* \(got '24 bytes'\)"),
    "box of 257": (dict(box=(4, 257)), r"TensorMap.box: each dimension must be 1 … 256 elements \(got \[4, 257\]\)"),
    "box of one dimension": (dict(box=(4,)), r"TensorMap.box: must have 2 numbers, for an array of shape \[8, 32\]"),
    "no box": (dict(box=(0, 32)), "TensorMap.box: each dimension"),
    "swizzle": (dict(box=(4, 16), swizzle=128), r"TensorMap.box: must be 128 bytes .*as the swizzle \(got '64 bytes'"),
    "odd swizzle": (dict(box=(4, 32), swizzle=96), r"TensorMap.swizzle: must be one of 0, 32, 64, 128 \(got 96\)"),
    "fill": (dict(box=(4, 32), dtype="u32", oob_fill="nan"), "TensorMap.oob_fill: must be zero for integers"),
    "strides": (dict(box=(4, 32), strides=(120,)), r"TensorMap.strides: must be multiples of 16 bytes, below 2\^40"),
    "steps": (dict(box=(4, 32), element_strides=(9, 1)), r"TensorMap.element_strides: must be 1 … 8 \(got \[9, 1\]\)"),
    "inner step": (dict(box=(4, 32), element_strides=(1, 2)), "TensorMap.element_strides: must be 1 in the last"),
    "beyond": (dict(box=(4, 32), shape=(9, 32)), "TensorMap.shape: must end within the array's 1024 bytes"),
    "six dimensions": (dict(box=(1,) * 5 + (4,), shape=(1,) * 5 + (4,)), "TensorMap.shape: must have 1 … 5"),
    "interleave": (dict(box=(4, 32), interleave=16), "TensorMap.shape: must have 3 … 5 dimensions"),
    "interleave of 32": (dict(box=(1, 4, 8), shape=(1, 8, 32), interleave=32), "TensorMap.swizzle: must be 32 for"),
    "promotion": (dict(box=(4, 32), l2_promotion=32), "TensorMap.l2_promotion: must be one of 0, 64, 128, 256"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_maps_say_the_same_on_every_device(name):
    options, match = WRONG[name]
    said = set()
    for _, device in devices():
        array = device.zeros((8, 32), "f32")
        with pytest.raises(SpecError, match=match) as error:
            device.tensor_map(array, **options)
        said.add(str(error.value))
    assert len(said) == 1


def test_an_array_that_begins_anywhere_is_refused():
    device = open_device("cpu")
    with pytest.raises(SpecError, match=r"TensorMap\.array: must begin at a multiple of 16 bytes"):
        device.tensor_map(device.zeros(64, "f32")[1:33], (32,))


def test_the_driver_gets_innermost_dimensions_first():
    fake = pytest.importorskip("tests.support.fake_cuda")
    device, binding = fake.fake_device()
    seen = []
    encode = type(binding)._cuTensorMapEncodeTiled
    binding._cuTensorMapEncodeTiled = None
    type(binding)._cuTensorMapEncodeTiled = lambda self, *args: seen.append(args) or encode(self, *args)
    try:
        array = device.zeros((4, 8, 32), "f16")
        options = dict(swizzle=64, oob_fill="nan", l2_promotion=128, element_strides=(2, 1, 1))
        made = device.tensor_map(array, (2, 4, 32), **options)
    finally:
        type(binding)._cuTensorMapEncodeTiled = encode
    ((kind, rank, address, dims, strides, box, steps, *modes),) = seen
    plain = [[int(n) for n in numbers] for numbers in (dims, strides, box, steps)]
    assert plain == [[32, 8, 4], [64, 512], [32, 4, 2], [1, 1, 2]]
    assert [int(kind), rank, address, *map(int, modes)] == [6, 3, array.pointer, 0, 2, 2, 1]
    assert made.box_bytes == 1 * 4 * 32 * 2


def test_an_older_gpu_is_told_apart():
    fake = pytest.importorskip("tests.support.fake_cuda")
    device, _ = fake.fake_device(fake.Binding(capability=(8, 6)))
    with pytest.raises(CudaError, match=r"tensor maps need compute capability 9.0 or higher \(got 8.6\)"):
        device.tensor_map(device.zeros((8, 32), "f32"), (4, 32))


def test_interleaved_layouts_are_refused_on_the_cpu():
    device = open_device("cpu")
    with pytest.raises(SpecError, match=r"TensorMap\.interleave: is not supported by the CPU executor"):
        device.tensor_map(device.zeros((2, 8, 32), "f16"), (1, 4, 8), interleave=16)


def test_a_map_keeps_its_array_alive():
    device = open_device("cpu")
    made = device.tensor_map(device.array(np.arange(32, dtype=np.float32)), (32,))
    np.testing.assert_array_equal(made.array.numpy(), np.arange(32))
