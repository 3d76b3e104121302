"""Where lanes of a CTA wait: park records, barriers, exits. Owns the park records of warps.

A warp function returns when no block of it is ready; its lanes then stand in park records or stall at a `.sync`
instruction. Whatever they wait for calls `unpark`, which makes their blocks ready again.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import CHECKING, Code, vec
from ptxgen.runtime.cpu.native.layout import (
    BAR,
    BARRIER_BYTES,
    BARRIERS,
    CHECK,
    CTA,
    LAUNCH,
    PARK,
    PARK_BARRIER,
    PARK_BYTES,
    READY,
    RUNNABLE,
    THREAD,
    WARP,
)
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_ASSERT


def pop_count(c: Code, mask: str) -> str:
    """Number of set bits of an i32."""
    return c(f"call i32 @llvm.ctpop.i32(i32 {mask})")


@support("enqueue")
def enqueue(*_: str) -> str:
    """`enqueue(w, block, mask)`: these lanes continue at this block."""
    c = Code("define internal void @enqueue(ptr %w, i32 %block, i32 %mask)")
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    table = c.at("%w", c(f"zext i32 {c.load('i32', launch, LAUNCH['pending'])} to i64"))
    slot = c(f"getelementptr i32, ptr {table}, i32 %block")
    c.store("i32", c(f"or i32 {c.load('i32', slot)}, %mask"), slot)
    word, bit = c("lshr i32 %block, 6"), c(f"zext i32 {c('and i32 %block, 63')} to i64")
    ready = c(f"getelementptr i64, ptr {c.at('%w', READY)}, i32 {word}")
    c.store("i64", c(f"or i64 {c.load('i64', ready)}, {c(f'shl i64 1, {bit}')}"), ready)
    summary = c(f"shl i64 1, {c(f'zext i32 {word} to i64')}")
    c.store("i64", c(f"or i64 {c.load('i64', '%w', WARP['summary'])}, {summary}"), "%w", WARP["summary"])
    c.store("i32", RUNNABLE, "%w", WARP["state"])
    c.ret()
    return c.text()


@support("converge")
def converge(what: str = "") -> str:
    """`converge(w, pending, mask, members) -> i32`: the lanes that have come, once all of `members` that have not
    exited are among them; before, they are noted at this offset of the warp, and 0 comes back.

    `converge.each`: where every lane has members of its own; those go on that have all their members.
    `converge.whole(w, pending, mask)`: a `bar.warp.sync` of the whole warp, for which lanes may wait at several places.
    """
    if what:
        return {"each": _converge_each, "whole": _converge_whole}[what]()
    c = Code("define internal i32 @converge(ptr %w, i64 %pending, i32 %mask, i32 %members)")
    slot = c.at("%w", "%pending")
    waiting = c.load("i32", slot)
    joined = c(f"or i32 %mask, {c(f'and i32 {waiting}, %members')}")
    accounted = c(f"or i32 {joined}, {c.load('i32', '%w', WARP['exited'])}")
    missing = c(f"and i32 %members, {c(f'xor i32 {accounted}, -1')}")
    with c.if_(c(f"icmp ne i32 {missing}, 0"), likely=False):  # the next lanes that come make it ready
        c.store("i32", c(f"or i32 {waiting}, %mask"), slot)
        c.ret("i32 0", when="true")
    c.store("i32", c(f"and i32 {waiting}, {c(f'xor i32 {joined}, -1')}"), slot)
    c.ret(f"i32 {joined}")
    return c.text()


def _converge_each() -> str:
    c = Code(f"define internal i32 @converge.each(ptr %w, i64 %pending, i32 %mask, {vec('i32')} %members)")
    slot = c.at("%w", "%pending")
    here = c(f"or i32 %mask, {c.load('i32', slot)}")
    present = c(f"or i32 {here}, {c.load('i32', '%w', WARP['exited'])}")
    absent = c.spread("i32", c(f"xor i32 {present}, -1"))
    missing = c(f"and {vec('i32')} %members, {absent}")
    none = c(f"icmp eq {vec('i32')} {missing}, zeroinitializer")
    complete = c(f"bitcast {vec('i1')} {none} to i32")
    joined = c(f"and i32 {here}, {complete}")
    c.store("i32", c(f"and i32 {here}, {c(f'xor i32 {joined}, -1')}"), slot)
    c.ret(f"i32 {joined}")
    return c.text()


def _converge_whole() -> str:
    """Lanes that come last go on at once, those that wait elsewhere (`apart`) when their block runs (`released`)."""
    c = Code("define internal i32 @converge.whole(ptr %w, i64 %pending, i32 %mask)")
    slot = c.at("%w", "%pending")
    here, released = c(f"or i32 %mask, {c.load('i32', slot)}"), c.load("i32", "%w", WARP["released"])
    free = c(f"and i32 {here}, {released}")
    with c.if_(c(f"icmp ne i32 {free}, 0"), likely=False):
        kept = c(f"xor i32 {here}, {free}")  # lanes that wait for the next one here
        c.store("i32", kept, slot)
        c.store("i32", c(f"or i32 {c.load('i32', '%w', WARP['apart'])}, {kept}"), "%w", WARP["apart"])
        c.store("i32", c(f"xor i32 {released}, {free}"), "%w", WARP["released"])
        c.ret(f"i32 {free}", when="true")
    every = c(f"or i32 {c.load('i32', '%w', WARP['apart'])}, {here}")
    accounted = c(f"or i32 {every}, {c.load('i32', '%w', WARP['exited'])}")
    with c.if_(c(f"icmp ne i32 {accounted}, -1"), likely=False):  # the next lanes that come make it ready
        c.store("i32", here, slot)
        c.store("i32", every, "%w", WARP["apart"])
        c.ret("i32 0", when="true")
    c.store("i32", 0, slot)
    c.store("i32", 0, "%w", WARP["apart"])
    with c.if_(CHECKING):
        c.do("call void @clock.turn(ptr %w)")
    others = c(f"xor i32 {every}, {here}")
    with c.if_(c(f"icmp ne i32 {others}, 0"), likely=False):
        c.store("i32", c(f"or i32 {released}, {others}"), "%w", WARP["released"])
        _run_stalled(c, "%w")
    c.ret(f"i32 {here}")
    return c.text()


def _run_stalled(c: Code, w: str) -> None:
    """Blocks at which lanes stall at a `.sync` instruction run: what those wait for has changed."""
    launch = c.load("ptr", c.load("ptr", w, WARP["thread"]), THREAD["launch"])
    table = c.at(w, c(f"zext i32 {c.load('i32', launch, LAUNCH['pending'])} to i64"))
    with c.count("i32", c.load("i32", launch, LAUNCH["blocks"])) as block:
        stalled = c.load("i32", c(f"getelementptr i32, ptr {table}, i32 {block}"))
        with c.if_(c(f"icmp ne i32 {stalled}, 0")):
            c.do(f"call void @enqueue(ptr {w}, i32 {block}, i32 0)")


@support("park")
def park(*_: str) -> str:
    """`park(w, kind, id, mask, block, site, count, argument)`: these lanes wait; they continue at `block`."""
    c = Code(
        "define internal void @park(ptr %w, i32 %kind, i32 %id, i32 %mask, i32 %block, i32 %site, i32 %count, "
        "i64 %argument) noinline"
    )
    number = c.load("i32", "%w", WARP["parked"])
    record = c.at(c.at("%w", WARP["parks"]), c(f"zext i32 {c(f'mul i32 {number}, {PARK_BYTES}')} to i64"))
    for name in ("kind", "id", "mask", "block", "site", "count"):
        c.store("i32", f"%{name}", record, PARK[name])
    c.store("i64", "%argument", record, PARK["argument"])
    c.store("i32", c(f"add i32 {number}, 1"), "%w", WARP["parked"])
    c.ret()
    return c.text()


@support("unpark")
def unpark(*_: str) -> str:
    """`unpark(cta, kind, id, argument)`: lanes of the CTA that wait for exactly this go on; returns how many."""
    c = Code("define internal i32 @unpark(ptr %cta, i32 %kind, i32 %id, i64 %argument) noinline")
    woken = c.var("i32", 0)
    for_each_warp(c, "%cta", lambda w: _wake_warp(c, w, woken))
    c.ret("i32 " + c.load("i32", woken))
    return c.text()


def for_each_warp(c: Code, cta: str, body: object) -> None:
    """Emit `body(warp pointer)` in a loop over a CTA's warps."""
    launch = c.load("ptr", cta, CTA["launch"])
    stride = c.load("i64", launch, LAUNCH["warp_stride"])
    base = c.load("ptr", cta, CTA["warps"])
    with c.count("i32", c.load("i32", cta, CTA["warp_count"])) as number:
        body(c.at(base, c(f"mul i64 {c(f'zext i32 {number} to i64')}, {stride}")))  # type: ignore[operator]


