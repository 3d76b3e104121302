"""Check mode's shadow of memory: which bytes were written, and the checks of reads. Races are in `shared_races.py`."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.native.layout import (
    CHECK,
    CTA,
    GANG,
    LAUNCH,
    MAX_CLUSTER,
    RANK_SHIFT,
    SHADOW,
    SHARED_BASE,
    SHARED_WINDOW,
    THREAD,
    VISIT,
    WARP,
    WINDOW_SHIFT,
)
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.equal_stores import doubted
from ptxgen.runtime.cpu.support.faults import FAULT_IN_FLIGHT, FAULT_UNINITIALISED, site_cache
from ptxgen.runtime.cpu.support.parking import for_each_warp

# of a byte: 0 never written, 1 written, 2 a copy in flight will write it; above that, in global memory, the number of
# the launch that has written it
FLAG_WRITTEN, FLAG_FLYING = 1, 2
SMALL = 16  # bytes of an access that may initialise a semaphore or a flag
READS = ("read", "glance", "fetch", "constant", "order", "atomic")
STRONG_WORDS = ("order", "publish", "atomic")  # accesses that do not race with each other
_WRITES = ("write", "publish", "atomic", "land")
_PARAMETERS = "ptr %w, i32 %site, i32 %lane, i32 %row, ptr %p, i64 %a, i64 %n"
_ARGUMENTS = "ptr %w, i32 %site, i32 %lane, i32 %row, ptr %p, i64"


def _when(c: Code, condition: str, call: str) -> None:
    with c.if_(condition):
        c.do(call)


def may_be_first(c: Code) -> str:
    """i1: where a few bytes are written for the first time, that counts: the entry has atomics or the like that may
    rely on it."""
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    watched = c(f"icmp ne i32 {c.load('i32', launch, LAUNCH['inits'])}, 0")
    return c(f"and i1 {watched}, {c(f'icmp ule i64 %n, {SMALL}')}")


@support("shadow")
def shadow(what: str, space: str = "") -> str:
    """`shadow.begin(cta)`; `shadow.read|write|atomic|order|publish.SPACE(w, site, lane, row, pointer, address, bytes)`.

    `order` is a read and `publish` a write that synchronises (volatile, acquire, release); `atomic` is both; `leave`
    and `take` (of shared memory) release and acquire, and are neither. For a copy that lands later, `issue` enters the
    write (it races from then on), and `land` says that the bytes are there.
    `fetch` is a read by the asynchronous proxy, `constant` one by the path for what no launch writes meanwhile,
    `glance` one whose value nothing uses: it need not have been written.

    `lane` below 32: that lane's access of `row` bytes; 32 + f: several lanes', f among them; −1 − f: a run of rows, of
    which lane f has the first. `shadow.unwritten|flying(flags, bytes)`: position of the first byte that is not written,
    or that a copy in flight will write, or `bytes`. `shadow.quiet(w, site)`: whether reads of global memory that lie
    in the site's last-hit allocation need not be told.
    """
    if what == "begin":
        return _begin()
    if what == "quiet":
        return _quiet()
    if what in ("unwritten", "flying"):
        return _find(what)
    c = Code(f"define internal void @shadow.{what}.{space}({_PARAMETERS}) noinline")
    {"global": _global, "shared": _shared, "generic": _generic, "local": _local}[space](c, what)
    c.ret()
    return c.text()


def _local(c: Code, what: str) -> None:
    """Local memory has no shadow."""


def _generic(c: Code, what: str) -> None:
    window = c(f"lshr i64 %a, {WINDOW_SHIFT}")
    with c.if_(c(f"icmp eq i64 {window}, {SHARED_WINDOW >> WINDOW_SHIFT}")):
        inner = c(f"and i64 %a, {SHARED_WINDOW - 1}")
        c.do(f"call void @shadow.{what}.shared({_ARGUMENTS} {inner}, i64 %n)")
    with c.if_(c(f"icmp eq i64 {window}, 0")):
        c.do(f"call void @shadow.{what}.global({_ARGUMENTS} %a, i64 %n)")


def report(c: Code, kind: int, first_bad: str, extra: str = "0", same: tuple[str, str] | None = None) -> str:
    """A fault at byte `first_bad` of the access, in the lane it belongs to.

    `same`: (pointer, number) of the bytes that the access may leave as they are; then it is decided later if the i1
    that comes back holds (`equal_stores.py`).
    """
    rows = c("zext i32 %row to i64")
    behind = c(f"trunc i64 {c(f'udiv i64 {first_bad}, {rows}')} to i32")
    in_run = c(f"add i32 {c('sub i32 -1, %lane')}, {behind}")
    lane = c(f"select i1 {c('icmp sge i32 %lane, 0')}, i32 %lane, i32 {in_run}")  # bit 5 says "among others"
    bit = c(f"shl i32 1, {c(f'and i32 {lane}, 31')}")
    where = c(f"add i64 %a, {first_bad}")
    what = f"ptr %w, i32 %site, i32 {kind}, i32 {bit}, i32 %row, i64 {where}, i64 {extra}"
    if same is not None:
        several = c("icmp sge i32 %lane, 32")
        return c(f"call i1 @doubt.take({what}, ptr {same[0]}, i64 {same[1]}, i1 {several})")
    c.do(f"call void @fault({what})")
    return "false"


def _demand_written(c: Code, flags: str) -> None:
    """Report the first byte of the access that is not there: never written, or still on its way."""
    missing = c(f"call i64 @shadow.unwritten(ptr {flags}, i64 %n)")
    with c.if_(c(f"icmp ult i64 {missing}, %n"), likely=False):
        flies = c(f"icmp eq i8 {c.load('i8', c.at(flags, missing))}, {FLAG_FLYING}")
        with c.if_(flies):
            report(c, FAULT_IN_FLIGHT, missing)
        with c.else_():
            report(c, FAULT_UNINITIALISED, missing)


def _demand_landed(c: Code, flags: str) -> None:
    """Report the first byte of the access that a copy in flight will write."""
    flying = c(f"call i64 @shadow.flying(ptr {flags}, i64 %n)")
    with c.if_(c(f"icmp ult i64 {flying}, %n"), likely=False):
        report(c, FAULT_IN_FLIGHT, flying)


def _mark(c: Code, flags: str, flag: int) -> None:
    c.do(f"call void @llvm.memset.p0.i64(ptr {flags}, i8 {flag}, i64 %n, i1 false)")


def _global(c: Code, what: str) -> None:
    """The site's last-hit allocation is the one of this access; it may have no shadow."""
    thread = c.load("ptr", "%w", WARP["thread"])
    with c.if_(c(f"icmp ne i64 {c.load('i64', thread, THREAD['late'])}, 0"), likely=False):
        c.do("call void @late.touch(ptr %w, ptr %p, i64 %n)")
    cache = site_cache(c, thread)
    base = c.load("i64", cache, 16)
    offset = c(f"sub i64 %a, {c.load('i64', cache)}")
    inside = c(f"icmp ult i64 {offset}, {c.load('i64', cache, 8)}")  # not so for the parameter block
    with c.if_(c(f"and i1 {inside}, {c(f'icmp ne i64 {base}, 0')}")):
        flags = c(f"inttoptr i64 {c(f'add i64 {base}, {offset}')} to ptr")
        fields = _fields(c, cache, base)
        _follow(c, what, fields, offset)
        if what in ("read", "glance", "fetch", "constant"):  # the commonest: all is written, not by this launch
            c.ret(when=c(f"call i1 @between.settled(ptr %w, ptr {fields})"))
        _between(c, what, flags, c.at(fields, SHADOW["_end"]), offset)
        if what in _WRITES:
            launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
            c.store("i8", c.load("i8", launch, LAUNCH["generation"]), fields, SHADOW["launch"])


