"""Runs gangs of CTAs to their end: starts them, gives warps turns. What a warp does with its turn is `next_block.py`'s.

A warp keeps its turn until nothing of it is ready or its budget of backward branches is used up; then its next turn
begins behind the block it was at, so that lanes that poll cannot starve those they wait for.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import CHECKING, Code
from ptxgen.runtime.cpu.native.layout import (
    BAR,
    BARRIER_BYTES,
    BARRIERS,
    CTA,
    DONE,
    FAULTED,
    GANG,
    LAUNCH,
    PARKED,
    PAUSED,
    READY,
    RUNNABLE,
    THREAD,
    WARP,
    YIELDED,
)
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.next_block import in_random_order
from ptxgen.runtime.cpu.support.parking import for_each_warp, reset_barrier

# Rounds of a gang in which warps only used up their budget, before others have their turn and Python looks at it: few
# where what it waits for comes soon, twice as many each time that it has not come. In random order never many: there it
# takes many looks to see that a gang waits
LEAST_SPINS, MOST_SPINS, MOST_RANDOM_SPINS = 4, 256, 16
MOST_ROUNDS = 8  # that a gang has at first in random mode before others have theirs: a power of two
FIRST_ROUNDS = 1 << 14  # that a gang has at first in the other modes: one that waits through barriers gives way
LATER_ROUNDS = 1 << 10  # that a gang has whenever it goes on, in every mode
_PATIENCE = 8  # turns of a warp in random mode after which lanes that were left behind run: a power of two


@support("gang")
def gang(what: str) -> str:
    """`gang.start(gang, index)` puts a gang at its beginning; `gang.run(gang)` gives its warps turns.

    `gang.run` returns DONE, FAULTED, PARKED (nothing can run: a deadlock), YIELDED (all warps spin), PAUSED (`look` of
    the launch is set: to be called again), or RUNNABLE after `rounds` of the gang: others have theirs then, as it may
    wait for them. In random mode a gang may stand anywhere while others run.
    """
    return _start() if what == "start" else _run()


def _start() -> str:
    c = Code("define internal void @gang.start(ptr %gang, i64 %index) noinline")
    launch = c.load("ptr", "%gang", GANG["launch"])
    c.store("i64", "%index", "%gang", GANG["index"])
    c.store(f"<{(GANG['_end'] - GANG['ext']) // 8} x i64>", "zeroinitializer", "%gang", GANG["ext"], align=8)
    c.store("i32", FIRST_ROUNDS, "%gang", GANG["rounds"])
    c.store("i32", LEAST_SPINS, "%gang", GANG["patience"])
    c.store("i32", c.load("i32", launch, LAUNCH["random"]), "%gang", GANG["random"])
    with c.if_(in_random_order(c, "%gang")):
        rounds = c(f"and i32 {c('call i32 @random.next(ptr %gang)')}, {MOST_ROUNDS - 1}")
        drawn = c(f"select i1 {c(f'icmp eq i32 {rounds}, 0')}, i32 {LATER_ROUNDS}, i32 {rounds}")
        c.store("i32", drawn, "%gang", GANG["rounds"])
    with c.if_(CHECKING):
        c.do("call void @async.forget(ptr %gang)")
        c.do("call void @order.begin(ptr %gang)")
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
        left, index, below = c.var("i32", rank), c.var("i64", 0), c.var("i64", 1)
        for axis in "xyz":
            extent = c.load("i32", launch, LAUNCH["cluster_" + axis])
            now32 = c.load("i32", left)
            place = c(f"add i32 {origin[axis]}, {c(f'urem i32 {now32}, {extent}')}")
            c.store("i32", place, cta, CTA["id_" + axis])
            c.store("i32", c(f"udiv i32 {now32}, {extent}"), left)
            weight = c.load("i64", below)  # CTAs of the grid from one to the next of this axis
            share = c(f"mul i64 {c(f'zext i32 {place} to i64')}, {weight}")
            c.store("i64", c(f"add i64 {c.load('i64', index)}, {share}"), index)
            size = c(f"zext i32 {c.load('i32', launch, LAUNCH['grid_' + axis])} to i64")
            c.store("i64", c(f"mul i64 {weight}, {size}"), below)
        c.store("i64", c.load("i64", index), cta, CTA["index"])
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
        c.store("i32", 0, bar, BAR["warps"])
    c.store(f"<{(CTA['_end'] - CTA['ext']) // 8} x i64>", "zeroinitializer", cta, CTA["ext"], align=8)
    c.store("i32", c.load("i32", cta, CTA["warp_count"]), cta, CTA["alive_warps"])
    with c.if_(CHECKING):
        c.do(f"call void @shadow.begin(ptr {cta})")
    first = c.load("i32", launch, LAUNCH["first_block"])
    dynamic = c.load("i64", launch, LAUNCH["cleared"])  # bytes from the ready words on

    def start_warp(w: str) -> None:
        missing = c.load("i32", w, WARP["all"])  # lanes that the block size leaves out
        c.store("i32", missing, w, WARP["exited"])
        for name in ("mask", "parked", "start", "turns", "held", "waited"):
            c.store("i32", 0, w, WARP[name])
        c.store("i64", 0, w, WARP["summary"])
        c.store("i64", 0, w, WARP["clock"])
        c.do(f"call void @llvm.memset.p0.i64(ptr {c.at(w, READY)}, i8 0, i64 {dynamic}, i1 false)")
        c.store(f"<{(WARP['_end'] - WARP['ext']) // 8} x i64>", "zeroinitializer", w, WARP["ext"], align=8)
        c.do(f"call void @enqueue(ptr {w}, i32 {first}, i32 {c(f'xor i32 {missing}, -1')})")

    for_each_warp(c, cta, start_warp)


def _run() -> str:
    """A turn after the other. The state of a round is the gang's, so it goes on where it was left."""
    c = Code("define internal i32 @gang.run(ptr %gang) noinline")
    launch = c.load("ptr", "%gang", GANG["launch"])
    warps = c.load("i32", launch, LAUNCH["warps"])
    total = c(f"mul i32 {c.load('i32', '%gang', GANG['count'])}, {warps}")
    randomly = in_random_order(c, "%gang")
    _recall_all(c, launch, randomly)
    with c.loop():
        asked = c(f"load volatile i32, ptr {c.at(launch, LAUNCH['look'])}")
        c.ret(f"i32 {PAUSED}", when=c(f"icmp ne i32 {asked}, 0"))
        turn = c.load("i32", "%gang", GANG["turn"])
        with c.if_(c(f"icmp eq i32 {turn}, 0")):
            _begin_round(c, randomly, total)
        _one_turn(c, launch, randomly, turn, total, warps)
        after = c(f"add i32 {turn}, 1")
        more = c(f"icmp ult i32 {after}, {total}")
        c.store("i32", c(f"select i1 {more}, i32 {after}, i32 0"), "%gang", GANG["turn"])
        with c.if_(c(f"xor i1 {more}, true")):
            _end_round(c, randomly)
    c.do("unreachable")
    return c.text()


