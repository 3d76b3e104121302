"""Check mode: the launch's releases: places, a row of record numbers each, and the records.

A place is an address through which CTAs synchronise. Its row has for each CTA the number of a record: 32 clocks, one a
warp. Rows and records are bounded; a launch that needs more is not compared any further (`off`). What releases and
acquires mean is in `release_acquire.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.native.layout import ORDER, ORDER_KEYS, ORDER_PLACES, ORDER_RECORDS, ORDER_TIMES
from ptxgen.runtime.cpu.support import support

_CLOCK = vec("i32")
_CHUNK = 16  # records' numbers that are looked at together
_FULL = ORDER_PLACES * 3 // 4


@support("ledger")
def ledger(what: str) -> str:
    """The IR of `ledger.place`, `.record`, `.merge`, `.join` or `.forget`."""
    return {"place": _place, "record": _record, "merge": _merge, "join": _join, "forget": _forget}[what]()


@contextmanager
def alone(c: Code, block: str) -> Iterator[None]:
    """No other host thread is between these lines."""
    with c.loop() as out:
        before = c(f"atomicrmw xchg ptr {block}, i32 1 acquire")
        c.leave(out, c(f"icmp eq i32 {before}, 0"))
    yield
    c.do(f"store atomic i32 0, ptr {block} release, align 4")


def row_of(c: Code, block: str, place: str) -> str:
    """The row of record numbers of a place."""
    size = c(f"zext i32 {c.load('i32', block, ORDER['row'])} to i64")
    offset = c(f"mul i64 {c(f'zext i32 {place} to i64')}, {c(f'shl i64 {size}, 2')}")
    return c.at(c.load("ptr", block, ORDER["rows"]), offset)


def record_at(c: Code, block: str, number: str) -> str:
    """The address of a record's clocks, 128 bytes."""
    return c.at(c.load("ptr", block, ORDER["clocks"]), c(f"shl i64 {c(f'zext i32 {number} to i64')}, 7"))


def times_of(c: Code, block: str, place: str) -> str:
    return c(f"getelementptr i32, ptr {c.at(block, ORDER_TIMES)}, i32 {place}")


def _place() -> str:
    """`ledger.place(block, key, insert) -> i32`: the number of a place; −1: not there, or (inserting) there is no room,
    which switches the comparison of CTAs off."""
    c = Code("define internal i32 @ledger.place(ptr %block, i64 %key, i1 %insert) noinline")
    keys = c.at("%block", ORDER_KEYS)
    start = c(f"lshr i64 {c('mul i64 %key, -7046029254386353131')}, {64 - (ORDER_PLACES - 1).bit_length()}")
    at = c.var("i64", start)
    with c.loop():
        here = c.load("i64", at)
        slot = c(f"getelementptr i64, ptr {keys}, i64 {here}")
        found = c.load("i64", slot)
        number = c(f"trunc i64 {here} to i32")
        c.ret(f"i32 {number}", when=c(f"icmp eq i64 {found}, %key"))
        with c.if_(c(f"icmp eq i64 {found}, 0")):
            c.ret("i32 -1", when=c("xor i1 %insert, true"))
            used, ctas = c.load("i32", "%block", ORDER["places"]), c.load("i32", "%block", ORDER["ctas"])
            full = c(f"icmp uge i32 {used}, {_FULL}")
            with c.if_(c(f"or i1 {full}, {c(f'icmp eq i32 {ctas}, 0')}")):
                c.store("i32", 1, "%block", ORDER["off"])
                c.ret("i32 -1", when="true")
            c.store("i32", c(f"add i32 {used}, 1"), "%block", ORDER["places"])
            c.store("i64", "%key", slot)
            size = c(f"zext i32 {c.load('i32', '%block', ORDER['row'])} to i64")
            row = row_of(c, "%block", number)
            c.do(f"call void @llvm.memset.p0.i64(ptr {row}, i8 0, i64 {c(f'shl i64 {size}, 2')}, i1 false)")
            c.ret(f"i32 {number}", when="true")
        c.store("i64", c(f"and i64 {c(f'add i64 {here}, 1')}, {ORDER_PLACES - 1}"), at)
    c.do("unreachable")
    return c.text()


