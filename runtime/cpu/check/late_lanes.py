"""Check mode: lanes that may still be in an mbarrier's wait when the phase after the one they wait for ends.

A wait knows its phase by the parity. Lanes of a warp that wait together are found over together here; on a GPU one may
go on while another has not looked yet. If the one arrives somewhere, others can answer, and the next phase ends: then
the lane that looks late finds the parity of before, and waits for ever.

A warp keeps its last waits, with the lanes: the count (`vector_clocks.py`) of the first arrival by some of them only,
and of the first time that they met after the wait. When the mbarrier's next phase ends, its place's clock says which of
the two that end comes after.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import CHECK, CTA, WAIT, WAITS, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT
from ptxgen.runtime.cpu.support.mbarrier import open_phase
from ptxgen.runtime.cpu.support.parking import for_each_warp

LATE_LANE = (
    "lanes that look late would miss this phase: others of the warp have gone on to an arrival that lets the next one "
    "end; a bar.warp.sync between the wait and that arrival keeps them together"
)


@support("late_lanes")
def late_lanes(what: str) -> str:
    """`late_lanes.wait(w, site, bar, mask)`: the lanes have seen a phase end; `.arrive(w, mask)`: they will arrive;
    `.meet(w, mask)`: they are together; `.over(w, bar)`: a phase has ended."""
    return {"wait": _wait, "arrive": _arrive, "meet": _meet, "over": _over}[what]()


def _record(c: Code, number: str, w: str = "%w") -> str:
    behind = c(f"mul i32 {number}, {WAIT['_end']}")
    place = c(f"add i32 {behind}, {WARP['waits']}")
    return c.at(w, c(f"zext i32 {place} to i64"))


def _now(c: Code) -> str:
    return c.load("i32", c.load("ptr", "%w", WARP["cta"]), CTA["epoch"])


def _wait() -> str:
    c = Code("define internal void @late_lanes.wait(ptr %w, i32 %site, ptr %bar, i32 %mask) noinline")
    phase = open_phase(c, "%bar")
    with c.count("i32", WAITS) as number:
        record = _record(c, number)
        with c.if_(c(f"icmp eq ptr {c.load('ptr', record, WAIT['bar'])}, %bar")):
            same = c(f"icmp eq i32 {c.load('i32', record, WAIT['phase'])}, {phase}")
            apart = c(f"icmp eq i32 {c.load('i32', record, WAIT['met'])}, 0")
            with c.if_(c(f"and i1 {same}, {apart}")):
                c.store("i32", c(f"or i32 {c.load('i32', record, WAIT['mask'])}, %mask"), record, WAIT["mask"])
                c.ret(when="true")
            c.store("ptr", "null", record, WAIT["bar"])
    last = c.load("i32", "%w", WARP["last_wait"])
    c.store("i32", c(f"urem i32 {c(f'add i32 {last}, 1')}, {WAITS}"), "%w", WARP["last_wait"])
    record = _record(c, last)
    c.store("ptr", "%bar", record, WAIT["bar"])
    for name, value in (("mask", "%mask"), ("site", "%site"), ("phase", phase)):
        c.store("i32", value, record, WAIT[name])
    for name in ("arrived", "apart", "met"):
        c.store("i32", 0, record, WAIT[name])
    c.ret()
    return c.text()


def _arrive() -> str:
    """Lanes that have arrived all, each behind its own wait, need not meet."""
    c = Code("define internal void @late_lanes.arrive(ptr %w, i32 %mask) noinline")
    now = _now(c)
    with c.count("i32", WAITS) as number:
        record = _record(c, number)
        with c.if_(c(f"icmp eq i32 {c.load('i32', record, WAIT['met'])}, 0")):
            arrived = c(f"or i32 {c.load('i32', record, WAIT['arrived'])}, %mask")
            c.store("i32", arrived, record, WAIT["arrived"])
            missing = c(f"and i32 {c.load('i32', record, WAIT['mask'])}, {c(f'xor i32 {arrived}, -1')}")
            with c.if_(c(f"icmp eq i32 {missing}, 0")):
                c.store("i32", now, record, WAIT["met"])
            with c.else_(), c.if_(c(f"icmp eq i32 {c.load('i32', record, WAIT['apart'])}, 0")):
                c.store("i32", now, record, WAIT["apart"])
    c.ret()
    return c.text()


def _meet() -> str:
    c = Code("define internal void @late_lanes.meet(ptr %w, i32 %mask) noinline")
    now, others = _now(c), c("xor i32 %mask, -1")
    with c.count("i32", WAITS) as number:
        record = _record(c, number)
        missing = c(f"and i32 {c.load('i32', record, WAIT['mask'])}, {others}")
        apart = c(f"icmp eq i32 {c.load('i32', record, WAIT['met'])}, 0")
        with c.if_(c(f"and i1 {apart}, {c(f'icmp eq i32 {missing}, 0')}")):
            c.store("i32", now, record, WAIT["met"])
    c.ret()
    return c.text()


def _over() -> str:
    """The phase ends after an arrival of some lanes, and not after all of them have met: a finding. (What ends it from
    another CTA leaves no clock at its place: that counts where they have not met at all.)"""
    c = Code("define internal void @late_lanes.over(ptr %w, ptr %bar) noinline")
    cta = c.load("ptr", "%w", WARP["cta"])
    begin = c(f"ptrtoint ptr {c.load('ptr', cta, CTA['shared'])} to i64")
    offset = c(f"sub i64 {c('ptrtoint ptr %bar to i64')}, {begin}")
    c.ret(when=c(f"icmp uge i64 {offset}, {c.load('i64', cta, CTA['shared_bytes'])}"))  # another CTA's
    block = c.load("ptr", cta, CTA["races"])
    clocks = c.at(block, c.load("i64", block, CHECK["clocks"]))
    clock = c.at(clocks, c(f"shl i64 {c(f'lshr i64 {offset}, 3')}, 7"))

    def look(w: str) -> None:
        after = c.load("i32", c(f"getelementptr i32, ptr {clock}, i32 {c.load('i32', w, WARP['id'])}"))
        with c.count("i32", WAITS) as number:
            record = _record(c, number, w)
            with c.if_(c(f"icmp eq ptr {c.load('ptr', record, WAIT['bar'])}, %bar")):
                apart, met = (c.load("i32", record, WAIT[name]) for name in ("apart", "met"))
                parted, never = (c(f"icmp {test} i32 {one}, 0") for test, one in (("ne", apart), ("eq", met)))
                between = c(f"and i1 {c(f'icmp uge i32 {after}, {apart}')}, {c(f'icmp ult i32 {after}, {met}')}")
                with c.if_(c(f"and i1 {parted}, {c(f'or i1 {never}, {between}')}"), likely=False):
                    arrived = c(f"xor i32 {c.load('i32', record, WAIT['arrived'])}, -1")
                    lanes = c(f"and i32 {c.load('i32', record, WAIT['mask'])}, {arrived}")
                    site = c.load("i32", record, WAIT["site"])
                    what = f"i32 {FAULT_ASSERT}, i32 {lanes}, i32 8, i64 0, i64 0"
                    # the report is of the warp that waited, and this one stops
                    c.do(f"call void @fault(ptr {w}, i32 {site}, {what})")
                    c.do(f"call void @fault(ptr %w, i32 {site}, {what})")
                c.store("ptr", "null", record, WAIT["bar"])

    for_each_warp(c, cta, look)
    c.ret()
    return c.text()
