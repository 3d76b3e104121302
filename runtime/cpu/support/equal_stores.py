"""Check mode: stores that meet an earlier store of the same bytes, until it is known whether they change anything.

Nothing orders the two, but where the later one writes what is there already, no order of them gives another result.
So the race is kept as a doubt before the store, with the bytes as they are, and decided behind it. Until something
else is known, the store is not entered: what changes nothing is no write.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.runtime.cpu.native.ir import Code
from ptxgen.runtime.cpu.native.layout import DOUBT, DOUBTS, THREAD, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import EQUAL

_BYTES = DOUBT["_end"]


def doubted(c: Code) -> str:
    """How many bytes or cells of the present store are in doubt, as an i32."""
    return c.load("i32", c.load("ptr", "%w", WARP["thread"]), THREAD["doubted"])


@support("doubt")
def doubt(what: str) -> str:
    """`doubt.take(w, site, kind, mask, row, address, extra, pointer, bytes, several) -> i1` before a store: whether the
    fault (of at most 4 bytes) waits for `settle`, else it is reported. `doubt.settle(w, same)` behind it; `same`:
    lanes that share a place store the same there, else what `several` lanes write is in no order either.
    """
    return {"take": _take, "settle": _settle}[what]()


def begin(c: Code) -> None:
    """Before the shadow is told of a store: faults may wait."""
    c.store("i32", 1, c.load("ptr", "%w", WARP["thread"]), THREAD["doubting"])


def settle(c: Code, same: Callable[[], str]) -> None:
    """When the bytes of a store are there; `same` emits the i1 that `doubt.settle` wants."""
    thread = c.load("ptr", "%w", WARP["thread"])
    c.store("i32", 0, thread, THREAD["doubting"])
    with c.if_(c(f"icmp ne i32 {c.load('i32', thread, THREAD['doubted'])}, 0"), likely=False):
        c.do(f"call void @doubt.settle(ptr %w, i1 {same()})")


def _take() -> str:
    c = Code(
        "define internal i1 @doubt.take(ptr %w, i32 %site, i32 %kind, i32 %mask, i32 %row, i64 %address, i64 %extra, "
        "ptr %pointer, i64 %n, i1 %several) cold noinline"
    )
    thread = c.load("ptr", "%w", WARP["thread"])
    number = c.load("i32", thread, THREAD["doubted"])
    room = c(f"icmp ult i32 {number}, {DOUBTS}")
    storing = c(f"icmp ne i32 {c.load('i32', thread, THREAD['doubting'])}, 0")
    waits = c(f"and i1 {c(f'and i1 {storing}, {room}')}, {c('icmp ne i64 %n, 0')}")
    with c.if_(waits):
        base = c.load("ptr", thread, THREAD["doubts"])
        record = c.at(base, c(f"zext i32 {c(f'mul i32 {number}, {_BYTES}')} to i64"))
        for name, kind in (("pointer", "ptr"), ("address", "i64"), ("extra", "i64"), ("n", "i64")):
            c.store(kind, f"%{name}", record, DOUBT[name])
        for name in ("site", "kind", "mask", "row"):
            c.store("i32", f"%{name}", record, DOUBT[name])
        c.store("i32", c("zext i1 %several to i32"), record, DOUBT["several"])
        old = c.at(record, DOUBT["old"])
        c.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {old}, ptr %pointer, i64 %n, i1 false)")
        c.store("i32", c(f"add i32 {number}, 1"), thread, THREAD["doubted"])
    with c.else_():
        c.do("call void @fault(ptr %w, i32 %site, i32 %kind, i32 %mask, i32 %row, i64 %address, i64 %extra)")
    c.ret(f"i1 {waits}")
    return c.text()


def _settle() -> str:
    c = Code("define internal void @doubt.settle(ptr %w, i1 %same) cold noinline")
    thread = c.load("ptr", "%w", WARP["thread"])
    number = c.load("i32", thread, THREAD["doubted"])
    with c.if_(c(f"icmp ne i32 {number}, 0"), likely=False):
        c.store("i32", 0, thread, THREAD["doubted"])
        base = c.load("ptr", thread, THREAD["doubts"])
        with c.count("i32", number) as index:
            record = c.at(base, c(f"zext i32 {c(f'mul i32 {index}, {_BYTES}')} to i64"))
            apart = c(f"select i1 %same, i32 0, i32 {c.load('i32', record, DOUBT['several'])}")
            pointer, changed = c.load("ptr", record, DOUBT["pointer"]), c.var("i32", apart)
            c.store("i32", apart, changed)
            with c.count("i64", c.load("i64", record, DOUBT["n"])) as place:
                old, now = c.load("i8", c.at(c.at(record, DOUBT["old"]), place)), c.load("i8", c.at(pointer, place))
                other = c(f"zext i1 {c(f'icmp ne i8 {old}, {now}')} to i32")
                c.store("i32", c(f"or i32 {c.load('i32', changed)}, {other}"), changed)
            kind, site, mask, row = (c.load("i32", record, DOUBT[name]) for name in ("kind", "site", "mask", "row"))
            equal = c(f"icmp eq i32 {c.load('i32', changed)}, 0")
            told = c(f"select i1 {equal}, i32 {c(f'add i32 {kind}, {EQUAL}')}, i32 {kind}")
            head = f"ptr %w, i32 {site}, i32 {told}, i32 {mask}, i32 {row}"
            tail = f"i64 {c.load('i64', record, DOUBT['address'])}, i64 {c.load('i64', record, DOUBT['extra'])}"
            c.do(f"call void @fault({head}, {tail})")
    c.ret()
    return c.text()
