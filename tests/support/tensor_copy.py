"""Bulk tensor copies of one box: kernels that make them, what they should do, and how to launch them."""

from __future__ import annotations

import itertools

import numpy as np

from ptxgen.dtypes import dtype

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


BODIES = {"load": LOADS, "store": STORES, "reduction": reduction("add")}


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


def numbers(kind, shape, seed=3):
    """Elements of all bit patterns."""
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