def _recall_all(c: Code, launch: str, randomly: str) -> None:
    """In a fixed order, which leaves none behind, the lanes that random order has left behind run again."""
    drawn = c(f"icmp ne i32 {c.load('i32', launch, LAUNCH['random'])}, 0")
    with c.if_(c(f"and i1 {drawn}, {c(f'xor i1 {randomly}, true')}"), likely=False):
        stride, base = c.load("i64", launch, LAUNCH["cta_stride"]), c.load("ptr", "%gang", GANG["ctas"])
        with c.count("i32", c.load("i32", "%gang", GANG["count"])) as rank:
            cta = c.at(base, c(f"mul i64 {c(f'zext i32 {rank} to i64')}, {stride}"))
            for_each_warp(c, cta, lambda w: c.do(f"call void @recall(ptr {w})"))


def _begin_round(c: Code, randomly: str, total: str) -> None:
    """A gang that has had its rounds stands still for others here; in random order the round begins at any warp."""
    left = c(f"sub i32 {c.load('i32', '%gang', GANG['rounds'])}, 1")
    over = c(f"icmp eq i32 {left}, 0")
    c.store("i32", c(f"select i1 {over}, i32 {LATER_ROUNDS}, i32 {left}"), "%gang", GANG["rounds"])
    c.ret(f"i32 {RUNNABLE}", when=over)
    for name in ("ran", "moved", "alive", "shift"):
        c.store("i32", 0, "%gang", GANG[name])
    with c.if_(randomly):
        c.store("i32", c(f"urem i32 {c('call i32 @random.next(ptr %gang)')}, {total}"), "%gang", GANG["shift"])


