"""Check mode: accesses of another CTA's shared memory, against its owner's last writes and against the owner's exit.

What the owner has written last (`shared_races.py`) must be ordered before the accesses of other CTAs
(`release_acquire.py`). Each such access is noted, one a rank, and must be ordered before the owner's exit.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.check.global_races import HEAD, WARP_BITS
from ptxgen.runtime.cpu.check.shadow import report
from ptxgen.runtime.cpu.check.shared_cells import STRONG
from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import CHECK, CTA, GANG, VISIT, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_GONE, FAULT_ORDER
from ptxgen.runtime.cpu.support.parking import for_each_warp


@support("remote")
def remote(what: str, access: str = "") -> str:
    """`remote.look.weak|strong(w, site, lane, row, cta, address, bytes, offset)` compares with the last writes of the
    CTA; `remote.visit(w, site, cta)` notes the access there; `remote.gone(w)`, as the last lanes of a CTA exit."""
    return _look(access) if what == "look" else {"visit": _visit, "gone": _gone}[what]()


def _look(access: str) -> str:
    """Cells of another CTA's shared memory: its own last writes since it began must be known here."""
    parameters = f"{HEAD}, ptr %there, i64 %a, i64 %n, i64 %offset"
    c = Code(f"define internal void @remote.look.{access}({parameters}) noinline")
    writes = c.load("ptr", c.load("ptr", "%there", CTA["races"]), CHECK["writes"])
    lanes = c.load("ptr", c.load("ptr", "%there", CTA["races"]), CHECK["write_lanes"])
    begun, index = c.load("i32", "%there", CTA["begun"]), c.load("i64", "%there", CTA["index"])
    end = c("add i64 %offset, %n")
    first, after = c("lshr i64 %offset, 2"), c(f"lshr i64 {c(f'add i64 {end}, 3')}, 2")
    with c.count("i64", after, first) as cell:
        stamp = c.load("i32", c(f"getelementptr i32, ptr {writes}, i64 {cell}"))
        time, warp = c(f"lshr i32 {stamp}, {WARP_BITS}"), c(f"and i32 {stamp}, {(1 << WARP_BITS) - 1}")
        compared = c(f"icmp ugt i32 {time}, {begun}")
        if access == "strong":
            lane = c.load("i8", c(f"getelementptr i8, ptr {lanes}, i64 {cell}"))
            compared = c(f"and i1 {compared}, {c(f'icmp ne i8 {lane}, {STRONG}')}")
        with c.if_(compared):
            known = c(f"call i32 @order.known(ptr %w, i64 {index}, i32 {warp}, i1 {int(access == 'strong')})")
            with c.if_(c(f"icmp ugt i32 {time}, {known}"), likely=False):
                begin = c(f"sub i64 {c(f'shl i64 {cell}, 2')}, %offset")
                plus_one = c(f"add i64 {index}, 1")
                who = c(f"or i64 {c(f'shl i64 {plus_one}, 8')}, {c(f'zext i32 {warp} to i64')}")
                report(c, FAULT_ORDER, c(f"call i64 @llvm.smax.i64(i64 {begin}, i64 0)"), who)
                c.ret(when="true")
    c.ret()
    return c.text()


def _visits(c: Code, cta: str, rank: str) -> str:
    size = VISIT["_end"]
    place = c(f"zext i32 {c(f'mul i32 {rank}, {size}')} to i64")
    return c.at(c.at(c.load("ptr", cta, CTA["races"]), CHECK["visits"]), place)


def _visit() -> str:
    c = Code("define internal void @remote.visit(ptr %w, i32 %site, ptr %there)")
    cta = c.load("ptr", "%w", WARP["cta"])
    slot = _visits(c, "%there", c.load("i32", cta, CTA["rank"]))
    c.store("ptr", "%w", slot, VISIT["warp"])
    c.store("i32", c.load("i32", cta, CTA["epoch"]), slot, VISIT["time"])
    c.store("i32", "%site", slot, VISIT["site"])
    c.ret()
    return c.text()


def _gone() -> str:
    c = Code("define internal void @remote.gone(ptr %w) noinline")
    cta = c.load("ptr", "%w", WARP["cta"])
    gang = c.load("ptr", cta, CTA["gang"])
    with c.count("i32", c.load("i32", gang, GANG["count"])) as rank:
        slot = _visits(c, cta, rank)
        visitor = c.load("ptr", slot, VISIT["warp"])
        with c.if_(c(f"icmp ne ptr {visitor}, null")):
            number, index = c.load("i32", visitor, WARP["id"]), c.load("ptr", visitor, WARP["cta"])
            index = c.load("i64", index, CTA["index"])
            known = c.var("i32", 0)

            def look(w: str, known: str = known, index: str = index, number: str = number) -> None:
                its = c(f"call i32 @order.known(ptr {w}, i64 {index}, i32 {number}, i1 false)")
                c.store("i32", c(f"call i32 @llvm.umax.i32(i32 {its}, i32 {c.load('i32', known)})"), known)

            for_each_warp(c, cta, look)
            time = c.load("i32", slot, VISIT["time"])
            with c.if_(c(f"icmp ugt i32 {time}, {c.load('i32', known)}"), likely=False):
                plus_one = c(f"add i64 {index}, 1")
                who = c(f"or i64 {c(f'shl i64 {plus_one}, 8')}, {c(f'zext i32 {number} to i64')}")
                site = c.load("i32", slot, VISIT["site"])
                c.do(f"call void @fault(ptr %w, i32 {site}, i32 {FAULT_GONE}, i32 -1, i32 0, i64 0, i64 {who})")
                c.ret(when="true")
    c.ret()
    return c.text()
