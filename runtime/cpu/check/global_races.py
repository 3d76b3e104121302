"""Check mode: accesses of the same bytes by different CTAs (or warps of one) of which nothing orders one after another.

Every byte of global memory that a launch writes carries the launch's number as its flag (`shadow.py`), and every 4
bytes a stamp: launch, whether the write was a strong one (atomic, volatile, relaxed, release) and of its CTA's scope
only, CTA, time in the CTA's own count, warp. A later access must know of that write (`release_acquire.py`); two strong
ones need not where each is in the scope of the other. Reads leave marks in some allocations only (`global_reads.py`).

So does a launch that may run beside the one before it (griddepcontrol): what that has written it must wait for.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.check.record_rows import order_block
from ptxgen.runtime.cpu.check.shadow import READS, STRONG_WORDS, report
from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.native.layout import CTA, LAUNCH, OWN_CTA, SHADOW, STAMP_CTAS, STRONG_WRITER, THREAD, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_CONSTANT, FAULT_EARLY, FAULT_ORDER, FAULT_UNINITIALISED

HEAD = "ptr %w, i32 %site, i32 %lane, i32 %row"
WARP_BITS = 5
_CTA_SHIFT, _SCOPE_SHIFT, _STRONG_SHIFT, _LAUNCH_SHIFT = 32, 54, 55, 56
_FILLED = 8  # stamps that are written together


@support("between")
def between(what: str, access: str = "") -> str:
    """`between.scan.read|write(w, flags, bytes)`: the position of the first byte that needs a closer look, or `bytes`;
    `between.look.WHAT(w, site, lane, row, address, bytes, flags, stamps, offset)` takes that look and reports;
    `between.stamp.weak|strong(w, flags, stamps, offset, bytes)` enters a write."""
    if what == "scan":
        return _scan(access)
    if what == "stamp":
        return _stamp(access)
    if what in ("settled", "again", "unordered"):
        return {"settled": _settled, "again": _again, "unordered": _unordered}[what]()
    return _look(access)


def _numbers(c: Code) -> tuple[str, str]:
    """Flags (i8) of what this launch has written, and of what it may not touch yet (the first again if nothing)."""
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    return c.load("i8", launch, LAUNCH["generation"]), c.load("i8", "%w", WARP["before"])


def _settled() -> str:
    """`between.settled(w, fields) -> i1`: an allocation's bytes are all written, none by launches that matter."""
    c = Code("define internal i1 @between.settled(ptr %w, ptr %fields)")
    last = c.load("i8", "%fields", SHADOW["launch"])
    complete = c(f"icmp ne i8 {c.load('i8', '%fields', SHADOW['complete'])}, 0")
    for number in _numbers(c):
        complete = c(f"and i1 {complete}, {c(f'icmp ne i8 {last}, {number}')}")
    c.ret(f"i1 {complete}")
    return c.text()


def _scan(access: str) -> str:
    c = Code(f"define internal i64 @between.scan.{access}(ptr %w, ptr %flags, i64 %n) noinline")
    now, before = _numbers(c)
    at = c.var("i64", 0)
    for size in (64, 4):
        wide, lanes = vec("i8", size), vec("i1", size)
        spread = []
        for number in (now, before):
            one = c(f"insertelement {wide} poison, i8 {number}, i64 0")
            spread.append(c(f"shufflevector {wide} {one}, {wide} poison, <{size} x i32> zeroinitializer"))
        with c.loop() as out:
            here = c.load("i64", at)
            after = c(f"add i64 {here}, {size}")
            c.leave(out, c(f"icmp ugt i64 {after}, %n"))
            flags = c.load(wide, c.at("%flags", here), align=1)
            found = c(f"or {lanes} {c(f'icmp eq {wide} {flags}, {spread[0]}')}, "
                      f"{c(f'icmp eq {wide} {flags}, {spread[1]}')}")  # fmt: skip
            if access == "read":
                found = c(f"or {lanes} {found}, {c(f'icmp eq {wide} {flags}, zeroinitializer')}")
            bits = c(f"bitcast {lanes} {found} to i{size}")
            with c.if_(c(f"icmp ne i{size} {bits}, 0"), likely=False):
                first = c(f"call i{size} @llvm.cttz.i{size}(i{size} {bits}, i1 true)")
                first = first if size == 64 else c(f"zext i{size} {first} to i64")
                c.ret("i64 " + c(f"add i64 {here}, {first}"), when="true")
            c.store("i64", after, at)
    with c.loop() as out:
        here = c.load("i64", at)
        c.leave(out, c(f"icmp uge i64 {here}, %n"))
        flag = c.load("i8", c.at("%flags", here))
        for number in (now, before, *(("0",) if access == "read" else ())):
            c.leave(out, c(f"icmp eq i8 {flag}, {number}"))
        c.store("i64", c(f"add i64 {here}, 1"), at)
    c.ret("i64 " + c.load("i64", at))
    return c.text()


