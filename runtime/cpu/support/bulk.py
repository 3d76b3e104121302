"""Bulk copies, bulk reductions and asynchronous stores of one lane.

Operands are resolved and checked here, and handed to `async_copy`.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import ASYNC, ASYNC_OUT, RANK_SHIFT, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.async_copy import moved_by
from ptxgen.runtime.cpu.support.atomic import modify
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT
from ptxgen.runtime.cpu.support.mbarrier import checking


@support("bulk")
def bulk(to: str, from_: str, completion: str) -> str:
    """`bulk.TO.FROM.tx|group(w, target_site, source_site, lane, target, source, size, bar, ranks)`.

    `ranks`: CTAs of the cluster that get the bytes (and whose mbarrier counts them); 0: as the addresses say.
    """
    c = Code(
        f"define internal void @bulk.{to}.{from_}.{completion}(ptr %w, i32 %target_site, i32 %source_site, i32 %lane, "
        "i64 %target, i64 %source, i64 %size, i64 %bar, i32 %ranks) noinline"
    )
    source = _source(c, from_)
    tx = completion == "tx"
    with c.if_(c("icmp eq i32 %ranks, 0")):
        _to_one(c, to, source, "%target", "%bar", tx)
    with c.else_(), c.each_bit("%ranks") as rank:
        plus_one = c(f"add i32 {rank}, 1")
        field = c(f"shl i64 {c(f'zext i32 {plus_one} to i64')}, {RANK_SHIFT}")
        there = [c(f"or i64 {c(f'and i64 {name}, {(1 << RANK_SHIFT) - 1}')}, {field}") for name in ("%target", "%bar")]
        _to_one(c, to, source, there[0], there[1], tx)
    c.ret()
    return c.text()


def _source(c: Code, from_: str) -> str:
    """The source's host address; returns where size or source are wrong."""
    rest = c("and i64 %size, 15")
    with c.if_(c(f"icmp ne i64 {rest}, 0"), likely=False):
        lane = c("shl i32 1, %lane")
        c.do(f"call void @fault(ptr %w, i32 %target_site, i32 {FAULT_ASSERT}, i32 {lane}, i32 16, i64 %size, i64 0)")
        c.ret(when="true")
    c.ret(when=c("icmp eq i64 %size, 0"))
    source = c(f"call ptr @reach.{from_}(ptr %w, i32 %source_site, i32 %lane, i64 %source, i64 %size, i64 16)")
    c.ret(when=c(f"icmp eq ptr {source}, null"))
    with c.if_(checking(c)):
        row = c("trunc i64 %size to i32")
        told = f"shadow.{'fetch' if from_ == 'shared' else 'read'}.{from_}"
        head = f"ptr %w, i32 %source_site, i32 %lane, i32 {row}"
        c.do(f"call void @{told}({head}, ptr {source}, i64 %source, i64 %size)")
    return source


@support("bulk_reduce")
def bulk_reduce(to: str, operation: str, kind: str, completion: str) -> str:
    """`bulk_reduce.TO.OP.TYPE.tx|group(w, target_site, source_site, lane, target, source, size, bar)`: every element of
    the source is combined with the target's: at once, or (check mode, in a bulk group) when that is waited for."""
    c = Code(
        f"define internal void @bulk_reduce.{to}.{operation}.{kind}.{completion}(ptr %w, i32 %target_site, "
        "i32 %source_site, i32 %lane, i64 %target, i64 %source, i64 %size, i64 %bar) noinline"
    )
    source = _source(c, "shared")
    place = c(f"call ptr @reach.{to}.write(ptr %w, i32 %target_site, i32 %lane, i64 %target, i64 %size, i64 16)")
    c.ret(when=c(f"icmp eq ptr {place}, null"))
    bar = "null"
    if completion == "tx":
        bar = c("call ptr @mbarrier.check(ptr %w, i32 %target_site, i32 %lane, i64 %bar)")
        c.ret(when=c(f"icmp eq ptr {bar}, null"))
    with c.if_(checking(c)):
        if completion == "group":
            groups = c.at("%w", WARP["bulk_group"])
            group = c.load("i32", c(f"getelementptr i32, ptr {groups}, i32 %lane"))
            c.do(
                f"call void @async.append(ptr %w, i32 {ASYNC_OUT}, i32 %target_site, i32 %lane, i64 %target, "
                f"ptr {place}, ptr {source}, i64 %size, ptr null, i32 {group})"
            )
            moved_by(c, f"bulk_reduced.{operation}.{kind}")
            c.ret(when="true")
        row = c("trunc i64 %size to i32")
        c.do(
            f"call void @shadow.atomic.{to}(ptr %w, i32 %target_site, i32 %lane, i32 {row}, ptr {place}, i64 %target, "
            "i64 %size)"
        )
    _combine(c, operation, kind, place, source, "%size")
    if completion == "tx":
        c(f"call i64 @mbarrier.apply(ptr %w, ptr {bar}, i64 0, i64 {c('sub i64 0, %size')}, i64 0)")
    c.ret()
    return c.text()


