"""Faults, and turning a PTX address into a host address with every check. Owns no access itself."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import CHECKING, Code
from ptxgen.runtime.cpu.native.layout import (
    ALLOCATIONS,
    CACHE_BYTES,
    CTA,
    FAULT,
    GANG,
    LAUNCH,
    LOCAL_WINDOW,
    MORE_FAULTS,
    RANK_SHIFT,
    READY,
    SHARED_BASE,
    THREAD,
    WARP,
    WINDOW_SHIFT,
    WORKSPACE_BYTES,
)
from ptxgen.runtime.cpu.support import support

_FAULT_BYTES = FAULT["_end"]
# fault kinds: what the report (run/findings.py) says of each
FAULT_BOUNDS, FAULT_ALIGN, FAULT_TRAP, FAULT_UNINITIALISED, FAULT_RACE = 1, 2, 3, 4, 5
FAULT_REGISTER, FAULT_OPERAND, FAULT_ASSERT, FAULT_READ_ONLY = 7, 8, 9, 10
FAULT_IN_FLIGHT, FAULT_PROXY, FAULT_ORDER, FAULT_EARLY = 12, 13, 14, 15
FAULT_CONSTANT, FAULT_GONE, FAULT_LEFT, FAULT_PRODUCT, FAULT_COORDINATE, FAULT_PHASE = 16, 17, 18, 19, 20, 22
FAULT_DIVERGED = 23  # `bytes`: the site of lanes that have gone past, `extra`: which
EQUAL = 16  # more than a race's kind: the store writes what is there
FAULT_EQUAL_RACE, FAULT_EQUAL_ORDER = FAULT_RACE + EQUAL, FAULT_ORDER + EQUAL
# findings behind which a launch can go on: the access is left out, or done as if it were in order
GOES_ON = frozenset({
    FAULT_BOUNDS, FAULT_ALIGN, FAULT_UNINITIALISED, FAULT_RACE, FAULT_REGISTER, FAULT_READ_ONLY, FAULT_IN_FLIGHT,
    FAULT_PROXY, FAULT_ORDER, FAULT_EARLY, FAULT_CONSTANT, FAULT_GONE, FAULT_LEFT, FAULT_PRODUCT, FAULT_PHASE,
    FAULT_EQUAL_RACE, FAULT_EQUAL_ORDER,
})  # fmt: skip


@support("fault")
def fault(*_: str) -> str:
    """`fault(w, site, kind, mask, bytes, address, extra)`: keep the thread's first fault, make the warp return.

    In check mode the launch may go on behind it: a kind of fault counts once for each place in the code, and what else
    is found until the warp returns is kept too.
    """
    c = Code(
        "define internal void @fault(ptr %w, i32 %site, i32 %kind, i32 %mask, i32 %bytes, i64 %address, i64 %extra) "
        "cold noinline"
    )
    thread = c.load("ptr", "%w", WARP["thread"])
    with c.if_(CHECKING):
        told = c(f"getelementptr i32, ptr {c.load('ptr', thread, THREAD['reported'])}, i32 %site")
        kinds, bit = c.load("i32", told), c("shl i32 1, %kind")
        with c.if_(c(f"icmp ne i32 {c(f'and i32 {kinds}, {bit}')}, 0")):
            pending = c(f"icmp ne i32 {c.load('i32', thread, THREAD['fault'])}, 0")
            _stop(c, c(f"zext i1 {pending} to i64"))  # another warp may have it
            c.ret(when="true")
        c.store("i32", c(f"or i32 {kinds}, {bit}"), told)
    earlier = c.load("i32", thread, THREAD["fault"])
    with c.if_(c(f"icmp eq i32 {earlier}, 0")):
        _note(c, c.at(thread, THREAD["fault"]))
    with c.if_(CHECKING):
        more = c.load("i32", thread, THREAD["more_faults"])
        room = c(f"icmp ult i32 {more}, {MORE_FAULTS}")
        with c.if_(c(f"and i1 {c(f'icmp ne i32 {earlier}, 0')}, {room}")):
            place = c(f"zext i32 {c(f'mul i32 {more}, {_FAULT_BYTES}')} to i64")
            _note(c, c.at(c.load("ptr", thread, THREAD["more"]), place))
            c.store("i32", c(f"add i32 {more}, 1"), thread, THREAD["more_faults"])
    _stop(c, "1")
    c.ret()
    return c.text()


def _stop(c: Code, bit: str) -> None:
    """The warp returns at its next branch, where the i64 is 1."""
    c.store("i64", c(f"or i64 {c.load('i64', '%w', READY)}, {bit}"), "%w", READY)
    c.store("i64", c(f"or i64 {c.load('i64', '%w', WARP['summary'])}, {bit}"), "%w", WARP["summary"])


def _note(c: Code, place: str) -> None:
    for name, kind, value in (
        ("fault", "i32", "%kind"), ("site", "i32", "%site"), ("mask", "i32", "%mask"), ("bytes", "i32", "%bytes"),
        ("address", "i64", "%address"), ("extra", "i64", "%extra"), ("warp", "ptr", "%w"),
        ("cta", "ptr", c.load("ptr", "%w", WARP["cta"])),
    ):  # fmt: skip
        c.store(kind, value, place, FAULT[name])


@support("find")
def find(*_: str) -> str:
    """`find(thread, cache, address, bytes, table)`: whether a live allocation holds these bytes; then `cache` has it.

    `cache` is {begin, bytes of the allocation, address of its shadow or 0, address of the begin again}; `table` is
    LAUNCH's offset of the allocations that count: all (`readable`), or those that kernels may write (`writable`).
    """
    c = Code("define internal i1 @find(ptr %thread, ptr %cache, i64 %address, i64 %bytes, i64 %table) noinline")
    launch = c.load("ptr", "%thread", THREAD["launch"])
    _within(c, c.load("ptr", launch, LAUNCH["params"]), c.load("i64", launch, LAUNCH["param_bytes"]))
    _within(c, c.at(launch, LAUNCH["workspace"]), str(WORKSPACE_BYTES))
    table = c.at(launch, "%table")
    begins, ends, shadows = (c.load("ptr", table, ALLOCATIONS[name]) for name in ("begins", "ends", "shadows"))
    low = c.var("i64", 0)  # the number of allocations that begin at or below the address, by bisection
    high = c.var("i64", c.load("i64", table, ALLOCATIONS["count"]))
    with c.loop() as out:
        lo, hi = c.load("i64", low), c.load("i64", high)
        c.leave(out, c(f"icmp uge i64 {lo}, {hi}"))
        middle = c(f"lshr i64 {c(f'add i64 {lo}, {hi}')}, 1")
        begin = c.load("i64", c(f"getelementptr i64, ptr {begins}, i64 {middle}"))
        with c.if_(c(f"icmp ule i64 {begin}, %address")):
            c.store("i64", c(f"add i64 {middle}, 1"), low)
        with c.else_():
            c.store("i64", middle, high)
    number = c.load("i64", low)
    c.ret("i1 false", when=c(f"icmp eq i64 {number}, 0"))
    index = c(f"sub i64 {number}, 1")
    begin = c.load("i64", c(f"getelementptr i64, ptr {begins}, i64 {index}"))
    end = c.load("i64", c(f"getelementptr i64, ptr {ends}, i64 {index}"))
    last = c(f"sub i64 {end}, %bytes")
    inside = c(f"icmp ule i64 %address, {last}")
    fits = c(f"icmp uge i64 {end}, %bytes")
    c.ret("i1 false", when=c(f"xor i1 {c(f'and i1 {inside}, {fits}')}, true"))
    shadow = c.load("i64", c(f"getelementptr i64, ptr {shadows}, i64 {index}"))
    c.store("i64", begin, "%cache")
    c.store("i64", c(f"sub i64 {end}, {begin}"), "%cache", 8)
    c.store("i64", shadow, "%cache", 16)
    c.ret("i1 true")
    return c.text()


def _within(c: Code, pointer: str, size: str) -> None:
    """Parameter block (cvta.param) and workspace of a launch have addresses too, which `cache` does not take: they
    change from launch to launch."""
    offset = c(f"sub i64 %address, {c(f'ptrtoint ptr {pointer} to i64')}")
    inside = c(f"icmp ule i64 {offset}, {c(f'sub i64 {size}, %bytes')}")
    c.ret("i1 true", when=c(f"and i1 {inside}, {c(f'icmp uge i64 {size}, %bytes')}"))


def site_cache(c: Code, thread: str) -> str:
    """Pointer to the last-hit allocation of `%site`."""
    offset = c(f"mul i64 {c('zext i32 %site to i64')}, {CACHE_BYTES}")
    return c.at(thread, c(f"add i64 {offset}, {THREAD['_end']}"))


def resolver(space: str, writes: bool) -> str:
    """Name of the function that finds a lane's access: where kernels may not write, there is nothing to be written."""
    return f"resolve.{space}" + (".write" if writes and space in ("global", "generic") else "")