def _wake_warp(c: Code, w: str, woken: str) -> None:
    at = c.var("i32", 0)
    with c.loop() as out:
        index, number = c.load("i32", at), c.load("i32", w, WARP["parked"])
        c.leave(out, c(f"icmp uge i32 {index}, {number}"))
        records = c.at(w, WARP["parks"])
        record = c.at(records, c(f"zext i32 {c(f'mul i32 {index}, {PARK_BYTES}')} to i64"))
        same = c(f"icmp eq i32 {c.load('i32', record, PARK['kind'])}, %kind")
        test = c(f"icmp eq i32 {c.load('i32', record, PARK['id'])}, %id")
        same = c(f"and i1 {same}, {test}")
        # a barrier's argument says what its lanes want to know, not what they wait for
        argument = c(f"icmp eq i64 {c.load('i64', record, PARK['argument'])}, %argument")
        any_argument = c(f"icmp eq i32 %kind, {PARK_BARRIER}")
        same = c(f"and i1 {same}, {c(f'or i1 {argument}, {any_argument}')}")
        with c.if_(same):
            mask, block = c.load("i32", record, PARK["mask"]), c.load("i32", record, PARK["block"])
            with c.if_(any_argument):
                _deliver(c, w, record, mask)
                _exchange_clocks(c, "%cta", "acquire", "%id", w)
            c.do(f"call void @enqueue(ptr {w}, i32 {block}, i32 {mask})")
            c.store("i32", c(f"add i32 {c.load('i32', woken)}, {pop_count(c, mask)}"), woken)
            last = c(f"sub i32 {number}, 1")
            final = c.at(records, c(f"zext i32 {c(f'mul i32 {last}, {PARK_BYTES}')} to i64"))
            c.store("<4 x i64>", c.load("<4 x i64>", final, align=8), record, align=8)
            c.store("i32", last, w, WARP["parked"])
        with c.else_():
            c.store("i32", c(f"add i32 {index}, 1"), at)