@support("bulk_reduced")
def bulk_reduced(operation: str, kind: str) -> str:
    """`bulk_reduced.OP.TYPE(record)`: global memory gets a reduction that was in a bulk group."""
    c = Code(f"define internal void @bulk_reduced.{operation}.{kind}(ptr %record) noinline")
    w, place, source = (c.load("ptr", "%record", ASYNC[name]) for name in ("warp", "target", "source"))
    site, lane, row = (c.load("i32", "%record", ASYNC[name]) for name in ("site", "lane", "bytes"))
    address, size = c.load("i64", "%record", ASYNC["address"]), c(f"zext i32 {row} to i64")
    head = f"ptr {w}, i32 {site}, i32 {lane}"
    c(f"call ptr @resolve.global.write({head}, i64 {address}, i64 {size})")  # the shadow looks where the site was
    c.do(f"call void @shadow.atomic.global({head}, i32 {row}, ptr {place}, i64 {address}, i64 {size})")
    _combine(c, operation, kind, place, source, size)
    c.ret()
    return c.text()


def _combine(c: Code, operation: str, kind: str, place: str, source: str, size: str) -> None:
    bytes_ = bits_of(kind) // 8
    with c.count("i64", c(f"udiv i64 {size}, {bytes_}")) as number:
        offset = c(f"mul i64 {number}, {bytes_}")
        value = c.load(f"i{8 * bytes_}", c.at(source, offset))
        modify(c, operation, kind, c.at(place, offset), value)


def _to_one(c: Code, to: str, source: str, target: str, bar: str, tx: bool) -> None:
    place = c(f"call ptr @reach.{to}.write(ptr %w, i32 %target_site, i32 %lane, i64 {target}, i64 %size, i64 16)")
    c.ret(when=c(f"icmp eq ptr {place}, null"))
    object_ = "null"
    if tx:
        object_ = c(f"call ptr @mbarrier.check(ptr %w, i32 %target_site, i32 %lane, i64 {bar})")
        c.ret(when=c(f"icmp eq ptr {object_}, null"))
        with c.if_(checking(c)):  # the asynchronous proxy must see its initialisation
            head = "ptr %w, i32 %target_site, i32 %lane, i32 8"
            c.do(f"call void @shadow.fetch.shared({head}, ptr {object_}, i64 {bar}, i64 8)")
    c.do(
        f"call void @async.bulk(ptr %w, i32 %target_site, i32 %lane, i64 {target}, ptr {place}, ptr {source}, "
        f"i64 %size, ptr {object_})"
    )


@support("async_store")
def async_store(operator: str, kind: str, count: str) -> str:
    """`async_store.OP.TYPE.vN(w, site, site, lane, target, bar, value…)`: st.async (`store`), red.async of a lane."""
    bits, items = int(kind[1:]), int(count[1:])
    values = ", ".join(f"i{bits} %value{n}" for n in range(items))
    c = Code(
        f"define internal void @async_store.{operator}.{kind}.{count}(ptr %w, i32 %site, i32 %bar_site, i32 %lane, "
        f"i64 %target, i64 %bar, {values}) noinline"
    )
    size = bits // 8 * items
    place = c(f"call ptr @reach.shared(ptr %w, i32 %site, i32 %lane, i64 %target, i64 {size}, i64 {size})")
    c.ret(when=c(f"icmp eq ptr {place}, null"))
    object_ = c("call ptr @mbarrier.check(ptr %w, i32 %bar_site, i32 %lane, i64 %bar)")
    c.ret(when=c(f"icmp eq ptr {object_}, null"))
    if operator != "store":
        _reduce(c, operator, kind, place)
        c(f"call i64 @mbarrier.apply(ptr %w, ptr {object_}, i64 0, i64 -{size}, i64 0)")
        c.ret()
        return c.text()
    data = c.var("<2 x i64>", align=16)
    for n in range(items):
        c.store(f"i{bits}", f"%value{n}", data, bits // 8 * n)
    c.do(
        f"call void @async.store(ptr %w, i32 %site, i32 %lane, i64 %target, ptr {place}, ptr {data}, i64 {size}, "
        f"ptr {object_})"
    )
    c.ret()
    return c.text()


def _reduce(c: Code, operator: str, kind: str, place: str) -> None:
    """Host threads do not share a cluster, so a plain read, compute, write is atomic enough."""
    whole = f"i{kind[1:]}"
    old = c.load(whole, place)
    if operator in ("add", "and", "or", "xor"):
        new = c(f"{operator} {whole} {old}, %value0")
    elif operator in ("min", "max"):
        sign = "s" if kind[0] == "s" else "u"
        new = c(f"call {whole} @llvm.{sign}{operator}.{whole}({whole} {old}, {whole} %value0)")
    elif operator == "inc":
        over = c(f"icmp uge {whole} {old}, %value0")
        new = c(f"select i1 {over}, {whole} 0, {whole} {c(f'add {whole} {old}, 1')}")
    else:
        zero, over = c(f"icmp eq {whole} {old}, 0"), c(f"icmp ugt {whole} {old}, %value0")
        wraps = c(f"or i1 {zero}, {over}")
        new = c(f"select i1 {wraps}, {whole} %value0, {whole} {c(f'sub {whole} {old}, 1')}")
    c.store(whole, new, place)
