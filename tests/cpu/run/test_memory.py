"""Facts about the executor's memory: accesses of every width and pattern, spaces, atomics, the table of allocations."""

import itertools
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.parser import parse
from ptxgen.runtime import open_device
from ptxgen.runtime.cpu.compile.variable_images import describe
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.support.cpu_run import run, text_of

LANES = np.arange(32)
PATTERNS = {  # which row of the source each lane reads, and of the target each lane writes
    "run": LANES,
    "reverse": LANES[::-1],
    "pairs": LANES ^ 1,
    "halves": LANES % 16,
    "one": np.full(32, 5),
    "stride": LANES * 7 % 64,
    "shifted": LANES + 3,
}
MASKS = {"all": 0xFFFFFFFF, "low": 0x000000FF, "middle": 0x00FFF000, "even": 0x55555555, "one": 0x00020000}
WIDTHS = [("b8", 1), ("b8", 4), ("b16", 1), ("b16", 2), ("b16", 4), ("b32", 1), ("b32", 2), ("b32", 4), ("b64", 1),
          ("b64", 2), ("b32", 8)]  # fmt: skip


def access_body(space, kind, count):
    """Rows of `count` elements: loaded by the pattern in %a2, stored by it in another place, for lanes of a mask."""
    size = int(kind[1:]) // 8 * count
    register = {"b8": "%h", "b16": "%h", "b32": "%r", "b64": "%rd"}[kind]
    names = [f"{register}{10 + n}" for n in range(count)]
    operand = names[0] if count == 1 else "{" + ", ".join(names) + "}"
    vector = f".v{count}" if count > 1 else ""
    body = """
  add.u64 %rd1, %a2, %at4; ld.global.u32 %r1, [%rd1]; ld.global.u32 %r2, [%a3];
  shr.u32 %r2, %r2, %lane; and.b32 %r2, %r2, 1; setp.ne.u32 %p1, %r2, 0;"""
    if space == "global":
        body += f"""
  mad.wide.u32 %rd2, %r1, {size}, %a0; mad.wide.u32 %rd3, %r1, {size}, %a1;
  @%p1 ld.global{vector}.{kind} {operand}, [%rd2];
  @%p1 st.global{vector}.{kind} [%rd3], {operand};"""
        return body + "\n ret;"
    address = {"shared": "%r5", "generic": "%rd5", "local": "%rd5"}[space]
    where = "local" if space == "local" else "shared"
    body = f".{where} .align 32 .b8 room[{80 * 32}];" + body
    width = "u32" if space == "shared" else "u64"
    base = f"mov.{width} {address.replace('5', '4')}, room;"
    if space == "generic":
        base += "cvta.shared.u64 %rd4, %rd4;"
    suffix = "" if space == "generic" else f".{space}"
    mad = "mad.lo.u32 %r5, %r1, SIZE, %r4;" if space == "shared" else "mad.wide.u32 %rd5, %r1, SIZE, %rd4;"
    copy_in = """
  mov.u32 %r20, 0;
fill:
  mul.wide.u32 %rd8, %r20, 8; add.u64 %rd9, %a0, %rd8; ld.global.u64 %rd10, [%rd9];
  mov.u64 %rd4, room; add.u64 %rd4, %rd4, %rd8; st.WHERE.u64 [%rd4], %rd10;
  add.u32 %r20, %r20, 1; setp.lt.u32 %p3, %r20, 320; @%p3 bra fill;""".replace("WHERE", where)
    if where == "shared":
        copy_in = "setp.ne.u32 %p2, %lane, 0; @%p2 bra filled;" + copy_in + "\nfilled:\n bar.sync 0;"
    return (
        body
        + copy_in
        + f"""
  {base} {mad.replace("SIZE", str(size))}
  mad.wide.u32 %rd3, %r1, {size}, %a1;
  @%p1 ld{suffix}{vector}.{kind} {operand}, [{address}];
  @%p1 st.global{vector}.{kind} [%rd3], {operand};
  @%p1 st{suffix}{vector}.{kind} [{address}], {operand};
  ret;"""
    )