def _one_turn(c: Code, launch: str, randomly: str, turn: str, total: str, warps: str) -> None:
    """Run the warp whose turn it is, if it can."""
    function = c.load("ptr", launch, LAUNCH["warp_function"])
    cta_stride, warp_stride = (c.load("i64", launch, LAUNCH[name]) for name in ("cta_stride", "warp_stride"))
    base = c.load("ptr", "%gang", GANG["ctas"])
    shifted = c(f"add i32 {turn}, {c.load('i32', '%gang', GANG['shift'])}")
    number = c(f"urem i32 {shifted}, {total}")
    rank, index = c(f"udiv i32 {number}, {warps}"), c(f"urem i32 {number}, {warps}")
    cta = c.at(base, c(f"mul i64 {c(f'zext i32 {rank} to i64')}, {cta_stride}"))
    w = c.at(c.load("ptr", cta, CTA["warps"]), c(f"mul i64 {c(f'zext i32 {index} to i64')}, {warp_stride}"))
    state = c.load("i32", w, WARP["state"])
    with c.if_(c(f"icmp ne i32 {state}, {DONE}")):
        c.store("i32", 1, "%gang", GANG["alive"])
    chosen = c.var("i1", c(f"icmp uge i32 {state}, {YIELDED}"))
    with c.if_(randomly):  # leave out a warp now and then, so that orders differ by more than a rotation; never twice
        masked = c(f"and i32 {c('call i32 @random.next(ptr %gang)')}, 3")
        coin = c(f"icmp ne i32 {masked}, 0")
        test = c(f"icmp eq i32 {turn}, {c(f'sub i32 {total}, 1')}")
        waited = c(f"icmp ne i32 {c.load('i32', w, WARP['waited'])}, 0")
        kept = c(f"or i1 {c(f'or i1 {coin}, {test}')}, {waited}")
        c.store("i32", c(f"zext i1 {c(f'xor i1 {kept}, true')} to i32"), w, WARP["waited"])
        c.store("i1", c(f"and i1 {c.load('i1', chosen)}, {kept}"), chosen)
    with c.if_(c.load("i1", chosen)):
        code = _turn(c, launch, w, function, randomly)
        c.ret(f"i32 {FAULTED}", when=c(f"icmp eq i32 {code}, {FAULTED}"))
        c.store("i32", 1, "%gang", GANG["ran"])
        with c.if_(c(f"icmp ne i32 {code}, {YIELDED}")):
            c.store("i32", 1, "%gang", GANG["moved"])


def _end_round(c: Code, randomly: str) -> None:
    """Return where all warps have ended, where none can run, or where they have only spun for long."""
    c.ret(f"i32 {DONE}", when=c(f"icmp eq i32 {c.load('i32', '%gang', GANG['alive'])}, 0"))
    none = c(f"icmp eq i32 {c.load('i32', '%gang', GANG['ran'])}, 0")
    with c.if_(c(f"or i1 {randomly}, {none}")):
        c.ret(f"i32 {PARKED}", when=c("call i1 @stuck(ptr %gang)"))
    idle = c(f"icmp eq i32 {c.load('i32', '%gang', GANG['moved'])}, 0")
    spun = c(f"add i32 {c.load('i32', '%gang', GANG['spins'])}, 1")
    most_spins = c(f"select i1 {randomly}, i32 {MOST_RANDOM_SPINS}, i32 {MOST_SPINS}")
    patience = c(f"call i32 @llvm.umin.i32(i32 {c.load('i32', '%gang', GANG['patience'])}, i32 {most_spins})")
    enough = c(f"and i1 {idle}, {c(f'icmp uge i32 {spun}, {patience}')}")
    goes_on = c(f"and i1 {idle}, {c(f'xor i1 {enough}, true')}")
    c.store("i32", c(f"select i1 {goes_on}, i32 {spun}, i32 0"), "%gang", GANG["spins"])
    c.store("i32", c(f"select i1 {idle}, i32 {patience}, i32 {LEAST_SPINS}"), "%gang", GANG["patience"])
    with c.if_(enough, likely=False):
        c.store("i32", c(f"shl i32 {patience}, 1"), "%gang", GANG["patience"])
        with c.if_(CHECKING):
            c.do(f"call void @late.all(ptr {c.load('ptr', '%gang', GANG['thread'])})")
        c.ret(f"i32 {YIELDED}", when="true")


