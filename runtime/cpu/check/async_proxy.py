"""Check mode: shared memory between ordinary accesses and the asynchronous proxy (bulk copies, wgmma)."""

from __future__ import annotations

from ptxgen.runtime.cpu.check.shadow import report
from ptxgen.runtime.cpu.check.shared_cells import (
    ANY_LANE,
    PARAMETERS,
    PROXY,
    Cells,
    cell_at,
    last_cell,
    place_of,
    report_at,
)
from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.native.layout import CHECK, CTA, LATE_WRITER, LAUNCH, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_PROXY

KEPT = 32  # proxy fences of a warp that are remembered, the last ones


@support("proxy")
def proxy(what: str) -> str:
    """`proxy.fence(w)` is a proxy fence; `proxy.fetch(…)` looks for one before a read by the asynchronous proxy;
    `proxy.wrote(w, offset, bytes)` marks what that wrote itself, `proxy.read(…)` what a product has read, which no lane
    did; `proxy.kept(…, since)` reports what was written at that count or later, whatever orders it."""
    if what in ("wrote", "read"):
        return _mark(what, *{"wrote": ("write_lanes", PROXY), "read": ("read_lanes", ANY_LANE)}[what])
    return {"fence": _fence, "fetch": _fetch, "kept": _kept}[what]()


def _fence() -> str:
    """The asynchronous proxy sees what the warp wrote up to now, and what others did that comes before this."""
    c = Code("define internal void @proxy.fence(ptr %w) noinline")
    cta = c.load("ptr", "%w", WARP["cta"])
    now = c.load("i32", cta, CTA["epoch"])
    c.store("i32", now, "%w", WARP["proxy"])
    count = c.load("i32", "%w", WARP["proxy_count"])
    ring = c.at("%w", WARP["proxy_fences"])
    c.store("i32", now, c(f"getelementptr i32, ptr {ring}, i32 {c(f'and i32 {count}, {KEPT - 1}')}"))
    c.store("i32", c(f"add i32 {count}, 1"), "%w", WARP["proxy_count"])
    c.store(vec("i32"), c.load(vec("i32"), "%w", WARP["vclock"], align=64), "%w", WARP["proxied"], align=8)
    c.store("i32", c(f"add i32 {now}, 1"), cta, CTA["epoch"])
    c.ret()
    return c.text()


def _mark(what: str, lanes: str, lane: int) -> str:
    c = Code(f"define internal void @proxy.{what}(ptr %w, i64 %offset, i64 %n) noinline")
    block = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["races"])
    place = c.at(c.load("ptr", block, CHECK[lanes]), c("lshr i64 %offset, 2"))
    c.do(f"call void @llvm.memset.p0.i64(ptr {place}, i8 {lane}, i64 {c('lshr i64 %n, 2')}, i1 false)")
    c.ret()
    return c.text()


def _fetch() -> str:
    """Each cell's last write, where an ordinary one, must come before a fence of its warp that comes before this, or
    before one of this warp."""
    c = Code(f"define internal void @proxy.fetch({PARAMETERS}) noinline")
    cells = Cells(c)
    launch = c.load("ptr", cells.cta, CTA["launch"])
    stride, warps = c.load("i64", launch, LAUNCH["warp_stride"]), c.load("ptr", cells.cta, CTA["warps"])
    proxied = c.at("%w", WARP["proxied"])
    asked, known = c.var("i32", "-1"), c.var("i32", "0")  # a warp, and its fences that come before this
    with c.count("i64", c(f"add i64 {last_cell(c)}, 1"), cells.first) as cell:
        stamp = c.load("i32", cell_at(c, cells.writes, cell, 4))
        lane = c.load("i8", cell_at(c, cells.write_lanes, cell, 1))
        number, time = c(f"and i32 {stamp}, 31"), c(f"lshr i32 {stamp}, 5")
        mine = c.load("i32", c(f"getelementptr i32, ptr {proxied}, i32 {number}"))
        ordinary = c(f"icmp ne i8 {lane}, {PROXY}")
        with c.if_(c(f"and i1 {c(f'icmp ugt i32 {time}, {mine}')}, {ordinary}"), likely=False):
            with c.if_(c(f"icmp ne i32 {number}, {c.load('i32', asked)}"), likely=False):
                writer = c.at(warps, c(f"mul i64 {c(f'zext i32 {number} to i64')}, {stride}"))
                c.store("i32", number, asked)
                c.store("i32", _fences_before(c, cells, writer, number), known)
            with c.if_(c(f"icmp ugt i32 {time}, {c.load('i32', known)}"), likely=False):
                report(c, FAULT_PROXY, place_of(c, cell))
                c.ret(when="true")
    c.ret()
    return c.text()


def _fences_before(c: Code, cells: Cells, writer: str, number: str) -> str:
    """The count at the last fence of a warp that this warp's clock covers: its own last; else of those that are kept,
    or, where all of these came later, the last, as one before them may have come in time."""
    kind, flags = vec("i32"), vec("i1")
    covered = c.load("i32", c(f"getelementptr i32, ptr {c.at('%w', WARP['vclock'])}, i32 {number}"))
    kept = c.load(kind, writer, WARP["proxy_fences"], align=8)
    in_time = c(f"icmp ule {kind} {kept}, {c.spread('i32', covered)}")
    best = c(f"select {flags} {in_time}, {kind} {kept}, {kind} zeroinitializer")
    best = c(f"call i32 @llvm.vector.reduce.umax.v32i32({kind} {best})")
    lost = c(f"icmp eq i{KEPT} {c(f'bitcast {flags} {in_time} to i{KEPT}')}, 0")
    own = c(f"icmp eq i32 {number}, {cells.warp}")
    return c(f"select i1 {c(f'or i1 {lost}, {own}')}, i32 {c.load('i32', writer, WARP['proxy'])}, i32 {best}")


def _kept() -> str:
    c = Code(f"define internal void @proxy.kept({PARAMETERS}, i32 %since) noinline")
    cells = Cells(c)
    with c.count("i64", c(f"add i64 {last_cell(c)}, 1"), cells.first) as cell:
        stamp = c.load("i32", cell_at(c, cells.writes, cell, 4))
        with c.if_(c(f"icmp uge i32 {c(f'lshr i32 {stamp}, 5')}, %since"), likely=False):
            report_at(c, cell, c(f"or i32 {c(f'and i32 {stamp}, 31')}, {1 << 16 | LATE_WRITER}"))
            c.ret(when="true")
    c.ret()
    return c.text()
