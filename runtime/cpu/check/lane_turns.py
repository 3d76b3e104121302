"""Check mode: which lanes of a warp have synchronised with which, by `bar.warp.sync` of a part of the warp.

Of the whole warp it moves `WARP["synced"]` (`vector_clocks.py`). Else each lane keeps the time up to which it knows
every other one's accesses: lanes that meet tell each other what they know.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.native.layout import CHECK, CTA, TURNS_BYTES, WARP
from ptxgen.runtime.cpu.support import support

_ROW = vec("i32")


@support("turns")
def turns(what: str) -> str:
    """`turns.meet(w, mask, members)` where the lanes of `mask` execute `bar.warp.sync`, each for its members.

    `turns.known(w, stamp, earlier, lane) -> i1`: whether `lane` has met `earlier` since the stamp; where one of them
    is several lanes or not known, whether any lanes have met since.
    """
    return {"meet": _meet, "known": _known}[what]()


def _rows(c: Code) -> str:
    """The warp's rows, one a lane."""
    block = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["races"])
    number = c(f"zext i32 {c.load('i32', '%w', WARP['id'])} to i64")
    return c.at(c.load("ptr", block, CHECK["turns"]), c(f"mul i64 {number}, {TURNS_BYTES}"))


def _meet() -> str:
    c = Code(f"define internal void @turns.meet(ptr %w, i32 %mask, {_ROW} %members) noinline")
    live = c(f"xor i32 {c.load('i32', '%w', WARP['exited'])}, -1")
    every = c.spread("i32", live)
    covered = c(f"icmp eq {_ROW} {c(f'and {_ROW} %members, {every}')}, {every}")
    whole = c(f"bitcast {vec('i1')} {covered} to i32")
    with c.if_(c(f"icmp eq i32 {c(f'and i32 {whole}, {live}')}, {live}"), likely=True):
        c.do("call void @clock.turn(ptr %w)")
        c.ret(when="true")
    cta = c.load("ptr", "%w", WARP["cta"])
    now = c(f"add i32 {c.load('i32', cta, CTA['epoch'])}, 1")
    c.store("i32", now, cta, CTA["epoch"])
    c.store("i32", c(f"shl i32 {now}, 5"), "%w", WARP["met"])
    rows, before = _rows(c), c.var(f"[32 x {_ROW}]", align=64)
    c.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {before}, ptr {rows}, i64 {TURNS_BYTES}, i1 false)")
    members, row, of = c.var(_ROW, "%members", align=64), c.var(_ROW, "zeroinitializer", align=64), c.var("i32", 0)
    with c.each_bit("%mask") as lane:
        named = c.load("i32", c(f"getelementptr i32, ptr {members}, i32 {lane}"))
        group = c(f"and i32 {named}, %mask")
        with c.if_(c(f"icmp ne i32 {group}, {c.load('i32', of)}")):
            c.store("i32", group, of)
            c.store(_ROW, "zeroinitializer", row, align=64)
            with c.each_bit(group) as other:
                theirs = c.load(_ROW, c(f"getelementptr {_ROW}, ptr {before}, i32 {other}"), align=64)
                both = c(f"call {_ROW} @llvm.umax.v32i32({_ROW} {theirs}, {_ROW} {c.load(_ROW, row, align=64)})")
                c.store(_ROW, both, row, align=64)
            among = c(f"bitcast i32 {group} to {vec('i1')}")
            told = c(f"select {vec('i1')} {among}, {_ROW} {c.spread('i32', now)}, {_ROW} {c.load(_ROW, row, align=64)}")
            c.store(_ROW, told, row, align=64)
        c.store(_ROW, c.load(_ROW, row, align=64), c(f"getelementptr {_ROW}, ptr {rows}, i32 {lane}"), align=64)
    c.ret()
    return c.text()


def _known() -> str:
    c = Code("define internal i1 @turns.known(ptr %w, i32 %stamp, i8 %earlier, i8 %lane)")
    met = c.load("i32", "%w", WARP["met"])
    one = c(f"icmp ult i8 {c('call i8 @llvm.umax.i8(i8 %earlier, i8 %lane)')}, 32")
    place, other = (c(f"zext i8 {c(f'and i8 {name}, 31')} to i64") for name in ("%lane", "%earlier"))
    word = c(f"add i64 {c(f'shl i64 {place}, 5')}, {other}")
    time = c.load("i32", c(f"getelementptr i32, ptr {_rows(c)}, i64 {word}"))
    limit = c(f"select i1 {one}, i32 {c(f'shl i32 {time}, 5')}, i32 {met}")
    c.ret(f"i1 {c(f'icmp ult i32 %stamp, {limit}')}")
    return c.text()
