"""Asynchronous copies: at once in fast mode; in check mode kept in the thread's queue until somebody waits for them.

A copy that lands only at its wait shows a missing wait: the reader then finds what was there before.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.ir import Code
from ptxgen.runtime.cpu.layout import (
    ASYNC,
    ASYNC_COPY,
    ASYNC_INLINE,
    ASYNC_RECORDS,
    CTA,
    PARK_MBARRIER,
    THREAD,
    WARP,
)
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.mbarrier import checking

_SIZE = ASYNC["_end"]
_MOVE = "call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {count}, i1 false)"


@support("async")
def async_(what: str, *_: str) -> str:
    """`async.copy`, `.bulk`, `.store`, `.append`, `.land`, `.land_for`, `.land_groups`: see each."""
    return {
        "copy": _copy, "bulk": _bulk, "store": _store, "append": _append, "land": _land, "land_for": _land_for,
        "land_groups": _land_groups,
    }[what]()  # fmt: skip


def _queue(c: Code) -> tuple[str, str, str]:
    """(thread, first record, number of records)."""
    thread = c.load("ptr", "%w", WARP["thread"])
    return thread, c.load("ptr", thread, THREAD["queue"]), c.load("i64", thread, THREAD["queued"])


def _copy() -> str:
    """`async.copy(w, target_site, source_site, lane, target, source, size, bytes)`: cp.async of one lane; of `size`
    bytes the first `bytes` come from global memory, the others become zero."""
    c = Code(
        "define internal void @async.copy(ptr %w, i32 %target_site, i32 %source_site, i32 %lane, i64 %target, "
        "i64 %source, i64 %size, i64 %bytes) noinline"
    )
    to = c("call ptr @reach.shared(ptr %w, i32 %target_site, i32 %lane, i64 %target, i64 %size, i64 %size)")
    c.ret(when=c(f"icmp eq ptr {to}, null"))
    data = c.var("<2 x i64>", "zeroinitializer", align=16)
    with c.if_(c("icmp ne i64 %bytes, 0")):
        from_ = c("call ptr @reach.global(ptr %w, i32 %source_site, i32 %lane, i64 %source, i64 %bytes, i64 %size)")
        c.ret(when=c(f"icmp eq ptr {from_}, null"))
        c.do(_MOVE.format(to=data, source=from_, count="%bytes"))
        with c.if_(checking(c)):
            row = c("trunc i64 %bytes to i32")
            c.do(
                f"call void @shadow.read.global(ptr %w, i32 %source_site, i32 %lane, i32 {row}, ptr {from_}, "
                "i64 %source, i64 %bytes)"
            )
    with c.if_(checking(c)):
        groups = c.at("%w", WARP["copy_group"])
        group = c.load("i32", c(f"getelementptr i32, ptr {groups}, i32 %lane"))
        c.do(
            f"call void @async.append(ptr %w, i32 {ASYNC_INLINE}, i32 %target_site, i32 %lane, i64 %target, ptr {to}, "
            f"ptr {data}, i64 %size, ptr null, i32 {group})"
        )
    with c.else_():
        c.do(_MOVE.format(to=to, source=data, count="%size"))
    c.ret()
    return c.text()


def _bulk() -> str:
    """`async.bulk(w, site, lane, target, to, from, size, bar)`: bytes that complete on an mbarrier (or on none)."""
    c = Code(
        "define internal void @async.bulk(ptr %w, i32 %site, i32 %lane, i64 %target, ptr %to, ptr %from, i64 %size, "
        "ptr %bar) noinline"
    )
    waits = c(f"and i1 {checking(c)}, {c('icmp ne ptr %bar, null')}")
    with c.if_(waits):
        c.do(
            f"call void @async.append(ptr %w, i32 {ASYNC_COPY}, i32 %site, i32 %lane, i64 %target, ptr %to, ptr %from, "
            "i64 %size, ptr %bar, i32 0)"
        )
    with c.else_():
        c.do(_MOVE.format(to="%to", source="%from", count="%size"))
        with c.if_(c("icmp ne ptr %bar, null")):
            c(f"call i64 @mbarrier.apply(ptr %w, ptr %bar, i64 0, i64 {c('sub i64 0, %size')}, i64 0)")
    c.ret()
    return c.text()


def _store() -> str:
    """`async.store(w, site, lane, target, to, data, size, bar)`: up to 16 bytes that complete on an mbarrier."""
    c = Code(
        "define internal void @async.store(ptr %w, i32 %site, i32 %lane, i64 %target, ptr %to, ptr %data, i64 %size, "
        "ptr %bar) noinline"
    )
    with c.if_(checking(c)):
        c.do(
            f"call void @async.append(ptr %w, i32 {ASYNC_INLINE}, i32 %site, i32 %lane, i64 %target, ptr %to, "
            "ptr %data, i64 %size, ptr %bar, i32 0)"
        )
    with c.else_():
        c.do(_MOVE.format(to="%to", source="%data", count="%size"))
        c(f"call i64 @mbarrier.apply(ptr %w, ptr %bar, i64 0, i64 {c('sub i64 0, %size')}, i64 0)")
    c.ret()
    return c.text()


def _append() -> str:
    """Put a record at the end of the queue; a full queue lands its oldest record first."""
    c = Code(
        "define internal void @async.append(ptr %w, i32 %kind, i32 %site, i32 %lane, i64 %target, ptr %to, ptr %from, "
        "i64 %size, ptr %bar, i32 %group) noinline"
    )
    thread, first, count = _queue(c)
    with c.if_(c(f"icmp uge i64 {count}, {ASYNC_RECORDS}"), likely=False):
        c.do(f"call void @async.land(ptr {first})")
        rest = c(f"mul i64 {c(f'sub i64 {count}, 1')}, {_SIZE}")
        c.do(f"call void @llvm.memmove.p0.p0.i64(ptr {first}, ptr {c.at(first, _SIZE)}, i64 {rest}, i1 false)")
        c.store("i64", c(f"sub i64 {count}, 1"), thread, THREAD["queued"])
    number = c.load("i64", thread, THREAD["queued"])
    record = c.at(first, c(f"mul i64 {number}, {_SIZE}"))
    c.store("i64", c(f"add i64 {number}, 1"), thread, THREAD["queued"])
    c.store("i32", "%kind", record, ASYNC["kind"])
    c.store("i32", c("trunc i64 %size to i32"), record, ASYNC["bytes"])
    c.store("ptr", "%w", record, ASYNC["warp"])
    c.store("ptr", "%to", record, ASYNC["target"])
    c.store("ptr", "%from", record, ASYNC["source"])
    c.store("ptr", "%bar", record, ASYNC["barrier"])
    c.store("i64", "%target", record, ASYNC["address"])
    for name in ("site", "lane", "group"):
        c.store("i32", f"%{name}", record, ASYNC[name])
    row = c("trunc i64 %size to i32")
    c.do(f"call void @shadow.issue.shared(ptr %w, i32 %site, i32 %lane, i32 {row}, ptr %to, i64 %target, i64 %size)")
    with c.if_(c(f"icmp eq i32 %kind, {ASYNC_INLINE}")):
        c.do(_MOVE.format(to=c.at(record, ASYNC["data"]), source="%from", count="%size"))
    with c.if_(c("icmp ne ptr %bar, null")):  # whoever waits already looks again, and lands it
        gang = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["gang"])
        c.do(f"call void @wake_gang(ptr {gang}, i32 {PARK_MBARRIER}, i64 {c('ptrtoint ptr %bar to i64')})")
    c.ret()
    return c.text()


def _land() -> str:
    """`async.land(record)`: the bytes arrive, and their mbarrier hears of it."""
    c = Code("define internal void @async.land(ptr %record) noinline")
    inline = c(f"icmp eq i32 {c.load('i32', '%record', ASYNC['kind'])}, {ASYNC_INLINE}")
    w, to = c.load("ptr", "%record", ASYNC["warp"]), c.load("ptr", "%record", ASYNC["target"])
    source = c(f"select i1 {inline}, ptr {c.at('%record', ASYNC['data'])}, "
               f"ptr {c.load('ptr', '%record', ASYNC['source'])}")  # fmt: skip
    size = c(f"zext i32 {c.load('i32', '%record', ASYNC['bytes'])} to i64")
    c.do(_MOVE.format(to=to, source=source, count=size))
    bar = c.load("ptr", "%record", ASYNC["barrier"])
    where = f"ptr {w}, i32 {c.load('i32', '%record', ASYNC['site'])}, i32 {c.load('i32', '%record', ASYNC['lane'])}"
    address, row = c.load("i64", "%record", ASYNC["address"]), c.load("i32", "%record", ASYNC["bytes"])
    c.do(f"call void @shadow.land.shared({where}, i32 {row}, ptr {to}, i64 {address}, i64 {size})")
    with c.if_(c(f"icmp ne ptr {bar}, null")):
        cta = c.load("ptr", w, WARP["cta"])
        begin = c(f"ptrtoint ptr {c.load('ptr', cta, CTA['shared'])} to i64")
        offset = c(f"sub i64 {c(f'ptrtoint ptr {bar} to i64')}, {begin}")
        # whoever has waited comes after the copy; an mbarrier of another CTA orders nothing within this one
        with c.if_(c(f"icmp ult i64 {offset}, {c.load('i64', cta, CTA['shared_bytes'])}")):
            c.do(f"call void @race.atomic({where}, i32 8, ptr {bar}, i64 {address}, i64 8, i64 {offset})")
        c(f"call i64 @mbarrier.apply(ptr {w}, ptr {bar}, i64 0, i64 {c(f'sub i64 0, {size}')}, i64 0)")
    c.ret()
    return c.text()


def _sweep(c: Code, chosen: object) -> None:
    """Land the records for which `chosen(record)` gives a true i1, and close the gaps."""
    thread, first, count = _queue(c)
    kept = c.var("i64", 0)
    with c.count("i64", count) as number:
        record = c.at(first, c(f"mul i64 {number}, {_SIZE}"))
        with c.if_(chosen(record)):  # type: ignore[operator]
            c.do(f"call void @async.land(ptr {record})")
        with c.else_():
            here = c.load("i64", kept)
            with c.if_(c(f"icmp ne i64 {here}, {number}")):
                place = c.at(first, c(f"mul i64 {here}, {_SIZE}"))
                c.do(_MOVE.format(to=place, source=record, count=_SIZE))
            c.store("i64", c(f"add i64 {here}, 1"), kept)
    c.store("i64", c.load("i64", kept), thread, THREAD["queued"])


def _land_for() -> str:
    """`async.land_for(w, bar)`: everything that completes on this mbarrier."""
    c = Code("define internal void @async.land_for(ptr %w, ptr %bar) noinline")
    _sweep(c, lambda record: c(f"icmp eq ptr {c.load('ptr', record, ASYNC['barrier'])}, %bar"))
    c.ret()
    return c.text()


def _land_groups() -> str:
    """`async.land_groups(w, mask, keep)`: cp.async of these lanes, all but their last `keep` groups (−1: all)."""
    c = Code("define internal void @async.land_groups(ptr %w, i32 %mask, i32 %keep) noinline")
    groups = c.at("%w", WARP["copy_group"])

    def chosen(record: str) -> str:
        lane = c.load("i32", record, ASYNC["lane"])
        bit = c(f"and i32 {c(f'lshr i32 %mask, {lane}')}, 1")
        own_lane = c(f"icmp ne i32 {bit}, 0")
        own_warp = c(f"icmp eq ptr {c.load('ptr', record, ASYNC['warp'])}, %w")
        no_barrier = c(f"icmp eq ptr {c.load('ptr', record, ASYNC['barrier'])}, null")
        mine = c(f"and i1 {c(f'and i1 {own_lane}, {own_warp}')}, {no_barrier}")
        begun = c.load("i32", c(f"getelementptr i32, ptr {groups}, i32 {lane}"))
        open_ = c(f"sub i32 {begun}, {c.load('i32', record, ASYNC['group'])}")  # groups that began after this copy's
        late = c(f"icmp sgt i32 {open_}, %keep")
        return c(f"and i1 {mine}, {late}")

    _sweep(c, chosen)
    c.ret()
    return c.text()
