"""Check mode: which work of other CTAs comes before a CTA's, by atomics, fences, mbarriers and cluster barriers.

A release leaves a record at the place that it goes through (an address): the clocks of the CTA's warps, up to which
their work comes before it (see `shared_races.py`). A place keeps for each CTA the number of a record, and a CTA that
acquires takes them over. Relaxed operations release what a fence came before, and acquire for the next fence (PTX ISA,
"memory consistency model": release and acquire patterns). What a warp has acquired serves the others of its CTA once
they come after it: behind a barrier, or what else exchanges clocks.

The records are kept in `release_records.py`, a warp's rows of them in `record_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.runtime.cpu.check.record_rows import known, order_block, row_of_warp, share, take
from ptxgen.runtime.cpu.check.release_records import alone, record_at, row_of, times_of
from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.native.layout import ACQUIRE, CHECK, CTA, GANG, LAUNCH, ORDER, OWN_CTA, RELEASE, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.access import address_type
from ptxgen.runtime.cpu.support.faults import resolver
from ptxgen.runtime.cpu.support.parking import for_each_warp

_CLOCK = vec("i32")


@support("order")
def order(what: str, space: str = "") -> str:
    """`order.before|after.SPACE(w, addresses, offset, mask, how)` stand around an access that may synchronise.

    `order.release|acquire(w, place, how)` do that for one place (an i64); `order.fence(w)`; `order.arrive(w, how)` at a
    cluster barrier, all of whose arrivals `order.publish(cta, place)` releases at the end of the phase;
    `order.share(w)`, when the warp's clock has grown, gives it what the warps that it now comes after know;
    `order.begin(gang)` removes what others released where the gang's structures and shared memory lie now;
    `order.known(w, cta, warp, strong)` is the time up to which another CTA's warp is known.
    """
    if what in ("before", "after"):
        return _around(what, space)
    return {
        "release": _release, "acquire": _acquire, "fence": _fence, "known": known, "arrive": _arrive,
        "publish": _publish, "share": share, "begin": _begin,
    }[what]()  # fmt: skip


def _around(what: str, space: str) -> str:
    """Every lane's place, once for neighbours that share it."""
    kind = address_type(space)
    c = Code(f"define internal void @order.{what}.{space}(ptr %w, {vec(kind)} %a, i64 %off, i32 %m, i32 %how) noinline")
    cta, _ = order_block(c)
    if what == "before":  # a relaxed access releases nothing where no fence came before
        strong = c(f"icmp ne i32 {c(f'and i32 %how, {RELEASE}')}, 0")
        fenced = c(f"icmp ne i32 {c.load('i32', cta, CTA['fences'])}, 0")
        c.ret(when=c(f"xor i1 {c(f'or i1 {strong}, {fenced}')}, true"))
    places, last = c.var(vec(kind), "%a", align=64), c.var("i64", 0)
    with c.each_bit("%m") as lane:
        address = c.load(kind, c(f"getelementptr {kind}, ptr {places}, i32 {lane}"))
        if kind == "i32":
            low = c("trunc i64 %off to i32")
            address = c(f"zext i32 {c(f'add i32 {address}, {low}')} to i64")
        else:
            address = c(f"add i64 {address}, %off")
        pointer = c(f"call ptr @{resolver(space, True)}(ptr %w, i32 0, i32 {lane}, i64 {address}, i64 1)")
        place = c(f"ptrtoint ptr {pointer} to i64")
        new = c(f"icmp ne i64 {place}, {c.load('i64', last)}")
        with c.if_(c(f"and i1 {new}, {c(f'icmp ne i64 {place}, 0')}")):
            c.store("i64", place, last)
            c.do(f"call void @order.{'release' if what == 'before' else 'acquire'}(ptr %w, i64 {place}, i32 %how)")
    c.ret()
    return c.text()


def _key(c: Code, cta: str) -> str:
    """The place, or a CTA's own of that address where the scope is the CTA: no host address has the upper bits."""
    own = c(f"icmp ne i32 {c(f'and i32 %how, {OWN_CTA}')}, 0")
    index = c.load("i64", cta, CTA["index"])
    number = c(f"shl i64 {c(f'add i64 {index}, 1')}, 48")
    return c(f"select i1 {own}, i64 {c(f'xor i64 %place, {number}')}, i64 %place")


def _number_at(c: Code, row: str, cta: str) -> str:
    index = c.load("i64", cta, CTA["index"])
    return c(f"getelementptr i32, ptr {row}, i64 {index}")