def _quiet() -> str:
    """i1: nothing of the allocation is late or unwritten, or was written by launches that matter, and no reads of it
    are marked; so it is with most reads of a warp, whatever their lanes access."""
    c = Code("define internal i1 @shadow.quiet(ptr %w, i32 %site) noinline")
    thread = c.load("ptr", "%w", WARP["thread"])
    c.ret("i1 false", when=c(f"icmp ne i64 {c.load('i64', thread, THREAD['late'])}, 0"))
    cache = site_cache(c, thread)
    base = c.load("i64", cache, 16)
    c.ret("i1 true", when=c(f"icmp eq i64 {base}, 0"))
    fields = _fields(c, cache, base)
    generation = c.load("i32", c.load("ptr", thread, THREAD["launch"]), LAUNCH["generation"])
    c.ret("i1 false", when=c(f"icmp eq i32 {c.load('i32', fields, SHADOW['reads'])}, {generation}"))
    c.ret("i1 " + c(f"call i1 @between.settled(ptr %w, ptr {fields})"))
    return c.text()


def _fields(c: Code, cache: str, base: str) -> str:
    """What lies behind the flags of a site's last-hit allocation."""
    padded = c(f"add i64 {c.load('i64', cache, 8)}, 63")
    return c(f"inttoptr i64 {c(f'add i64 {base}, ' + c(f'and i64 {padded}, -64'))} to ptr")