def _look(access: str) -> str:
    """Byte after byte, a stamp once for all bytes in a row that carry it."""
    c = Code(
        f"define internal void @between.look.{access}({HEAD}, i64 %a, i64 %n, ptr %flags, ptr %stamps, i64 %offset) "
        "noinline"
    )
    now, before = _numbers(c)
    last = c.var("i64", 0)
    strong = int(access in STRONG_WORDS)
    with c.count("i64", "%n") as place:
        flag = c.load("i8", c.at("%flags", place))
        if access in READS and access != "glance":
            with c.if_(c(f"icmp eq i8 {flag}, 0"), likely=False):
                report(c, FAULT_UNINITIALISED, place)
                c.ret(when="true")
        with c.if_(c(f"icmp eq i8 {flag}, {now}")):
            if access == "constant":
                report(c, FAULT_CONSTANT, place)
                c.ret(when="true")
            cell = c(f"lshr i64 {c(f'add i64 %offset, {place}')}, 2")
            stamp = c.load("i64", c(f"getelementptr i64, ptr %stamps, i64 {cell}"))
            with c.if_(c(f"icmp ne i64 {stamp}, {c.load('i64', last)}")):
                c.store("i64", stamp, last)
                found = c(f"call i64 @between.unordered(ptr %w, i64 {stamp}, i1 {strong})")
                with c.if_(c(f"icmp ne i64 {found}, 0"), likely=False):
                    if access == "write":  # a store on a store, byte for byte
                        strong_writer = c(f"icmp ne i64 {c(f'and i64 {found}, {STRONG_WRITER}')}, 0")
                        there = c(f"inttoptr i64 {c(f'add i64 %a, {place}')} to ptr")
                        same = (there, c(f"select i1 {strong_writer}, i64 0, i64 1"))
                        c.ret(when=c(f"xor i1 {report(c, FAULT_ORDER, place, found, same)}, true"))
                        c.store("i64", 0, last)
                    else:
                        report(c, FAULT_ORDER, place, found)
                        c.ret(when="true")
        with c.else_(), c.if_(c(f"icmp eq i8 {flag}, {before}"), likely=False):
            report(c, FAULT_EARLY, place)
            c.ret(when="true")
    c.ret()
    return c.text()


