"""The cluster barrier: arrivals of all threads of a gang, phases, and the lanes that wait for them."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, vec
from ptxgen.runtime.cpu.native.layout import ACQUIRE, CHECK, CTA, GANG, LAUNCH, PARK_CLUSTER, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.mbarrier import checking
from ptxgen.runtime.cpu.support.parking import pop_count


def for_each_cta(c: Code, gang: str, body: object) -> None:
    """Emit `body(cta pointer)` in a loop over a gang's CTAs."""
    stride = c.load("i64", c.load("ptr", gang, GANG["launch"]), LAUNCH["cta_stride"])
    base = c.load("ptr", gang, GANG["ctas"])
    with c.count("i32", c.load("i32", gang, GANG["count"])) as rank:
        body(c.at(base, c(f"mul i64 {c(f'zext i32 {rank} to i64')}, {stride}")))  # type: ignore[operator]


@support("wake_gang")
def wake_gang(*_: str) -> str:
    """`wake_gang(gang, kind, argument)`: lanes of all its CTAs that wait for this go on."""
    c = Code("define internal void @wake_gang(ptr %gang, i32 %kind, i64 %argument) noinline")
    for_each_cta(c, "%gang", lambda cta: c(f"call i32 @unpark(ptr {cta}, i32 %kind, i32 0, i64 %argument)"))
    c.ret()
    return c.text()


@support("cluster")
def cluster(what: str) -> str:
    """`cluster.arrive(w, mask, how)`; `cluster.passed(w, mask)`: lanes whose phase is over; `cluster.settle(gang)`."""
    return {"arrive": _arrive, "passed": _passed, "settle": _settle}[what]()


def _gang_of(c: Code) -> str:
    return c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["gang"])


def _order(c: Code, direction: str) -> None:
    """Check mode: the barrier orders the warps of each CTA, and the CTAs: once a phase of each warp that waits."""
    with c.if_(checking(c)):
        cta = c.load("ptr", "%w", WARP["cta"])
        block, gang = c.load("ptr", cta, CTA["races"]), c.load("ptr", cta, CTA["gang"])
        if direction == "release":
            c.do("call void @order.arrive(ptr %w, i32 %how)")
        else:
            phase = c.load("i32", gang, GANG["cluster_phase"])
            with c.if_(c(f"icmp ne i32 {phase}, {c.load('i32', '%w', WARP['phase'])}")):
                c.store("i32", phase, "%w", WARP["phase"])
                c.do(f"call void @order.acquire(ptr %w, i64 {c(f'ptrtoint ptr {gang} to i64')}, i32 {ACQUIRE})")
        c.do(f"call void @clock.{direction}(ptr %w, ptr {c.at(block, CHECK['cluster'])})")


def _arrive() -> str:
    c = Code("define internal void @cluster.arrive(ptr %w, i32 %mask, i32 %how) noinline")
    gang = _gang_of(c)
    _order(c, "release")
    phase = c.load("i32", gang, GANG["cluster_phase"])
    seen = c.at("%w", WARP["cluster_seen"])
    with c.each_bit("%mask") as lane:
        c.store("i32", phase, c(f"getelementptr i32, ptr {seen}, i32 {lane}"))
    total = c(f"add i32 {c.load('i32', gang, GANG['cluster_arrived'])}, {pop_count(c, '%mask')}")
    c.store("i32", total, gang, GANG["cluster_arrived"])
    c.do(f"call void @cluster.settle(ptr {gang})")
    c.ret()
    return c.text()


def _settle() -> str:
    """The phase ends when every thread of the cluster that has not exited has arrived."""
    c = Code("define internal void @cluster.settle(ptr %gang) noinline")
    arrived = c.load("i32", "%gang", GANG["cluster_arrived"])
    c.ret(when=c(f"icmp eq i32 {arrived}, 0"))
    live = c.var("i32", 0)

    def count(cta: str) -> None:
        c.store("i32", c(f"add i32 {c.load('i32', live)}, {c.load('i32', cta, CTA['live'])}"), live)

    for_each_cta(c, "%gang", count)
    c.ret(when=c(f"icmp ult i32 {arrived}, {c.load('i32', live)}"))
    with c.if_(checking(c)):
        place = c("ptrtoint ptr %gang to i64")
        for_each_cta(c, "%gang", lambda cta: c.do(f"call void @order.publish(ptr {cta}, i64 {place})"))
    c.store("i32", 0, "%gang", GANG["cluster_arrived"])
    c.store("i32", c(f"add i32 {c.load('i32', '%gang', GANG['cluster_phase'])}, 1"), "%gang", GANG["cluster_phase"])
    c.do(f"call void @wake_gang(ptr %gang, i32 {PARK_CLUSTER}, i64 0)")
    c.ret()
    return c.text()


def _passed() -> str:
    c = Code("define internal i32 @cluster.passed(ptr %w, i32 %mask) noinline")
    phase = c.spread("i32", c.load("i32", _gang_of(c), GANG["cluster_phase"]))
    seen = c.load(vec("i32"), "%w", WARP["cluster_seen"], align=4)
    over = c(f"icmp ult {vec('i32')} {seen}, {phase}")
    lanes = c(f"bitcast {vec('i1')} {over} to i32")
    passing = c(f"and i32 %mask, {lanes}")
    c.ret("i32 0", when=c(f"icmp eq i32 {passing}, 0"))
    _order(c, "acquire")
    c.ret(f"i32 {passing}")
    return c.text()
