"""Asynchronous copies: at once in fast mode; in check mode kept in the thread's queue until a wait for them.

A copy that lands only at its wait shows a missing wait: the reader finds what was there before.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import (
    ASYNC,
    ASYNC_COPY,
    ASYNC_INLINE,
    ASYNC_OUT,
    ASYNC_PRODUCT,
    ASYNC_RECORDS,
    CTA,
    GANG,
    LAUNCH,
    PARK_MBARRIER,
    RANK_SHIFT,
    RELEASE,
    SHARED_BASE,
    THREAD,
    WARP,
)
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_LEFT, FAULT_PHASE
from ptxgen.runtime.cpu.support.mbarrier import checking, open_phase

_SIZE = ASYNC["_end"]


@support("async")
def async_(what: str, *_: str) -> str:
    """`async.copy`, `.bulk`, `.store`, `.append`, `.land`, `.land_for`, `.land_groups|out`, `.land_products`,
    `.left`, `.forget`: see each."""
    return {
        "copy": _copy, "bulk": _bulk, "store": _store, "append": _append, "land": _land, "land_for": _land_for,
        "land_groups": lambda: _land_groups("land_groups", ASYNC_INLINE, "copy_group"),
        "land_out": lambda: _land_groups("land_out", ASYNC_OUT, "bulk_group"), "forget": _forget,
        "left": _left, "land_products": _land_products,
    }[what]()  # fmt: skip


def _queue(c: Code) -> tuple[str, str, str]:
    """(thread, first record, number of records)."""
    thread = c.load("ptr", "%w", WARP["thread"])
    return thread, c.load("ptr", thread, THREAD["queue"]), c.load("i64", thread, THREAD["queued"])


def moved_by(c: Code, mover: str) -> str:
    """The record that was appended last, from now on landed by `mover(record)`."""
    _, first, count = _queue(c)
    record = c.at(first, c(f"mul i64 {c(f'sub i64 {count}, 1')}, {_SIZE}"))
    c.store("ptr", f"@{mover}", record, ASYNC["mover"])
    return record


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
        c.move(data, from_, "%bytes")
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
        c.move(to, data, "%size")
    c.ret()
    return c.text()


def _bulk() -> str:
    """`async.bulk(w, site, lane, target, to, from, size, bar)`: bytes that complete on an mbarrier, or (none: out of
    shared memory) in the lane's bulk group."""
    c = Code(
        "define internal void @async.bulk(ptr %w, i32 %site, i32 %lane, i64 %target, ptr %to, ptr %from, i64 %size, "
        "ptr %bar) noinline"
    )
    with c.if_(checking(c)):
        kind = c(f"select i1 {c('icmp ne ptr %bar, null')}, i32 {ASYNC_COPY}, i32 {ASYNC_OUT}")
        groups = c.at("%w", WARP["bulk_group"])
        group = c.load("i32", c(f"getelementptr i32, ptr {groups}, i32 %lane"))
        c.do(
            f"call void @async.append(ptr %w, i32 {kind}, i32 %site, i32 %lane, i64 %target, ptr %to, ptr %from, "
            f"i64 %size, ptr %bar, i32 {group})"
        )
    with c.else_():
        c.move("%to", "%from", "%size")
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
        c.move("%to", "%data", "%size")
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
    c.store("ptr", "null", thread, THREAD["swept"])
    c.store("i32", "%kind", record, ASYNC["kind"])
    c.store("i32", c("trunc i64 %size to i32"), record, ASYNC["bytes"])
    c.store("ptr", "%w", record, ASYNC["warp"])
    c.store("ptr", "%to", record, ASYNC["target"])
    c.store("ptr", "%from", record, ASYNC["source"])
    c.store("ptr", "%bar", record, ASYNC["barrier"])
    c.store("i64", "%target", record, ASYNC["address"])
    c.store("ptr", "null", record, ASYNC["mover"])
    for name in ("site", "lane", "group"):
        c.store("i32", f"%{name}", record, ASYNC[name])
    row = c("trunc i64 %size to i32")
    with c.if_(c(f"icmp ult i32 %kind, {ASYNC_OUT}")):
        head = f"ptr %w, i32 %site, i32 %lane, i32 {row}"
        c.do(f"call void @shadow.issue.shared({head}, ptr %to, i64 %target, i64 %size)")
    with c.if_(c(f"icmp eq i32 %kind, {ASYNC_INLINE}")):
        c.move(c.at(record, ASYNC["data"]), "%from", "%size")
    with c.if_(c(f"icmp eq i32 %kind, {ASYNC_OUT}")):
        cta = c.load("ptr", "%w", WARP["cta"])
        now = c(f"add i32 {c.load('i32', cta, CTA['epoch'])}, 1")
        c.store("i32", now, cta, CTA["epoch"])
        c.store("i32", now, record, ASYNC["count"])  # what was written before has an earlier stamp
    with c.if_(c("icmp ne ptr %bar, null")):  # a thread that waits already looks again, and lands it
        c.store("i32", open_phase(c, "%bar"), record, ASYNC["count"])
        gang = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["gang"])
        c.do(f"call void @wake_gang(ptr {gang}, i32 {PARK_MBARRIER}, i64 {c('ptrtoint ptr %bar to i64')})")
    c.ret()
    return c.text()