def _follow(c: Code, what: str, fields: str, offset: str) -> None:
    """Mark a read, or look at the marks before a write, where this launch follows the reads of the allocation."""
    if what not in ("read", "glance", "constant", *_WRITES):
        return
    launch = c.load("ptr", c.load("ptr", "%w", WARP["thread"]), THREAD["launch"])
    followed = c.load("i32", fields, SHADOW["reads"])
    with c.if_(c(f"icmp eq i32 {followed}, {c.load('i32', launch, LAUNCH['generation'])}")):
        size = c.load("i64", site_cache(c, c.load("ptr", "%w", WARP["thread"])), 8)
        cells = c(f"lshr i64 {c(f'add i64 {size}, 3')}, 2")
        tail = f"ptr {c.load('ptr', fields, SHADOW['marks'])}, i64 {cells}, i64 {offset}"
        look = f"look.{'strong' if what in STRONG_WORDS else 'weak'}"
        name = f"readers.{look if what in _WRITES else 'note'}"
        c.do(f"call void @{name}(ptr %w, i32 %site, i32 %lane, i32 %row, i64 %a, i64 %n, {tail})")


def _between(c: Code, what: str, flags: str, stamps: str, offset: str) -> None:
    """Look at what others have written (`global_races.py`), then enter what this access writes."""
    strong = what in STRONG_WORDS
    if what == "atomic":  # mostly of bytes that others have changed so
        c.ret(when=c(f"call i1 @between.again(ptr %w, ptr {stamps}, i64 {offset}, i64 %n)"))
    doubts = doubted(c) if what == "write" else ""
    first = c(f"call i64 @between.scan.{'read' if what in READS else 'write'}(ptr %w, ptr {flags}, i64 %n)")
    with c.if_(c(f"icmp ult i64 {first}, %n"), likely=False):
        head = "ptr %w, i32 %site, i32 %lane, i32 %row, i64 %a, i64 %n"
        c.do(f"call void @between.look.{what}({head}, ptr {flags}, ptr {stamps}, i64 {offset})")
    if what == "write":
        added = c(f"sub i32 {doubted(c)}, {doubts}")
        c.ret(when=c(f"icmp eq i64 {c(f'zext i32 {added} to i64')}, %n"))  # all of it is in doubt
    if what in _WRITES:
        name = f"between.stamp.{'strong' if strong else 'weak'}"
        c.do(f"call void @{name}(ptr %w, ptr {flags}, ptr {stamps}, i64 {offset}, i64 %n)")


