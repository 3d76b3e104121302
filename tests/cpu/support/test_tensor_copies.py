"""Facts about bulk tensor copies: boxes in and out of shared memory against NumPy, on the executor and on the oracle.

The reference is `place`: which element of the array lies at which byte of the box.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.errors import CudaError, ExecutionError, ModuleLoadError
from ptxgen.runtime import open_device
from tests.evidence.oracle import Oracle
from tests.evidence.oracle.memory import OracleFault
from tests.support.tensor_copy import (
    FENCE,
    INTEGERS,
    LOAD,
    LOADS,
    STORE,
    STORES,
    TYPES,
    as_bytes,
    loaded,
    numbers,
    place,
    reduction,
    run,
    text,
)


@st.composite
def copies(draw, loads=True):
    """(element type, shape, box, element strides, coordinates, swizzle, fill); everything that a map may say.

    The coordinates are such as a GPU takes: only loads may begin before the array, in steps of 16 bytes of a row.
    """
    kind = draw(st.sampled_from(TYPES))
    item = {"8": 1, "6": 2, "2": 4, "4": 8}[kind[-1]]
    rank = draw(st.integers(1, 5))
    swizzle = draw(st.sampled_from((0, 0, 32, 64, 128)))
    row = swizzle or 16 * draw(st.integers(1, 6))
    box = [row // item]
    unit = 16 // item
    # rows of several dimensions are multiples of 16 bytes apart; an array of one may end anywhere
    steps, shape = [1], [draw(st.integers(1, 4 * unit)) if rank == 1 else unit * draw(st.integers(1, 4))]
    for _ in range(rank - 1):
        steps.append(draw(st.integers(1, 3)))
        box.append(draw(st.integers(1, 5)))
        shape.append(draw(st.integers(1, 6)))
    columns = -(-shape[0] // unit)
    at = [draw(st.integers(-n - 1 if loads else 0, n + 1)) for n in (columns, *shape[1:])]
    at[0] *= unit
    fill = draw(st.sampled_from(("zero", "nan"))) if kind[0] in "fb" else "zero"
    return kind, shape[::-1], box[::-1], steps[::-1], at[::-1], swizzle, fill


@pytest.fixture(scope="module", params=("fast", "check"))
def device(request):
    return open_device("cpu", mode=request.param, threads=1)


@settings(max_examples=40, deadline=None)
@given(case=copies())
def test_loads_place_every_element(device, case):
    kind, shape, extent, steps, at, swizzle, fill = case
    array = numbers(kind, shape)
    where, bytes_ = place(shape, extent, steps, at, array.dtype.itemsize, swizzle)
    nan = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}
    expected = loaded(array, where, bytes_, nan[kind] if fill == "nan" else 0)
    _, box = run(device, LOADS, case, array, np.full(expected.size, 0xCB, np.uint8))
    np.testing.assert_array_equal(box, expected)


@settings(max_examples=40, deadline=None)
@given(case=copies(loads=False))
def test_stores_place_every_element(device, case):
    kind, shape, extent, steps, at, swizzle, _ = case
    array = numbers(kind, shape)
    where, bytes_ = place(shape, extent, steps, at, array.dtype.itemsize, swizzle)
    box = np.random.default_rng(4).integers(0, 256, len(where) * array.dtype.itemsize, dtype=np.uint8)
    got, _ = run(device, STORES, case, array, box)
    expected = as_bytes(array).copy().view(INTEGERS[array.dtype.itemsize])
    source = box.view(expected.dtype)[bytes_ // array.dtype.itemsize]
    expected[where[where >= 0]] = source[where >= 0]
    np.testing.assert_array_equal(as_bytes(got), expected.view(np.uint8))


COMBINE = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("add", "u32"), ("add", "s32"), ("add", "u64"), ("add", "f32"), ("add", "f16"), ("add", "bf16"), ("min", "s64"),
     ("max", "u32"), ("min", "f16"), ("max", "bf16"), ("and", "u32"), ("or", "u64"), ("xor", "u32")],
)  # fmt: skip
def test_reductions_combine_what_is_inside(device, operation, kind):
    from ptxgen.dtypes import dtype

    rng = np.random.default_rng(6)
    array, box = (rng.integers(0, 100, shape).astype(dtype(kind).numpy) for shape in ((6, 16), (4, 16)))
    got, _ = run(device, reduction(operation), (kind, (6, 16), (4, 16), (1, 1), (4, 8), 0, "zero"), array, box)
    expected = array.copy()
    expected[4:, 8:] = COMBINE[operation](array[4:, 8:], box[:2, :8]).astype(array.dtype)
    np.testing.assert_array_equal(got, expected)


def test_a_reduction_of_a_type_that_has_none_is_refused():
    device = open_device("cpu", threads=1)
    case = ("f64", (4, 16), (4, 16), (1, 1), (0, 0), 0, "zero")
    with pytest.raises(ExecutionError, match=r"cp.reduce.async.bulk.tensor[\s\S]*a type that this takes"):
        run(device, reduction("add"), case, np.zeros((4, 16)), np.zeros((4, 16)))


# what the CPU finds ---------------------------------------------------------------------------------------------------
CASE = ("f32", (8, 32), (4, 32), (1, 1), (2, 0), 128, "zero")


def finding(match, body, case=CASE, mode="check", array=None):
    device = open_device("cpu", mode=mode, threads=1)
    array = numbers("u32", case[1]).view(np.float32) if array is None else array
    with pytest.raises(ExecutionError, match=match):
        run(device, body, case, array, np.zeros(512, np.uint8))


def test_a_missing_wait_for_a_load_is_found():
    finding("an asynchronous copy is still writing", LOAD.replace("WAIT", ""))


def test_a_missing_proxy_fence_before_a_store_is_found():
    finding("fence", STORE.replace("WAIT", "cp.async.bulk.wait_group 0;").replace("FENCE", ""))


@pytest.mark.parametrize("mode", ["fast", "check"])
@pytest.mark.parametrize("body", [STORES, reduction("add")])
def test_a_store_to_a_read_only_array_is_found(body, mode):
    device = open_device("cpu", mode=mode, threads=1)
    array = np.frombuffer(bytes(8 * 32 * 4), np.float32).reshape(8, 32)
    made = device.tensor_map(array, (4, 32))
    kernel = device.module(text(2, body))["k"]
    with pytest.raises(ExecutionError, match="write to read-only memory in kernel k"):
        kernel.launch(1, 32, [made, bytes(20), device.zeros(512, "u8"), np.uint32(512)])
    assert not array.any()


def test_a_store_that_nobody_waits_for_is_found():
    finding("exit before an asynchronous copy is over", STORE.replace("WAIT", "").replace("FENCE", FENCE))
    alone = reduction("add").replace("cp.async.bulk.wait_group 0;", "")
    finding("exit before an asynchronous copy is over[^$]*cp.reduce.async.bulk.tensor", alone)


def test_a_map_of_another_rank_is_refused():
    device = open_device("cpu", threads=1)
    made = device.tensor_map(device.array(np.zeros((8, 32), np.float32)), (4, 32))
    with pytest.raises(ExecutionError, match="with as many dimensions"):
        device.module(text(3, LOADS))["k"].launch(1, 32, [made, bytes(20), device.zeros(512, "u8"), np.uint32(512)])


def test_bytes_that_are_no_map_are_refused():
    device = open_device("cpu", threads=1)
    with pytest.raises(ExecutionError, match=r"must be one of Device\.tensor_map"):
        device.module(text(2, LOADS))["k"].launch(
            1, 32, [bytes(128), bytes(20), device.zeros(512, "u8"), np.uint32(512)]
        )


def test_a_box_that_is_not_aligned_is_found():
    finding("misaligned", LOADS.replace("bytes [tile]", "bytes [tile+64]"), mode="fast")


def test_memory_that_was_freed_is_found():
    """The map is refused; its bytes alone, such as a structure of the caller may hold, are found when they are used."""
    device = open_device("cpu", threads=1)
    array = device.array(np.zeros((8, 32), np.float32))
    made = device.tensor_map(array, (4, 32))
    kernel = device.module(text(2, LOADS))["k"]
    rest = [bytes(20), device.zeros(512, "u8"), np.uint32(512)]  # before its bytes are free to be taken again
    array.free()
    with pytest.raises(CudaError, match="was freed; allocate a new one"):
        kernel.bind(1, 32, [made, *rest])
    with pytest.raises(ExecutionError, match="freed"):
        kernel.launch(1, 32, [made.data, *rest])


REFUSED = {
    "im2col": ("{%c0, %c1, %c2}", ", {%h0}"),
    "tile::gather4": ("{%c0, %c1, %c2, %c3, %c4}", ""),
}


@pytest.mark.parametrize("mode", REFUSED)
def test_other_modes_are_refused_by_name(mode):
    at, offsets = REFUSED[mode]
    opcode = f"cp.async.bulk.tensor.{3 if offsets else 2}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
    body = f".reg .b16 %h0;\nmov.b16 %h0, 0;\n{opcode} [tile], [%m, {at}], [bar]{offsets};"
    source = text(5, body).replace("sm_90a", "sm_100a")
    with pytest.raises(ModuleLoadError, match=rf"{re.escape(opcode)} is not supported by the CPU executor"):
        open_device("cpu").module(source)["k"]


# other machines -------------------------------------------------------------------------------------------------------
@settings(max_examples=25, deadline=None)
@given(load=copies(), store=copies(loads=False))
def test_the_oracle_agrees(load, store):
    cpu = open_device("cpu", threads=1)
    for body, case in ((LOADS, load), (STORES, store)):
        array = numbers(case[0], case[1])
        item = array.dtype.itemsize
        where, _ = place(*case[1:5], item, case[5])  # type: ignore[call-arg]
        empty = np.full(len(where) * item, 0xCB, np.uint8)
        ours, theirs = (run(d, body, case, array, empty) for d in (cpu, Oracle()))
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(as_bytes(a), as_bytes(b))


def test_the_oracle_refuses_other_ranks():
    oracle = Oracle()
    made = oracle.tensor_map(oracle.array(np.zeros((8, 32), np.float32)), (4, 32))
    with pytest.raises(OracleFault, match="dimensions"):
        oracle.module(text(3, LOADS))["k"].launch(
            1, 32, [made, bytes(20), oracle.array(np.zeros(512, np.uint8)), np.uint32(512)]
        )


GPU_CASES = [
    ("f32", (8, 32), (4, 32), (1, 1), (2, 0), 128, "zero"), ("f16", (5, 40), (4, 16), (1, 1), (-1, 32), 32, "nan"),
    ("u8", (3, 4, 64), (2, 2, 64), (1, 2, 1), (1, -1, 16), 64, "zero"),
    ("s32", (3, 4, 5, 6, 8), (2, 2, 2, 2, 8), (1, 1, 3, 2, 1), (1, 3, -1, 4, 4), 0, "zero"),
    ("f64", (64,), (8,), (1,), (60,), 0, "nan"), ("u64", (7, 16), (3, 16), (2, 1), (4, 8), 128, "zero"),
    ("bf16", (4, 64), (2, 24), (1, 1), (3, 56), 0, "nan"), ("s64", (4, 8), (2, 4), (1, 1), (-1, -2), 32, "zero"),
]  # fmt: skip


def case_name(case):
    return f"{case[0]}-{len(case[1])}d-{case[5]}"


def agrees(case, other):
    """Bytes of a load and of a store, which may not begin before the array; NaNs of boxes are compared as NaNs."""
    array = numbers(case[0], case[1])
    where, _ = place(*case[1:5], array.dtype.itemsize, case[5])  # type: ignore[call-arg]
    box = np.random.default_rng(8).integers(0, 256, len(where) * array.dtype.itemsize, dtype=np.uint8)
    cpu = open_device("cpu", threads=1)
    inside = (*case[:4], tuple(max(c, 0) for c in case[4]), *case[5:])
    for body, what in ((LOADS, case), (STORES, inside)):
        (ours, box_here), (theirs, box_there) = (run(d, body, what, array, box) for d in (cpu, other))
        np.testing.assert_array_equal(as_bytes(ours), as_bytes(theirs))
        boxes = box_here, box_there
        if case[6] == "nan":
            boxes = tuple(np.nan_to_num(b.view(array.dtype).astype(np.float64), nan=7e77) for b in boxes)
        np.testing.assert_array_equal(*boxes)


@pytest.mark.gpu
@pytest.mark.parametrize("case", GPU_CASES, ids=case_name)
def test_a_gpu_agrees(case, gpu):
    """Boxes of loads may begin before the array; what a GPU refuses is in test_tensor_coordinates."""
    agrees(case, gpu)


@pytest.mark.parametrize("case", GPU_CASES, ids=case_name)
def test_what_a_gpu_is_asked_for_is_legal(case):
    agrees(case, Oracle())