def _look_at_source(c: Code, w: str, where: str, row: str, size: str) -> None:
    """A copy out of shared memory has read its source until now: no thread may have written there meanwhile."""
    cta = c.load("ptr", w, WARP["cta"])
    begin = c(f"ptrtoint ptr {c.load('ptr', cta, CTA['shared'])} to i64")
    since = c.load("i32", "%record", ASYNC["count"])
    for name in ("source", "target"):  # tensor copies have their box as the target
        there = c.load("ptr", "%record", ASYNC[name])
        offset = c(f"sub i64 {c(f'ptrtoint ptr {there} to i64')}, {begin}")
        with c.if_(c(f"icmp ult i64 {offset}, {c.load('i64', cta, CTA['shared_bytes'])}")):
            address = c(f"add i64 {offset}, {SHARED_BASE}")
            place = f"ptr {there}, i64 {address}, i64 {size}, i64 {offset}"
            c.do(f"call void @proxy.kept({where}, i32 {row}, {place}, i32 {since})")


def _look_at_phase(c: Code, w: str, bar: str, row: str) -> None:
    """The phase that a copy was issued in must not be over before its bytes were: expect_tx has left them out."""
    ended = c(f"icmp ne i32 {open_phase(c, bar)}, {c.load('i32', '%record', ASYNC['count'])}")
    with c.if_(ended, likely=False):
        site, lane = c.load("i32", "%record", ASYNC["site"]), c.load("i32", "%record", ASYNC["lane"])
        what = f"i32 {c(f'shl i32 1, {lane}')}, i32 {row}, i64 {c.load('i64', '%record', ASYNC['address'])}, i64 0"
        c.do(f"call void @fault(ptr {w}, i32 {site}, i32 {FAULT_PHASE}, {what})")


def _land() -> str:
    """`async.land(record)`: the bytes are written, and their mbarrier is told."""
    c = Code("define internal void @async.land(ptr %record) noinline")
    inline = c(f"icmp eq i32 {c.load('i32', '%record', ASYNC['kind'])}, {ASYNC_INLINE}")
    w, to = c.load("ptr", "%record", ASYNC["warp"]), c.load("ptr", "%record", ASYNC["target"])
    source = c(f"select i1 {inline}, ptr {c.at('%record', ASYNC['data'])}, "
               f"ptr {c.load('ptr', '%record', ASYNC['source'])}")  # fmt: skip
    size = c(f"zext i32 {c.load('i32', '%record', ASYNC['bytes'])} to i64")
    mover = c.load("ptr", "%record", ASYNC["mover"])
    plain = c(f"icmp eq ptr {mover}, null")
    with c.if_(plain):
        c.move(to, source, size)
    with c.else_():
        c.do(f"call void {mover}(ptr %record)")
    bar = c.load("ptr", "%record", ASYNC["barrier"])
    where = f"ptr {w}, i32 {c.load('i32', '%record', ASYNC['site'])}, i32 {c.load('i32', '%record', ASYNC['lane'])}"
    address, row = c.load("i64", "%record", ASYNC["address"]), c.load("i32", "%record", ASYNC["bytes"])
    with c.if_(c(f"icmp uge i32 {c.load('i32', '%record', ASYNC['kind'])}, {ASYNC_OUT}")):
        with c.if_(c(f"icmp eq i32 {c.load('i32', '%record', ASYNC['kind'])}, {ASYNC_OUT}")):
            _look_at_source(c, w, where, row, size)
        with c.if_(plain):
            # the shadow looks where the site was
            c(f"call ptr @resolve.global.write({where}, i64 {address}, i64 {size})")
            c.do(f"call void @shadow.write.global({where}, i32 {row}, ptr {to}, i64 {address}, i64 {size})")
        c.ret(when="true")
    c.do(f"call void @shadow.land.shared({where}, i32 {row}, ptr {to}, i64 {address}, i64 {size})")
    with c.if_(c(f"icmp ne ptr {bar}, null")):
        cta = c.load("ptr", w, WARP["cta"])
        begin = c(f"ptrtoint ptr {c.load('ptr', cta, CTA['shared'])} to i64")
        offset = c(f"sub i64 {c(f'ptrtoint ptr {bar} to i64')}, {begin}")
        rank = c(f"lshr i64 {address}, {RANK_SHIFT}")
        with c.if_(c(f"and i1 {c(f'xor i1 {inline}, true')}, {c(f'icmp eq i64 {rank}, 0')}")):
            c.do(f"call void @proxy.wrote(ptr {w}, i64 {c(f'sub i64 {address}, {SHARED_BASE}')}, i64 {size})")
        # a thread that has waited comes after the copy; an mbarrier of another CTA orders nothing within this one
        with c.if_(c(f"icmp ult i64 {offset}, {c.load('i64', cta, CTA['shared_bytes'])}")):
            c.do(f"call void @clock.leave({where}, i32 8, ptr {bar}, i64 {address}, i64 8, i64 {offset})")
        with c.if_(c(f"icmp ne i64 {rank}, 0")):  # the mbarrier of another CTA, which its threads wait for
            _release(c, w, bar)
        _look_at_phase(c, w, bar, row)
        c(f"call i64 @mbarrier.apply(ptr {w}, ptr {bar}, i64 0, i64 {c(f'sub i64 0, {size}')}, i64 0)")
    c.ret()
    return c.text()