def _deliver(c: Code, w: str, record: str, mask: str) -> None:
    """Give the result of `bar.red` (argument 1 popc, 2 and, 3 or) to the lanes that asked for it."""
    wanted = c(f"trunc i64 {c.load('i64', record, PARK['argument'])} to i32")
    with c.if_(c(f"icmp ne i32 {wanted}, 0")):
        number = c.load("i32", record, PARK["id"])
        total = c(f"add i32 {c(f'mul i32 {number}, {BARRIER_BYTES}')}, {CTA['bars']}")
        bar = c.at("%cta", c(f"zext i32 {total} to i64"))
        either = c(
            f"select i1 {c(f'icmp eq i32 {wanted}, 2')}, i32 {c.load('i32', bar, BAR['and'])}, "
            f"i32 {c.load('i32', bar, BAR['or'])}"
        )
        result = c(f"select i1 {c(f'icmp eq i32 {wanted}, 1')}, i32 {c.load('i32', bar, BAR['popc'])}, i32 {either}")
        slots = c.at(w, WARP["wake"])
        with c.each_bit(mask) as lane:
            c.store("i32", result, c(f"getelementptr i32, ptr {slots}, i32 {lane}"))


def _exchange_clocks(c: Code, cta: str, direction: str, number: str, w: str = "%w") -> None:
    """In check mode, tell the race detector that a warp arrives at, or leaves, a barrier."""
    with c.if_(CHECKING):
        offset = c(f"add i32 {c(f'shl i32 {number}, 7')}, {CHECK['bars']}")
        clock = c.at(c.load("ptr", cta, CTA["races"]), c(f"zext i32 {offset} to i64"))
        c.do(f"call void @clock.{direction}(ptr {w}, ptr {clock})")