@pytest.mark.parametrize("space", ["global", "shared", "generic", "local"])
def test_every_width_pattern_and_mask(space):
    rng = np.random.default_rng(1)
    source = np.frombuffer(rng.bytes(2560 + 32), np.uint8)
    source = source[-source.ctypes.data % 32 :][:2560]
    for kind, count in WIDTHS:
        row = int(kind[1:]) // 8 * count
        body = access_body(space, kind, count)
        for pattern, mask in itertools.product(PATTERNS, MASKS):
            rows, bits = PATTERNS[pattern], MASKS[mask]
            raw = np.full(2560 + 32, 0xEE, np.uint8)
            target = raw[-raw.ctypes.data % 32 :][:2560]
            run(body, source, target, rows.astype(np.uint32), np.array([bits], np.uint32))
            want = np.full(2560, 0xEE, np.uint8)
            for lane in LANES:
                if bits >> lane & 1:
                    at = rows[lane] * row
                    want[at : at + row] = source[at : at + row]
            np.testing.assert_array_equal(target, want, f"{kind} x {count} {pattern} {mask}")


def test_addresses_in_different_allocations():
    first, second, out = np.arange(32, dtype=np.uint32), np.arange(100, 132, dtype=np.uint32), np.zeros(32, np.uint32)
    run("""
  add.u64 %rd1, %a0, %at4; and.b32 %r1, %lane, 1; setp.eq.u32 %p1, %r1, 1; @%p1 add.u64 %rd1, %a1, %at4;
  ld.global.u32 %r2, [%rd1]; add.u64 %rd2, %a2, %at4; st.global.u32 [%rd2], %r2; ret;""",
        first, second, out)  # fmt: skip
    np.testing.assert_array_equal(out, np.where(LANES & 1, second, first))


def test_narrow_loads_extend_and_narrow_stores_truncate():
    source = np.array([0x80, 0xFF, 0x7F, 0x01], np.uint8)
    out = np.zeros(8, np.int64)
    run("""
  ld.global.u8 %r1, [%a0]; ld.global.s8 %r2, [%a0]; ld.global.s8 %h1, [%a0+1]; ld.global.s16 %rd1, [%a0];
  cvt.s64.s32 %rd2, %r1; st.global.u64 [%a1], %rd2; cvt.s64.s32 %rd2, %r2; st.global.u64 [%a1+8], %rd2;
  cvt.s64.s16 %rd2, %h1; st.global.u64 [%a1+16], %rd2; st.global.u64 [%a1+24], %rd1;
  mov.u32 %r3, 0x12345678; st.global.u8 [%a1+32], %r3; st.global.u16 [%a1+40], %r3;
  ld.global.u32 %rd3, [%a0]; st.global.u64 [%a1+48], %rd3; ld.global.s32 %rd3, [%a0]; st.global.u64 [%a1+56], %rd3;
  ret;""", source, out, block=1)  # fmt: skip
    assert out.tolist() == [0x80, -128, -1, np.int16(0xFF80 - 0x10000), 0x78, 0x5678, 0x017FFF80, 0x017FFF80]


def test_generic_addresses_of_every_space_in_one_warp():
    out = np.zeros(96, np.uint32)
    run("""
  .shared .align 4 .u32 s; .local .align 4 .u32 l;
  mov.u32 %r1, 1000; st.shared.u32 [s], %r1; add.u32 %r2, %lane, 2000; st.local.u32 [l], %r2; bar.sync 0;
  mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1; mov.u64 %rd2, l; cvta.local.u64 %rd2, %rd2;
  add.u64 %rd3, %a0, %at4; st.global.u32 [%rd3], %lane;
  rem.u32 %r3, %lane, 3; setp.eq.u32 %p1, %r3, 1; setp.eq.u32 %p2, %r3, 2;
  selp.b64 %rd4, %rd1, %rd3, %p1; selp.b64 %rd4, %rd2, %rd4, %p2;
  ld.u32 %r4, [%rd4]; st.global.u32 [%rd3+128], %r4;
  isspacep.shared %p3, %rd4; isspacep.local %p4, %rd4; isspacep.global %p5, %rd4;
  selp.u32 %r5, 1, 0, %p3; selp.u32 %r6, 2, 0, %p4; selp.u32 %r7, 4, 0, %p5; or.b32 %r5, %r5, %r6; or.b32 %r5, %r5, %r7;
  st.global.u32 [%rd3+256], %r5; ret;""", out, mode="check")  # fmt: skip
    kind = LANES % 3
    np.testing.assert_array_equal(out[32:64], np.choose(kind, [LANES, 1000, 2000 + LANES]))
    np.testing.assert_array_equal(out[64:], np.choose(kind, [4, 1, 2]))


