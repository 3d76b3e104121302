"""Facts about launches that do not end: Ctrl-C, limits of time, CTAs that wait for CTAs that have not begun."""

import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from tests.support.cpu_run import MODES, run

COUNTS = """
  mov.u64 %rd1, 0;
again:
  add.u64 %rd1, %rd1, 1; setp.ne.u64 %p1, %rd1, 0; @%p1 bra again;
  st.global.u64 [%a0], %rd1; ret;"""
BARRIERS = """
  mov.u64 %rd1, 0;
again:
  bar.sync 0; add.u64 %rd1, %rd1, 1; setp.ne.u64 %p1, %rd1, 0; @%p1 bra again; ret;"""

INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
from ptxgen import runtime
from tests.support.cpu_run import text_of
from tests.cpu.run.test_interrupt import BARRIERS, COUNTS

signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent that ignores it (nohup) hands that on
device = runtime.open_device("cpu", mode=sys.argv[1], threads=int(sys.argv[2]))
buffer = device.zeros(64, "u32")
entries = [device.module(text_of(body, 1))["k"] for body in (COUNTS, BARRIERS, "ret;")]
for entry, grid in zip(entries, (4, 4, 2**31 - 1)):
    entry.launch(1, 32, [buffer]) if entry is entries[2] else None
    at = []
    threading.Timer(0.4, lambda: (at.append(time.perf_counter()), os.kill(os.getpid(), signal.SIGINT))).start()
    try:
        entry.launch(grid, 64, [buffer])
    except KeyboardInterrupt:
        print(time.perf_counter() - at[0])
    used = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - used < 0.15, "something still runs"
    entries[2].launch(40, 32, [buffer])
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_an_interrupt_ends_a_launch_leaves_the_device_usable_and_lets_the_process_end(mode, threads):
    """An endless loop, one through barriers, and a grid that takes minutes."""
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), mode, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seconds = [float(line) for line in done.stdout.split()]
    assert len(seconds) == 3
    assert max(seconds) < 10  # left alone: minutes, or for ever


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("body", [COUNTS, BARRIERS])
def test_a_limit_of_time_ends_a_launch_and_says_where_it_was(body, threads):
    with pytest.raises(ExecutionError) as caught:
        run(body, np.zeros(64, np.uint32), grid=4, block=64, threads=threads, time_limit=0.3)
    text = str(caught.value)
    assert "no progress in kernel k: it has not ended within 0.3 s (time_limit)" in text
    assert re.search(r"CTA \(\d, 0, 0\), warp \d is at test.ptx:\d+", text)


# Every CTA arrives, and goes on when all have: a barrier of the grid.
ALL_ARRIVE = """
  atom.global.add.u32 %r1, [%a0], 1; mov.u32 %r3, %nctaid.x; mov.u32 %r5, 0;
wait:
  COUNT
  ld.volatile.global.u32 %r2, [%a0]; setp.lt.u32 %p1, %r2, %r3; @%p1 bra wait;
  mov.u32 %r4, %ctaid.x; mul.wide.u32 %rd1, %r4, 4; add.u64 %rd1, %a1, %rd1; st.global.u32 [%rd1], %r2; ret;"""


@pytest.mark.parametrize("polls", ["counted", "alike"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_ctas_may_wait_for_as_many_others_as_a_gpu_holds(mode, threads, polls):
    arrived, out = np.zeros(1, np.uint32), np.zeros(300, np.uint32)
    body = ALL_ARRIVE.replace("COUNT", "add.u32 %r5, %r5, 1;" if polls == "counted" else "")
    run(body, arrived, out, grid=300, block=1, mode=mode, threads=threads)
    assert (out == 300).all()


def test_a_standstill_says_that_ctas_have_not_begun():
    """With 200 KiB of shared memory there is one CTA a multiprocessor, and the largest GPU has 148."""
    arrived, out = np.zeros(1, np.uint32), np.zeros(150, np.uint32)
    body = ".shared .b8 s[8]; mov.u32 %r9, s;" + ALL_ARRIVE.replace("COUNT", "")
    more = "2 of 150 CTAs have not begun: 148 wait for each other, as many as the largest GPU holds at a time"
    with pytest.raises(ExecutionError, match=rf"(?s)no progress in kernel k.*spins at.*{more}"):
        run(body, arrived, out, grid=150, block=1, shared=200 << 10)
