"""Check mode: which accesses of a CTA's other warps come before a warp's, and how barriers and atomics order them.

A CTA counts its synchronisations (`epoch`); an access carries the count at which it was made. A warp's vector clock
says, for each warp, up to which count that warp's accesses come before its own now. A barrier takes in the clocks of
those that arrive and gives them to those that leave; the places of shared memory, of 8 bytes each, have clocks of their
own, for what may be a lock or a flag.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.check.shared_cells import PARAMETERS
from ptxgen.runtime.cpu.native.ir import Code, lanes_of, splat, vec
from ptxgen.runtime.cpu.native.layout import CHECK, CTA, RELEASE, WARP
from ptxgen.runtime.cpu.support import support

_CLOCK = vec("i32")


@support("clock")
def clock(what: str) -> str:
    """`clock.release(w, clock)` adds the warp's knowledge to a clock, `clock.acquire(w, clock)` that to the warp's;
    an acquire of a barrier is a fence besides (`clock.join`: it is none).
    `clock.take|leave(w, …, offset)` acquire or release at the places of an access of shared memory; `clock.give(…)`
    releases there as its instruction says: where that is relaxed, what a fence came before (`clock.fence(w)`).

    `clock.settle(w)` follows every change of a warp's clock; `clock.turn(w)` orders its lanes.
    """
    if what in ("release", "acquire", "join", "relaxed"):
        return _exchange(what)
    if what in ("take", "leave", "give"):
        return _places(what)
    return {"settle": _settle, "turn": _turn, "fence": _fence}[what]()


def _exchange(what: str) -> str:
    c = Code(f"define internal void @clock.{what}(ptr %w, ptr %clock) noinline")
    held = WARP["fenced_cta" if what == "relaxed" else "vclock"]
    mine, theirs = c.load(_CLOCK, "%w", held, align=64), c.load(_CLOCK, "%clock", align=64)
    both = c(f"call {_CLOCK} @llvm.umax.v32i32({_CLOCK} {mine}, {_CLOCK} {theirs})")
    if what == "relaxed":
        c.store(_CLOCK, both, "%clock", align=64)
    elif what != "release":
        c.store(_CLOCK, both, "%w", WARP["vclock"], align=64)
        c.do("call void @clock.settle(ptr %w)")
        learned = c.load("i32", c.load("ptr", "%w", WARP["cta"]), CTA["learned"])
        with c.if_(c(f"icmp ne i32 {learned}, 0"), likely=False):
            grown = c(f"bitcast {vec('i1')} {c(f'icmp ugt {_CLOCK} {both}, {mine}')} to i32")
            own = c(f"shl i32 1, {c.load('i32', '%w', WARP['id'])}")
            others = c(f"icmp ne i32 {c(f'or i32 {grown}, {own}')}, {own}")
            news = c(f"icmp ne i32 {learned}, {c.load('i32', '%w', WARP['learned'])}")
            with c.if_(c(f"or i1 {others}, {news}")):
                c.do("call void @order.share(ptr %w)")
        if what == "acquire":
            c.do("call void @clock.fence(ptr %w)")
    else:
        cta = c.load("ptr", "%w", WARP["cta"])
        now, warp = c.load("i32", cta, CTA["epoch"]), c.load("i32", "%w", WARP["id"])
        c.store(_CLOCK, both, "%clock", align=64)
        c.store("i32", now, c(f"getelementptr i32, ptr %clock, i32 {warp}"))
        c.store("i32", c(f"add i32 {now}, 1"), cta, CTA["epoch"])
    c.ret()
    return c.text()


def _turn() -> str:
    """What the warp's lanes did comes before what they do next."""
    c = Code("define internal void @clock.turn(ptr %w) noinline")
    cta = c.load("ptr", "%w", WARP["cta"])
    now = c(f"add i32 {c.load('i32', cta, CTA['epoch'])}, 1")
    c.store("i32", now, cta, CTA["epoch"])
    c.store("i32", c(f"shl i32 {now}, 5"), "%w", WARP["synced"])
    c.ret()
    return c.text()


def _settle() -> str:
    """Note the stamp below which the warp's clock covers every other warp of the CTA. The warp's own lanes are together
    as far as what it released has come back to it: what another warp alone released does not order them."""
    c = Code("define internal void @clock.settle(ptr %w) noinline")
    clock = c.load(_CLOCK, "%w", WARP["vclock"], align=64)
    number = lanes_of("i32", 1)
    cta = c.load("ptr", "%w", WARP["cta"])
    warps = c.load("i32", cta, CTA["warp_count"])
    vclock, id = c.at("%w", WARP["vclock"]), c.load("i32", "%w", WARP["id"])
    back = c.load("i32", c(f"getelementptr i32, ptr {vclock}, i32 {id}"))
    together, so_far = c(f"shl i32 {c(f'add i32 {back}, 1')}, 5"), c.load("i32", "%w", WARP["synced"])
    c.store("i32", c(f"call i32 @llvm.umax.i32(i32 {together}, i32 {so_far})"), "%w", WARP["synced"])
    beyond = c(f"icmp uge {_CLOCK} {number}, {c.spread('i32', warps)}")
    own = c(f"icmp eq {_CLOCK} {number}, {c.spread('i32', id)}")
    ignored = c(f"or {vec('i1')} {beyond}, {own}")
    others = c(f"select {vec('i1')} {ignored}, {_CLOCK} {splat('i32', -1)}, {_CLOCK} {clock}")
    least = c(f"call i32 @llvm.vector.reduce.umin.v32i32({_CLOCK} {others})")
    least = c(f"call i32 @llvm.umin.i32(i32 {least}, i32 {(1 << 27) - 2})")
    c.store("i32", c(f"shl i32 {c(f'add i32 {least}, 1')}, 5"), "%w", WARP["safe"])
    c.ret()
    return c.text()


def _fence() -> str:
    """What the warp did and knows may be released by relaxed operations."""
    c = Code("define internal void @clock.fence(ptr %w) noinline")
    cta, fenced = c.load("ptr", "%w", WARP["cta"]), c.at("%w", WARP["fenced_cta"])
    now = c.load("i32", cta, CTA["epoch"])
    c.store(_CLOCK, c.load(_CLOCK, "%w", WARP["vclock"], align=64), fenced, align=64)
    c.store("i32", now, c(f"getelementptr i32, ptr {fenced}, i32 {c.load('i32', '%w', WARP['id'])}"))
    c.store("i32", c(f"add i32 {now}, 1"), cta, CTA["epoch"])
    c.ret()
    return c.text()


def _places(what: str) -> str:
    """What came before the last releases at these bytes comes before this; what follows theirs comes after it."""
    c = Code(f"define internal void @clock.{what}({PARAMETERS}) noinline")
    if what == "give":
        strong = c(f"and i32 {c.load('i32', '%w', WARP['how'])}, {RELEASE}")
        with c.if_(c(f"icmp ne i32 {strong}, 0")):
            c.do(f"call void @clock.leave({PARAMETERS})")
            c.ret(when="true")
    block = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["races"])
    clocks = c.at(block, c.load("i64", block, CHECK["clocks"]))
    end = c("add i64 %offset, %n")
    first, after = c("lshr i64 %offset, 3"), c(f"lshr i64 {c(f'add i64 {end}, 7')}, 3")
    with c.count("i64", after, first) as number:
        place = c.at(clocks, c(f"shl i64 {number}, 7"))
        direction = {"take": "join", "leave": "release", "give": "relaxed"}[what]
        c.do(f"call void @clock.{direction}(ptr %w, ptr {place})")
    c.ret()
    return c.text()
