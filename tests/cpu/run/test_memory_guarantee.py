"""What every mode guarantees: no access leaves what the launch may use, whichever way the address was made."""

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.support.cpu_run import MODES, run

BEFORE = ".shared .align 16 .b8 s[64];\n.const .align 4 .b32 c[4];\n.global .align 4 .b32 g[4];\n"
SPACES = {
    "global": ("mov.u64 %rd1, %a0;", "global"),
    "generic": ("mov.u64 %rd1, %a0;", ""),
    "shared": ("mov.u32 %r1, s; cvt.u64.u32 %rd1, %r1;", "shared"),
    "shared, generic": ("mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1;", ""),
    "local": (".local .align 16 .b8 l[64]; mov.u64 %rd1, l;", "local"),
    "local, generic": (".local .align 16 .b8 l[64]; mov.u64 %rd1, l; cvta.local.u64 %rd1, %rd1;", ""),
    "a variable": ("mov.u64 %rd1, g;", "global"),
}
OFFSETS = {"before": -16, "far before": -(1 << 30), "behind": 1 << 14, "far behind": 1 << 40}
ACCESSES = {
    "st": "st{space}.u32 [{at}], 7;", "st.v4": "st{space}.v4.u32 [{at}], {{%r7, %r7, %r7, %r7}};",
    "ld": "ld{space}.u32 %r8, [{at}]; st.global.u32 [%a0], %r8;", "atom": "atom{space}.add.u32 %r8, [{at}], 7;",
    "st.u8": "st{space}.u8 [{at}], 7;",
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("space", SPACES)
def test_no_access_leaves_what_the_launch_may_use(space, mode):
    start, word = SPACES[space]
    for way, offset in OFFSETS.items():
        for name, access in ACCESSES.items():
            if word == "local" and name == "atom":
                continue
            own, neighbour = np.zeros(4, np.uint32), np.arange(1 << 16, dtype=np.uint32)
            before = neighbour.copy()
            text = access.format(space=f".{word}" if word else "", at="%rd2")
            body = f"mov.u32 %r7, 7; {start} add.u64 %rd2, %rd1, {offset}; {text} ret;"
            with pytest.raises(ExecutionError, match=r"^(out of bounds|misaligned access)"):
                run(body, own, block=1, mode=mode, before=BEFORE)
            np.testing.assert_array_equal(neighbour, before, err_msg=f"{way} {name}")
            assert not own.any(), (way, name)


@pytest.mark.parametrize("mode", MODES)
def test_memory_that_was_freed_or_belongs_to_another_device_may_not_be_used(mode):
    memory, other = Memory(track=mode == "check"), Memory()
    freed = memory.allocate(64)
    memory.free(freed)
    for address in (freed, other.allocate(64), 0, 8, 1 << 47, (1 << 64) - 8):
        with pytest.raises(ExecutionError, match=r"^out of bounds"):
            run(f"mov.u64 %rd1, {address}; st.global.u32 [%rd1], 1; ret;", np.zeros(1, np.uint32), block=1, mode=mode,
                memory=memory)  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_lane_cannot_reach_the_local_memory_of_another(mode):
    body = ".local .align 16 .b8 l[16]; mov.u64 %rd1, l; setp.eq.u32 %p1, %lane, 0; "
    body += "@%p1 st.local.u32 [%rd1+16], 7; ret;"
    with pytest.raises(ExecutionError, match=r"^out of bounds"):
        run(body, np.zeros(1, np.uint32), mode=mode)