def _release(c: Code, w: str, bar: str) -> None:
    """Once for records of a warp and an mbarrier that land one after the other."""
    thread = c.load("ptr", w, WARP["thread"])
    same_warp = c(f"icmp eq ptr {c.load('ptr', thread, THREAD['landed'])}, {w}")
    same_bar = c(f"icmp eq ptr {c.load('ptr', thread, THREAD['landed_for'])}, {bar}")
    with c.if_(c(f"xor i1 {c(f'and i1 {same_warp}, {same_bar}')}, true")):
        c.store("ptr", w, thread, THREAD["landed"])
        c.store("ptr", bar, thread, THREAD["landed_for"])
        c.do(f"call void @order.release(ptr {w}, i64 {c(f'ptrtoint ptr {bar} to i64')}, i32 {RELEASE})")


def _sweep(c: Code, chosen: object, queue: tuple[str, str, str] | None = None, land: bool = True) -> None:
    """Land (or drop) the records for which `chosen(record)` gives a true i1, and close the gaps."""
    thread, first, count = queue or _queue(c)
    c.store("ptr", "null", thread, THREAD["landed"])
    kept = c.var("i64", 0)
    with c.count("i64", count) as number:
        record = c.at(first, c(f"mul i64 {number}, {_SIZE}"))
        with c.if_(chosen(record)):  # type: ignore[operator]
            if land:
                c.do(f"call void @async.land(ptr {record})")
        with c.else_():
            here = c.load("i64", kept)
            with c.if_(c(f"icmp ne i64 {here}, {number}")):
                place = c.at(first, c(f"mul i64 {here}, {_SIZE}"))
                c.move(place, record, _SIZE)
            c.store("i64", c(f"add i64 {here}, 1"), kept)
    c.store("i64", c.load("i64", kept), thread, THREAD["queued"])


def _land_for() -> str:
    """`async.land_for(w, bar)`: everything that completes on this mbarrier. The lanes of a warp ask one by one."""
    c = Code("define internal void @async.land_for(ptr %w, ptr %bar) noinline")
    thread, _, _ = _queue(c)
    c.ret(when=c(f"icmp eq ptr {c.load('ptr', thread, THREAD['swept'])}, %bar"))
    _sweep(c, lambda record: c(f"icmp eq ptr {c.load('ptr', record, ASYNC['barrier'])}, %bar"))
    c.store("ptr", "%bar", thread, THREAD["swept"])
    c.ret()
    return c.text()


def _land_groups(name: str, kind: int, counters: str) -> str:
    """`async.land_groups|land_out(w, mask, keep)`: cp.async (bulk copies to global memory) of these lanes, all but
    their last `keep` groups (−1: all of them)."""
    c = Code(f"define internal void @async.{name}(ptr %w, i32 %mask, i32 %keep) noinline")
    groups = c.at("%w", WARP[counters])

    def chosen(record: str) -> str:
        lane = c.load("i32", record, ASYNC["lane"])
        bit = c(f"and i32 {c(f'lshr i32 %mask, {lane}')}, 1")
        own_lane = c(f"icmp ne i32 {bit}, 0")
        own_warp = c(f"icmp eq ptr {c.load('ptr', record, ASYNC['warp'])}, %w")
        of_kind = c(f"icmp eq i32 {c.load('i32', record, ASYNC['kind'])}, {kind}")
        no_barrier = c(f"icmp eq ptr {c.load('ptr', record, ASYNC['barrier'])}, null")
        mine = c(f"and i1 {c(f'and i1 {own_lane}, {own_warp}')}, {c(f'and i1 {of_kind}, {no_barrier}')}")
        begun = c.load("i32", c(f"getelementptr i32, ptr {groups}, i32 {lane}"))
        open_ = c(f"sub i32 {begun}, {c.load('i32', record, ASYNC['group'])}")  # groups that began after this copy's
        late = c(f"icmp sgt i32 {open_}, %keep")
        return c(f"and i1 {mine}, {late}")

    _sweep(c, chosen)
    c.ret()
    return c.text()


