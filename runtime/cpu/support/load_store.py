"""Loads and stores of a warp: one function per space, vector length and element size.

`ld.SPACE.vN.bM(w, addresses, offset, mask, site[, out])`, `st.SPACE.vN.bM(w, addresses, offset, mask, site, value|in)`.
Addresses are `<32 x i64>` (`<32 x i32>` for shared and local); vectors of registers pass through memory as N rows of
32 elements. Lanes that share a run of bytes take the fastest path, lanes within one allocation a fast one, the others
go one by one. The word `check` adds the shadow, and `ordered` too, for accesses that order others (volatile, acquire,
release, relaxed), or `glance`, for loads whose value nothing uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.native.layout import WINDOW_SHIFT
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.access import (
    Access,
    lane_0,
    offset_of,
    one_by_one,
    reachable,
    regular,
    scattered,
    span,
    transpose,
)
from ptxgen.runtime.cpu.support.watched_access import doubtful, watch_lane, watch_one, watch_run, watch_scattered

_UNROLLED = 4  # lanes of a gather that one turn of its loop moves


@support("ld")
def load(space: str, vector: str, bits: str, check: str = "") -> str:
    """A warp's load; lanes outside the mask, and those that may not read, get zero."""
    access = Access("ld", space, vector, bits, check)
    head = f"ptr %w, {access.addresses} %a, i64 %off, i32 %m, i32 %site"
    if access.simple:
        c = Code(f"define internal {access.value} @{access.name}({head}) noinline")
        nothing = f"{access.value} zeroinitializer"
    else:
        c = Code(f"define internal void @{access.name}({head}, ptr %out) noinline")
        nothing = "void"
    c.ret(nothing, when=c("icmp eq i32 %m, 0"))
    if space == "generic":
        _forward_shared(c, access, ", ptr %out" if not access.simple else "")
    if space != "local":
        _load_run(c, access)
        _load_one(c, access)
    rows = c.var(f"[32 x {access.row_type}]", align=64)
    fine, offsets, pointer = scattered(c, access)
    with c.if_(fine, likely=True):
        _gather(c, access, offsets, pointer, rows)
    with c.else_():
        c.store(f"<{4 * access.row} x i64>", "zeroinitializer", rows)

        def move(lane: str, there: str, address: str) -> None:
            watch_lane(c, access, "read", lane, there, address)
            value = c.load(access.row_type, there, align=access.host_align)
            c.store(access.row_type, value, c(f"getelementptr {access.row_type}, ptr {rows}, i32 {lane}"), align=1)

        one_by_one(c, access, move)
    if access.simple:
        c.ret(f"{access.value} " + c.load(access.value, rows))
    else:
        transpose(c, access, rows, "%out", to_columns=True)
        c.ret()
    return c.text()


@support("into")
def into(space: str, vector: str, bits: str, check: str = "") -> str:
    """`into.SPACE.vN.bM(w, addresses, offset, mask, site, d…)`: a load whose lanes go to N registers in memory."""
    access = Access("ld", space, vector, bits, check)
    slots = [f"%d{n}" for n in range(access.count)]
    head = f"ptr %w, {access.addresses} %a, i64 %off, i32 %m, i32 %site"
    c = Code(f"define internal void @into{access.name[2:]}({head}, {', '.join(f'ptr {s}' for s in slots)}) noinline")
    rows = c.var(f"[{access.count} x {access.value}]", align=64)
    c.do(f"call void @{access.name}({head}, ptr {rows})")
    lanes = c(f"bitcast i32 %m to {vec('i1')}")
    for n, slot in enumerate(slots):
        new = c.load(access.value, rows, 4 * access.bits * n, align=min(64, 4 * access.bits))
        old = c.load(access.value, slot, align=min(64, 4 * access.bits))
        kept = c(f"select {vec('i1')} {lanes}, {access.value} {new}, {access.value} {old}")
        c.store(access.value, kept, slot, align=min(64, 4 * access.bits))
    c.ret()
    return c.text()