MODULE = """
.global .align 8 .b8 bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.const .f32 factors[3] = {0f3F800000, 2.5, -3.0};
.global .u32 counter = 7;
.global .u64 pointer = counter;
.global .u64 shifted = bytes + 4;
"""


def test_variables_of_the_module_are_initialised_and_shared_by_launches():
    out = np.zeros(8, np.uint64)
    body = """
  ld.global.u64 %rd1, [bytes]; st.global.u64 [%a0], %rd1;
  ld.const.f32 %f1, [factors+4]; cvt.rzi.u32.f32 %r1, %f1; st.global.u32 [%a0+8], %r1;
  ld.global.u64 %rd2, [pointer]; ld.global.u32 %r2, [%rd2]; st.global.u32 [%a0+16], %r2;
  ld.global.u64 %rd3, [shifted]; ld.global.u8 %r3, [%rd3]; st.global.u32 [%a0+24], %r3;
  mov.u64 %rd4, factors; cvta.const.u64 %rd5, %rd4; ld.f32 %f2, [%rd5+8]; st.global.f32 [%a0+32], %f2; ret;"""
    run(body, out, block=1, before=MODULE)
    assert out[0] == 0x0807060504030201
    assert out[1:4].tolist() == [2, 7, 5]
    assert out[4:5].view(np.float32)[0] == -3.0


