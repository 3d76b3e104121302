"""What check mode says of wgmma: products that nobody waits for, registers that no fence hands over."""

import re

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, IsaError, ModuleLoadError
from ptxgen.runtime.cpu.device import CpuDevice
from tests.evidence.corpus.cases import CASES
from tests.support.cpu_run import run, text_of
from tests.support.devices import ExecutorDevice

# one warpgroup; a and b lie without a swizzle at the beginning of `s`, and are ones: a product adds 16
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, {A}, %rd2, {D}, 1, 1{T}, 0;"
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned {};"
START = """
  .shared .align 128 .b8 s[4096]; mov.u32 %r1, s; mad.lo.u32 %r2, %tid, 16, %r1; mov.b32 %r3, 0x3c003c00;
  st.shared.v4.b32 [%r2], {%r3, %r3, %r3, %r3}; st.shared.v4.b32 [%r2+2048], {%r3, %r3, %r3, %r3};
  fence.proxy.async; bar.sync 0;
  shr.u32 %r4, %r1, 4; cvt.u64.u32 %rd1, %r4; mov.u64 %rd3, 0x1000080000; or.b64 %rd2, %rd1, %rd3;
  mad.wide.u32 %rd4, %tid, 4, %a0; cvt.rn.f32.u32 %f1, %n; sub.f32 %f1, %f1, %f1;
  add.f32 %f2, %f1, 0f00000000; add.f32 %f3, %f1, 0f00000000; add.f32 %f4, %f1, 0f00000000;
"""
END = " st.global.f32 [%rd4], %f4; ret;"


def product(d="1", a="%rd2", sums="%f1, %f2, %f3, %f4"):
    text = PRODUCT.replace("{A}", a).replace("{D}", d).replace("{T}", ", 0" if a == "%rd2" else "")
    return text.replace("%f1, %f2, %f3, %f4", sums)


def launch(body, mode="check"):
    out = np.full(128, -1, np.float32)
    run(START + body + END, out, block=128, mode=mode)
    return out


def finding(body, pattern):
    with pytest.raises(ExecutionError) as caught:
        launch(body)
    assert re.search(pattern, str(caught.value), re.S), str(caught.value)


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
def test_products_that_are_waited_for(mode):
    body = FENCE + product() + product() + COMMIT + WAIT.format(0)
    np.testing.assert_array_equal(launch(body, mode), 32)


@pytest.mark.parametrize("without", [COMMIT, WAIT.format(0)])
def test_reading_a_sum_whose_product_is_open(without):
    body = (FENCE + product() + COMMIT + WAIT.format(0)).replace(without, "")
    finding(body, r"registers of wgmma.*st.global.f32 \[%rd4\], %f4.*lanes 0-31.*%f4 until a wgmma.wait")
    finding(body + "add.f32 %f4, %f4, %f4;", r"registers of wgmma.*add.f32 %f4")
    finding(body + "mov.f32 %f4, 0f00000000;", r"registers of wgmma.*mov.f32 %f4")


def test_a_wait_covers_all_but_the_last_groups():
    two = FENCE + product() + COMMIT + product(sums="%f5, %f6, %f7, %f8", d="0") + COMMIT
    two = "mov.f32 %f5, %f1; mov.f32 %f6, %f1; mov.f32 %f7, %f1; mov.f32 %f8, %f1;" + two
    np.testing.assert_array_equal(launch(two + WAIT.format(1)), 16)
    finding(two + WAIT.format(2), "registers of wgmma.*st.global")
    finding(two + WAIT.format(1) + "mov.f32 %f4, %f5;", "registers of wgmma.*mov.f32 %f4, %f5")
    np.testing.assert_array_equal(launch(two + WAIT.format(0) + "mov.f32 %f4, %f5;"), 16)
    finding(two + WAIT.format(1) + FENCE + product() + COMMIT, "registers of wgmma.*st.global")


_COLUMNS = "the shape must be m64nNk16 with N a multiple of 8 from 8 to 256"
_INTEGERS = "the shape must be m64nNk32 with N 8, 16, 24 or a multiple of 16 from 32 to 256"
_TYPES = r"after .*\.m64n8k16 the table knows \.f16\.f16\.f16, \.f32\.f16\.f16, \.f32\.bf16\.bf16 \(got {}\)"