@support("barrier")
def barrier(what: str) -> str:
    """`barrier.arrive(w, id, count, mask, predicate, block, site, flags)` and `barrier.settle(cta, id)`.

    `count` 0: all threads that have not exited. Flags: 1 the lanes wait, 2 `.aligned` (a warp counts as 32 threads),
    4/8/12 they want popc/and/or of the predicates.
    """
    return _arrive() if what == "arrive" else _settle()


def _bar(c: Code, cta: str) -> str:
    total = c(f"add i32 {c(f'mul i32 %id, {BARRIER_BYTES}')}, {CTA['bars']}")
    return c.at(cta, c(f"zext i32 {total} to i64"))


def _arrive() -> str:
    c = Code(
        "define internal void @barrier.arrive(ptr %w, i32 %id, i32 %count, i32 %mask, i32 %predicate, i32 %block, "
        "i32 %site, i32 %flags) noinline"
    )
    cta = c.load("ptr", "%w", WARP["cta"])
    bar = _bar(c, cta)
    threads = pop_count(c, "%mask")
    test = c(f"icmp ne i32 {c('and i32 %flags, 2')}, 0")
    whole = c(f"and i1 {c('icmp ne i32 %count, 0')}, {test}")
    arriving = c(f"select i1 {whole}, i32 32, i32 {threads}")
    with c.if_(CHECKING), c.if_(whole):
        _count_once(c, bar)
    c.store("i32", c(f"add i32 {c.load('i32', bar, BAR['arrived'])}, {arriving}"), bar, BAR["arrived"])
    c.store("i32", "%count", bar, BAR["expected"])
    _exchange_clocks(c, cta, "release", "%id")
    true_lanes = c("and i32 %predicate, %mask")
    every = c(f"zext i1 {c(f'icmp eq i32 {true_lanes}, %mask')} to i32")
    some = c(f"zext i1 {c(f'icmp ne i32 {true_lanes}, 0')} to i32")
    c.store("i32", c(f"and i32 {c.load('i32', bar, BAR['and'])}, {every}"), bar, BAR["and"])
    c.store("i32", c(f"or i32 {c.load('i32', bar, BAR['or'])}, {some}"), bar, BAR["or"])
    c.store("i32", c(f"add i32 {c.load('i32', bar, BAR['popc'])}, {pop_count(c, true_lanes)}"), bar, BAR["popc"])
    with c.if_(c(f"icmp ne i32 {c('and i32 %flags, 1')}, 0")):
        wanted = c(f"zext i32 {c('lshr i32 %flags, 2')} to i64")
        c.do(
            f"call void @park(ptr %w, i32 {PARK_BARRIER}, i32 %id, i32 %mask, i32 %block, i32 %site, i32 %count, "
            f"i64 {wanted})"
        )
    with c.else_():
        c.do("call void @enqueue(ptr %w, i32 %block, i32 %mask)")
    c.do(f"call void @barrier.settle(ptr {cta}, i32 %id)")
    c.ret()
    return c.text()


def _count_once(c: Code, bar: str) -> None:
    """In check mode: a warp that arrives a second time before the barrier is over would count as two."""
    before, own = c.load("i32", bar, BAR["warps"]), c(f"shl i32 1, {c.load('i32', '%w', WARP['id'])}")
    with c.if_(c(f"icmp ne i32 {c(f'and i32 {before}, {own}')}, 0"), likely=False):
        c.do(f"call void @fault(ptr %w, i32 %site, i32 {FAULT_ASSERT}, i32 %mask, i32 0, i64 0, i64 0)")
    c.store("i32", c(f"or i32 {before}, {own}"), bar, BAR["warps"])


def _settle() -> str:
    c = Code("define internal void @barrier.settle(ptr %cta, i32 %id) noinline")
    bar = _bar(c, "%cta")
    arrived, expected = c.load("i32", bar, BAR["arrived"]), c.load("i32", bar, BAR["expected"])
    default = c(f"icmp eq i32 {expected}, 0")
    needed = c(f"select i1 {default}, i32 {c.load('i32', '%cta', CTA['live'])}, i32 {expected}")
    met = c(f"icmp uge i32 {arrived}, {needed}")
    c.ret(when=c(f"xor i1 {met}, true"))
    c.ret(when=c(f"icmp eq i32 {arrived}, 0"))
    _all_here(c, default)
    c(f"call i32 @unpark(ptr %cta, i32 {PARK_BARRIER}, i32 %id, i64 0)")
    reset_barrier(c, bar)
    c.store("i32", c(f"add i32 {c.load('i32', '%cta', CTA['epoch'])}, 1"), "%cta", CTA["epoch"])
    c.ret()
    return c.text()


