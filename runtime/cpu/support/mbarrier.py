"""mbarrier objects: 64 bits of shared memory, their phases and transaction counts, and the lanes that wait for them.

The word, from bit 0: transactions still due (22 bits, biased by 2²¹), arrivals still due (20), arrivals of a phase
(20), the phase's parity (1), and a 0 that fresh shared memory does not have. PTX ISA, "mbarrier": a phase ends when no
arrival and no transaction is due.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import CHECKING, Code
from ptxgen.runtime.cpu.native.layout import ACQUIRE, CTA, PARK_MBARRIER, RANK_SHIFT, RELEASE, THREAD, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_ALIGN, FAULT_ASSERT, FAULT_BOUNDS, resolver

TX_BIAS = 1 << 21
PENDING_SHIFT, EXPECTED_SHIFT, PARITY_SHIFT = 22, 42, 62
COUNT_MASK = (1 << 20) - 1


def _field(c: Code, word: str, shift: int, mask: int) -> str:
    return c(f"and i64 {c(f'lshr i64 {word}, {shift}')}, {mask}")


def open_phase(c: Code, bar: str) -> str:
    """i32: the parity of the phase that is not over."""
    return c(f"trunc i64 {_field(c, c.load('i64', bar, align=8), PARITY_SHIFT, 1)} to i32")


@support("reach")
def reach(space: str, what: str = "") -> str:
    """`reach.SPACE(w, site, lane, address, bytes, align)`: the host address of a read, or null after a fault;
    `reach.SPACE.write`: that of a write."""
    name = f"reach.{space}" + (".write" if what else "")
    c = Code(
        f"define internal ptr @{name}(ptr %w, i32 %site, i32 %lane, i64 %address, i64 %bytes, i64 %align) noinline"
    )
    pointer = c(f"call ptr @{resolver(space, bool(what))}(ptr %w, i32 %site, i32 %lane, i64 %address, i64 %bytes)")
    rest = c(f"and i64 %address, {c('sub i64 %align, 1')}")
    crooked = c(f"icmp ne i64 {rest}, 0")
    missing = c(f"icmp eq ptr {pointer}, null")
    with c.if_(c(f"or i1 {crooked}, {missing}"), likely=False):
        kind = c(f"select i1 {crooked}, i32 {FAULT_ALIGN}, i32 {FAULT_BOUNDS}")
        size = c(f"select i1 {crooked}, i64 %align, i64 %bytes")
        lane = c("shl i32 1, %lane")
        narrow = c(f"trunc i64 {size} to i32")
        c.do(f"call void @fault(ptr %w, i32 %site, i32 {kind}, i32 {lane}, i32 {narrow}, i64 %address, i64 0)")
        c.ret("ptr null", when="true")
    c.ret(f"ptr {pointer}")
    return c.text()


def checking(_: Code) -> str:
    """Whether this launch checks: decided when the function is compiled."""
    return CHECKING


def _order(c: Code, what: str, bar: str) -> None:
    """Check mode: the object is read or written, or orders its users (`leave`, `take`)."""
    with c.if_(checking(c)):
        c.do(f"call void @shadow.{what}.shared(ptr %w, i32 %site, i32 %lane, i32 8, ptr {bar}, i64 %address, i64 8)")


def _between_ctas(c: Code, what: str, bar: str) -> None:
    """Check mode: an arrival at another CTA's object releases, and waits acquire."""
    with c.if_(checking(c)):
        place = c(f"ptrtoint ptr {bar} to i64")
        if what == "acquire":
            c.do(f"call void @order.acquire(ptr %w, i64 {place}, i32 {ACQUIRE})")
        else:
            with c.if_(c(f"icmp uge i64 %address, {1 << RANK_SHIFT}")):
                c.do(f"call void @order.release(ptr %w, i64 {place}, i32 {RELEASE})")
                cta = c.load("ptr", "%w", WARP["cta"])  # what comes next is later than the arrival
                c.store("i32", c(f"add i32 {c.load('i32', cta, CTA['epoch'])}, 1"), cta, CTA["epoch"])