@pytest.mark.parametrize(
    ("form", "why"),
    [
        *((f"m64n{n}k16.f32.f16.f16", rf"modifier \.m64n{n}k16: .*{_COLUMNS}") for n in (0, 4, 10, 12, 264)),
        ("m32n8k16.f32.f16.f16", rf"modifier \.m32n8k16: .*{_COLUMNS}"),
        ("m64n8k8.f32.f16.f16", rf"modifier \.m64n8k8: .*{_COLUMNS}.*knows \.f32\.tf32\.tf32"),
        ("m64n40k32.s32.s8.s8", rf"modifier \.m64n40k32: .*{_INTEGERS}"),
        ("m64n8k32.f32.s8.s8", r"the table knows .*\.s32\.s8\.s8.* \(got \.f32\.s8\.s8\)"),
        ("m64n8k16.f32.f16.bf16", _TYPES.format(r"\.f32\.f16\.bf16")),
        ("m64n8k16.f16.bf16.bf16", _TYPES.format(r"\.f16\.bf16\.bf16")),
        ("m64n8k16.s32.f16.f16", _TYPES.format(r"\.s32\.f16\.f16")),
        ("m64n8k16", _TYPES.format("nothing")),
    ],
)
@pytest.mark.parametrize("mode", ["fast", "check"])
def test_products_that_ptx_does_not_have_are_refused(mode, form, why):
    """With the line, what it has and what would do: the executor would otherwise compute something like them."""
    text = product().replace("m64n8k16.f32.f16.f16", form)
    with pytest.raises(IsaError, match=rf"test\.ptx:\d+: .*{why}"):
        launch("\n" + FENCE + text + COMMIT + WAIT.format(0), mode)


def test_a_loaded_text_names_the_kernel_too():
    text = text_of(START + FENCE + product().replace("n8k16", "n10k16") + COMMIT + WAIT.format(0) + END, 1)
    with pytest.raises(ModuleLoadError, match=rf"kernel k, module:\d+: .*{_COLUMNS}"):
        CpuDevice().module(text)["k"]


@pytest.mark.parametrize(
    ("sums", "why"),
    [
        ("%f1, %f2", r"operand d: must have 4 registers \(has 2\)"),
        ("%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8", r"operand d: must have 4 registers \(has 8\)"),
        ("%f1, %f2, %f3, %rd1", "operand %rd1: must be a register of 32 bits"),
    ],
)
@pytest.mark.parametrize("mode", ["fast", "check"])
def test_sums_of_another_number_or_size_are_refused(mode, sums, why):
    with pytest.raises(IsaError, match=why):
        launch(FENCE + product(sums=sums) + COMMIT + WAIT.format(0), mode)


def test_sums_of_a_narrower_product_may_be_some_of_a_wider_ones():
    """In another order, too."""
    wide = product(sums="%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8", d="0").replace("m64n8k16", "m64n16k16")
    narrow = product(sums="%f7, %f8, %f3, %f4")
    more = " st.shared.v4.b32 [%r2+2048], {%r3, %r3, %r3, %r3}; fence.proxy.async; bar.sync 0;"
    new = "".join(f"mov.f32 %f{n}, %f1;" for n in range(5, 9))
    np.testing.assert_array_equal(launch(more + new + FENCE + wide + narrow + COMMIT + WAIT.format(0)), 32)


def test_a_product_in_a_loop_is_waited_for_behind_it():
    loop = "mov.u32 %r5, 0; again: " + FENCE + product() + COMMIT
    end = "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 4; @%p1 bra again;"
    np.testing.assert_array_equal(launch(loop + end + WAIT.format(0)), 64)
    np.testing.assert_array_equal(launch(loop + WAIT.format(0) + end), 64)
    finding(loop + end, "registers of wgmma.*st.global")
    finding(loop + end + WAIT.format(1), "registers of wgmma.*st.global")