@support("resolve")
def resolve(space: str, what: str = "") -> str:
    """`resolve.SPACE(w, site, lane, address, bytes)`: the host address of a lane's access, or null if out of bounds.

    `resolve.SPACE.write`: null in read-only memory too. A site reads or writes, not both: it remembers what it found.
    """
    name = resolver(space, bool(what))
    c = Code(f"define internal ptr @{name}(ptr %w, i32 %site, i32 %lane, i64 %address, i64 %bytes) noinline")
    if space == "generic":
        _generic(c, bool(what))
    elif space in ("global", "const", "param"):
        _global(c, bool(what))
    else:
        {"shared": _shared, "local": _local}[space](c)
    return c.text()


def _global(c: Code, writes: bool) -> None:
    thread = c.load("ptr", "%w", WARP["thread"])
    cache = site_cache(c, thread)
    begin, size = c.load("i64", cache), c.load("i64", cache, 8)
    offset = c(f"sub i64 %address, {begin}")
    end = c(f"add i64 {offset}, %bytes")
    pointer = c("inttoptr i64 %address to ptr")
    inside = c(f"and i1 {c(f'icmp ult i64 {offset}, {size}')}, {c(f'icmp ule i64 {end}, {size}')}")
    c.ret(f"ptr {pointer}", when=inside)
    table = LAUNCH["writable" if writes else "readable"]
    found = c(f"call i1 @find(ptr {thread}, ptr {cache}, i64 %address, i64 %bytes, i64 {table})")
    c.ret("ptr " + c(f"select i1 {found}, ptr {pointer}, ptr null"))