def _written(c: Code, what: str, flags: str) -> None:
    """What the access means for the flags of written bytes of shared memory."""
    if what in READS and what != "glance":
        _demand_written(c, flags)
    elif what in ("glance", "write", "publish", "issue"):
        _demand_landed(c, flags)
    if what == "issue":
        _mark(c, flags, FLAG_FLYING)
    elif what in _WRITES:
        _mark(c, flags, FLAG_WRITTEN)


def _shared(c: Code, what: str) -> None:
    cta = c.load("ptr", "%w", WARP["cta"])
    holder = c.var("ptr", cta)
    rank = c(f"lshr i64 %a, {RANK_SHIFT}")
    own = c(f"icmp eq i64 {rank}, 0")
    with c.if_(c(f"xor i1 {own}, true")):  # another CTA of the cluster
        gang = c.load("ptr", cta, CTA["gang"])
        stride = c.load("i64", c.load("ptr", gang, GANG["launch"]), LAUNCH["cta_stride"])
        place = c(f"mul i64 {c(f'sub i64 {rank}, 1')}, {stride}")
        c.store("ptr", c.at(c.load("ptr", gang, GANG["ctas"]), place), holder)
    if what in ("read", "write"):  # the commonest case needs the least
        with c.if_(own):
            offset = c(f"sub i64 %a, {SHARED_BASE}")
            c.ret(when=c(f"call i1 @race.quick.{what}(ptr %w, i32 %lane, i32 %row, i64 {offset}, i64 %n)"))
    there = c.load("ptr", holder)
    begin = c(f"ptrtoint ptr {c.load('ptr', there, CTA['shared'])} to i64")
    offset = c(f"sub i64 {c('ptrtoint ptr %p to i64')}, {begin}")
    flags = c.at(c.load("ptr", there, CTA["valid"]), offset)
    if what in ("write", "publish"):
        with c.if_(c(f"and i1 {own}, {may_be_first(c)}")):
            missing = c(f"call i64 @shadow.unwritten(ptr {flags}, i64 %n)")
            first = f"call void @race.init(ptr %w, i32 %lane, i32 %row, i64 {offset}, i64 %n)"
            _when(c, c(f"icmp ult i64 {missing}, %n"), first)
    _written(c, what, flags)
    with c.if_(c(f"icmp ne ptr {there}, {cta}")):
        strong = "strong" if what in (*STRONG_WORDS, "leave", "take") else "weak"
        head = f"ptr %w, i32 %site, i32 %lane, i32 %row, ptr {there}, i64 %a, i64 %n"
        c.do(f"call void @remote.look.{strong}({head}, i64 {offset})")
        if what not in ("issue", "land"):
            c.do(f"call void @remote.visit(ptr %w, i32 %site, ptr {there})")
    with c.if_(own):
        names = {"fetch": "race.read", "glance": "race.read", "issue": "race.write", "land": "race.write"}
        names |= {"leave": "clock.leave", "take": "clock.take"}
        c.do(f"call void @{names.get(what, f'race.{what}')}({_ARGUMENTS} %a, i64 %n, i64 {offset})")
        if what == "fetch":
            c.do(f"call void @proxy.fetch({_ARGUMENTS} %a, i64 %n, i64 {offset})")