def test_a_fence_comes_first_and_after_every_other_write():
    finding(product() + COMMIT + WAIT.format(0), "registers of wgmma.*wgmma.mma_async.*wgmma.fence must stand.*%f1")
    one = product() + COMMIT + WAIT.format(0)
    half = "mul.f32 %f4, %f4, 0f3f000000;"
    np.testing.assert_array_equal(launch(FENCE + one + one), 32)
    np.testing.assert_array_equal(launch(FENCE + one + half + FENCE + one), 24)
    finding(FENCE + one + half + one, "registers of wgmma.*mma_async.*wgmma.fence must stand")


def test_fragments_of_a_need_the_fence_too():
    load = "ld.shared.b32 %r6, [%r1]; or.b32 %r7, %r6, %r6; or.b32 %r8, %r6, %r6; or.b32 %r9, %r6, %r6;"
    body = product(a="{%r6, %r7, %r8, %r9}") + COMMIT + WAIT.format(0)
    np.testing.assert_array_equal(launch(load + FENCE + body), 16)
    finding(FENCE + load + body, "registers of wgmma.*wgmma.fence must stand between the last write to %r6")


LOADED = "ld.shared.b32 %r6, [%r1]; or.b32 %r7, %r6, %r6; or.b32 %r8, %r6, %r6; or.b32 %r9, %r6, %r6;"


@pytest.mark.parametrize("write", ["or.b32 %r8, %r6, %r6;", "mov.b32 %r8, %r6;", "@!%p7 ld.shared.b32 %r8, [%r1];"])
def test_fragments_of_a_are_read_until_the_wait(write):
    write = "setp.eq.u32 %p7, %n, 77777;" + write
    open_ = LOADED + FENCE + product(a="{%r6, %r7, %r8, %r9}") + COMMIT
    np.testing.assert_array_equal(launch(open_ + "or.b32 %r10, %r8, %r8;" + WAIT.format(0) + write), 16)
    finding(open_ + write + WAIT.format(0), r"registers of wgmma.*\(line \d+\) reads %r8 until a wgmma.wait_group")
    finding(open_ + open_.replace(LOADED, "") + WAIT.format(1) + write, "registers of wgmma.*reads %r8 until")
    others = open_.replace("%r6", "%r11").replace("%r7", "%r12").replace("%r8", "%r13").replace("%r9", "%r14")
    np.testing.assert_array_equal(launch(open_ + others + WAIT.format(1) + write + WAIT.format(0)), 32)


def test_a_copy_of_a_register_is_no_fragment():
    """The copy is what the product reads: its source may change before the wait."""
    copied = LOADED + "mov.b32 %r10, %r8;" + FENCE + product(a="{%r6, %r7, %r10, %r9}") + COMMIT
    np.testing.assert_array_equal(launch(copied + "ld.shared.b32 %r8, [%r1];" + WAIT.format(0)), 16)
    finding(copied + "ld.shared.b32 %r10, [%r1];" + WAIT.format(0), "registers of wgmma.*reads %r10 until")


def test_registers_are_followed_after_every_product_and_fence_of_a_block():
    one = product() + COMMIT
    half = "mul.f32 %f4, %f4, 0f3f000000;"
    finding(FENCE + one + WAIT.format(0) + half + FENCE + one + half, "registers of wgmma.*mul.f32.*%f4 until")
    loads = LOADED + FENCE + product(a="{%r6, %r7, %r8, %r9}") + COMMIT + WAIT.format(0)
    finding(loads + loads.replace(FENCE, ""), "registers of wgmma.*mma_async.*wgmma.fence must stand")


def test_operands_are_read_until_the_wait():
    write = "st.shared.v4.b32 [%r2], {%r3, %r3, %r3, %r3};"
    wait, meet = WAIT.format(0), "bar.sync 0;"
    body = FENCE + product() + COMMIT
    np.testing.assert_array_equal(launch(body + wait + meet + write), 16)
    finding(body + meet + write + wait, r"wgmma.mma_async.*lanes? .*reads its operands until a wgmma.wait_group covers")
    later = "setp.lt.u32 %p1, %tid, 32; @!%p1 bra others;" + write + "others:"
    finding(body + meet + later + wait, r"race.*(reads its operands until|warp \d has read these bytes)")


OWN, MEET = "st.shared.b32 [%r2+2048], %tid;", "bar.warp.sync -1;"
NEXT = """
  and.b32 %r5, %tid, 96; add.u32 %r6, %tid, 1; and.b32 %r6, %r6, 31; or.b32 %r5, %r5, %r6; mad.lo.u32 %r7, %r5, 16, %r1;
  ld.shared.b32 %r8, [%r7+2048];
"""


