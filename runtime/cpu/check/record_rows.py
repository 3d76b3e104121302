"""Check mode: a warp's rows of record numbers (`release_records.py`): what it has acquired of other CTAs, and what its
relaxed reads have seen, which its next fence acquires.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.check.release_records import alone, record_at
from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import CTA, LAUNCH, ORDER, THREAD, WARP
from ptxgen.runtime.cpu.support.parking import for_each_warp

FLAGS = {"known": "knows", "glimpsed": "glimpses"}  # rows of a warp, and since when it has any


def order_block(c: Code) -> tuple[str, str]:
    """(the executing warp's CTA, the launch's block)."""
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    return c.load("ptr", "%w", WARP["cta"]), c.load("ptr", launch, LAUNCH["known"])


def row_of_warp(c: Code, block: str, w: str, what: str) -> str:
    """A warp's own row: of what it has `known`, or only `glimpsed`."""
    number = c(f"mul i32 {c.load('i32', block, ORDER['row'])}, {c.load('i32', w, WARP['id'])}")
    rows = c.load("ptr", c.load("ptr", w, WARP["cta"]), CTA[what])
    return c(f"getelementptr i32, ptr {rows}, i32 {number}")


def take(c: Code, cta: str, block: str, row: str, what: str) -> None:
    """Add a row to what the executing warp has `known` or `glimpsed`, and note since when there is any."""
    mine, flag = row_of_warp(c, block, "%w", what), WARP[FLAGS[what]]
    with c.if_(c(f"icmp eq i32 {c.load('i32', '%w', flag)}, 0")):
        size = c(f"zext i32 {c.load('i32', block, ORDER['row'])} to i64")
        c.do(f"call void @llvm.memset.p0.i64(ptr {mine}, i8 0, i64 {c(f'shl i64 {size}, 2')}, i1 false)")
        c.store("i32", c.load("i32", cta, CTA["epoch"]), "%w", flag)
    grown = c(f"call i1 @ledger.join(ptr {block}, ptr {mine}, ptr {row})")
    learned = c(f"add i32 {c.load('i32', cta, CTA['learned'])}, {c(f'zext i1 {grown} to i32')}")
    c.store("i32", learned, cta, CTA["learned"])


def share() -> str:
    """Take over the rows of warps that had them before what the executing warp knows of them.

    A row that has grown since counts as a whole: only behind what does not wait (bar.arrive) may that be too much.
    """
    c = Code("define internal void @order.share(ptr %w) noinline")
    cta, block = order_block(c)
    clock = c.at("%w", WARP["vclock"])

    def look(other: str) -> None:
        number = c.load("i32", other, WARP["id"])
        time = c.load("i32", c(f"getelementptr i32, ptr {clock}, i32 {number}"))
        apart = c(f"icmp ne ptr {other}, %w")
        for what, flag in FLAGS.items():
            before = c(f"sub i32 {c.load('i32', other, WARP[flag])}, 1")  # nothing at all is never
            with c.if_(c(f"and i1 {apart}, {c(f'icmp ult i32 {before}, {time}')}")):
                take(c, cta, block, row_of_warp(c, block, other, what), what)

    with alone(c, block):
        for_each_warp(c, cta, look)
        c.store("i32", c.load("i32", cta, CTA["learned"]), "%w", WARP["learned"])
    c.ret()
    return c.text()


def known() -> str:
    """`order.known(w, cta, warp, strong) -> i32`: up to which time a warp of another CTA is known, `strong` accesses
    knowing what was glimpsed too; −1 (for ever) where CTAs are not compared any more."""
    c = Code("define internal i32 @order.known(ptr %w, i64 %index, i32 %warp, i1 %strong) noinline")
    _, block = order_block(c)
    c.ret("i32 -1", when=c(f"icmp ne i32 {c.load('i32', block, ORDER['off'])}, 0"))
    best = c.var("i32", 0)
    for what, flag in FLAGS.items():
        there = c(f"icmp ne i32 {c.load('i32', '%w', WARP[flag])}, 0")
        with c.if_(there if what == "known" else c(f"and i1 {there}, %strong")):
            number = c.load("i32", c(f"getelementptr i32, ptr {row_of_warp(c, block, '%w', what)}, i64 %index"))
            with c.if_(c(f"icmp ne i32 {number}, 0")):
                time = c.load("i32", c(f"getelementptr i32, ptr {record_at(c, block, number)}, i32 %warp"))
                c.store("i32", c(f"call i32 @llvm.umax.i32(i32 {c.load('i32', best)}, i32 {time})"), best)
    c.ret("i32 " + c.load("i32", best))
    return c.text()