@support("written")
def written(_space: str) -> str:
    """`written.shared(w, addresses, offset, mask, bytes)`: the lanes that are outside of the mask, or whose bytes in
    the CTA's own shared memory are written; others' memory is taken to be."""
    c = Code(f"define internal i32 @written.shared(ptr %w, {vec('i32')} %a, i64 %off, i32 %m, i64 %n) noinline")
    cta, places = c.load("ptr", "%w", WARP["cta"]), c.var(vec("i32"), align=64)
    c.store(vec("i32"), "%a", places, align=64)
    flags, size = c.load("ptr", cta, CTA["valid"]), c.load("i64", cta, CTA["shared_bytes"])
    missing = c.var("i32", 0)
    with c.count("i32", 32) as lane:
        bit = c(f"shl i32 1, {lane}")
        address = c.load("i32", c(f"getelementptr i32, ptr {places}, i32 {lane}"))
        place = c(f"add i64 {c(f'zext i32 {address} to i64')}, %off")
        place = c(f"sub i64 {place}, {SHARED_BASE}")
        inside = c(f"icmp ule i64 {c(f'add i64 {place}, %n')}, {size}")
        inside = c(f"and i1 {inside}, {c(f'icmp ult i64 {place}, {size}')}")
        active = c(f"icmp ne i32 {c(f'and i32 %m, {bit}')}, 0")
        with c.if_(c(f"and i1 {inside}, {active}")):
            first = c(f"call i64 @shadow.unwritten(ptr {c.at(flags, place)}, i64 %n)")
            with c.if_(c(f"icmp ult i64 {first}, %n")):
                c.store("i32", c(f"or i32 {c.load('i32', missing)}, {bit}"), missing)
    c.ret("i32 " + c(f"xor i32 {c.load('i32', missing)}, -1"))
    return c.text()


def _find(what: str) -> str:
    c = Code(f"define internal i64 @shadow.{what}(ptr %flags, i64 %n) noinline")
    test, flag = ("ne", FLAG_WRITTEN) if what == "unwritten" else ("eq", FLAG_FLYING)
    at = c.var("i64", 0)
    for size in (32, 4):
        wide, lanes = vec("i8", size), vec("i1", size)
        with c.loop() as out:
            now = c.load("i64", at)
            after = c(f"add i64 {now}, {size}")
            c.leave(out, c(f"icmp ugt i64 {after}, %n"))
            matching = c(f"icmp {test} {wide} {c.load(wide, c.at('%flags', now), align=1)}, {splat('i8', flag)}")
            bits = c(f"bitcast {lanes} {matching} to i{size}")
            with c.if_(c(f"icmp ne i{size} {bits}, 0"), likely=False):
                first = c(f"call i{size} @llvm.cttz.i{size}(i{size} {bits}, i1 true)")
                c.ret("i64 " + c(f"add i64 {now}, {c(f'zext i{size} {first} to i64')}"), when="true")
            c.store("i64", after, at)
    with c.loop() as out:
        now = c.load("i64", at)
        c.leave(out, c(f"icmp uge i64 {now}, %n"))
        c.leave(out, c(f"icmp {test} i8 {c.load('i8', c.at('%flags', now))}, {flag}"))
        c.store("i64", c(f"add i64 {now}, 1"), at)
    c.ret("i64 " + c.load("i64", at))
    return c.text()


def _begin() -> str:
    """A CTA begins: nothing of its shared memory is written, and what other CTAs did lies behind every warp."""
    c = Code("define internal void @shadow.begin(ptr %cta) noinline")
    size = c.load("i64", "%cta", CTA["shared_bytes"])
    c.do(f"call void @llvm.memset.p0.i64(ptr {c.load('ptr', '%cta', CTA['valid'])}, i8 0, i64 {size}, i1 false)")
    now = c.load("i32", "%cta", CTA["epoch"])
    c.store("i32", c(f"add i32 {now}, 1"), "%cta", CTA["epoch"])
    c.store("i32", now, "%cta", CTA["begun"])
    visits = c.at(c.load("ptr", "%cta", CTA["races"]), CHECK["visits"])
    c.do(f"call void @llvm.memset.p0.i64(ptr {visits}, i8 0, i64 {VISIT['_end'] * MAX_CLUSTER}, i1 false)")
    clocks = c.spread("i32", now)
    before = c.load("i32", c.load("ptr", "%cta", CTA["launch"]), LAUNCH["before"])

    def start(w: str) -> None:
        c.store(vec("i32"), clocks, w, WARP["vclock"], align=64)
        c.store("i32", before, w, WARP["before"])
        c.do(f"call void @clock.settle(ptr {w})")

    for_each_warp(c, "%cta", start)
    c.ret()
    return c.text()