def _gather(c: Code, access: Access, offsets: str, pointer: str, rows: str) -> None:
    """Rows of all lanes from checked offsets; a lane that is not active reads the first bytes of the window."""
    slots = c.var(access.addresses, align=64)
    c.store(access.addresses, offsets, slots)
    watch_scattered(c, access, "read", slots, pointer)
    with c.count("i32", 32 // _UNROLLED) as turn:
        first = c(f"mul i32 {turn}, {_UNROLLED}")
        for n in range(_UNROLLED):
            lane = c(f"add i32 {first}, {n}") if n else first
            there = c.at(pointer, offset_of(c, access, slots, lane))
            value = c.load(access.row_type, there, align=access.host_align)
            c.store(access.row_type, value, c(f"getelementptr {access.row_type}, ptr {rows}, i32 {lane}"), align=1)


def _forward_shared(c: Code, access: Access, tail: str) -> None:
    """Hand over to the function of shared memory where every active lane's generic address is in its window."""
    upper = c(f"lshr {vec('i64')} %a, {splat('i64', 32)}")  # the window, and no bits that 32 could not hold
    first = c(f"icmp eq {vec('i64')} {upper}, {splat('i64', 1 << WINDOW_SHIFT - 32)}")
    there = c(f"bitcast {vec('i1')} {first} to i32")
    inactive = c("xor i32 %m, -1")
    with c.if_(c(f"icmp eq i32 {c(f'or i32 {there}, {inactive}')}, -1")):
        low = c(f"trunc {vec('i64')} %a to {vec('i32')}")
        name = access.name.replace("generic", "shared", 1)
        call = f"@{name}(ptr %w, {vec('i32')} {low}, i64 %off, i32 %m, i32 %site{tail})"
        if access.simple and access.name.startswith("ld"):
            c.ret(f"{access.value} " + c(f"call {access.value} {call}"), when="true")
        else:
            c.do(f"call void {call}")
            c.ret(when="true")


@contextmanager
def _run(c: Code, access: Access, what: str) -> Iterator[tuple[str, str, str]]:
    """Where the lanes move one run of bytes: (the first active lane's pointer, lane 0's pointer, whether all lanes do).

    Some lanes only where the access can be masked.
    """
    with c.if_(regular(c, access, access.row)):
        base = lane_0(c, access)
        start, length = span(c, access, base)
        fine, pointer = reachable(c, access, start, length)
        whole = c("icmp eq i32 %m, -1")
        if not access.maskable:
            fine = c(f"and i1 {fine}, {whole}")
        with c.if_(fine):
            if what == "write":
                doubtful(c, access, "begin")
            watch_run(c, access, what, base, start, pointer)
            yield pointer, c.at(pointer, c(f"sub i64 {base}, {start}")), whole


def _load_run(c: Code, access: Access) -> None:
    """Return at once where the lanes read one run of bytes."""
    with _run(c, access, "read") as (pointer, origin, whole):
        if not access.simple:
            transpose(c, access, pointer, "%out", to_columns=True)
            c.ret(when="true")
            return
        with c.if_(whole, likely=True):
            c.ret(f"{access.value} " + c.load(access.value, pointer, align=access.bits // 8), when="true")
        if access.maskable:
            lanes = c(f"bitcast i32 %m to {vec('i1')}")
            value = c(
                f"call {access.value} @llvm.masked.load.v32{access.element}.p0(ptr align {access.bits // 8} {origin}, "
                f"{vec('i1')} {lanes}, {access.value} zeroinitializer)"
            )
            c.ret(f"{access.value} {value}", when="true")


def _load_one(c: Code, access: Access) -> None:
    """Return at once where all lanes read the same bytes."""
    in_lane_0 = c("trunc i32 %m to i1")
    with c.if_(c(f"and i1 {regular(c, access, 0)}, {in_lane_0}")):
        base = lane_0(c, access)
        fine, pointer = reachable(c, access, base, access.row)
        with c.if_(fine):
            watch_one(c, access, "read", base, pointer)
            value = c.load(access.row_type, pointer, align=access.host_align)
            if access.simple:
                c.ret(f"{access.value} " + c.spread(access.element, value), when="true")
            else:
                for k in range(access.count):
                    one = c(f"extractelement {access.row_type} {value}, i64 {k}")
                    c.store(access.value, c.spread(access.element, one), "%out", 4 * access.bits * k)
                c.ret(when="true")


@support("st")
def store(space: str, vector: str, bits: str, check: str = "") -> str:
    """A warp's store; of lanes that write the same bytes, the highest wins."""
    access = Access("st", space, vector, bits, check)
    value = f"{access.value} %value" if access.simple else "ptr %in"
    head = f"ptr %w, {access.addresses} %a, i64 %off, i32 %m, i32 %site, {value}"
    c = Code(f"define internal void @{access.name}({head}) noinline")
    c.ret(when=c("icmp eq i32 %m, 0"))
    if space == "generic":
        _forward_shared(c, access, f", {value}")
    if space != "local":
        _store_run(c, access)
    rows = c.var(f"[32 x {access.row_type}]", align=64)
    if access.simple:
        c.store(access.value, "%value", rows)
    else:
        transpose(c, access, rows, "%in", to_columns=False)
    doubtful(c, access, "begin")

    def put(lane: str, there: str) -> None:
        mine = c(f"getelementptr {access.row_type}, ptr {rows}, i32 {lane}")
        c.store(access.row_type, c.load(access.row_type, mine, align=1), there, align=access.host_align)

    def move(lane: str, there: str, address: str) -> None:
        watch_lane(c, access, "write", lane, there, address)
        put(lane, there)

    fine, offsets, pointer = scattered(c, access)
    with c.if_(fine, likely=True):
        slots = c.var(access.addresses, align=64)
        c.store(access.addresses, offsets, slots)
        watch_scattered(c, access, "write", slots, pointer)
        with c.each_bit("%m") as lane:
            put(lane, c.at(pointer, offset_of(c, access, slots, lane)))
    with c.else_():
        one_by_one(c, access, move)
    doubtful(c, access, "settle", rows)
    c.ret()
    return c.text()


def _store_run(c: Code, access: Access) -> None:
    """Return at once where the lanes write one run of bytes."""
    with _run(c, access, "write") as (pointer, origin, whole):
        if not access.simple:
            transpose(c, access, pointer, "%in", to_columns=False)
            doubtful(c, access, "settle")
            c.ret(when="true")
            return
        with c.if_(whole, likely=True):
            c.store(access.value, "%value", pointer, align=access.bits // 8)
            doubtful(c, access, "settle")
            c.ret(when="true")
        if access.maskable:
            lanes = c(f"bitcast i32 %m to {vec('i1')}")
            c.do(
                f"call void @llvm.masked.store.v32{access.element}.p0({access.value} %value, "
                f"ptr align {access.bits // 8} {origin}, {vec('i1')} {lanes})"
            )
            doubtful(c, access, "settle")
            c.ret(when="true")
