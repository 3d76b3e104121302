"""Facts about bulk tensor copies: boxes in and out of shared memory against NumPy, on the executor and on the oracle.

The reference is `place`: which element of the array lies at which byte of the box.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.errors import CudaError, ExecutionError, ModuleLoadError
from ptxgen.runtime import open_device
from tests.oracle import Oracle
from tests.oracle.memory import OracleFault

ROOT = Path(__file__).resolve().parent.parent
BOX_BYTES = 32768
TYPES = ("u8", "s8", "u16", "f16", "bf16", "u32", "s32", "f32", "u64", "s64", "f64")
INTEGERS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


def text(rank: int, body: str) -> str:
    """A kernel of one thread that copies; parameters: a map, coordinates, and bytes for the box."""
    coordinates = "".join(f"ld.param.s32 %c{d}, [at+{4 * d}];\n" for d in range(rank))
    at = "{" + ", ".join(f"%c{d}" for d in range(rank)) + "}"
    return f"""
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .align 4 .b8 at[20], .param .u64 box, .param .u32 count)
{{
    .reg .b32 %c<5>, %n, %i, %t, %s, %v;
    .reg .b64 %m, %p, %o;
    .reg .pred %q, %first;
    .shared .align 1024 .b8 tile[{BOX_BYTES}];
    .shared .align 8 .b64 bar;
    mov.u64 %m, map;
    cvta.param.u64 %m, %m;
    {coordinates}
    ld.param.u64 %p, [box];
    ld.param.u32 %n, [count];
    mov.u32 %t, %tid.x;
    setp.eq.u32 %first, %t, 0;
{body.replace("AT", f"[%m, {at}]").replace("RANK", f"{rank}d")}
    ret;
}}
"""


LOAD = """
    @%first mbarrier.init.shared::cta.b64 [bar], 1;
    @%first fence.proxy.async.shared::cta;
    bar.sync 0;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], %n;
    @%first cp.async.bulk.tensor.RANK.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], AT, [bar];
WAIT
    shl.b32 %i, %t, 2;
next:
    setp.ge.u32 %q, %i, %n;
    @%q bra out;
    mov.u32 %s, tile;
    add.u32 %s, %s, %i;
    ld.shared.u32 %v, [%s];
    cvt.u64.u32 %o, %i;
    add.u64 %o, %o, %p;
    st.global.u32 [%o], %v;
    add.u32 %i, %i, 128;
    bra next;
out:
"""
WAIT = """again:
    mbarrier.try_wait.parity.shared::cta.b64 %q, [bar], 0;
    @!%q bra again;
"""
OUT = """
    shl.b32 %i, %t, 2;
next:
    setp.ge.u32 %q, %i, %n;
    @%q bra out;
    cvt.u64.u32 %o, %i;
    add.u64 %o, %o, %p;
    ld.global.u32 %v, [%o];
    mov.u32 %s, tile;
    add.u32 %s, %s, %i;
    st.shared.u32 [%s], %v;
    add.u32 %i, %i, 128;
    bra next;
out:
    FENCE
    bar.sync 0;
    @%first COPY
    @%first cp.async.bulk.commit_group;
    WAIT