def _all_here(c: Code, default: str) -> None:
    """In check mode: warps that wait at the barrier do nothing now, so the barrier covers them whole; one of all
    threads (`default`) does so for warps that have exited, while others know of those what came before their arrival.

    That leaves one count for all of them, which later look-ups compare with at once.
    """
    with c.if_(CHECKING):
        offset = c(f"add i32 {c('shl i32 %id, 7')}, {CHECK['bars']}")
        clock = c.at(c.load("ptr", "%cta", CTA["races"]), c(f"zext i32 {offset} to i64"))
        now = c.load("i32", "%cta", CTA["epoch"])

        def cover(w: str) -> None:
            warp = c.load("i32", w, WARP["id"])
            slot = c(f"getelementptr i32, ptr {clock}, i32 {warp}")
            gone = c(f"icmp eq i32 {c.load('i32', w, WARP['exited'])}, -1")
            with c.if_(c(f"and i1 {gone}, {default}")):
                c.store("i32", now, slot)
            with c.count("i32", c.load("i32", w, WARP["parked"])) as index:
                place = c(f"zext i32 {c(f'mul i32 {index}, {PARK_BYTES}')} to i64")
                record = c.at(c.at(w, WARP["parks"]), place)
                kind = c(f"icmp eq i32 {c.load('i32', record, PARK['kind'])}, {PARK_BARRIER}")
                same = c(f"icmp eq i32 {c.load('i32', record, PARK['id'])}, %id")
                with c.if_(c(f"and i1 {kind}, {same}")):
                    c.store("i32", now, slot)

        for_each_warp(c, "%cta", cover)


def reset_barrier(c: Code, bar: str) -> None:
    """A barrier without arrivals."""
    for name, value in (("arrived", 0), ("expected", 0), ("and", 1), ("or", 0), ("popc", 0), ("warps", 0)):
        c.store("i32", value, bar, BAR[name])


@support("leave")
def leave(*_: str) -> str:
    """`leave(w, mask)`: these lanes exit; what waits for all threads, or for them, is looked at again."""
    c = Code("define internal void @leave(ptr %w, i32 %mask) noinline")
    c.store("i32", c(f"or i32 {c.load('i32', '%w', WARP['exited'])}, %mask"), "%w", WARP["exited"])
    cta = c.load("ptr", "%w", WARP["cta"])
    live = c(f"sub i32 {c.load('i32', cta, CTA['live'])}, {pop_count(c, '%mask')}")
    c.store("i32", live, cta, CTA["live"])
    with c.if_(CHECKING), c.if_(c(f"icmp eq i32 {c.load('i32', '%w', WARP['exited'])}, -1")):
        c.do("call void @registers.left(ptr %w)")
    with c.if_(CHECKING), c.if_(c(f"icmp eq i32 {live}, 0")):
        c.do("call void @remote.gone(ptr %w)")
        c.do("call void @async.left(ptr %w)")
    with c.count("i32", BARRIERS) as number:
        total = c(f"add i32 {c(f'mul i32 {number}, {BARRIER_BYTES}')}, {CTA['bars']}")
        bar = c.at(cta, c(f"zext i32 {total} to i64"))
        waiting = c(f"icmp ne i32 {c.load('i32', bar, BAR['arrived'])}, 0")
        default = c(f"icmp eq i32 {c.load('i32', bar, BAR['expected'])}, 0")
        with c.if_(c(f"and i1 {waiting}, {default}")):
            c.do(f"call void @barrier.settle(ptr {cta}, i32 {number})")
    c.do(f"call void @cluster.settle(ptr {c.load('ptr', cta, CTA['gang'])})")
    _run_stalled(c, "%w")  # no longer for lanes that are gone
    c.ret()
    return c.text()