def _clocks_to_release(c: Code, cta: str) -> str:
    """The clocks of what comes before the access: all that the warp knows, or what a fence came before.

    A fence of the warp serves what it knew then; one of another warp that warp's own work, if a barrier came after it.
    """
    clocks = c.var(_CLOCK, c.load(_CLOCK, "%w", WARP["vclock"], align=64), align=64)
    own = c(f"getelementptr i32, ptr {clocks}, i32 {c.load('i32', '%w', WARP['id'])}")
    now = c.load("i32", cta, CTA["epoch"])
    with c.if_(c(f"icmp ne i32 {c(f'and i32 %how, {RELEASE}')}, 0")):
        c.do("call void @late.own(ptr %w)")
        after = c(f"add i32 {now}, 1")  # the time of the access itself; `clock.turn` comes behind it
        c.store("i32", after, own)
        c.store("i32", after, cta, CTA["epoch"])
    with c.else_():
        c.store("i32", now, own)

        def limit(w: str) -> None:
            number = c.load("i32", w, WARP["id"])
            slot = c(f"getelementptr i32, ptr {clocks}, i32 {number}")
            its = c.load("i32", c(f"getelementptr i32, ptr {c.at(w, WARP['fenced'])}, i32 {number}"))
            known = c(f"call i32 @llvm.umin.i32(i32 {its}, i32 {c.load('i32', slot)})")
            mine = c.load("i32", c(f"getelementptr i32, ptr {c.at('%w', WARP['fenced'])}, i32 {number}"))
            c.store("i32", c(f"call i32 @llvm.umax.i32(i32 {known}, i32 {mine})"), slot)

        for_each_warp(c, cta, limit)
    return c.load(_CLOCK, clocks, align=64)


def _arrive() -> str:
    """Add what the warp releases to what its CTA releases at the end of the cluster barrier's phase."""
    c = Code("define internal void @order.arrive(ptr %w, i32 %how) noinline")
    cta, _ = order_block(c)
    clocks, slot = _clocks_to_release(c, cta), c.at(c.load("ptr", cta, CTA["races"]), CHECK["arrived"])
    both = c(f"call {_CLOCK} @llvm.umax.v32i32({_CLOCK} {clocks}, {_CLOCK} {c.load(_CLOCK, slot, align=64)})")
    c.store(_CLOCK, both, slot, align=64)
    c.ret()
    return c.text()


def _publish() -> str:
    c = Code("define internal void @order.publish(ptr %cta, i64 %place) noinline")
    block = c.load("ptr", c.load("ptr", "%cta", CTA["launch"]), LAUNCH["known"])
    slot = c.at(c.load("ptr", "%cta", CTA["races"]), CHECK["arrived"])
    _leave(c, "%cta", block, "%place", c.load(_CLOCK, slot, align=64), lambda join: for_each_warp(c, "%cta", join))
    c.ret()
    return c.text()


def _release() -> str:
    """Leave a record of the CTA at a place, with what the warp knows of others."""
    c = Code("define internal void @order.release(ptr %w, i64 %place, i32 %how) noinline")
    cta, block = order_block(c)
    clocks, key = _clocks_to_release(c, cta), _key(c, cta)
    _leave(c, cta, block, key, clocks, lambda join: join("%w"))
    c.ret()
    return c.text()


def _leave(c: Code, cta: str, block: str, key: str, clocks: str, each: Callable[[Callable[[str], None]], None]) -> None:
    """A record of these clocks, with what `each` warp that is given to it knows of other CTAs."""
    with alone(c, block):
        place = c(f"call i32 @ledger.place(ptr {block}, i64 {key}, i1 true)")
        with c.if_(c(f"icmp sge i32 {place}, 0")):
            row, times = row_of(c, block, place), times_of(c, block, place)
            c.store("i32", c(f"add i32 {c.load('i32', times)}, 1"), times)

            def join(w: str) -> None:
                with c.if_(c(f"icmp ne i32 {c.load('i32', w, WARP['knows'])}, 0")):
                    c(f"call i1 @ledger.join(ptr {block}, ptr {row}, ptr {row_of_warp(c, block, w, 'known')})")

            each(join)
            fresh = c(f"call i32 @ledger.record(ptr {block})")
            with c.if_(c(f"icmp ne i32 {fresh}, 0")):
                c.store(_CLOCK, clocks, record_at(c, block, fresh), align=64)
                slot = _number_at(c, row, cta)
                merged = c(f"call i32 @ledger.merge(ptr {block}, i32 {fresh}, i32 {c.load('i32', slot)})")
                c.store("i32", merged, slot)


