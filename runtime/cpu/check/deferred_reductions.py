"""Check mode: relaxed reductions (red) happen late, as a GPU may let them: when their CTA releases, fences or looks.

A kernel that relies on their order without a release or a fence then gives another result. They are kept in a queue of
the host thread, beyond the end of their CTA, and happen at the latest when it is full, when all CTAs spin, or at the
end of the launch. A CTA keeps a few only, so that its own accesses need not look at many.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.runtime.cpu.flow.symbols import bits_of
from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import CTA, LATE, LATE_RECORDS, THREAD, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.atomic import modify

_SIZE = LATE["_end"]
_MOST = 32  # of a CTA


@support("late")
def late(what: str, *words: str) -> str:
    """`late.append(w, target, function, value, bytes)`; `late.apply.OP.TYPE(target, value)`, such a function;
    `late.own(w)`: those of the warp's CTA happen; `late.touch(w, pointer, bytes)`: the same, if any is of these bytes;
    `late.all(thread)`."""
    if what == "apply":
        return _apply(*words)
    return {"append": _append, "own": _own, "touch": _touch, "all": _all}[what]()


def _apply(operation: str, kind: str) -> str:
    c = Code(f"define internal void @late.apply.{operation}.{kind}(ptr %target, i64 %value)")
    bits = bits_of(kind)
    value = "%value" if bits == 64 else c(f"trunc i64 %value to i{bits}")
    modify(c, operation, kind, "%target", value)
    c.ret()
    return c.text()


def _start(c: Code) -> tuple[str, str, str]:
    """(the thread, the executing warp's CTA, how many of its reductions are in the queue)."""
    thread, cta = c.load("ptr", "%w", WARP["thread"]), c.load("ptr", "%w", WARP["cta"])
    now, its = c.load("i32", thread, THREAD["late_round"]), c.load("i32", cta, CTA["late_round"])
    count = c(f"select i1 {c(f'icmp eq i32 {now}, {its}')}, i32 {c.load('i32', cta, CTA['late'])}, i32 0")
    return thread, cta, c(f"zext i32 {count} to i64")


def _record(c: Code, thread: str, number: str) -> str:
    return c.at(c.load("ptr", thread, THREAD["late_queue"]), c(f"mul i64 {number}, {_SIZE}"))


def _is_of(c: Code, record: str, cta: str) -> str:
    return c(f"icmp eq i64 {c.load('i64', record, LATE['cta'])}, {c.load('i64', cta, CTA['index'])}")


def _happen(c: Code, record: str) -> None:
    function, target = c.load("ptr", record, LATE["function"]), c.load("ptr", record, LATE["target"])
    c.do(f"call void {function}(ptr {target}, i64 {c.load('i64', record, LATE['value'])})")


def _append() -> str:
    c = Code("define internal void @late.append(ptr %w, ptr %target, ptr %function, i64 %value, i64 %n) noinline")
    thread, cta, count = _start(c)
    with c.if_(c(f"icmp uge i64 {count}, {_MOST}"), likely=False):
        c.do("call void @late.own(ptr %w)")
    with c.if_(c(f"icmp uge i64 {c.load('i64', thread, THREAD['late'])}, {LATE_RECORDS}"), likely=False):
        c.do(f"call void @late.all(ptr {thread})")
    number, (_, _, kept) = c.load("i64", thread, THREAD["late"]), _start(c)
    record = _record(c, thread, number)
    c.store("ptr", "%target", record, LATE["target"])
    c.store("ptr", "%function", record, LATE["function"])
    c.store("i64", "%value", record, LATE["value"])
    c.store("i64", "%n", record, LATE["bytes"])
    c.store("i64", c.load("i64", cta, CTA["index"]), record, LATE["cta"])
    c.store("i64", c(f"add i64 {number}, 1"), thread, THREAD["late"])
    c.store("i32", c(f"trunc i64 {c(f'add i64 {kept}, 1')} to i32"), cta, CTA["late"])
    c.store("i32", c.load("i32", thread, THREAD["late_round"]), cta, CTA["late_round"])
    c.ret()
    return c.text()


def _backwards(c: Code, thread: str, cta: str, count: str, body: Callable[[str, str], None]) -> None:
    """`body(number, record)` for the CTA's records, the last first."""
    at, left = c.var("i64", c.load("i64", thread, THREAD["late"])), c.var("i64", count)
    with c.loop() as out:
        c.leave(out, c(f"icmp eq i64 {c.load('i64', left)}, 0"))
        number = c(f"sub i64 {c.load('i64', at)}, 1")
        c.store("i64", number, at)
        record = _record(c, thread, number)
        with c.if_(_is_of(c, record, cta)):
            c.store("i64", c(f"sub i64 {c.load('i64', left)}, 1"), left)
            body(number, record)


def _own() -> str:
    """In their order; those of others close up."""
    c = Code("define internal void @late.own(ptr %w) noinline")
    thread, cta, count = _start(c)
    c.ret(when=c(f"icmp eq i64 {count}, 0"))
    first = c.var("i64", 0)
    _backwards(c, thread, cta, count, lambda number, _: c.store("i64", number, first))
    begin = c.load("i64", first)
    kept = c.var("i64", begin)
    with c.count("i64", c.load("i64", thread, THREAD["late"]), begin) as number:
        record = _record(c, thread, number)
        with c.if_(_is_of(c, record, cta)):
            _happen(c, record)
        with c.else_():
            here = c.load("i64", kept)
            there = _record(c, thread, here)
            c.do(f"call void @llvm.memmove.p0.p0.i64(ptr {there}, ptr {record}, i64 {_SIZE}, i1 false)")
            c.store("i64", c(f"add i64 {here}, 1"), kept)
    c.store("i64", c.load("i64", kept), thread, THREAD["late"])
    c.store("i32", 0, cta, CTA["late"])
    c.ret()
    return c.text()


def _touch() -> str:
    c = Code("define internal void @late.touch(ptr %w, ptr %p, i64 %n) noinline")
    thread, cta, count = _start(c)
    begin = c("ptrtoint ptr %p to i64")
    end = c(f"add i64 {begin}, %n")

    def look(_: str, record: str) -> None:
        first = c(f"ptrtoint ptr {c.load('ptr', record, LATE['target'])} to i64")
        after = c(f"add i64 {first}, {c.load('i64', record, LATE['bytes'])}")
        meets = c(f"and i1 {c(f'icmp ult i64 {first}, {end}')}, {c(f'icmp ult i64 {begin}, {after}')}")
        with c.if_(meets):
            c.do("call void @late.own(ptr %w)")
            c.ret(when="true")

    _backwards(c, thread, cta, count, look)
    c.ret()
    return c.text()


def _all() -> str:
    c = Code("define internal void @late.all(ptr %thread) noinline")
    with c.count("i64", c.load("i64", "%thread", THREAD["late"])) as number:
        _happen(c, _record(c, "%thread", number))
    c.store("i64", 0, "%thread", THREAD["late"])
    c.store("i32", c(f"add i32 {c.load('i32', '%thread', THREAD['late_round'])}, 1"), "%thread", THREAD["late_round"])
    c.ret()
    return c.text()