def _forget() -> str:
    """`ledger.forget(block, begin, length)`: the places among these addresses have no release any more."""
    c = Code("define internal void @ledger.forget(ptr %block, i64 %begin, i64 %length) noinline")
    kind, lanes = vec("i64"), vec("i1")
    begin, length = c.spread("i64", "%begin"), c.spread("i64", "%length")
    size = c(f"zext i32 {c.load('i32', '%block', ORDER['row'])} to i64")
    with c.count("i32", ORDER_PLACES // 32) as chunk:
        first = c(f"shl i32 {chunk}, 5")
        keys = c.load(kind, c(f"getelementptr i64, ptr {c.at('%block', ORDER_KEYS)}, i32 {first}"), align=8)
        among = c(f"icmp ult {kind} {c(f'sub {kind} {keys}, {begin}')}, {length}")
        bits = c(f"bitcast {lanes} {among} to i32")
        with c.each_bit(bits) as n:
            row = row_of(c, "%block", c(f"add i32 {first}, {n}"))
            c.do(f"call void @llvm.memset.p0.i64(ptr {row}, i8 0, i64 {c(f'shl i64 {size}, 2')}, i1 false)")
    c.ret()
    return c.text()


def _record() -> str:
    """`ledger.record(block) -> i32`: the number of a new record; 0, a record without clocks, where there is no room."""
    c = Code("define internal i32 @ledger.record(ptr %block) noinline")
    number = c(f"add i32 {c.load('i32', '%block', ORDER['records'])}, 1")
    with c.if_(c(f"icmp uge i32 {number}, {ORDER_RECORDS}"), likely=False):
        c.store("i32", 1, "%block", ORDER["off"])
        c.ret("i32 0", when="true")
    c.store("i32", number, "%block", ORDER["records"])
    c.ret(f"i32 {number}")
    return c.text()


def _merge() -> str:
    """`ledger.merge(block, a, b) -> i32`: a record of what either knows."""
    c = Code("define internal i32 @ledger.merge(ptr %block, i32 %a, i32 %b) noinline")
    same, nothing = c("icmp eq i32 %a, %b"), c("icmp eq i32 %b, 0")
    c.ret("i32 %a", when=c(f"or i1 {same}, {nothing}"))
    c.ret("i32 %b", when=c("icmp eq i32 %a, 0"))
    a, b = (c.load(_CLOCK, record_at(c, "%block", f"%{name}"), align=64) for name in "ab")
    both = c(f"call {_CLOCK} @llvm.umax.v32i32({_CLOCK} {a}, {_CLOCK} {b})")
    for name, value in (("a", a), ("b", b)):
        differ = c(f"bitcast {vec('i1')} {c(f'icmp ne {_CLOCK} {both}, {value}')} to i32")
        c.ret(f"i32 %{name}", when=c(f"icmp eq i32 {differ}, 0"))
    fresh = c("call i32 @ledger.record(ptr %block)")
    with c.if_(c(f"icmp ne i32 {fresh}, 0")):
        c.store(_CLOCK, both, record_at(c, "%block", fresh), align=64)
    c.ret(f"i32 {fresh}")
    return c.text()


def _join() -> str:
    """`ledger.join(block, into, from) -> i1`: rows of record numbers; whether the first has changed."""
    c = Code("define internal i1 @ledger.join(ptr %block, ptr %into, ptr %from) noinline")
    grown = c.var("i1", "false")
    kind, lanes = vec("i32", _CHUNK), vec("i1", _CHUNK)
    chunks = c(f"lshr i32 {c.load('i32', '%block', ORDER['row'])}, {_CHUNK.bit_length() - 1}")
    with c.count("i32", chunks) as chunk:
        start = c(f"shl i64 {c(f'zext i32 {chunk} to i64')}, {_CHUNK.bit_length() + 1}")
        here, there = c.at("%into", start), c.at("%from", start)
        old, new = c.load(kind, here, align=4), c.load(kind, there, align=4)
        news = c(f"and {lanes} {c(f'icmp ne {kind} {old}, {new}')}, {c(f'icmp ne {kind} {new}, zeroinitializer')}")
        bits = c(f"zext i{_CHUNK} {c(f'bitcast {lanes} {news} to i{_CHUNK}')} to i32")
        with c.each_bit(bits) as n:
            slot = c(f"getelementptr i32, ptr {here}, i32 {n}")
            other = c.load("i32", c(f"getelementptr i32, ptr {there}, i32 {n}"))
            mine = c.load("i32", slot)
            both = c(f"call i32 @ledger.merge(ptr %block, i32 {mine}, i32 {other})")
            c.store("i32", both, slot)
            with c.if_(c(f"icmp ne i32 {both}, {mine}")):
                c.store("i1", "true", grown)
    c.ret("i1 " + c.load("i1", grown))
    return c.text()