def _turn(c: Code, launch: str, w: str, function: str, randomly: str) -> str:
    """Run one warp for its budget; a warp that used it up begins its next turn behind the block it was at."""
    budget = c.var("i32", c.load("i32", launch, LAUNCH["budget"]))
    with c.if_(randomly):
        gang_pointer = "%gang"
        c.store("i32", c(f"and i32 {c(f'call i32 @random.next(ptr {gang_pointer})')}, 63"), budget)
        turns = c(f"add i32 {c.load('i32', w, WARP['turns'])}, 1")
        c.store("i32", turns, w, WARP["turns"])
        # every choice of a block goes through `next.block`; each other turn begins behind the block of the last one
        odd = c(f"trunc i32 {turns} to i1")
        behind = c(f"add i32 {c.load('i32', w, WARP['block'])}, 2")
        c.store("i32", c(f"select i1 {odd}, i32 1, i32 {behind}"), w, WARP["start"])
        due = c(f"icmp eq i32 {c(f'and i32 {turns}, {_PATIENCE - 1}')}, 0")
        with c.if_(due):
            c.do(f"call void @recall(ptr {w})")
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


@support("thread")
def thread(*_: str) -> str:
    """`thread.run(thread, gang, going)`: start and run gangs until none is left; returns as `gang.run` does.

    `going`: not 0 where the gang was left PAUSED and goes on first.
    """
    c = Code("define i32 @thread.run(ptr %thread, ptr %gang, i32 %going)")
    launch = c.load("ptr", "%thread", THREAD["launch"])
    gangs = c.load("i64", launch, LAUNCH["gangs"])
    order = c.load("ptr", launch, LAUNCH["order"])
    shuffled = c(f"icmp ne ptr {order}, null")
    going = c.var("i32", "%going")
    with c.loop():
        with c.if_(c(f"icmp eq i32 {c.load('i32', going)}, 0")):
            number = c(f"atomicrmw add ptr {c.at(launch, LAUNCH['next'])}, i64 1 seq_cst")
            with c.if_(c(f"icmp uge i64 {number}, {gangs}"), likely=False):
                with c.if_(CHECKING):
                    c.do("call void @late.all(ptr %thread)")
                c.ret(f"i32 {DONE}", when="true")
            chosen = c.var("i64", number)
            c.store("i64", number, chosen)
            with c.if_(shuffled):  # the gangs behind the last whole run of the order stay where they are
                size = c.load("i64", launch, LAUNCH["shuffled"])
                place = c(f"urem i64 {number}, {size}")
                base = c(f"sub i64 {number}, {place}")
                with c.if_(c(f"icmp ule i64 {c(f'add i64 {base}, {size}')}, {gangs}")):
                    there = c.load("i64", c(f"getelementptr i64, ptr {order}, i64 {place}"))
                    c.store("i64", c(f"add i64 {base}, {there}"), chosen)
            c.do(f"call void @gang.start(ptr %gang, i64 {c.load('i64', chosen)})")
        c.store("i32", 0, going)
        code = c("call i32 @gang.run(ptr %gang)")
        c.ret(f"i32 {code}", when=c(f"icmp ne i32 {code}, {DONE}"))
    c.do("unreachable")
    return c.text()


@support("resume")
def resume(*_: str) -> str:
    """`resume.run(gang)`: more turns for a gang that was left spinning."""
    c = Code("define i32 @resume.run(ptr %gang)")
    code = c("call i32 @gang.run(ptr %gang)")
    with c.if_(CHECKING), c.if_(c(f"icmp ne i32 {code}, {PAUSED}")):
        c.do(f"call void @late.all(ptr {c.load('ptr', '%gang', GANG['thread'])})")
    c.ret(f"i32 {code}")
    return c.text()