TABLES = {
    "b8": [str(n % 256) for n in range(999)], "s8": [str(n % 256 - 128) for n in range(999)],
    "u32": [str(n * 4294967) for n in range(999)], "b32": [f"0x{n * 123457:08X}" for n in range(999)],
    "u64": [str(2**64 - 1 - n * 2**40) for n in range(999)], "s64": [str(-(2**63) + n) for n in range(999)],
    "b16": [str(n - 70000) for n in range(999)], "f32": [f"0f{n * 4299999:08X}" for n in range(999)],
    "f64": [f"0d{n * 18449999999999999:016X}" for n in range(999)], "b64": [str(2**63), "-1", "0f3F800000"] * 99,
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_a_large_table_has_the_bytes_of_its_literals(kind):
    literals = TABLES[kind]

    def image(items: list[str]) -> bytes:
        """The variable's bytes, with what was left out behind the last that is not 0."""
        text = f".version 8.0\n.target sm_80\n.address_size 64\n.global .{kind} t[] = {{{', '.join(items)}}};\n"
        (variable,) = describe(parse(text, "t.ptx"))
        return variable.image.ljust(variable.size, b"\0")

    assert image(literals) == b"".join(image([literal]) for literal in literals)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_a_large_table_of_decimal_numbers_has_their_bytes(kind):
    numbers = np.random.default_rng(5).normal(size=999).astype(f"f{int(kind[1:]) // 8}")
    items = ", ".join(f"{float(number)!r}" for number in numbers)
    text = f".version 8.0\n.target sm_80\n.address_size 64\n.global .{kind} t[999] = {{{items}}};\n"
    assert describe(parse(text, "t.ptx"))[0].image == numbers.tobytes()


def test_a_table_of_pointers_among_numbers():
    out = np.zeros(400, np.uint64)
    items = ["counter+4" if n % 2 else "7" if n % 3 else "touch" for n in range(400)]
    before = f".global .u32 counter[2];\n.func touch() {{ ret; }}\n.global .u64 t[400] = {{{', '.join(items)}}};\n"
    run("add.u64 %rd1, %at8, t; ld.global.u64 %rd2, [%rd1]; add.u64 %rd1, %a0, %at8; st.global.u64 [%rd1], %rd2;"
        "mov.u64 %rd3, touch; mov.u64 %rd4, counter; setp.eq.u64 %p1, %rd2, %rd3; @%p1 st.global.u64 [%rd1], 1;"
        "add.u64 %rd4, %rd4, 4; setp.eq.u64 %p1, %rd2, %rd4; @%p1 st.global.u64 [%rd1], 2; ret;",
        out, block=400, before=before)  # fmt: skip
    assert out.tolist() == [2 if n % 2 else 7 if n % 3 else 1 for n in range(400)]


def test_dynamic_shared_memory_follows_the_static():
    out = np.zeros(4, np.uint32)
    run("""
  .shared .align 4 .b8 fixed[12];
  mov.u32 %r1, tail; mov.u32 %r2, fixed; sub.u32 %r3, %r1, %r2; st.global.u32 [%a0], %r3;
  mov.u32 %r4, %dynamic_smem_size; st.global.u32 [%a0+4], %r4; and.b32 %r5, %r1, 127; st.global.u32 [%a0+8], %r5;
  st.shared.u32 [%r1+60], %r4; ld.shared.u32 %r6, [%r1+60]; st.global.u32 [%a0+12], %r6; ret;""",
        out, block=1, shared=64, before=".extern .shared .align 128 .b8 tail[];")  # fmt: skip
    assert out.tolist() == [128, 64, 0, 64]
    with pytest.raises(ExecutionError, match="out of bounds"):
        run("mov.u32 %r1, tail; st.shared.u32 [%r1+64], %r1; ret;", out, block=1, shared=64,
            before=".extern .shared .align 16 .b8 tail[];")  # fmt: skip


ATOMICS: dict[tuple[str, str], Any] = {  # op, type: what a warp's lanes, one after the other, make of it
    ("add", "u32"): lambda old, b: old + b, ("min", "s32"): min, ("max", "s32"): max, ("min", "u32"): min,
    ("and", "b32"): lambda old, b: old & b, ("or", "b32"): lambda old, b: old | b,
    ("xor", "b32"): lambda old, b: old ^ b,
    ("inc", "u32"): lambda old, b: 0 if old >= b else old + 1,
    ("dec", "u32"): lambda old, b: b if old == 0 or old > b else old - 1, ("exch", "b32"): lambda old, b: b,
    ("add", "u64"): lambda old, b: old + b, ("max", "u64"): max, ("min", "s64"): min, ("exch", "b64"): lambda old, b: b,
    ("xor", "b64"): lambda old, b: old ^ b,
}  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_integer_atomics_return_the_old_values_in_lane_order(space):
    rng = np.random.default_rng(4)
    for (operation, kind), model in ATOMICS.items():
        size = int(kind[1:]) // 8
        dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{size}")
        values = rng.integers(1, 60, 33).astype(dtype)
        if kind[0] == "s":
            values -= 30
        cell, given, olds = values[:1].copy(), values[1:].copy(), np.zeros(32, dtype)
        place = {"global": "%a0", "generic": "%rd9", "shared": "%r30"}[space]
        suffix = "" if space == "generic" else f".{space}"
        register = "%r1" if size == 4 else "%rd1"
        operand = register.replace("1", "2")
        run(
            f"""
  .shared .align 8 .b8 room[8]; mov.u32 %r30, room; mov.u64 %rd9, room; cvta.shared.u64 %rd9, %rd9;
  ld.global.b{8 * size} {register}, [%a0]; st.shared.b{8 * size} [%r30], {register};
  mad.wide.u32 %rd7, %lane, {size}, %a1; mad.wide.u32 %rd8, %lane, {size}, %a2;
  ld.global.b{8 * size} {operand}, [%rd7];
  atom{suffix}.{operation}.{kind} {register}, [{place}], {operand};
  st.global.b{8 * size} [%rd8], {register};
  ld{suffix}.b{8 * size} {register}, [{place}]; st.global.b{8 * size} [%a0], {register}; ret;""",
            cell,
            given,
            olds,
        )
        old = int(values[0])
        for lane in range(32):
            assert olds[lane] == dtype.type(old), (operation, kind)
            old = model(old, int(given[lane]))
        assert cell[0] == dtype.type(old), (operation, kind)


def test_float_atomics():
    ml = pytest.importorskip("ml_dtypes")
    cells = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml.bfloat16}
    rng = np.random.default_rng(5)
    for kind, dtype in cells.items():
        size = np.dtype(dtype).itemsize
        given = rng.integers(-8, 8, 32).astype(dtype)
        cell = np.zeros(8, dtype)
        register = {2: "%h1", 4: "%r1", 8: "%rd1"}[size]
        noftz = ".noftz" if size == 2 else ""
        run(
            f"""
  mad.wide.u32 %rd7, %lane, {size}, %a1; ld.global.b{8 * size} {register}, [%rd7];
  red.global.add{noftz}.{kind} [%a0], {register}; ret;""",
            cell,
            given,
        )
        assert float(cell[0]) == given.astype(np.float64).sum(), kind
    for kind, dtype in (("f16x2", np.float16), ("bf16x2", ml.bfloat16)):
        given = rng.integers(-8, 8, (32, 2)).astype(dtype)
        cell = np.zeros((2, 2), dtype)
        run(
            f"add.u64 %rd1, %a1, %at4; ld.global.b32 %r1, [%rd1]; red.global.add.noftz.{kind} [%a0], %r1; ret;",
            cell,
            given,
        )
        np.testing.assert_array_equal(cell[0].astype(np.float64), given.astype(np.float64).sum(0))
        assert not cell[1].any()
    quads, sums = rng.integers(-8, 8, (32, 4)).astype(np.float32), np.zeros((2, 4), np.float32)
    run("""
  mad.wide.u32 %rd1, %lane, 16, %a1; ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
  red.global.add.v4.f32 [%a0], {%f1, %f2, %f3, %f4};
  red.global.v4.f32.add [%a0+16], {%f1, %f2, %f3, %f4};  // as the ISA's text has it
  ret;""", sums, quads)  # fmt: skip
    np.testing.assert_array_equal(sums, [quads.sum(0)] * 2)


