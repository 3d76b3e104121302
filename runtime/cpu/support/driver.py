"""Runs gangs of CTAs to their end: start, turns of warps, barriers, exits. Owns the park records of warps.

A warp function returns when no block of it is ready; its lanes then stand in park records or stall at a `.sync`
instruction. Whatever they wait for calls `unpark`, which makes their blocks ready again.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.ir import Code
from ptxgen.runtime.cpu.layout import (
    BAR,
    BARRIER_BYTES,
    BARRIERS,
    CHECK,
    CTA,
    DONE,
    FAULTED,
    GANG,
    LAUNCH,
    PARK,
    PARK_BARRIER,
    PARK_BYTES,
    PARKED,
    READY,
    RUNNABLE,
    THREAD,
    WARP,
    YIELDED,
)
from ptxgen.runtime.cpu.support import support

SPIN_TURNS = 256  # rounds of a gang in which warps only used up their budget, before Python looks at it


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
    launch = c.load("ptr", cta, CTA["launch"])
    with c.if_(c(f"icmp ne i32 {c.load('i32', launch, LAUNCH['check'])}, 0")):
        offset = c(f"add i32 {c(f'shl i32 {number}, 7')}, {CHECK['bars']}")
        clock = c.at(c.load("ptr", cta, CTA["races"]), c(f"zext i32 {offset} to i64"))
        c.do(f"call void @race.{direction}(ptr {w}, ptr {clock})")


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


def _settle() -> str:
    c = Code("define internal void @barrier.settle(ptr %cta, i32 %id) noinline")
    bar = _bar(c, "%cta")
    arrived, expected = c.load("i32", bar, BAR["arrived"]), c.load("i32", bar, BAR["expected"])
    default = c(f"icmp eq i32 {expected}, 0")
    needed = c(f"select i1 {default}, i32 {c.load('i32', '%cta', CTA['live'])}, i32 {expected}")
    met = c(f"icmp uge i32 {arrived}, {needed}")
    c.ret(when=c(f"xor i1 {met}, true"))
    c.ret(when=c(f"icmp eq i32 {arrived}, 0"))
    _all_here(c, bar)
    c(f"call i32 @unpark(ptr %cta, i32 {PARK_BARRIER}, i32 %id, i64 0)")
    reset_barrier(c, bar)
    c.store("i32", c(f"add i32 {c.load('i32', '%cta', CTA['epoch'])}, 1"), "%cta", CTA["epoch"])
    c.ret()
    return c.text()


def _all_here(c: Code, bar: str) -> None:
    """In check mode: warps that wait at the barrier, or have exited, do nothing now, so the barrier covers them whole.

    That leaves one count for all of them, which later look-ups compare with at once.
    """
    launch = c.load("ptr", "%cta", CTA["launch"])
    with c.if_(c(f"icmp ne i32 {c.load('i32', launch, LAUNCH['check'])}, 0")):
        offset = c(f"add i32 {c('shl i32 %id, 7')}, {CHECK['bars']}")
        clock = c.at(c.load("ptr", "%cta", CTA["races"]), c(f"zext i32 {offset} to i64"))
        now = c.load("i32", "%cta", CTA["epoch"])

        def cover(w: str) -> None:
            warp = c.load("i32", w, WARP["id"])
            slot = c(f"getelementptr i32, ptr {clock}, i32 {warp}")
            with c.if_(c(f"icmp eq i32 {c.load('i32', w, WARP['exited'])}, -1")):
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
    """A barrier nobody has arrived at."""
    for name, value in (("arrived", 0), ("expected", 0), ("and", 1), ("or", 0), ("popc", 0)):
        c.store("i32", value, bar, BAR[name])


@support("leave")
def leave(*_: str) -> str:
    """`leave(w, mask)`: these lanes exit; what waits for all threads, or for them, is looked at again."""
    c = Code("define internal void @leave(ptr %w, i32 %mask) noinline")
    c.store("i32", c(f"or i32 {c.load('i32', '%w', WARP['exited'])}, %mask"), "%w", WARP["exited"])
    cta = c.load("ptr", "%w", WARP["cta"])
    c.store("i32", c(f"sub i32 {c.load('i32', cta, CTA['live'])}, {pop_count(c, '%mask')}"), cta, CTA["live"])
    with c.count("i32", BARRIERS) as number:
        total = c(f"add i32 {c(f'mul i32 {number}, {BARRIER_BYTES}')}, {CTA['bars']}")
        bar = c.at(cta, c(f"zext i32 {total} to i64"))
        waiting = c(f"icmp ne i32 {c.load('i32', bar, BAR['arrived'])}, 0")
        default = c(f"icmp eq i32 {c.load('i32', bar, BAR['expected'])}, 0")
        with c.if_(c(f"and i1 {waiting}, {default}")):
            c.do(f"call void @barrier.settle(ptr {cta}, i32 {number})")
    c.do(f"call void @cluster.settle(ptr {c.load('ptr', cta, CTA['gang'])})")
    # lanes stalled at a .sync instruction no longer wait for lanes that are gone
    launch = c.load("ptr", cta, CTA["launch"])
    table = c.at("%w", c(f"zext i32 {c.load('i32', launch, LAUNCH['pending'])} to i64"))
    with c.count("i32", c.load("i32", launch, LAUNCH["blocks"])) as block:
        stalled = c.load("i32", c(f"getelementptr i32, ptr {table}, i32 {block}"))
        with c.if_(c(f"icmp ne i32 {stalled}, 0")):
            c.do(f"call void @enqueue(ptr %w, i32 {block}, i32 0)")
    c.ret()
    return c.text()


@support("gang")
def gang(what: str) -> str:
    """`gang.start(gang, index)` puts a gang at its beginning; `gang.run(gang)` gives its warps turns.

    `gang.run` returns DONE, FAULTED, PARKED (nothing can run: a deadlock) or YIELDED (all warps spin).
    """
    return _start() if what == "start" else _run()


def _start() -> str:
    c = Code("define internal void @gang.start(ptr %gang, i64 %index) noinline")
    launch = c.load("ptr", "%gang", GANG["launch"])
    c.store("i64", "%index", "%gang", GANG["index"])
    c.store("i32", 0, "%gang", GANG["done"])
    c.store(f"<{(GANG['_end'] - GANG['ext']) // 8} x i64>", "zeroinitializer", "%gang", GANG["ext"], align=8)
    rest = c.var("i64", "%index")
    origin = {}
    for axis in "xyz":  # the gang's coordinates among gangs, x fastest
        extent = c(
            f"udiv i32 {c.load('i32', launch, LAUNCH['grid_' + axis])}, "
            f"{c.load('i32', launch, LAUNCH['cluster_' + axis])}"
        )
        wide = c(f"zext i32 {extent} to i64")
        now = c.load("i64", rest)
        here = c(f"trunc i64 {c(f'urem i64 {now}, {wide}')} to i32")
        c.store("i64", c(f"udiv i64 {now}, {wide}"), rest)
        c.store("i32", here, "%gang", GANG["id_" + axis])
        origin[axis] = c(f"mul i32 {here}, {c.load('i32', launch, LAUNCH['cluster_' + axis])}")
    stride = c.load("i64", launch, LAUNCH["cta_stride"])
    base = c.load("ptr", "%gang", GANG["ctas"])
    with c.count("i32", c.load("i32", "%gang", GANG["count"])) as rank:
        cta = c.at(base, c(f"mul i64 {c(f'zext i32 {rank} to i64')}, {stride}"))
        left = c.var("i32", rank)
        for axis in "xyz":
            extent = c.load("i32", launch, LAUNCH["cluster_" + axis])
            now32 = c.load("i32", left)
            c.store("i32", c(f"add i32 {origin[axis]}, {c(f'urem i32 {now32}, {extent}')}"), cta, CTA["id_" + axis])
            c.store("i32", c(f"udiv i32 {now32}, {extent}"), left)
        _start_cta(c, cta)
    c.ret()
    return c.text()


def _start_cta(c: Code, cta: str) -> None:
    launch = c.load("ptr", cta, CTA["launch"])
    threads = c.load("i32", cta, CTA["threads"])
    c.store("i32", threads, cta, CTA["live"])
    with c.count("i32", BARRIERS) as number:
        total = c(f"add i32 {c(f'mul i32 {number}, {BARRIER_BYTES}')}, {CTA['bars']}")
        bar = c.at(cta, c(f"zext i32 {total} to i64"))
        reset_barrier(c, bar)
        c.store("i32", 0, bar, BAR["clock"])
    c.store(f"<{(CTA['_end'] - CTA['ext']) // 8} x i64>", "zeroinitializer", cta, CTA["ext"], align=8)
    c.store("i32", c.load("i32", cta, CTA["warp_count"]), cta, CTA["alive_warps"])
    with c.if_(c(f"icmp ne i32 {c.load('i32', launch, LAUNCH['check'])}, 0")):
        c.do(f"call void @shadow.begin(ptr {cta})")
    first = c.load("i32", launch, LAUNCH["first_block"])
    dynamic = c.load("i64", launch, LAUNCH["cleared"])  # bytes from the ready words on

    def start_warp(w: str) -> None:
        missing = c.load("i32", w, WARP["all"])  # lanes that the block size leaves out
        c.store("i32", missing, w, WARP["exited"])
        for name in ("mask", "parked", "start", "yields"):
            c.store("i32", 0, w, WARP[name])
        c.store("i64", 0, w, WARP["summary"])
        c.store("i64", 0, w, WARP["clock"])
        c.do(f"call void @llvm.memset.p0.i64(ptr {c.at(w, READY)}, i8 0, i64 {dynamic}, i1 false)")
        c.store(f"<{(WARP['_end'] - WARP['ext']) // 8} x i64>", "zeroinitializer", w, WARP["ext"], align=8)
        c.do(f"call void @enqueue(ptr {w}, i32 {first}, i32 {c(f'xor i32 {missing}, -1')})")

    for_each_warp(c, cta, start_warp)


def _run() -> str:
    c = Code("define internal i32 @gang.run(ptr %gang) noinline")
    launch = c.load("ptr", "%gang", GANG["launch"])
    function = c.load("ptr", launch, LAUNCH["warp_function"])
    cta_stride, warp_stride = (c.load("i64", launch, LAUNCH[name]) for name in ("cta_stride", "warp_stride"))
    base, count = c.load("ptr", "%gang", GANG["ctas"]), c.load("i32", "%gang", GANG["count"])
    warps = c.load("i32", launch, LAUNCH["warps"])
    total = c(f"mul i32 {count}, {warps}")
    randomly = c(f"icmp ne i32 {c.load('i32', launch, LAUNCH['random'])}, 0")
    spins = c.var("i32", 0)
    with c.loop():
        ran, moved, alive, shift = (c.var("i32", 0) for _ in range(4))
        for slot in (ran, moved, alive, shift):
            c.store("i32", 0, slot)
        with c.if_(randomly):
            c.store("i32", c(f"urem i32 {c('call i32 @random.next(ptr %gang)')}, {total}"), shift)
        with c.count("i32", total) as turn:
            total_ = c(f"add i32 {turn}, {c.load('i32', shift)}")
            number = c(f"urem i32 {total_}, {total}")
            rank, index = c(f"udiv i32 {number}, {warps}"), c(f"urem i32 {number}, {warps}")
            cta = c.at(base, c(f"mul i64 {c(f'zext i32 {rank} to i64')}, {cta_stride}"))
            w = c.at(c.load("ptr", cta, CTA["warps"]), c(f"mul i64 {c(f'zext i32 {index} to i64')}, {warp_stride}"))
            state = c.load("i32", w, WARP["state"])
            with c.if_(c(f"icmp ne i32 {state}, {DONE}")):
                c.store("i32", c(f"add i32 {c.load('i32', alive)}, 1"), alive)
            chosen = c.var("i1", c(f"icmp uge i32 {state}, {YIELDED}"))
            with c.if_(randomly):  # leave out a warp now and then, so that orders differ by more than a rotation
                masked = c(f"and i32 {c('call i32 @random.next(ptr %gang)')}, 3")
                coin = c(f"icmp ne i32 {masked}, 0")
                test = c(f"icmp eq i32 {turn}, {c(f'sub i32 {total}, 1')}")
                kept = c(f"or i1 {coin}, {test}")
                c.store("i1", c(f"and i1 {c.load('i1', chosen)}, {kept}"), chosen)
            with c.if_(c.load("i1", chosen)):
                code = _turn(c, launch, w, function, randomly)
                c.ret(f"i32 {FAULTED}", when=c(f"icmp eq i32 {code}, {FAULTED}"))
                c.store("i32", 1, ran)
                with c.if_(c(f"icmp ne i32 {code}, {YIELDED}")):
                    c.store("i32", 1, moved)
        c.ret(f"i32 {DONE}", when=c(f"icmp eq i32 {c.load('i32', alive)}, 0"))
        test = c(f"icmp eq i32 {c.load('i32', ran)}, 0")
        with c.if_(c(f"or i1 {randomly}, {test}")):
            c.ret(f"i32 {PARKED}", when=c("call i1 @stuck(ptr %gang)"))
        idle = c(f"icmp eq i32 {c.load('i32', moved)}, 0")
        total = c(f"add i32 {c.load('i32', spins)}, 1")
        c.store("i32", c(f"select i1 {idle}, i32 {total}, i32 0"), spins)
        limit = c(f"select i1 {randomly}, i32 4096, i32 {SPIN_TURNS}")
        c.ret(f"i32 {YIELDED}", when=c(f"icmp uge i32 {c.load('i32', spins)}, {limit}"))
    c.do("unreachable")
    return c.text()


def _turn(c: Code, launch: str, w: str, function: str, randomly: str) -> str:
    """Run one warp for its budget; a warp that used it up begins its next turn behind the block it was at."""
    budget = c.var("i32", c.load("i32", launch, LAUNCH["budget"]))
    with c.if_(randomly):
        gang_pointer = "%gang"
        c.store("i32", c(f"and i32 {c(f'call i32 @random.next(ptr {gang_pointer})')}, 63"), budget)
    c.store("i32", c.load("i32", budget), w, WARP["budget"])
    code = c(f"call i32 {function}(ptr {w})")
    c.store("i32", code, w, WARP["state"])
    used_up = c(f"icmp eq i32 {code}, {YIELDED}")
    rotated = c(f"icmp ne i32 {c.load('i32', w, WARP['start'])}, 0")
    behind = c(f"add i32 {c.load('i32', w, WARP['block'])}, 1")
    masked = c(f"and i1 {used_up}, {c(f'xor i1 {rotated}, true')}")
    c.store("i32", c(f"select i1 {masked}, i32 {behind}, i32 0"), w, WARP["start"])
    return code


@support("stuck")
def stuck(*_: str) -> str:
    """`stuck(gang)`: whether no warp can run, though some have not ended."""
    c = Code("define internal i1 @stuck(ptr %gang) noinline")
    launch = c.load("ptr", "%gang", GANG["launch"])
    stride, base = c.load("i64", launch, LAUNCH["cta_stride"]), c.load("ptr", "%gang", GANG["ctas"])
    parked = c.var("i32", 0)

    def look(w: str) -> None:
        state = c.load("i32", w, WARP["state"])
        c.ret("i1 false", when=c(f"icmp uge i32 {state}, {YIELDED}"))
        with c.if_(c(f"icmp eq i32 {state}, {PARKED}")):
            c.store("i32", 1, parked)

    with c.count("i32", c.load("i32", "%gang", GANG["count"])) as rank:
        for_each_warp(c, c.at(base, c(f"mul i64 {c(f'zext i32 {rank} to i64')}, {stride}")), look)
    c.ret("i1 " + c(f"trunc i32 {c.load('i32', parked)} to i1"))
    return c.text()


@support("next")
def next_block(*_: str) -> str:
    """`next.block(w)`: take the lowest ready block, or while `start` is set the first from there on; −1 for none."""
    c = Code("define internal i32 @next.block(ptr %w) noinline")
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    words = c.load("i32", launch, LAUNCH["words"])
    base = c.at("%w", READY)
    c.ret("i32 0", when=c(f"trunc i64 {c.load('i64', base)} to i1"))
    begin = c.var("i32", c.load("i32", "%w", WARP["start"]))
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
                c.ret("i32 " + c(f"add i32 {c(f'shl i32 {word}, 6')}, {c(f'trunc i64 {bit} to i32')}"), when="true")
        c.ret("i32 -1", when=c(f"icmp eq i32 {start}, 0"))
        c.store("i32", 0, begin)
    c.do("unreachable")
    return c.text()


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


@support("thread")
def thread(*_: str) -> str:
    """`thread.run(thread, gang)`: start and run gangs until none is left; returns as `gang.run` does."""
    c = Code("define i32 @thread.run(ptr %thread, ptr %gang)")
    launch = c.load("ptr", "%thread", THREAD["launch"])
    gangs = c.load("i64", launch, LAUNCH["gangs"])
    order = c.load("ptr", launch, LAUNCH["order"])
    shuffled = c(f"icmp ne ptr {order}, null")
    with c.loop():
        number = c(f"atomicrmw add ptr {c.at(launch, LAUNCH['next'])}, i64 1 seq_cst")
        c.ret(f"i32 {DONE}", when=c(f"icmp uge i64 {number}, {gangs}"))
        seen = c(f"load volatile i32, ptr {c.at(launch, LAUNCH['abort'])}")
        c.ret(f"i32 {DONE}", when=c(f"icmp ne i32 {seen}, 0"))
        chosen = c.var("i64", number)
        c.store("i64", number, chosen)
        with c.if_(shuffled):
            c.store("i64", c.load("i64", c(f"getelementptr i64, ptr {order}, i64 {number}")), chosen)
        c.do(f"call void @gang.start(ptr %gang, i64 {c.load('i64', chosen)})")
        code = c("call i32 @gang.run(ptr %gang)")
        c.ret(f"i32 {code}", when=c(f"icmp ne i32 {code}, {DONE}"))
    c.do("unreachable")
    return c.text()


@support("resume")
def resume(*_: str) -> str:
    """`resume.run(gang)`: more turns for a gang that was left spinning."""
    c = Code("define i32 @resume.run(ptr %gang)")
    c.ret("i32 " + c("call i32 @gang.run(ptr %gang)"))
    return c.text()