"""
STORE = OUT.replace("COPY", "cp.async.bulk.tensor.RANK.global.shared::cta.tile.bulk_group AT, [tile];")
FENCE = "fence.proxy.async.shared::cta;"
LOADS = LOAD.replace("WAIT", WAIT)
STORES = STORE.replace("WAIT", "cp.async.bulk.wait_group 0;").replace("FENCE", FENCE)


def reduction(operation: str) -> str:
    """A kernel that combines."""
    copy = f"cp.reduce.async.bulk.tensor.RANK.global.shared::cta.{operation}.tile.bulk_group AT, [tile];"
    return OUT.replace("COPY", copy).replace("WAIT", "cp.async.bulk.wait_group 0;").replace("FENCE", FENCE)


def place(shape, box, steps, at, item, swizzle):
    """(index of the array's element or −1, byte of the box) of every element of a box; lists outermost first."""
    counts = [-(-b // s) for b, s in zip(box, steps, strict=True)]
    where, bytes_ = [], []
    for number, inner in enumerate(itertools.product(*(range(n) for n in counts))):
        index = [c + i * s for c, i, s in zip(at, inner, steps, strict=True)]
        inside = all(0 <= x < n for x, n in zip(index, shape, strict=True))
        where.append(np.ravel_multi_index(index, shape) if inside else -1)
        byte = number * item
        if swizzle:
            byte ^= (byte >> 7 & swizzle // 16 - 1) << 4
        bytes_.append(byte)
    return np.array(where), np.array(bytes_)


def loaded(array, where, bytes_, fill):
    """The box of a load, as bytes."""
    item = array.dtype.itemsize
    flat = array.reshape(-1).view(INTEGERS[item])
    values = np.where(where >= 0, flat[np.maximum(where, 0)], np.array(fill, flat.dtype))
    box = np.zeros(len(where) * item, np.uint8)
    box.view(flat.dtype)[bytes_ // item] = values
    return box


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


def numbers(kind, shape, seed=3):
    """Elements of all bit patterns."""
    from ptxgen.dtypes import dtype

    data = np.random.default_rng(seed).integers(0, 256, int(np.prod(shape)) * dtype(kind).bytes, dtype=np.uint8)
    return data.view(dtype(kind).numpy).reshape(shape)


def run(device, body, case, array, box):
    """Launch; the map is of a copy of `array`. Returns (the array, the box) afterwards."""
    _, shape, extent, steps, at, swizzle, fill = case
    target, held = device.array(array), device.array(box)
    made = device.tensor_map(target, extent, element_strides=steps, swizzle=swizzle, oob_fill=fill)
    assert made.box_bytes == box.nbytes
    full = np.array([*at[::-1], *(0,) * (5 - len(at))], np.int32)
    kernel = device.module(text(len(shape), body))["k"]
    kernel.launch(grid=1, block=32, args=[made, full.tobytes(), held, np.uint32(box.nbytes)])
    return target.numpy(), held.numpy()


def as_bytes(array):
    """Its bytes."""
    return np.frombuffer(array.tobytes(), np.uint8)


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


BODIES = {"load": LOADS, "store": STORES, "reduction": reduction("add")}
# What a GPU ends with an illegal instruction: a copy; its innermost coordinate, the same in bytes, elements in 16 bytes
CROOKED = {
    "s32, past the end": (("s32", (5, 8), (2, 4), (1, 1), (1, 6), 0, "zero"), (6, 24, 4)),
    "s32, inside": (("s32", (5, 8), (2, 4), (1, 1), (1, 2), 0, "zero"), (2, 8, 4)),
    "s32, before": (("s32", (8,), (4,), (1,), (-1,), 0, "zero"), (-1, -4, 4)),
    "bf16": (("bf16", (4, 64), (2, 24), (1, 1), (3, 60), 0, "zero"), (60, 120, 8)),
    "u64, swizzled": (("u64", (3, 2, 16), (1, 2, 16), (1, 1, 1), (0, 0, 1), 128, "zero"), (1, 8, 2)),
}
# The same: a store or a reduction; the dimension in which it begins before the array.
NEGATIVE = {
    "innermost": (("s32", (5, 8), (2, 4), (1, 1), (1, -4), 0, "zero"), 0),
    "a row": (("f16", (5, 40), (4, 16), (1, 1), (-1, 32), 32, "zero"), 1),
    "outermost": (("u64", (3, 2, 2, 2, 4), (2, 1, 1, 1, 4), (1,) * 5, (-3, 0, 1, 0, 2), 0, "zero"), 4),
}


def refused(case, body, mode, rule):
    """A copy that a GPU does not make is a finding with its place and the rule, and a fault of the oracle."""
    kind, shape, box = case[:3]
    array = numbers(kind, shape)
    rest = array, np.zeros(int(np.prod(box)) * array.dtype.itemsize, np.uint8)
    lines = [r"\S+:\d+: .*async\.bulk\.tensor\..*;", r"CTA \(0, 0, 0\), warp 0, lane 0", rule]
    with pytest.raises(ExecutionError, match="\n  ".join(["^wrong use in kernel k", *lines]) + "$"):
        run(open_device("cpu", mode=mode, threads=1), body, case, *rest)
    with pytest.raises(OracleFault, match=r"no multiple of 16 bytes|before the array"):
        run(Oracle(), body, case, *rest)


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", CROOKED)
def test_an_innermost_coordinate_between_multiples_of_16_bytes_is_found(name, body, mode):
    case, (coordinate, byte, elements) = CROOKED[name]
    said = rf"the innermost coordinate \(.*\) is {coordinate}, byte {byte} of a row: it must be"
    legal = f"a multiple of 16 bytes, here of {elements} elements, or a GPU ends this with an illegal instruction"
    refused(case, BODIES[body], mode, f"{said} {legal}")


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
@pytest.mark.parametrize("body", ["store", "reduction"])
@pytest.mark.parametrize("name", NEGATIVE)
def test_a_store_that_begins_before_the_array_is_found(name, body, mode):
    case, dimension = NEGATIVE[name]
    said = rf"coordinate {dimension} \(.*\) is {case[4][::-1][dimension]}: a store or a reduction must begin at 0 or"
    legal = "above in every dimension, or a GPU ends this with an illegal instruction; only loads may begin before .*"
    refused(case, BODIES[body], mode, f"{said} {legal}")


def test_memory_that_was_freed_is_found():
    """The map is refused; its bytes alone, such as a structure of the caller may hold, are found when they are used."""
    device = open_device("cpu", threads=1)
    array = device.array(np.zeros((8, 32), np.float32))
    made = device.tensor_map(array, (4, 32))
    array.free()
    kernel = device.module(text(2, LOADS))["k"]
    rest = [bytes(20), device.zeros(512, "u8"), np.uint32(512)]
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
        where, _ = place(*case[1:5], item, case[5])
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
    where, _ = place(*case[1:5], array.dtype.itemsize, case[5])
    box = np.random.default_rng(8).integers(0, 256, len(where) * array.dtype.itemsize, dtype=np.uint8)
    cpu = open_device("cpu", threads=1)
    inside = (*case[:4], tuple(max(c, 0) for c in case[4]), *case[5:])
    for body, what in ((LOADS, case), (STORES, inside)):
        (ours, box_here), (theirs, box_there) = (run(d, body, what, array, box) for d in (cpu, other))
        np.testing.assert_array_equal(as_bytes(ours), as_bytes(theirs))
        boxes = box_here, box_there
        if case[6] == "nan":
            boxes = (np.nan_to_num(b.view(array.dtype).astype(np.float64), nan=7e77) for b in boxes)
        np.testing.assert_array_equal(*boxes)


@pytest.mark.gpu
@pytest.mark.parametrize("case", GPU_CASES, ids=case_name)
def test_a_gpu_agrees(case, gpu):
    """Two kinds of coordinates are an illegal instruction on an H200, and a finding here: an innermost one that is no
    multiple of 16 bytes, and a negative one of a store or a reduction. Boxes of loads may begin before the array."""
    agrees(case, gpu)


@pytest.mark.parametrize("case", GPU_CASES, ids=case_name)
def test_what_a_gpu_is_asked_for_is_legal(case):
    agrees(case, Oracle())


def copies_of(name):
    """Of a case's name: the case."""
    return (CROOKED | NEGATIVE)[name][0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("body", "name"), [*((body, "s32, inside") for body in BODIES), ("load", "u64, swizzled"), ("store", "a row")]
)
def test_a_gpu_ends_what_is_a_finding_here(body, name, gpu):
    """Each in a process of its own: after an illegal instruction nothing runs in it any more."""
    program = (
        "import sys, numpy as np; from ptxgen.runtime import open_device; from tests import test_tensor_copies as t\n"
        "case = t.copies_of(sys.argv[2]); array = t.numbers(case[0], case[1])\n"
        "box = np.zeros(int(np.prod(case[2])) * array.dtype.itemsize, np.uint8)\n"
        "t.run(open_device('cuda'), t.BODIES[sys.argv[1]], case, array, box)"
    )
    done = subprocess.run([sys.executable, "-c", program, body, name], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0, "the copy was made"
    assert "CUDA_ERROR_ILLEGAL_INSTRUCTION" in done.stderr
