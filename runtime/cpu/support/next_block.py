"""Which block a warp runs next, and the pseudo-random numbers that decide in random mode."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import CTA, GANG, LAUNCH, READY, THREAD, WARP
from ptxgen.runtime.cpu.support import support


def in_random_order(c: Code, gang: str) -> str:
    """i1: the order of everything is drawn. In random mode a gang may be told to go on in a fixed order for a while."""
    return c(f"icmp ne i32 {c.load('i32', gang, GANG['random'])}, 0")


@support("next")
def next_block(*_: str) -> str:
    """`next.block(w)`: take the lowest ready block, or while `start` is set the first from there on; −1 for none.

    In random order any ready block, now and then with a part of its lanes: a warp need not advance together. Where
    `start` is above 1, the first block from `start` − 1 on, so that every block that is ready has its turn.
    """
    c = Code("define internal i32 @next.block(ptr %w) noinline")
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    words = c.load("i32", launch, LAUNCH["words"])
    base = c.at("%w", READY)
    c.ret("i32 0", when=c(f"trunc i64 {c.load('i64', base)} to i1"))
    begin = c.var("i32", c.load("i32", "%w", WARP["start"]))
    gang_ = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["gang"])
    randomly = in_random_order(c, gang_)
    with c.if_(randomly, likely=False):
        chance = c(f"and i32 {c(f'call i32 @random.next(ptr {gang_})')}, 7")
        with c.if_(c(f"icmp eq i32 {chance}, 0")):
            c.do("call void @recall(ptr %w)")
        blocks = c.load("i32", launch, LAUNCH["blocks"])
        drawn = c(f"call i32 @random.next(ptr {gang_})")
        told = c(f"icmp ugt i32 {c.load('i32', begin)}, 1")
        behind = c(f"sub i32 {c.load('i32', begin)}, 1")
        wanted = c(f"select i1 {told}, i32 {behind}, i32 {drawn}")
        c.store("i32", c(f"urem i32 {wanted}, {blocks}"), begin)
        c.store("i32", 1, "%w", WARP["start"])
    with c.loop():
        start = c.load("i32", begin)
        first = c(f"lshr i32 {start}, 6")
        with c.count("i32", words, first) as word:
            pointer = c(f"getelementptr i64, ptr {base}, i32 {word}")
            bits = c.load("i64", pointer)
            wider = c(f"zext i32 {c(f'and i32 {start}, 63')} to i64")
            lowest = c(f"shl i64 -1, {wider}")
            wanted = c(f"select i1 {c(f'icmp eq i32 {word}, {first}')}, i64 {lowest}, i64 -1")
            found = c(f"and i64 {bits}, {wanted}")
            with c.if_(c(f"icmp ne i64 {found}, 0")):
                bit = c(f"call i64 @llvm.cttz.i64(i64 {found}, i1 true)")
                flipped = c(f"xor i64 {c(f'shl i64 1, {bit}')}, -1")
                left = c(f"and i64 {bits}, {flipped}")
                c.store("i64", left, pointer)
                with c.if_(c(f"icmp eq i64 {left}, 0")):
                    flag = c(f"shl i64 1, {c(f'zext i32 {word} to i64')}")
                    summary = c.load("i64", "%w", WARP["summary"])
                    c.store("i64", c(f"and i64 {summary}, {c(f'xor i64 {flag}, -1')}"), "%w", WARP["summary"])
                chosen = c(f"add i32 {c(f'shl i32 {word}, 6')}, {c(f'trunc i64 {bit} to i32')}")
                with c.if_(randomly, likely=False):
                    _leave_some(c, launch, gang_, chosen)
                c.ret(f"i32 {chosen}", when="true")
        at_end = c(f"icmp eq i32 {start}, 0")
        held = c(f"icmp ne i32 {c.load('i32', '%w', WARP['held'])}, 0")
        with c.if_(c(f"and i1 {at_end}, {held}"), likely=False):
            c.do("call void @recall(ptr %w)")
        c.ret("i32 -1", when=c(f"and i1 {at_end}, {c(f'xor i1 {held}, true')}"))
        c.store("i32", 0, begin)
    c.do("unreachable")
    return c.text()


@support("recall")
def recall(*_: str) -> str:
    """`recall(w)`: lanes that were left behind may run again."""
    c = Code("define internal void @recall(ptr %w)")
    held = c.load("i32", "%w", WARP["held"])
    with c.if_(c(f"icmp ne i32 {held}, 0")):
        c.store("i32", 0, "%w", WARP["held"])
        c.do(f"call void @enqueue(ptr %w, i32 {c.load('i32', '%w', WARP['held_block'])}, i32 {held})")
    c.ret()
    return c.text()


def _leave_some(c: Code, launch: str, gang_: str, block: str) -> None:
    """Every other time, some of a block's lanes stay behind for a while, or until the others have stopped."""
    table = c.at("%w", c(f"zext i32 {c.load('i32', launch, LAUNCH['pending'])} to i64"))
    slot = c(f"getelementptr i32, ptr {table}, i32 {block}")
    lanes, coin, pick = c.load("i32", slot), *(c(f"call i32 @random.next(ptr {gang_})") for _ in range(2))
    going = c(f"and i32 {lanes}, {pick}")
    staying = c(f"xor i32 {lanes}, {going}")
    often = c(f"trunc i32 {coin} to i1")
    parts = c(f"and i1 {c(f'icmp ne i32 {going}, 0')}, {c(f'icmp ne i32 {staying}, 0')}")
    nobody = c(f"icmp eq i32 {c.load('i32', '%w', WARP['held'])}, 0")
    with c.if_(c(f"and i1 {c(f'and i1 {often}, {nobody}')}, {parts}")):
        c.store("i32", going, slot)
        c.store("i32", staying, "%w", WARP["held"])
        c.store("i32", block, "%w", WARP["held_block"])


@support("random")
def random(*_: str) -> str:
    """`random.next(gang)`: the next of the thread's pseudo-random numbers (xorshift64*, upper half)."""
    c = Code("define internal i32 @random.next(ptr %gang)")
    thread = c.load("ptr", "%gang", GANG["thread"])
    x = c.load("i64", thread, THREAD["random"])
    for operation, amount in (("lshr", 12), ("shl", 25), ("lshr", 27)):
        x = c(f"xor i64 {x}, {c(f'{operation} i64 {x}, {amount}')}")
    c.store("i64", x, thread, THREAD["random"])
    down = c(f"lshr i64 {c(f'mul i64 {x}, 2685821657736338717')}, 32")
    c.ret("i32 " + c(f"trunc i64 {down} to i32"))
    return c.text()
