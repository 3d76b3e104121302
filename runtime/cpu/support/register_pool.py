"""`setmaxnreg`: registers that warps give back to the pool of their CTA, and take from it; and its rules.

The pool counts registers a thread of one warp. What a warp has when it ends is lost to the others: PTX says of
`setmaxnreg.dec` alone that it gives registers back. PTX ISA, "setmaxnreg".
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import CTA, LAUNCH, PARK_REGISTERS, THREAD, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT
from ptxgen.runtime.cpu.support.parking import for_each_warp

WRONG_WAY, APART, DIFFERENT, PARTIAL = 1, 2, 4, 8  # what `registers.broken` finds
_GROUP = 2  # log2 of the warps of a warpgroup


def asked(count: int, more: bool) -> int:
    """What a warp asks for, in one number."""
    return count << 1 | more


@support("registers")
def registers(what: str) -> str:
    """`registers.take|give(w, mask, count) -> i32`: the warp has so many registers a thread from now on: its lanes, or
    0 where the pool has too few.

    Check mode: `registers.broken(w, mask, asked, site) -> i32`: which rules these lanes break by asking so there;
    `registers.asked(w, site)`: it has been done; `registers.left(w)`: the warp has ended.
    """
    return {"take": _take, "give": _give, "left": _left, "broken": _broken, "asked": _asked}[what]()


def _held(c: Code, otherwise: str) -> tuple[str, str]:
    """Registers a thread that the launch gave, and that the warp has; returns where `setmaxnreg` has no effect."""
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    first = c.load("i32", launch, LAUNCH["registers"])
    c.ret(otherwise, when=c(f"icmp eq i32 {first}, 0"))
    return first, c(f"add i32 {first}, {c.load('i32', '%w', WARP['registers'])}")


def _take() -> str:
    c = Code("define internal i32 @registers.take(ptr %w, i32 %mask, i32 %count) noinline")
    first, held = _held(c, "i32 %mask")
    more = c(f"sub i32 %count, {held}")
    c.ret("i32 %mask", when=c(f"icmp sle i32 {more}, 0"))
    cta = c.load("ptr", "%w", WARP["cta"])
    free = c.load("i32", cta, CTA["pool"])
    c.ret("i32 0", when=c(f"icmp slt i32 {free}, {more}"))
    c.store("i32", c(f"sub i32 {free}, {more}"), cta, CTA["pool"])
    c.store("i32", c(f"sub i32 %count, {first}"), "%w", WARP["registers"])
    c.ret("i32 %mask")
    return c.text()


def _give() -> str:
    c = Code("define internal i32 @registers.give(ptr %w, i32 %mask, i32 %count) noinline")
    first, held = _held(c, "i32 %mask")
    fewer = c(f"sub i32 {held}, %count")
    c.ret("i32 %mask", when=c(f"icmp sle i32 {fewer}, 0"))
    c.store("i32", c(f"sub i32 %count, {first}"), "%w", WARP["registers"])
    cta = c.load("ptr", "%w", WARP["cta"])
    c.store("i32", c(f"add i32 {c.load('i32', cta, CTA['pool'])}, {fewer}"), cta, CTA["pool"])
    c(f"call i32 @unpark(ptr {cta}, i32 {PARK_REGISTERS}, i32 0, i64 0)")
    c.ret("i32 %mask")
    return c.text()


def _of_its_group(c: Code, w: str) -> str:
    """Whether a warp is of the same warpgroup as `%w`."""
    own, other = (c(f"lshr i32 {c.load('i32', each, WARP['id'])}, {_GROUP}") for each in ("%w", w))
    return c(f"icmp eq i32 {own}, {other}")


def _left() -> str:
    """Of a warpgroup all warps, or none, have executed each `setmaxnreg` when they end."""
    c = Code("define internal void @registers.left(ptr %w) noinline")
    _held(c, "void")
    steps = c.load("i32", "%w", WARP["register_steps"])

    def compare(w: str) -> None:
        theirs, gone = c.load("i32", w, WARP["register_steps"]), c.load("i32", w, WARP["exited"])
        ended = c(f"and i1 {_of_its_group(c, w)}, {c(f'icmp eq i32 {gone}, -1')}")
        with c.if_(c(f"and i1 {ended}, {c(f'icmp ne i32 {theirs}, {steps}')}"), likely=False):
            mine = c(f"icmp ugt i32 {steps}, {theirs}")
            site = c.load("i32", c(f"select i1 {mine}, ptr %w, ptr {w}"), WARP["register_site"])
            c.do(f"call void @fault(ptr %w, i32 {site}, i32 {FAULT_ASSERT}, i32 -1, i32 0, i64 0, i64 0)")

    for_each_warp(c, c.load("ptr", "%w", WARP["cta"]), compare)
    c.ret()
    return c.text()


def _broken() -> str:
    c = Code("define internal i32 @registers.broken(ptr %w, i32 %mask, i32 %asked, i32 %site) noinline")
    _, held = _held(c, "i32 0")
    count, steps = c("lshr i32 %asked, 1"), c.load("i32", "%w", WARP["register_steps"])
    fewer, more = c(f"icmp slt i32 {count}, {held}"), c(f"icmp sgt i32 {count}, {held}")
    again = c(f"icmp ne i32 {steps}, 0")  # before, it may have fewer than the launch's upper bound
    below = c(f"and i1 {fewer}, {again}")
    wrong = c(f"select i1 {c('trunc i32 %asked to i1')}, i1 {below}, i1 {more}")
    began = c(f"xor i32 {c.load('i32', '%w', WARP['all'])}, -1")
    some = c(f"icmp ne i32 %mask, {began}")
    alone = (c(f"select i1 {one}, i32 {bit}, i32 0") for one, bit in ((wrong, WRONG_WAY), (some, PARTIAL)))
    found = c.var("i32", c("or i32 " + ", ".join(alone)))
    next_step = c(f"add i32 {steps}, 1")

    def compare(w: str) -> None:
        theirs, last = c.load("i32", w, WARP["register_steps"]), c.load("i32", w, WARP["register_site"])
        behind = c(f"icmp ult i32 {theirs}, {steps}")
        ahead = c(f"icmp eq i32 {theirs}, {next_step}")
        other = c(f"and i1 {ahead}, {c(f'icmp ne i32 {last}, %site')}")
        apart = c(f"select i1 {behind}, i32 {APART}, i32 0")
        either = c(f"or i32 {apart}, {c(f'select i1 {other}, i32 {DIFFERENT}, i32 0')}")
        counts = c(f"select i1 {_of_its_group(c, w)}, i32 {either}, i32 0")
        c.store("i32", c(f"or i32 {c.load('i32', found)}, {counts}"), found)

    for_each_warp(c, c.load("ptr", "%w", WARP["cta"]), compare)
    c.ret("i32 " + c.load("i32", found))
    return c.text()


def _asked() -> str:
    c = Code("define internal void @registers.asked(ptr %w, i32 %site)")
    c.store("i32", c(f"add i32 {c.load('i32', '%w', WARP['register_steps'])}, 1"), "%w", WARP["register_steps"])
    c.store("i32", "%site", "%w", WARP["register_site"])
    c.ret()
    return c.text()