def _land_products() -> str:
    """`async.land_products(w)`: the warp's products of groups that are done; they read their operands until now."""
    c = Code("define internal void @async.land_products(ptr %w) noinline")
    done = c.load("i32", "%w", WARP["wgmma_done"])

    def chosen(record: str) -> str:
        own_warp = c(f"icmp eq ptr {c.load('ptr', record, ASYNC['warp'])}, %w")
        of_kind = c(f"icmp eq i32 {c.load('i32', record, ASYNC['kind'])}, {ASYNC_PRODUCT}")
        over = c(f"icmp ule i32 {c.load('i32', record, ASYNC['group'])}, {done}")
        return c(f"and i1 {c(f'and i1 {own_warp}, {of_kind}')}, {over}")

    _sweep(c, chosen)
    c.ret()
    return c.text()


def _left() -> str:
    """`async.left(w)`: as a CTA exits, a bulk copy out of its shared memory, or anything that will complete on one of
    its mbarriers, is a finding. (A cp.async without a wait is none.)"""
    c = Code("define internal void @async.left(ptr %w) noinline")
    _, first, count = _queue(c)
    cta = c.load("ptr", "%w", WARP["cta"])
    begin = c(f"ptrtoint ptr {c.load('ptr', cta, CTA['shared'])} to i64")
    with c.count("i64", count) as number:
        record = c.at(first, c(f"mul i64 {number}, {_SIZE}"))
        offset = c(f"sub i64 {c.load('i64', record, ASYNC['barrier'])}, {begin}")
        in_ = c(f"icmp ult i64 {offset}, {c.load('i64', cta, CTA['shared_bytes'])}")
        out = c(f"icmp eq i32 {c.load('i32', record, ASYNC['kind'])}, {ASYNC_OUT}")
        issuer = c.load("ptr", record, ASYNC["warp"])
        own = c(f"icmp eq ptr {c.load('ptr', issuer, WARP['cta'])}, {cta}")
        with c.if_(c(f"or i1 {in_}, {c(f'and i1 {out}, {own}')}"), likely=False):
            site, lane = c.load("i32", record, ASYNC["site"]), c.load("i32", record, ASYNC["lane"])
            bit = c(f"shl i32 1, {lane}")
            # the report is of the warp that has issued it, and this one stops
            c.do(f"call void @fault(ptr {issuer}, i32 {site}, i32 {FAULT_LEFT}, i32 {bit}, i32 0, i64 0, i64 0)")
            c.do(f"call void @fault(ptr %w, i32 {site}, i32 {FAULT_LEFT}, i32 {bit}, i32 0, i64 0, i64 0)")
            c.ret(when="true")
    c.ret()
    return c.text()


def _forget() -> str:
    """`async.forget(gang)`: what an earlier gang in these structures never waited for does not land any more."""
    c = Code("define internal void @async.forget(ptr %gang) noinline")
    thread, launch = c.load("ptr", "%gang", GANG["thread"]), c.load("ptr", "%gang", GANG["launch"])
    first, count = c.load("ptr", thread, THREAD["queue"]), c.load("i64", thread, THREAD["queued"])
    warps = c(f"mul i32 {c.load('i32', launch, LAUNCH['warps'])}, {c.load('i32', '%gang', GANG['count'])}")
    length = c(f"mul i64 {c(f'zext i32 {warps} to i64')}, {c.load('i64', launch, LAUNCH['warp_stride'])}")
    begin = c(f"ptrtoint ptr {c.load('ptr', c.load('ptr', '%gang', GANG['ctas']), CTA['warps'])} to i64")

    def chosen(record: str) -> str:
        warp = c(f"ptrtoint ptr {c.load('ptr', record, ASYNC['warp'])} to i64")
        return c(f"icmp ult i64 {c(f'sub i64 {warp}, {begin}')}, {length}")

    _sweep(c, chosen, (thread, first, count), land=False)
    c.ret()
    return c.text()
