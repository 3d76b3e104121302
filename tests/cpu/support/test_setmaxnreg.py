"""Facts about setmaxnreg on the executor: the pool of a CTA, who waits for it, its rules, what a launch begins with."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ptxgen.assembler import assemble
from ptxgen.errors import ExecutionError, IsaError
from ptxgen.parser import parse
from ptxgen.runtime.cpu.flow.launch_registers import launch_registers
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.support.cpu_run import MODES
from tests.support.marks import needs_ptxas

ONE_CTA = ".reqntid 384, 1, 1\n.minnctapersm 1"  # 168 registers a thread
MEET = "bar.sync 1, 256;\n"


def inc(count: int) -> str:
    return f"setmaxnreg.inc.sync.aligned.u32 {count};\n"


def dec(count: int) -> str:
    return f"setmaxnreg.dec.sync.aligned.u32 {count};\n"


def text_of(one: str, others: str, directives: str = ONE_CTA) -> str:
    """The first warpgroup does `one`, two more do `others`; then all meet."""
    return f""".version 8.0
.target sm_90a
.address_size 64
.visible .entry k()
{directives}
{{
  .reg .b32 %r<4>; .reg .pred %p<4>;
  mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 128; setp.lt.u32 %p2, %r1, 160;
  @%p1 bra others;
{one}  bra end;
others:
{others}
end: bar.sync 0;
  ret;
}}
"""


def run(one: str, others: str, mode: str = "check", directives: str = ONE_CTA, threads: int = 384) -> None:
    program = Program(parse(text_of(one, others, directives), "test.ptx"), mode=mode)
    program.launch("k", 2, threads, [], memory=Memory(track=mode == "check"))


def said(one: str, others: str, mode: str = "check", **given: str) -> str:
    with pytest.raises(ExecutionError) as caught:
        run(one, others, mode, **given)
    return str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_a_warp_waits_for_what_others_give_back(mode: str) -> None:
    """40 and twice 232 are three times 168; whoever asks first waits."""
    run(dec(40), inc(232), mode)
    run("bar.sync 2, 160;\n" + dec(40), "@%p2 bar.arrive 2, 160;\n" + inc(232), mode)


@pytest.mark.parametrize("mode", MODES)
def test_more_than_the_launch_has_is_a_deadlock(mode: str) -> None:
    text = said(dec(48), inc(232), mode)
    lines = text.splitlines()
    assert lines[0] == "deadlock in kernel k: no warp can run"
    assert re.match(
        r"  CTA \(\d, 0, 0\), warp (4|5|6|7|8|9|10|11): lanes 0-31 wait at the CTA's pool of registers \(232 a thread, "
        r"2048 more than it has; 1024 are free\): test\.ptx:\d+: setmaxnreg\.inc\.sync\.aligned\.u32 232;$",
        lines[1],
    )
    assert "lanes 0-31 wait at barrier 0 (352 of 384 threads have arrived)" in lines[2]
    assert lines[-1].endswith("at its launch a CTA has 168 registers a thread, and setmaxnreg only shares these out")


def test_a_warp_that_polls_for_one_that_waits_makes_no_progress() -> None:
    polls = (
        "again: mov.u32 %r2, %clock; ld.volatile.shared.u32 %r2, [there]; setp.eq.u32 %p3, %r2, 0; @%p3 bra again;\n"
    )
    there = ".shared .align 4 .b32 there;\nmov.u32 %r3, 0; st.volatile.shared.u32 [there], %r3;\n"
    text = said(there + polls, inc(232) + "mov.u32 %r3, 1; st.volatile.shared.u32 [there], %r3;\n", "fast")
    assert text.startswith("no progress in kernel k")
    assert "wait at the CTA's pool of registers (232 a thread, 2048 more than it has; 0 are free)" in text


def test_a_warp_that_ends_gives_nothing_back() -> None:
    """PTX promises it of setmaxnreg.dec alone."""
    text = said("ret;\n", inc(232))
    assert "(232 a thread, 2048 more than it has; 0 are free)" in text
    run(dec(40) + "ret;\n", inc(232))


@pytest.mark.parametrize("directives", ["", ".maxntid 384", ".reqntid 384", ".minnctapersm 1", ".maxnreg 256"])
def test_without_a_count_at_the_launch_it_has_no_effect(directives: str) -> None:
    """As ptxas leaves it out then."""
    run(dec(240), inc(256), directives=directives)


def test_what_it_is_given_counts_from_the_last_one() -> None:
    run(dec(40), inc(216) + MEET + inc(232) + MEET + dec(96) + MEET + inc(232))
    run(dec(40), inc(96) + MEET + inc(232))  # fewer than at the launch, which is an upper bound


@pytest.mark.parametrize(
    ("one", "others", "warp", "why"),
    [
        (dec(40), inc(232) + MEET + inc(200), 11, "inc to 200: the warp has more than 200 registers a thread"),
        (dec(40), dec(232), 4, "dec to 232: the warp has fewer than 232 registers a thread"),
        (dec(40) + dec(24), inc(168), 0, "synchronise between one setmaxnreg and the next"),
        (dec(40), inc(176) + "@%p2 bra end;\n" + inc(184), 5, "synchronise between one setmaxnreg and the next"),
        (dec(40), "@%p2 bra end;\n" + inc(176), 5, "same setmaxnreg: some of them have ended without"),
        (dec(40), "@%p2 bra small;\n" + inc(184) + "bra end;\nsmall: " + inc(176), 5, "of them has executed another"),
        (dec(40), "@%p2 bra small;\n" + inc(176) + "bra end;\nsmall: " + inc(176), 5, "of them has executed another"),
    ],
    ids=str,
)
def test_what_is_undefined_is_found_in_check_mode(one: str, others: str, warp: int, why: str) -> None:
    text = said(one, others)
    assert text.startswith("wrong use in kernel k")
    assert f"warp {warp}, lanes 0-31" in text
    assert why in text
    run(one, others, "fast")


def test_all_lanes_of_a_warp_must_take_part() -> None:
    half = "and.b32 %r2, %r1, 31; setp.lt.u32 %p3, %r2, 16; @%p3 ret;\n" + inc(176)
    text = said(dec(40), half)
    assert "lanes 16-31" in text
    assert "all lanes of the warp must take part" in text
    most = ONE_CTA.replace("reqntid", "maxntid")  # of the last warp there are eight lanes
    run(dec(40), inc(176), directives=most, threads=360)
    run(dec(40), half, directives="")


@pytest.mark.parametrize("count", [16, 264, 100, 0])
def test_counts_that_no_warp_can_have_are_refused(count: int) -> None:
    with pytest.raises(IsaError, match=rf"test.ptx:\d+: operand {count}: must be a multiple of 8 from 24 to 256"):
        run(dec(count), "")


def test_a_kernel_without_it_has_no_pool() -> None:
    """What it asks for is nothing, whatever its directives."""
    assert launch_registers({"maxnreg": (168,)}, []) == 0


DIRECTIVES = [
    ({"reqntid": (threads,), "minnctapersm": (ctas,)}, most)
    for threads, ctas, most in (
        (384, 1, 240), (384, 2, 240), (512, 1, 240), (640, 1, 112), (1024, 1, 240), (256, 1, 256), (256, 1, 216),
        (128, 1, 240), (288, 1, 240), (96, 6, 240), (32, 7, 248), (32, 9, 240), (160, 3, 240), (33, 9, 240),
        (128, 16, 240), (384, 1, 112),
    )
] + [
    ({"maxnreg": (168,)}, 240),
    ({"maxnreg": (100,)}, 240),
    ({"maxnreg": (20,)}, 240),
    ({"maxnreg": (255,)}, 256),
    ({"maxnreg": (232,), "maxntid": (384,)}, 240),
    ({"maxnreg": (232,), "maxntid": (64, 6), "minnctapersm": (1,)}, 240),
    ({"maxnreg": (104,), "maxntid": (384,), "minnctapersm": (1,)}, 240),
]  # fmt: skip


@needs_ptxas
@pytest.mark.parametrize(("directives", "most"), DIRECTIVES, ids=str)
def test_a_launch_has_the_registers_that_ptxas_counts(directives: dict[str, tuple[int, ...]], most: int) -> None:
    written = "\n".join(f".{name} {', '.join(map(str, numbers))}" for name, numbers in directives.items())
    taken = assemble(text_of(dec(24), inc(most), written)).resources["k"].registers
    assert launch_registers(directives, [24, most]) == int(np.ceil(taken / 8)) * 8  # which is how they are given out
