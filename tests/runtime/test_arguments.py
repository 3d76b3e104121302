"""Facts about arguments one by one: layouts, raw values, capacities, ranges of host scalars, memory that overlaps."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from ptxgen.dtypes import dtype
from ptxgen.errors import ExecutionError, SpecError
from ptxgen.kernels import ArgMax, IncrementalAttention, KvCacheGather, KvCacheScatter
from ptxgen.launch import buffer
from ptxgen.parser import parse
from ptxgen.runtime import open_device
from ptxgen.runtime.core.launches.arguments import Capacities, check_alignment, check_overlaps, pack_raw
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.param_block import ParamBlock, Slot, slots_of
from ptxgen.runtime.cpu.run.param_space import _number
from ptxgen.runtime.tools.trial import bind_example
from tests.support.cpu_run import text_of

DEVICE = open_device("cpu", threads=1)


# layouts and raw values -----------------------------------------------------------------------------------------------
def test_parameters_lie_at_their_alignment_one_after_the_other():
    params = ".param .u8 a, .param .u64 b, .param .align 32 .b8 c[5], .param .v2 .f32 d, .param .u16 e"
    text = f".version 8.0\n.target sm_90\n.address_size 64\n.entry k({params}) {{ ret; }}"
    slots = slots_of(parse(text).functions["k"].params)
    assert [(slot.offset, slot.size) for slot in slots] == [(0, 1), (8, 8), (32, 5), (40, 8), (48, 2)]
    assert slots_of(()) == ()


@pytest.mark.parametrize("size", [0, 1, 8, 120, 4096])
def test_a_parameter_block_lies_aligned_within_memory_of_its_own(size):
    slots = [Slot(0, size)] if size else []
    block = ParamBlock(slots)
    assert block.address % 128 == 0
    begin = ctypes.addressof(block._bytes)
    assert begin <= block.address <= block.address + size <= begin + ctypes.sizeof(block._bytes)
    if size:
        block.set(0, b"\xff" * size)
    assert block.tobytes() == b"\xff" * size


def test_a_parameter_of_4_or_8_bytes_is_a_number_of_the_block():
    block = ParamBlock([Slot(0, 4), Slot(8, 8), Slot(16, 2)])
    for index, value in enumerate((2**32 - 1, 2**64 - 2)):
        block.number(index).value = value
    assert block.tobytes() == b"\xff" * 4 + bytes(4) + b"\xfe" + b"\xff" * 7 + bytes(2)
    assert [block.number(index).value for index in (0, 1)] == [2**32 - 1, 2**64 - 2]
    with pytest.raises(KeyError):
        block.number(2)


@pytest.mark.parametrize(("value", "size", "data"), [
    (-1, 8, b"\xff" * 8), (2**64 - 1, 8, b"\xff" * 8), (7, 8, b"\7" + bytes(7)), (np.uint32(7), 4, b"\7\0\0\0"),
    (b"abc", 3, b"abc"), (np.float16(1), 2, b"\0\x3c"),
])  # fmt: skip
def test_raw_values_are_their_bytes(value, size, data):
    assert pack_raw("k(_0)", value, size, DEVICE) == (data, None)


@pytest.mark.parametrize("value", [True, 1.5, None, "x", np.uint32(7), b"abc"])
def test_raw_values_of_another_width_or_kind_are_refused(value):
    with pytest.raises(SpecError, match=r"^k\(_0\): "):
        pack_raw("k(_0)", value, 8, DEVICE)


def test_raw_buffers_of_another_device_are_refused():
    buffer = DEVICE.zeros(4, "u32")
    assert pack_raw("k(_0)", buffer, 8, DEVICE) == (buffer.pointer.to_bytes(8, "little"), buffer)
    with pytest.raises(SpecError, match=r"k\(_0\)"):
        pack_raw("k(_0)", open_device("cpu").zeros(4, "u32"), 8, DEVICE)


@pytest.mark.parametrize(("kind", "size", "value", "data"), [
    ("u32", 4, -1, b"\xff" * 4), ("u32", 4, -(2**31), b"\0\0\0\x80"),
    ("u32", 4, 2**32 - 1, b"\xff" * 4), ("s32", 4, 2**31, b"\0\0\0\x80"),
    ("s32", 4, 2**31 - 1, b"\xff\xff\xff\x7f"), ("s8", 1, 255, b"\xff"), ("u16", 2, 0, b"\0\0"),
    ("s16", 2, -1, b"\xff\xff"),
    ("f32", 4, 1, b"\0\0\x80\x3f"), ("f64", 8, 1, bytes(6) + b"\xf0\x3f"),
])  # fmt: skip
def test_numbers_of_a_program_are_taken_by_their_bits(kind, size, value, data):
    assert _number("n", kind, size, value) == data


@pytest.mark.parametrize(("kind", "size", "value"), [
    ("u32", 4, 2**32), ("u32", 4, -(2**31) - 1), ("u32", 4, -(2**32)), ("s32", 4, 2**32),
    ("s32", 4, -(2**31) - 1), ("u8", 1, None),
    ("f32", 4, 1e40), ("u32", 4, float("inf")), ("f32", 4, "x"), ("f32", 4, None), ("b8", 5, 1), ("v4", 16, 1),
])  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(kind, size, value):
    with pytest.raises(ExecutionError, match=r"^launch.args: parameter n "):
        _number("n", kind, size, value)


# capacities -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "2", None])
def test_a_capacity_is_a_whole_number_from_1_on(value):
    with pytest.raises(SpecError, match=r"bind\(batch\): a capacity must be an int ≥ 1"):
        Capacities({"batch": value})
    assert Capacities({"batch": np.int64(1)}).values == {"batch": 1}


@pytest.mark.parametrize("pointer", [-16, 2**64, 2**64 + 16])
def test_an_address_has_64_bits(pointer):
    (param, *_) = ArgMax(64).params()
    with pytest.raises(SpecError, match="must be within 64 bits"):
        check_alignment(param, pointer)
    check_alignment(param, 2**64 - 16)
    check_alignment(param, 0)


def bound(spec, **sizes):
    kernel = DEVICE.load(spec)
    return bind_example(kernel, spec.example(np.random.default_rng(0), **sizes), sizes)[0]


# ranges of host scalars -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("spec", "name", "least", "most"), [
    (IncrementalAttention(max_len=64, head_dim=16, n_heads=2, n_kv_heads=1), "seq_len", 0, 64),
    (KvCacheScatter(max_len=64, head_dim=16, n_kv_heads=1), "position", 0, 63),
    (KvCacheGather(max_len=64, head_dim=16, n_kv_heads=1), "slot", 0, 1),
])  # fmt: skip
def test_host_scalars_have_their_range_at_bind_and_update(spec, name, least, most):
    sizes = {"batch": 2} if "batch" in spec.sizes else {}
    launch = bound(spec, **sizes)
    for value in (least - 1, most + 1, np.int32(most + 1)):
        with pytest.raises(SpecError, match=rf"^bind\({name}\): must be from {least} to {most} \(got {int(value)}\)"):
            launch.update(**{name: value})
    launch.update(**{name: least}).update(**{name: np.int64(most)})
    values = {**spec.example(np.random.default_rng(0), **sizes), name: most + 1}
    with pytest.raises(SpecError, match=rf"^bind\({name}\): must be from"):
        bind_example(DEVICE.load(spec), values, sizes)


def test_rows_leave_fewer_positions_where_their_number_is_known():
    spec = KvCacheScatter(max_len=64, head_dim=16, n_kv_heads=1)
    with pytest.raises(SpecError, match=r"must be from 0 to 60"):
        bound(spec, rows=4).update(position=61)
    bound(spec, rows=4).update(position=60).launch()


def test_lengths_in_device_memory_are_the_kernels_to_judge():
    spec = IncrementalAttention(max_len=64, head_dim=16, n_heads=2, n_kv_heads=1, indirect=True)
    kernel = DEVICE.load(spec)
    values = {**spec.example(np.random.default_rng(0)), "seq_len": np.array([99], np.int32)}
    bind_example(kernel, values, {})[0].launch()


# memory ---------------------------------------------------------------------------------------------------------------
def test_what_is_written_shares_no_byte_with_another_argument():
    spec = ArgMax(64)
    kernel = DEVICE.load(spec)
    names = {p.name: p for p in kernel.params}
    given = {
        name: DEVICE.zeros(tuple(e if isinstance(e, int) else 2 for e in param.shape), param.dtype)
        for name, param in names.items() if param.access != "workspace"
    }  # fmt: skip
    kernel.bind(**given)
    written = next(n for n in given if names[n].access == "out")
    source = next(n for n in given if names[n].access == "in")
    block = DEVICE.zeros(4096, "u8")

    def at(name, offset):
        like = given[name]
        return block.view(like.shape, like.dtype, offset)

    size = given[source].nbytes
    for first, second, shared in ((0, 0, True), (0, size, False), (256, 256, True), (256, 256 + size - 16, True)):
        both = {**given, source: at(source, first), written: at(written, second)}
        if shared:
            with pytest.raises(SpecError, match=rf"^bind\({written}\): is written, and shares \d+ bytes with {source}"):
                kernel.bind(**both)
        else:
            kernel.bind(**both)
    launch = kernel.bind(**{**given, source: at(source, 0)})
    with pytest.raises(SpecError, match="is written, and shares"):
        launch.update(**{written: at(written, 0)})
    launch.update(**{written: at(written, 2048)})


def test_an_update_compares_what_was_not_bound_before(monkeypatch):
    kernel, compared = DEVICE.load(ArgMax(64)), []
    given = {p.name: DEVICE.zeros(tuple(e if isinstance(e, int) else 2 for e in p.shape), p.dtype)
             for p in kernel.params if p.access != "workspace"}  # fmt: skip
    launch = kernel.bind(**given)
    monkeypatch.setattr("ptxgen.runtime.core.launches.kernel.check_overlaps", lambda *found: compared.append(found))
    launch.update(**given)
    assert not compared
    name, buffer = next(iter(given.items()))
    launch.update(**{name: buffer.view(buffer.shape, buffer.dtype)})
    assert len(compared) == 1


F32 = dtype("f32")
THREE = (buffer("x", F32, "n"), buffer("y", F32, "n", access="out"), buffer("z", F32, "n"))


@pytest.mark.parametrize(("x", "y", "alias", "shared"), [
    ((0, 4), (0, 4), {"y": "x"}, 0), ((0, 4), (0, 4), {}, 16), ((0, 4), (0, 4), {"y": "z"}, 16),
    ((0, 4), (0, 4), {"z": "x"}, 16), ((0, 4), (0, 3), {"y": "x"}, 12), ((0, 4), (1, 3), {"y": "x"}, 12),
    ((1, 3), (0, 4), {"y": "x"}, 12), ((0, 3), (0, 4), {"y": "x"}, 12), ((0, 4), (3, 4), {}, 4),
    ((3, 4), (0, 4), {}, 4), ((0, 4), (4, 4), {}, 0), ((4, 4), (0, 4), {}, 0), ((0, 0), (0, 4), {}, 0),
])  # fmt: skip
def test_an_output_may_take_the_whole_place_of_an_input_that_it_may_alias(x, y, alias, shared):
    block = DEVICE.zeros(64, "f32")

    def view(place):
        return (block.view((place[1],), "f32", 4 * place[0]),)

    kept = {0: view(x), 1: view(y), 2: view((32, 4))}
    if not shared:
        check_overlaps(THREE, kept, alias)
        return
    with pytest.raises(SpecError, match=rf"^bind\(y\): is written, and shares {shared} bytes with x$"):
        check_overlaps(THREE, kept, alias)


def test_memory_that_is_read_only_serves_inputs_alone():
    kernel = DEVICE.load(ArgMax(64))
    written = next(p.name for p in kernel.params if p.access == "out")
    given = {p.name: np.zeros(tuple(e if isinstance(e, int) else 2 for e in p.shape), p.dtype.numpy)
             for p in kernel.params if p.access != "workspace"}  # fmt: skip
    for name, array in given.items():
        array.flags.writeable = name == written
    kernel.bind(**given).launch()
    given[written].flags.writeable = False
    with pytest.raises(SpecError, match=rf"bind\({written}\): is written by the kernel, and this memory is read-only"):
        kernel.bind(**given)


def test_an_allocation_that_was_not_made_or_outlives_the_interpreter_frees_nothing():
    freed = []

    class Quiet:
        def _release(self, *given):
            freed.append(given)

    Allocation.__new__(Allocation).__del__()
    allocation = Allocation(Quiet(), 4096, 64)
    allocation.__del__(lambda: True)
    assert freed == []
    allocation.__del__(lambda: False)
    allocation.__del__(lambda: False)
    assert freed == [(4096, 64, ())]


def test_memory_goes_with_its_last_buffer_and_wrapped_memory_is_given_back():
    device = open_device("cpu", threads=1)
    before = device.memory().used
    made = device.zeros(1 << 16, "u8")
    assert device.memory().used == before + (1 << 16)
    del made
    gc.collect()
    assert device.memory().used == before
    array = np.zeros(32, np.uint32)
    wrapped = device.wrap(array)
    entry = device.module(text_of("st.global.u32 [%a0], 7; ret;", 1))["k"]
    entry.launch(1, 32, [array.ctypes.data])
    wrapped.free()
    with pytest.raises(ExecutionError, match=r"^out of bounds"):
        entry.launch(1, 32, [array.ctypes.data])


def test_a_launch_forgets_the_buffer_that_another_replaced():
    entry = DEVICE.module(text_of("st.global.u32 [%a0], 7; ret;", 1))["k"]
    first, second = DEVICE.zeros(32, "u32"), DEVICE.zeros(32, "u32")
    launch = entry.bind(1, 32, [first]).update(_0=second)
    first.free()
    launch.launch()
    assert second.numpy()[0] == 7
