"""Bulk copies and asynchronous stores of one lane: operands resolved and checked, then handed to `async_copy`."""

from __future__ import annotations

from ptxgen.runtime.cpu.ir import Code
from ptxgen.runtime.cpu.layout import RANK_SHIFT
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.core import FAULT_ASSERT


@support("bulk")
def bulk(to: str, from_: str, completion: str) -> str:
    """`bulk.TO.FROM.tx|group(w, target_site, source_site, lane, target, source, size, bar, ranks)`.

    `ranks`: CTAs of the cluster that get the bytes (and whose mbarrier hears of them); 0: as the addresses say.
    """
    c = Code(
        f"define internal void @bulk.{to}.{from_}.{completion}(ptr %w, i32 %target_site, i32 %source_site, i32 %lane, "
        "i64 %target, i64 %source, i64 %size, i64 %bar, i32 %ranks) noinline"
    )
    rest = c("and i64 %size, 15")
    with c.if_(c(f"icmp ne i64 {rest}, 0"), likely=False):
        lane = c("shl i32 1, %lane")
        c.do(f"call void @fault(ptr %w, i32 %target_site, i32 {FAULT_ASSERT}, i32 {lane}, i32 16, i64 %size, i64 0)")
        c.ret(when="true")
    source = c(f"call ptr @reach.{from_}(ptr %w, i32 %source_site, i32 %lane, i64 %source, i64 %size, i64 16)")
    c.ret(when=c(f"icmp eq ptr {source}, null"))
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


def _to_one(c: Code, to: str, source: str, target: str, bar: str, tx: bool) -> None:
    place = c(f"call ptr @reach.{to}(ptr %w, i32 %target_site, i32 %lane, i64 {target}, i64 %size, i64 16)")
    c.ret(when=c(f"icmp eq ptr {place}, null"))
    object_ = "null"
    if tx:
        object_ = c(f"call ptr @mbarrier.check(ptr %w, i32 %target_site, i32 %lane, i64 {bar})")
        c.ret(when=c(f"icmp eq ptr {object_}, null"))
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