def _shared(c: Code) -> None:
    cta = c.load("ptr", "%w", WARP["cta"])
    holder = c.var("ptr", cta)
    rank = c(f"lshr i64 %address, {RANK_SHIFT}")
    with c.if_(c(f"icmp ne i64 {rank}, 0")):  # another CTA of the cluster
        gang = c.load("ptr", cta, CTA["gang"])
        count = c(f"zext i32 {c.load('i32', gang, GANG['count'])} to i64")
        index = c(f"sub i64 {rank}, 1")
        c.ret("ptr null", when=c(f"icmp uge i64 {index}, {count}"))
        stride = c.load("i64", c.load("ptr", gang, GANG["launch"]), LAUNCH["cta_stride"])
        other = c.at(c.load("ptr", gang, GANG["ctas"]), c(f"mul i64 {index}, {stride}"))
        c.ret("ptr null", when=c(f"icmp eq i32 {c.load('i32', other, CTA['live'])}, 0"))  # it has exited
        c.store("ptr", other, holder)
    there = c.load("ptr", holder)
    inner = c(f"and i64 %address, {(1 << RANK_SHIFT) - 1}")
    offset = c(f"sub i64 {inner}, {SHARED_BASE}")
    end = c(f"add i64 {offset}, %bytes")
    size = c.load("i64", there, CTA["shared_bytes"])
    inside = c(f"and i1 {c(f'icmp ult i64 {offset}, {size}')}, {c(f'icmp ule i64 {end}, {size}')}")
    pointer = c.at(c.load("ptr", there, CTA["shared"]), offset)
    c.ret("ptr " + c(f"select i1 {inside}, ptr {pointer}, ptr null"))


def _local(c: Code) -> None:
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    stride = c.load("i64", launch, LAUNCH["local_stride"])
    offset = c(f"and i64 %address, {LOCAL_WINDOW - 1}")
    end = c(f"add i64 {offset}, %bytes")
    inside = c(f"and i1 {c(f'icmp ult i64 {offset}, {stride}')}, {c(f'icmp ule i64 {end}, {stride}')}")
    base = c(f"mul i64 {c('zext i32 %lane to i64')}, {stride}")
    pointer = c.at(c.load("ptr", "%w", WARP["local"]), c(f"add i64 {base}, {offset}"))
    c.ret("ptr " + c(f"select i1 {inside}, ptr {pointer}, ptr null"))


def _generic(c: Code, writes: bool) -> None:
    window = c(f"lshr i64 %address, {WINDOW_SHIFT}")
    offset = c(f"and i64 %address, {(1 << WINDOW_SHIFT) - 1}")
    arguments = "ptr %w, i32 %site, i32 %lane, i64"
    with c.if_(c(f"icmp eq i64 {window}, 1")):
        c.ret("ptr " + c(f"call ptr @resolve.shared({arguments} {offset}, i64 %bytes)"), when="true")
    with c.if_(c(f"icmp eq i64 {window}, 2")):
        c.ret("ptr " + c(f"call ptr @resolve.local({arguments} {offset}, i64 %bytes)"), when="true")
    c.ret("ptr " + c(f"call ptr @{resolver('global', writes)}({arguments} %address, i64 %bytes)"))