def _learn_of_own(c: Code, cta: str, block: str, row: str) -> None:
    """What the place says of the executing warp's own CTA goes into its clock."""
    number = c.load("i32", _number_at(c, row, cta))
    with c.if_(c(f"icmp ne i32 {number}, 0")):
        theirs = c.load(_CLOCK, record_at(c, block, number), align=64)
        mine = c.load(_CLOCK, "%w", WARP["vclock"], align=64)
        both = c(f"call {_CLOCK} @llvm.umax.v32i32({_CLOCK} {mine}, {_CLOCK} {theirs})")
        c.store(_CLOCK, both, "%w", WARP["vclock"], align=64)
        c.do("call void @clock.settle(ptr %w)")


def _is_news(c: Code, cta: str, block: str, place: str) -> str:
    """False where the warp's last look was the same, with no release since: lanes and polls repeat."""
    times, plus_one = c.load("i32", times_of(c, block, place)), c(f"add i32 {place}, 1")
    who = c(f"or i32 {c.load('i32', '%w', WARP['id'])}, {c('shl i32 %how, 8')}")
    now = {"seen_place": plus_one, "seen_times": times, "seen_warp": who}
    differs = "false"
    for name, value in now.items():
        before = c.load("i32", cta, CTA[name])
        differs = c(f"or i1 {differs}, {c(f'icmp ne i32 {value}, {before}')}")
        c.store("i32", value, cta, CTA[name])
    return differs


def _acquire() -> str:
    """Take over the records of a place: now, or (relaxed) at the next fence."""
    c = Code("define internal void @order.acquire(ptr %w, i64 %place, i32 %how) noinline")
    cta, block = order_block(c)
    c.ret(when=c(f"icmp eq i32 {c.load('i32', block, ORDER['places'])}, 0"))
    key = _key(c, cta)
    with alone(c, block):
        place = c(f"call i32 @ledger.place(ptr {block}, i64 {key}, i1 false)")
        with c.if_(c(f"icmp sge i32 {place}, 0")):
            row = row_of(c, block, place)
            now = c(f"icmp ne i32 {c(f'and i32 %how, {ACQUIRE}')}, 0")
            news = _is_news(c, cta, block, place)
            with c.if_(c(f"and i1 {now}, {news}")):
                take(c, cta, block, row, "known")
                _learn_of_own(c, cta, block, row)
            with c.if_(c(f"and i1 {c(f'xor i1 {now}, true')}, {news}")):
                take(c, cta, block, row, "glimpsed")
    c.ret()
    return c.text()


def _begin() -> str:
    """The CTAs of a gang begin where those of an earlier one were, whose barriers order nothing for them."""
    c = Code("define internal void @order.begin(ptr %gang) noinline")
    launch, ctas = c.load("ptr", "%gang", GANG["launch"]), c.load("ptr", "%gang", GANG["ctas"])
    block = c.load("ptr", launch, LAUNCH["known"])
    c.ret(when=c(f"icmp eq i32 {c.load('i32', block, ORDER['places'])}, 0"))
    others = c(f"sub i32 {c.load('i32', '%gang', GANG['count'])}, 1")
    distance = c(f"mul i64 {c(f'zext i32 {others} to i64')}, {c.load('i64', launch, LAUNCH['cta_stride'])}")
    last = c.at(ctas, distance)
    begin, end = (c(f"ptrtoint ptr {c.load('ptr', cta, CTA['shared'])} to i64") for cta in (ctas, last))
    length = c(f"add i64 {c(f'sub i64 {end}, {begin}')}, {c.load('i64', last, CTA['shared_bytes'])}")
    with alone(c, block):
        c.do(f"call void @ledger.forget(ptr {block}, i64 {c('ptrtoint ptr %gang to i64')}, i64 1)")
        c.do(f"call void @ledger.forget(ptr {block}, i64 {begin}, i64 {length})")
    c.ret()
    return c.text()


def _fence() -> str:
    """What was glimpsed is known; what the warp did and knew may be released by relaxed operations."""
    c = Code("define internal void @order.fence(ptr %w) noinline")
    cta, block = order_block(c)
    c.do("call void @late.own(ptr %w)")
    with c.if_(c(f"icmp ne i32 {c.load('i32', '%w', WARP['glimpses'])}, 0")), alone(c, block):
        row = row_of_warp(c, block, "%w", "glimpsed")
        take(c, cta, block, row, "known")
        _learn_of_own(c, cta, block, row)
    now = c.load("i32", cta, CTA["epoch"])
    c.store("i32", c(f"add i32 {now}, 1"), cta, CTA["epoch"])
    c.store("i32", 1, cta, CTA["fences"])
    fenced = c.at("%w", WARP["fenced"])
    c.store(_CLOCK, c.load(_CLOCK, "%w", WARP["vclock"], align=64), fenced, align=64)
    c.store("i32", now, c(f"getelementptr i32, ptr {fenced}, i32 {c.load('i32', '%w', WARP['id'])}"))
    c.ret()
    return c.text()