@support("mbarrier")
def mbarrier(what: str) -> str:
    """`mbarrier.init`, `.check`, `.update`, `.apply`, `.passed`, `.inval`: see each."""
    return {
        "init": _init, "check": _check, "update": _update, "apply": _apply, "passed": _passed, "inval": _inval,
    }[what]()  # fmt: skip


def _init() -> str:
    """`mbarrier.init(w, site, lane, address, count)`."""
    c = Code("define internal void @mbarrier.init(ptr %w, i32 %site, i32 %lane, i64 %address, i32 %count) noinline")
    bar = c("call ptr @reach.shared(ptr %w, i32 %site, i32 %lane, i64 %address, i64 8, i64 8)")
    c.ret(when=c(f"icmp eq ptr {bar}, null"))
    less = c("sub i32 %count, 1")
    with c.if_(c(f"icmp uge i32 {less}, {COUNT_MASK}"), likely=False):
        lane = c("shl i32 1, %lane")
        c.do(f"call void @fault(ptr %w, i32 %site, i32 {FAULT_ASSERT}, i32 {lane}, i32 8, i64 %address, i64 0)")
    count = c("zext i32 %count to i64")
    both = c(f"or i64 {c(f'shl i64 {count}, {PENDING_SHIFT}')}, {c(f'shl i64 {count}, {EXPECTED_SHIFT}')}")
    c.store("i64", c(f"or i64 {both}, {TX_BIAS}"), bar, align=8)
    _order(c, "write", bar)
    _order(c, "leave", bar)
    c.ret()
    return c.text()


def _check() -> str:
    """`mbarrier.check(w, site, lane, address) -> ptr`: the object, or null after a fault (not one, not initialised).

    To check mode this is a read: something must order it after the initialisation.
    """
    c = Code("define internal ptr @mbarrier.check(ptr %w, i32 %site, i32 %lane, i64 %address) noinline")
    bar = c("call ptr @reach.shared(ptr %w, i32 %site, i32 %lane, i64 %address, i64 8, i64 8)")
    c.ret("ptr null", when=c(f"icmp eq ptr {bar}, null"))
    with c.if_(c(f"icmp slt i64 {c.load('i64', bar, align=8)}, 0"), likely=False):
        lane = c("shl i32 1, %lane")
        c.do(f"call void @fault(ptr %w, i32 %site, i32 {FAULT_ASSERT}, i32 {lane}, i32 8, i64 %address, i64 0)")
        c.ret("ptr null", when="true")
    _order(c, "read", bar)
    c.ret(f"ptr {bar}")
    return c.text()


def _inval() -> str:
    """`mbarrier.inval(w, site, lane, address)`."""
    c = Code("define internal void @mbarrier.inval(ptr %w, i32 %site, i32 %lane, i64 %address) noinline")
    bar = c("call ptr @mbarrier.check(ptr %w, i32 %site, i32 %lane, i64 %address)")
    c.ret(when=c(f"icmp eq ptr {bar}, null"))
    c.store("i64", -1, bar, align=8)
    _order(c, "write", bar)
    c.ret()
    return c.text()