@pytest.mark.parametrize(
    ("first", "second", "where"),
    [(OWN, NEXT, r"ld\.shared\.b32 %r8, \[%r7\+2048\]"), (NEXT, OWN, r"st\.shared\.b32 \[%r2\+2048\], %tid")],
    ids=("written before", "read before"),
)
def test_a_wait_for_products_orders_no_accesses_of_lanes(first: str, second: str, where: str) -> None:
    """All lanes are at it; what one of them writes and another reads takes a bar.warp.sync all the same."""
    products = FENCE + product() + COMMIT + WAIT.format(0)
    np.testing.assert_array_equal(launch(first + MEET + products + second), 16)
    np.testing.assert_array_equal(launch(first + products + MEET + second), 16)
    finding(first + products + second, rf"race.*{where}.*bar\.warp\.sync")


def test_a_lane_may_write_what_its_warps_products_have_read() -> None:
    """Once they are waited for: rows of a that are this warp's alone. What other warps read takes a barrier."""
    products = FENCE + product() + COMMIT + WAIT.format(0)
    write = "setp.ne.u32 %p1, %r9, {}; @%p1 bra others; st.shared.b32 [%r2], %r3; others:"
    body = "shr.u32 %r9, %tid, 5;" + products
    np.testing.assert_array_equal(launch(body + write.format(3)), 16)
    finding(body + write.format(0), r"race.*st\.shared\.b32 \[%r2\], %r3.*warp \d has read these bytes")
    np.testing.assert_array_equal(launch(body + "bar.sync 0;" + write.format(0)), 16)


def test_a_wait_that_leaves_a_group_open_leaves_its_operands_in_use():
    write = "add.u32 %r10, %r2, 2048; st.shared.v4.b32 [%r10], {%r3, %r3, %r3, %r3}; fence.proxy.async;"
    second = "add.u64 %rd2, %rd2, 128;" + product() + COMMIT  # operands from byte 2048 on
    first = FENCE + product() + COMMIT
    keep, all_, meet = WAIT.format(1), WAIT.format(0), "bar.sync 0;"
    np.testing.assert_array_equal(launch(first + second + keep + meet + all_), 32)
    np.testing.assert_array_equal(launch(first + second + all_ + meet + write), 32)
    low = "st.shared.v4.b32 [%r2], {%r3, %r3, %r3, %r3}; fence.proxy.async;"
    np.testing.assert_array_equal(launch(first + second + keep + meet + low + meet + all_), 32)
    finding(first + second + keep + meet + write + meet + all_,
            r"race.*wgmma.mma_async.*warp \d has written these bytes meanwhile\n.*reads its operands")  # fmt: skip


def test_sums_that_a_product_does_not_keep_need_no_value():
    sums = "%f5, %f6, %f7, %f8"
    end = COMMIT + WAIT.format(0) + "mov.f32 %f4, %f5;"
    np.testing.assert_array_equal(launch(FENCE + product("0", sums=sums) + product(sums=sums) + end), 32)
    finding(FENCE + product("1", sums=sums) + end, "uninitialised register.*wgmma.mma_async.*%f5")
    asked = "setp.eq.u32 %p2, %n, 0;" + FENCE + product("%p2", sums=sums) + end
    np.testing.assert_array_equal(launch(asked), 16)
    finding(asked.replace("setp.eq", "setp.ne"), "uninitialised register.*wgmma.mma_async.*%f5")


@pytest.mark.parametrize("name", ["wgmma_swizzled", "wgmma_transposed", "wgmma_registers"])
@pytest.mark.parametrize("part", ["fence", "commit_group", "wait_group"])
def test_what_nvcc_compiled_without_one_of_them(name, part):
    case = CASES[name]
    text, count = re.subn(rf"wgmma\.{part}\.sync\.aligned[^;]*;", "", case.text)
    assert count >= 3
    device = ExecutorDevice("check", threads=1)
    with pytest.raises(ExecutionError, match="registers of wgmma"):
        case.run(device, device.module(text))
    case.run(device)