def _unordered() -> str:
    """`between.unordered(w, stamp, strong) -> i64`: 0 where the stamp's write comes before the executing warp's next
    access, or what a report says of it (`layout.STRONG_WRITER`)."""
    c = Code("define internal i64 @between.unordered(ptr %w, i64 %stamp, i1 %strong) noinline")
    now, _ = _numbers(c)
    cta, _ = order_block(c)
    launch = c(f"trunc i64 {c(f'lshr i64 %stamp, {_LAUNCH_SHIFT}')} to i8")
    c.ret("i64 0", when=c(f"icmp ne i8 {launch}, {now}"))
    was_strong = c(f"trunc i64 {c(f'lshr i64 %stamp, {_STRONG_SHIFT}')} to i1")
    narrow = c(f"trunc i64 {c(f'lshr i64 %stamp, {_SCOPE_SHIFT}')} to i1")
    wide = c(f"xor i1 {c(f'or i1 {narrow}, {_of_cta_scope(c)}')}, true")
    both = c(f"and i1 %strong, {was_strong}")
    c.ret("i64 0", when=c(f"and i1 {both}, {wide}"))
    plus_one = c(f"and i64 {c(f'lshr i64 %stamp, {_CTA_SHIFT}')}, {STAMP_CTAS}")
    index, low = c(f"sub i64 {plus_one}, 1"), c("trunc i64 %stamp to i32")
    warp, time = c(f"and i32 {low}, {(1 << WARP_BITS) - 1}"), c(f"lshr i32 {low}, {WARP_BITS}")
    known = c.var("i32", 0)
    with c.if_(c(f"icmp eq i64 {index}, {c.load('i64', cta, CTA['index'])}")):
        c.ret("i64 0", when=both)
        c.ret("i64 0", when=c(f"icmp eq i32 {warp}, {c.load('i32', '%w', WARP['id'])}"))
        c.store("i32", c.load("i32", c(f"getelementptr i32, ptr {c.at('%w', WARP['vclock'])}, i32 {warp}")), known)
    with c.else_():
        c.store("i32", c(f"call i32 @order.known(ptr %w, i64 {index}, i32 {warp}, i1 %strong)"), known)
    c.ret("i64 0", when=c(f"icmp ule i32 {time}, {c.load('i32', known)}"))
    flag = c(f"and i64 {c(f'lshr i64 %stamp, {_STRONG_SHIFT - STRONG_WRITER.bit_length() + 1}')}, {STRONG_WRITER}")
    who = c(f"or i64 {c(f'shl i64 {plus_one}, 8')}, {c(f'zext i32 {warp} to i64')}")
    c.ret("i64 " + c(f"or i64 {who}, {flag}"))
    return c.text()


def _of_cta_scope(c: Code) -> str:
    """i1: the strong access that the warp executes is of its CTA's scope."""
    how = c.load("i32", "%w", WARP["how"])
    return c(f"icmp ne i32 {c(f'and i32 {how}, {OWN_CTA}')}, 0")


def present(c: Code, strong: bool) -> tuple[str, str]:
    """(the launch's flag, the stamp of a write by the warp now)."""
    now, _ = _numbers(c)
    cta, _ = order_block(c)
    index, epoch = c.load("i64", cta, CTA["index"]), c.load("i32", cta, CTA["epoch"])
    plus_one = c(f"and i64 {c(f'add i64 {index}, 1')}, {STAMP_CTAS}")
    when = c(f"or i32 {c(f'shl i32 {epoch}, {WARP_BITS}')}, {c.load('i32', '%w', WARP['id'])}")
    who = c(f"or i64 {c(f'shl i64 {plus_one}, {_CTA_SHIFT}')}, {c(f'zext i32 {when} to i64')}")
    of_launch = c(f"shl i64 {c(f'zext i8 {now} to i64')}, {_LAUNCH_SHIFT}")
    stamp = c(f"or i64 {who}, {of_launch}")
    if not strong:
        return now, stamp
    scope = c(f"shl i64 {c(f'zext i1 {_of_cta_scope(c)} to i64')}, {_SCOPE_SHIFT}")
    return now, c(f"or i64 {c(f'or i64 {stamp}, {1 << _STRONG_SHIFT}')}, {scope}")