def _apply() -> str:
    """`mbarrier.apply(w, bar, arrive, transactions, drop) -> i64`: the word before; a phase that ends wakes who waits.

    `arrive` arrivals happen, `transactions` more become due (negative: have happened), `drop` leave all later phases.
    """
    parameters = "ptr %w, ptr %bar, i64 %arrive, i64 %transactions, i64 %drop"
    c = Code(f"define internal i64 @mbarrier.apply({parameters}) noinline")
    word = c.load("i64", "%bar", align=8)
    due = c(f"add i64 {c(f'and i64 {word}, {(1 << 22) - 1}')}, %transactions")
    pending = c(f"sub i64 {_field(c, word, PENDING_SHIFT, COUNT_MASK)}, %arrive")
    expected = c(f"sub i64 {_field(c, word, EXPECTED_SHIFT, COUNT_MASK)}, %drop")
    parity = _field(c, word, PARITY_SHIFT, 1)
    no_arrival, no_transaction = c(f"icmp eq i64 {pending}, 0"), c(f"icmp eq i64 {due}, {TX_BIAS}")
    over = c(f"and i1 {no_arrival}, {no_transaction}")
    left = c(f"and i64 {c(f'select i1 {over}, i64 {expected}, i64 {pending}')}, {COUNT_MASK}")
    flipped = c(f"xor i64 {parity}, {c(f'zext i1 {over} to i64')}")
    low = c(f"or i64 {c(f'and i64 {due}, {(1 << 22) - 1}')}, {c(f'shl i64 {left}, {PENDING_SHIFT}')}")
    bits = c(f"and i64 {expected}, {COUNT_MASK}")
    high = c(f"or i64 {c(f'shl i64 {bits}, {EXPECTED_SHIFT}')}, {c(f'shl i64 {flipped}, {PARITY_SHIFT}')}")
    c.store("i64", c(f"or i64 {low}, {high}"), "%bar", align=8)
    with c.if_(over):
        with c.if_(checking(c)):
            c.do("call void @late_lanes.over(ptr %w, ptr %bar)")
        gang = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["gang"])
        c.do(f"call void @wake_gang(ptr {gang}, i32 {PARK_MBARRIER}, i64 {c('ptrtoint ptr %bar to i64')})")
    c.ret(f"i64 {word}")
    return c.text()


def _update() -> str:
    """`mbarrier.update(w, site, lane, address, arrive, transactions, drop) -> i64`: check and apply; more arrivals than
    are due is a fault."""
    c = Code(
        "define internal i64 @mbarrier.update(ptr %w, i32 %site, i32 %lane, i64 %address, i64 %arrive, "
        "i64 %transactions, i64 %drop) noinline"
    )
    bar = c("call ptr @mbarrier.check(ptr %w, i32 %site, i32 %lane, i64 %address)")
    c.ret("i64 0", when=c(f"icmp eq ptr {bar}, null"))
    pending = _field(c, c.load("i64", bar, align=8), PENDING_SHIFT, COUNT_MASK)
    with c.if_(c(f"icmp ugt i64 %arrive, {pending}"), likely=False):
        lane = c("shl i32 1, %lane")
        c.do(f"call void @fault(ptr %w, i32 %site, i32 {FAULT_ASSERT}, i32 {lane}, i32 8, i64 %address, i64 0)")
        c.ret("i64 0", when="true")
    _order(c, "leave", bar)
    _between_ctas(c, "release", bar)
    c.ret("i64 " + c(f"call i64 @mbarrier.apply(ptr %w, ptr {bar}, i64 %arrive, i64 %transactions, i64 %drop)"))
    return c.text()


def _passed() -> str:
    """`mbarrier.passed(w, site, lane, address, parity) -> i32`: 1 when the phase of that parity is over. If it is not,
    what is in flight towards this object lands first: no thread may see the phase complete before that."""
    c = Code("define internal i32 @mbarrier.passed(ptr %w, i32 %site, i32 %lane, i64 %address, i32 %parity) noinline")
    bar = c("call ptr @mbarrier.check(ptr %w, i32 %site, i32 %lane, i64 %address)")
    c.ret("i32 1", when=c(f"icmp eq ptr {bar}, null"))
    wanted = c("and i32 %parity, 1")
    with c.if_(checking(c)):
        queued = c.load("i64", c.load("ptr", "%w", WARP["thread"]), THREAD["queued"])
        open_ = c(f"icmp eq i32 {open_phase(c, bar)}, {wanted}")
        with c.if_(c(f"and i1 {open_}, {c(f'icmp ne i64 {queued}, 0')}"), likely=False):
            c.do(f"call void @async.land_for(ptr %w, ptr {bar})")
    over = c(f"icmp ne i32 {open_phase(c, bar)}, {wanted}")
    with c.if_(over):
        _order(c, "take", bar)
        _between_ctas(c, "acquire", bar)
    c.ret("i32 " + c(f"zext i1 {over} to i32"))
    return c.text()
