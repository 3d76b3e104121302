"""Check mode: tensor maps that a kernel makes in global memory, and copies by which no fence has looked at them since.

PTX ISA, "Memory Consistency Model: Proxies": the maps' path is a proxy of its own, so an acquire of the map's bytes by
fence.proxy.tensormap must stand between tensormap.cp_fenceproxy and the first copy. A CTA keeps its own last maps that
none of its warps has acquired.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import CTA, MADE_MAPS, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT

UNSEEN = "the kernel has made this tensor map: fence.proxy.tensormap::generic.acquire of its bytes must come before"


@support("made_maps")
def made_maps(what: str) -> str:
    """`made_maps.made(w, lane, address)`: a map is written; `.seen(w, lane, address)`: it is acquired;
    `.use(w, site, lane, address)`: a copy by it begins."""
    site = "i32 %site, " if what == "use" else ""
    c = Code(f"define internal void @made_maps.{what}(ptr %w, {site}i32 %lane, i64 %address) noinline")
    cta = c.load("ptr", "%w", WARP["cta"])
    maps = c.at(cta, CTA["made_maps"])
    with c.count("i64", MADE_MAPS) as number:
        place = c.at(maps, c(f"shl i64 {number}, 3"))
        with c.if_(c(f"icmp eq i64 {c.load('i64', place)}, %address")):
            if what == "seen":
                c.store("i64", 0, place)
            elif what == "use":
                lane = c("shl i32 1, %lane")
                c.do(f"call void @fault(ptr %w, i32 %site, i32 {FAULT_ASSERT}, i32 {lane}, i32 0, i64 0, i64 0)")
            c.ret(when="true")
    if what == "made":
        last = c.load("i32", cta, CTA["last_map"])
        c.store("i32", c(f"urem i32 {c(f'add i32 {last}, 1')}, {MADE_MAPS}"), cta, CTA["last_map"])
        c.store("i64", "%address", c.at(maps, c(f"shl i64 {c(f'zext i32 {last} to i64')}, 3")))
    c.ret()
    return c.text()