def test_atomics_from_many_threads_lose_nothing():
    cells = np.zeros(4, np.uint32)
    for _ in range(5):
        run("""
  and.b32 %r1, %tid, 3; mad.wide.u32 %rd1, %r1, 4, %a0; mov.u32 %r2, 0;
more:
  red.global.add.u32 [%rd1], 1; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 50; @%p1 bra more; ret;""",
            cells, grid=64, block=64, threads=4)  # fmt: skip
    assert cells.tolist() == [5 * 50 * 64 * 64 // 4] * 4


# the table of allocations -------------------------------------------------------------------------------------------
def test_allocations_are_aligned_apart_and_filled_with_nan():
    memory = Memory()
    begins = [memory.allocate(n, align) for n, align in ((1, 256), (300, 256), (64, 4096), (7, 1))]
    assert [b % a for b, a in zip(begins, (256, 256, 4096, 1), strict=True)] == [0] * 4
    found = memory.find(begins[1] + 299)
    assert (found.begin, found.size) == (begins[1], 300)
    assert memory.find(begins[1] + 300) is None
    block: Any = found.keep
    assert np.isnan(block[begins[1] - block.ctypes.data :][:300].view(np.float32)).all()
    assert memory.allocated == 1 + 300 + 64 + 7


def test_views_of_one_array_do_not_hide_each_other():
    memory, whole, out = Memory(), np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    memory.register(whole, "whole")
    memory.register(whole[8:16], "part")
    body = f"mov.u64 %rd1, {whole.ctypes.data}; add.u64 %rd1, %rd1, %at4; add.u64 %rd2, %a0, %at4;"
    run(body + "ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1; ret;", out, block=64, memory=memory)
    np.testing.assert_array_equal(out, whole)


# what kernels may not write -------------------------------------------------------------------------------------------
WRITES = {
    "a run": "add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %lane;",
    "one place": "st.global.u32 [%a0+8], 1;",
    "scattered": "mad.wide.u32 %rd1, %lane, 20, %a0; st.global.u32 [%rd1], %lane;",
    "vectors": "mad.wide.u32 %rd1, %lane, 16, %a0; st.global.v4.u32 [%rd1], {%lane, %lane, %lane, %lane};",
    "generic": "add.u64 %rd1, %a0, %at4; st.u32 [%rd1], %lane;",
    "atomic": "atom.global.add.u32 %r1, [%a0+4], 1;",
    "reduction": "red.global.add.u32 [%a0+4], 1;",
    "bulk copy": """
      .shared .align 16 .b8 s[16]; setp.ne.u32 %p1, %lane, 0; @%p1 ret;
      mov.u32 %r1, s; st.shared.v4.u32 [%r1], {1, 1, 1, 1}; fence.proxy.async;
      cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r1], 16; cp.async.bulk.commit_group;
      cp.async.bulk.wait_group 0;""",
    "bulk reduction": """
      .shared .align 16 .b8 s[16]; setp.ne.u32 %p1, %lane, 0; @%p1 ret;
      mov.u32 %r1, s; st.shared.v4.u32 [%r1], {1, 1, 1, 1}; fence.proxy.async;
      cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a0], [%r1], 16; cp.async.bulk.commit_group;
      cp.async.bulk.wait_group 0;""",
}


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
@pytest.mark.parametrize("how", WRITES)
def test_a_kernel_that_writes_to_a_read_only_array_is_found(how, mode):
    """It may read there, and `bytes` keep their value."""
    device = open_device("cpu", mode=mode)
    array = np.frombuffer(bytes(1024), np.uint32)
    body = "add.u64 %rd9, %a0, %at4; ld.global.u32 %r9, [%rd9]; bar.warp.sync -1;" + WRITES[how] + "ret;"
    kernel = device.module(text_of(body, 1))["k"]
    with pytest.raises(ExecutionError, match=r"(?s)write to read-only memory in kernel k.*argument 0 \(a0\)"):
        kernel.launch(1, 32, [array])
    assert not array.any()
    kernel.launch(1, 32, [device.zeros(256, "u32")])


def test_a_read_only_view_does_not_protect_what_may_be_written():
    device = open_device("cpu")
    array = np.zeros(64, np.uint32)
    view = array[:]
    view.flags.writeable = False
    kernel = device.module(text_of("add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], 1; ret;", 1))["k"]
    both = device.wrap(array), device.wrap(view)
    kernel.launch(1, 32, [both[1]])
    assert array[:32].all()
    both[0].free()
    with pytest.raises(ExecutionError, match="write to read-only memory"):
        kernel.launch(1, 32, [both[1]])


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
def test_constant_variables_are_not_written(mode):
    body = "mov.u64 %rd1, table; cvta.const.u64 %rd1, %rd1; st.u32 [%rd1], 1; ret;"
    with pytest.raises(ExecutionError, match=r"(?s)write to read-only memory.*byte 0 of table"):
        run(body, before=".const .u32 table[4] = {5, 6, 7, 8};", mode=mode)


def test_what_memory_refuses():
    memory = Memory()
    with pytest.raises(ExecutionError, match=r"nbytes must be ≥ 1 .*got 0"):
        memory.allocate(0)
    with pytest.raises(ExecutionError, match=r"C-contiguous"):
        memory.register(np.zeros((4, 4))[:, ::2])
    with pytest.raises(ExecutionError, match="not the begin of a live allocation"):
        memory.free(64)
    assert memory.explain(64, 4) == "no allocation is live"


def test_variables_are_known_to_every_memory_and_gone_after_unloading():
    program = Program(parse(text_of("ld.global.u32 %r1, [counter]; st.global.u32 [%a0], %r1; ret;", 1, MODULE)))
    for _ in range(3):  # memories may get the same id one after the other
        memory, out = Memory(), np.zeros(1, np.uint32)
        program.launch("k", 1, 1, [memory.register(out)], memory=memory)
        assert out[0] == 7
    held = memory.allocated
    program.globals.remove(memory)
    assert memory.allocated == held - 8 - 12 - 4 - 8 - 8
    program.globals.remove(memory)  # once is enough


@pytest.mark.parametrize(("text", "bits"), [
    ("mov.b64 %rd1, 0d400F000000000000;", 0x400F000000000000), ("mov.b64 %rd1, 0d0000C00F0F000F0F;", 0xC00F0F000F0F),
    ("mov.b64 %rd1, 0d7FF4000000000001;", 0x7FF4000000000001), ("mov.f64 %rd1, -0d3FF0000000000000;", 0xBFF << 52),
    ("setp.eq.u32 %p1, %lane, 99; selp.f64 %rd1, 0d0F0F000000000000, 0dC00F000000000000, %p1;", 0xC00F000000000000),
    ("mov.b32 %r1, 0f7F8F00F1; cvt.u64.u32 %rd1, %r1;", 0x7F8F00F1), ("mov.b64 %rd1, 1.5;", 0x3FF8000000000000),
])  # fmt: skip
def test_float_literals_keep_their_bits_in_any_register(text, bits):
    out = np.zeros(1, np.uint64)
    run(text + " st.global.u64 [%a0], %rd1; ret;", out, block=1)
    assert out[0] == bits