def _again() -> str:
    """`between.again(w, stamps, offset, bytes) -> i1`: a strong access of whole cells whose last write in this launch
    was a strong one too, and in its scope; then it is entered."""
    c = Code("define internal i1 @between.again(ptr %w, ptr %stamps, i64 %offset, i64 %n) noinline")
    _, stamp = present(c, strong=True)
    ragged = c(f"and i64 {c('or i64 %offset, %n')}, 3")
    c.ret("i1 false", when=c(f"icmp ne i64 {ragged}, 0"))
    shift = c(f"select i1 {_of_cta_scope(c)}, i64 {_CTA_SHIFT}, i64 {_SCOPE_SHIFT}")
    wanted = c(f"lshr i64 {stamp}, {shift}")
    first, count = c("lshr i64 %offset, 2"), c("lshr i64 %n, 2")
    after = c(f"add i64 {first}, {count}")
    with c.count("i64", after, first) as cell:
        held = c.load("i64", c(f"getelementptr i64, ptr %stamps, i64 {cell}"))
        c.ret("i1 false", when=c(f"icmp ne i64 {c(f'lshr i64 {held}, {shift}')}, {wanted}"))
    with c.count("i64", after, first) as cell:
        c.store("i64", stamp, c(f"getelementptr i64, ptr %stamps, i64 {cell}"))
    c.ret("i1 true")
    return c.text()


def _stamp(access: str) -> str:
    """Stamps first, then flags: another host thread that sees a flag finds its stamp.

    A cell of which another CTA has written a part in this launch says nothing any more. An ordinary write is kept where
    the warp adds a strong one at the same time of its CTA: who knows of the one knows of both.
    """
    c = Code(
        f"define internal void @between.stamp.{access}(ptr %w, ptr %flags, ptr %stamps, i64 %offset, i64 %n) noinline"
    )
    now, stamp = present(c, access == "strong")
    first, end = c("lshr i64 %offset, 2"), c("add i64 %offset, %n")
    last = c(f"lshr i64 {c(f'sub i64 {end}, 1')}, 2")
    at = c.var("i64", first)
    ragged = c(f"and i64 {c('or i64 %offset, %n')}, 3")
    whole = c(f"icmp eq i64 {ragged}, 0")
    with c.if_(whole), c.loop() as out:
        cell = c.load("i64", at)
        c.leave(out, c(f"icmp ugt i64 {c(f'add i64 {cell}, {_FILLED - 1}')}, {last}"))
        kind = vec("i64", _FILLED)
        one = c(f"insertelement {kind} poison, i64 {stamp}, i64 0")
        filled = c(f"shufflevector {kind} {one}, {kind} poison, <{_FILLED} x i32> zeroinitializer")
        c.store(kind, filled, c(f"getelementptr i64, ptr %stamps, i64 {cell}"), align=8)
        c.store("i64", c(f"add i64 {cell}, {_FILLED}"), at)
    with c.loop() as out:
        cell = c.load("i64", at)
        c.leave(out, c(f"icmp ugt i64 {cell}, {last}"))
        slot = c(f"getelementptr i64, ptr %stamps, i64 {cell}")
        old = c.load("i64", slot)
        upper = c(f"lshr i64 {c(f'xor i64 {old}, {stamp}')}, {_CTA_SHIFT}")
        same_launch = c(f"icmp eq i64 {c(f'lshr i64 {upper}, {_LAUNCH_SHIFT - _CTA_SHIFT}')}, 0")
        mixed = c(f"and i1 {same_launch}, {c(f'icmp ne i64 {upper}, 0')}")
        part = c(f"xor i1 {whole}, true")
        new = stamp
        if access == "strong":
            _, weak = present(c, strong=False)
            new = c(f"select i1 {c(f'icmp eq i64 {old}, {weak}')}, i64 {old}, i64 {stamp}")
        c.store("i64", c(f"select i1 {c(f'and i1 {mixed}, {part}')}, i64 0, i64 {new}"), slot)
        c.store("i64", c(f"add i64 {cell}, 1"), at)
    c.do(f"call void @llvm.memset.p0.i64(ptr %flags, i8 {now}, i64 %n, i1 false)")
    c.ret()
    return c.text()
