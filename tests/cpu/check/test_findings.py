"""Every finding's title is one that a kernel gets on `open_device("cpu")`, and stands in the document's table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.runtime import open_device
from ptxgen.runtime.cpu.run import findings
from tests.cpu.check.test_wgmma import COMMIT, END, FENCE, START, product
from tests.support.cpu_run import run, text_of

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "cpu-executor.md"
SHARED = ".shared .align 128 .b8 s[1024];\n.shared .align 8 .b64 bar;\n"
LEADER = "setp.ne.u32 %p1, %lane, 0; mov.u32 %r1, s; mov.u32 %r2, bar; "
BULK = (
    LEADER
    + """@%p1 bra done; mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 64;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%a0], 64, [%r2]; done: """
)
OTHERS = """mov.u32 %r1, s; mov.u32 %r3, %cluster_ctarank; xor.b32 %r4, %r3, 1; mapa.shared::cluster.u32 %r5, %r1, %r4;
  st.shared.u32 [s], 1; MEET setp.eq.u32 %p2, %r3, 1; @!%p2 bra out; nanosleep.u32 200;
  ld.shared::cluster.u32 %r6, [%r5]; out: ret;""".replace(
    "MEET", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
)


@dataclass(frozen=True)
class Faulty:
    """A kernel of one buffer of 1 KiB, and how it is launched."""

    body: str
    mode: str = "check"
    block: int = 32
    options: dict[str, Any] = field(default_factory=dict)
    buffer: str = "zeros"  # "empty", "read only"
    before: str = SHARED
    equal_stores: str = "note"


FAULTS = {
    "out of bounds": Faulty("st.global.u32 [%a0+1024], 1; ret;", mode="fast"),
    "misaligned access": Faulty("ld.global.u32 %r1, [%a0+2]; ret;", mode="fast"),
    "trap": Faulty("trap;", mode="fast"),
    "read of uninitialised memory": Faulty("ld.global.u32 %r1, [%a0]; st.global.u32 [%a0+4], %r1; ret;", buffer="empty",
                                            block=1),
    "read of an uninitialised register": Faulty("st.global.u32 [%a0], %r1; ret;", block=1),
    "race": Faulty("st.shared.u32 [s], %tid; ret;", block=64),
    "unordered stores of equal values": Faulty("st.shared.u32 [s], 7; ret;", block=64, equal_stores="finding"),
    "divergent aligned barrier": Faulty("setp.lt.u32 %p1, %lane, 9; @%p1 bra skip; bar.sync 0; skip: bar.sync 0; ret;"),
    "operand": Faulty("and.b32 %r1, %lane, 1; bar.sync %r1; ret;", mode="fast"),
    "wrong use": Faulty("shfl.sync.idx.b32 %r1, %lane, 0, 31, 1; ret;", mode="fast"),
    "write to read-only memory": Faulty("st.global.u32 [%a0], 1; ret;", mode="fast", buffer="read only"),
    "use of bytes that an asynchronous copy is still writing": Faulty(
        "cp.async.ca.shared.global [s], [%a0], 16; cp.async.commit_group; ld.shared.u32 %r1, [s]; ret;", block=1
    ),
    "asynchronous read of ordinary writes": Faulty(
        "mov.u32 %r1, s; st.shared.v4.u32 [%r1], {%r1, %r1, %r1, %r1}; "
        "cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r1], 16; cp.async.bulk.commit_group; "
        "cp.async.bulk.wait_group 0; ret;",
        block=1,
    ),
    "exit before an asynchronous copy is over": Faulty(BULK + "ret;"),
    "read-only load of what this launch writes": Faulty(
        "st.global.u32 [%a0], 1; ld.global.nc.u32 %r1, [%a0]; ret;", block=1
    ),
    "exit while another CTA uses its shared memory": Faulty(OTHERS, block=1, options={"grid": 2, "cluster": (2, 1, 1)}),
    "registers of wgmma without a wait or a fence": Faulty(
        START + FENCE + product() + COMMIT + END, block=128, before=""
    ),
    "deadlock": Faulty("bar.sync 1, 64; ret;", mode="fast"),
    "no progress": Faulty("spin: ld.volatile.global.u32 %r1, [%a0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra spin; ret;",
                          mode="fast"),
}  # fmt: skip
EARLY = "use of what the kernel before may still write"


def titles() -> set[str]:
    return {*FAULTS, EARLY}


def launch(faulty: Faulty) -> None:
    device = open_device("cpu", mode=faulty.mode, threads=1, equal_stores=faulty.equal_stores)
    data: Any = np.frombuffer(bytes(1024), np.uint32)
    if faulty.buffer != "read only":
        data = device.empty(256, "u32") if faulty.buffer == "empty" else device.zeros(256, "u32")
    entry = device.module(text_of(faulty.body, 1, faulty.before))["k"]
    entry.launch(block=faulty.block, args=[data], **({"grid": 1} | faulty.options))


@pytest.mark.parametrize("title", FAULTS)
def test_a_kernel_gets_it(title):
    with pytest.raises(ExecutionError, match=rf"^{title} in kernel k[:\n]"):
        launch(FAULTS[title])


def test_a_programmatic_launch_that_does_not_wait_gets_it():
    device = open_device("cpu", mode="check", threads=1)
    data = device.zeros(256, "u32")
    entry = device.module(text_of("griddepcontrol.wait; st.global.u32 [%a0], 1; ret;", 1))["k"]
    hasty = device.module(text_of("ld.global.u32 %r1, [%a0]; ret;", 1))["k"]
    entry.launch(1, 1, [data])
    with pytest.raises(ExecutionError, match=rf"^{EARLY} in kernel k\n"):
        hasty.launch(1, 1, [data], programmatic=True)


def test_every_title_is_tried_and_explained():
    of_waits = {"deadlock", "no progress", "divergent aligned barrier"}
    assert titles() == {*findings._TITLES.values(), *of_waits}
    table = DOCUMENT.read_text(encoding="utf-8").partition("## Findings")[2].partition("How the")[0]
    rows = re.findall(r"^\| ([^|]+?) \|", table, re.M)
    assert set(rows) - {"title", "---"} == titles()


REGISTERS = {  # body, what is said, the instruction that it is said of
    "an operand": ("mov.u32 %r1, 1;\nadd.u32 %r3, %r1, %r2;\nst.global.u32 [%a0], %r3;",
                   "%r3 is read here, but it was computed from %r2, which no instruction", "st.global.u32"),
    "the second of a vector": ("mov.u32 %r1, 1;\nst.global.v2.u32 [%a0], {%r1, %r2};", "%r2 is read here, but", "st"),
    "an address": ("st.global.u32 [%rd1], 1;", "%rd1 is read here, but no instruction", "st"),
    "a part of an address": ("cvt.u64.u32 %rd1, %r1;\nadd.u64 %rd1, %rd1, %a0;\nst.global.u32 [%rd1], 1;",
                             "%rd1 is read here, but it was computed from %r1, which no", "st"),
    "a guard": ("add.u32 %r1, %tid, 1;\nadd.u64 %rd1, %a0, %at4;\n@%p1 st.global.u32 [%rd1], %r1;",
                "%p1 is read here, but no instruction", "@%p1 st"),
    "a guard of what uses a load": ("add.u64 %rd1, %a0, %at4;\nld.global.u32 %r1, [%rd1];\n"
                                    "@%p1 st.global.u32 [%rd1], %r1;",
                                    "%p1 is read here, but no instruction", "@%p1 st"),
    "a branch": ("@%p1 bra L;\nst.global.u32 [%a0], 1;\nL:", "%p1 is read here, but no instruction", "@%p1 bra"),
    "a comparison": ("mov.u32 %r1, 1;\natom.global.cas.b32 %r4, [%a0], %r1, %r2;", "%r2 is read here, but no", "atom"),
    "a source lane": ("shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;\nst.global.u32 [%a0], %r1;",
                      "%r1 is read here, but it was computed from %r2, which no", "st"),
    "some lanes": ("setp.lt.u32 %p1, %tid, 4;\n@%p1 mov.u32 %r2, 5;\nst.global.u32 [%a0], %r2;",
                   "%r2 is read here, but no instruction", "st"),
    "a copy that was taken out": ("mov.u32 %r2, %r1;\nmov.u32 %r3, %r2;\nst.global.v2.u32 [%a0], {%tid, %r3};",
                                  "a copy of %r2 is read here, but it was computed from %r1, which no", "st"),
    "several": ("add.u32 %r5, %r1, %r2;\nadd.u32 %r5, %r5, %r3;\nadd.u32 %r5, %r5, %r4;\nst.global.u32 [%a0], %r5;",
                "or others, which no instruction", "st"),
}  # fmt: skip


@pytest.mark.parametrize("name", REGISTERS)
def test_an_undefined_register_is_said_with_where_it_comes_from(name):
    body, said, instruction = REGISTERS[name]
    with pytest.raises(ExecutionError) as caught:
        run(body + "\nret;", np.zeros(64, np.uint32), mode="check")
    title, place, _, sentence = str(caught.value).splitlines()[:4]
    assert title == "read of an uninitialised register in kernel k"
    assert place.split(": ", 1)[1].startswith(instruction)
    assert said in sentence


def test_a_finding_in_a_long_line_shows_the_instruction():
    body = "mov.u32 %r1, 1; " * 100 + "st.global.u32 [%a0], %r2; ret;"
    with pytest.raises(ExecutionError, match=r":14: st.global.u32 \[%a0\], %r2;\n") as caught:
        run(body, np.zeros(64, np.uint32), mode="check")
    assert len(str(caught.value)) < 400
