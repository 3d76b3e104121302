"""Check mode's part of a warp's load or store: the shadow is told of each access before it happens."""

from __future__ import annotations

from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.access import Access, offset_of, widened, window
from ptxgen.runtime.cpu.support.equal_stores import begin, settle
from ptxgen.runtime.cpu.support.faults import resolver

_SEVERAL = 32  # in a lane number for the shadow: other lanes access the same bytes


def doubtful(c: Code, access: Access, what: str, rows: str = "") -> None:
    """`begin` before the shadow is told of a store, `settle` when the bytes are there (`support/equal_stores.py`).

    `rows`: where the lanes' values are; none: its lanes write bytes of their own.
    """
    if access.check not in ("check", "collective") or access.space == "local":
        return
    if what == "begin":
        begin(c)
    else:
        settle(c, lambda: _as_stored(c, access, rows) if rows else "true")


def _as_stored(c: Code, access: Access, rows: str) -> str:
    """i1: what every active lane has stored is there, so lanes that share a place have stored the same."""
    same, slots = c.var("i1", "true"), c.var(access.addresses, "%a", align=64)
    whole = f"i{8 * access.row}"
    with c.each_bit("%m") as lane:
        mine = c.load(access.address, c(f"getelementptr {access.address}, ptr {slots}, i32 {lane}"))
        head = f"ptr %w, i32 %site, i32 {lane}, i64 {widened(c, access, mine)}, i64 {access.row}"
        there = c(f"call ptr @{resolver(access.space, access.writes)}({head})")
        with c.if_(c(f"icmp ne ptr {there}, null")):
            value = c.load(whole, c(f"getelementptr {access.row_type}, ptr {rows}, i32 {lane}"), align=1)
            equal = c(f"icmp eq {whole} {value}, {c.load(whole, there, align=1)}")
            c.store("i1", c(f"and i1 {equal}, {c.load('i1', same)}"), same)
    return c.load("i1", same)


def watch_lane(c: Code, access: Access, what: str, lane: str, pointer: str, address: str) -> None:
    """Tell the shadow of one lane's access before it happens."""
    if access.check:
        who = c(f"or i32 {lane}, {_SEVERAL}") if access.collective else lane
        _watch(c, access, what, who, pointer, address, access.row)


def watch_run(c: Code, access: Access, what: str, base: str, start: str, pointer: str) -> None:
    """Tell the shadow of a run of bytes, a row a lane, before it is accessed: of each block of active lanes apart.

    `base`: lane 0's address, active or not; `start` and `pointer`: the first active lane's.
    """
    if not access.check:
        return
    left = c.var("i32", "%m")
    with c.loop() as out:
        lanes = c.load("i32", left)
        c.leave(out, c(f"icmp eq i32 {lanes}, 0"))
        negative = c(f"sub i32 0, {lanes}")
        carried = c(f"add i32 {lanes}, {c(f'and i32 {lanes}, {negative}')}")  # beyond the lowest block of ones
        c.store("i32", c(f"and i32 {lanes}, {carried}"), left)
        block = c(f"and i32 {lanes}, {c(f'xor i32 {carried}, -1')}")
        count = c(f"call i32 @llvm.ctpop.i32(i32 {block})")
        first = c(f"call i32 @llvm.cttz.i32(i32 {lanes}, i1 true)")
        begin, length = (c(f"mul i64 {c(f'zext i32 {n} to i64')}, {access.row}") for n in (first, count))
        address = c(f"add i64 {base}, {begin}")
        there = c.at(pointer, c(f"sub i64 {address}, {start}"))
        who = c(f"or i32 {first}, {_SEVERAL}") if access.collective else c(f"sub i32 -1, {first}")
        _watch(c, access, what, who, there, address, length)


def watch_one(c: Code, access: Access, what: str, address: str, pointer: str) -> None:
    """Tell the shadow of one row that all active lanes access, before they do."""
    if access.check:
        first = c("call i32 @llvm.cttz.i32(i32 %m, i1 true)")
        rest = c(f"and i32 %m, {c('sub i32 %m, 1')}")
        alone = c(f"icmp eq i32 {rest}, 0")
        among = c(f"or i32 {first}, {_SEVERAL}")
        who = among if access.collective else c(f"select i1 {alone}, i32 {first}, i32 {among}")
        _watch(c, access, what, who, pointer, address, access.row)


def _watch(c: Code, access: Access, what: str, lane: str, pointer: str, address: str, length: object) -> None:
    name = f"shadow.{access.watched(what)}.{access.space}"
    head = f"ptr %w, i32 %site, i32 {lane}, i32 {access.row}"
    c.do(f"call void @{name}({head}, ptr {pointer}, i64 {address}, i64 {length})")


def watch_scattered(c: Code, access: Access, what: str, slots: str, pointer: str) -> None:
    """Tell the shadow of all active lanes, as few runs of bytes: lanes often repeat or continue each other."""
    if not access.check or access.space == "local":
        return
    name = f"watch.{access.watched(what)}.{access.space}.{access.row}" + (".collective" if access.collective else "")
    begin, _, _ = window(c, access)
    c.do(f"call void @{name}(ptr %w, i32 %site, i32 %m, ptr {slots}, ptr {pointer}, i64 {begin})")


@support("watch")
def watch(what: str, space: str, row: str, collective: str = "") -> str:
    """`watch.WHAT.SPACE.ROW(w, site, mask, offsets, pointer, begin)`: lanes at offsets from an address and its pointer.

    Lanes are told of in runs that lie one behind the other; lanes that repeat what others access are left out, and
    those others are marked as several.
    """
    name = ".".join(["watch", what, space, row] + ([collective] if collective else []))
    c = Code(
        f"define internal void @{name}(ptr %w, i32 %site, i32 %m, ptr %offsets, ptr %pointer, i64 %begin) noinline"
    )
    if space == "global" and what in ("read", "glance", "constant"):
        c.ret(when=c("call i1 @shadow.quiet(ptr %w, i32 %site)"))
    run = _Run(c, Access("ld", space, "v1", f"b{8 * int(row)}", "check"), f"shadow.{what}.{space}", int(row))
    breaks, repeats, among = _segments(c, run.access, int(row))
    if collective:
        among = "-1"
    first_of_all = c(f"and i32 {breaks}, {c(f'xor i32 {repeats}, -1')}")
    with c.each_bit(c(f"and i32 {first_of_all}, %m")) as lane:
        offset = offset_of(c, run.access, "%offsets", lane)
        after = _end_of_segment(c, run.access, breaks, lane, int(row))
        several = c(f"and i32 {c(f'lshr i32 {among}, {lane}')}, 1")
        run.add(lane, offset, after, c(f"shl i32 {several}, 5"))
    run.flush()
    c.ret()
    return c.text()


class _Run:
    """Bytes that lanes access one behind the other, gathered until the next ones lie elsewhere."""

    def __init__(self, c: Code, access: Access, told: str, row: int) -> None:
        self.c, self.access, self.told, self.row = c, access, told, row
        self.start, self.end = c.var("i64", 0), c.var("i64", 0)
        self.first, self.several = c.var("i32", 0), c.var("i32", 0)

    def add(self, lane: str, offset: str, after: str, several: str) -> None:
        """A segment that begins with a lane; `several`: 32 where other lanes access its bytes too."""
        c = self.c
        high = c.load("i64", self.end)
        low = c.load("i64", self.start)
        rows = c(f"udiv i64 {c(f'sub i64 {high}, {low}')}, {self.row}")
        next_lane = c(f"add i32 {c.load('i32', self.first)}, {c(f'trunc i64 {rows} to i32')}")
        in_order = c(f"or i1 {c(f'icmp eq i32 {next_lane}, {lane}')}, {c(f'icmp ne i32 {several}, 0')}")
        same_kind = c(f"icmp eq i32 {c.load('i32', self.several)}, {several}")
        behind = c(f"and i1 {c(f'icmp eq i64 {offset}, {high}')}, {c(f'and i1 {in_order}, {same_kind}')}")
        with c.if_(c(f"xor i1 {behind}, true")):
            self.flush()
            c.store("i64", offset, self.start)
            c.store("i32", lane, self.first)
            c.store("i32", several, self.several)
        c.store("i64", after, self.end)

    def flush(self) -> None:
        """Tell the shadow of what was gathered."""
        c = self.c
        from_, to = c.load("i64", self.start), c.load("i64", self.end)
        with c.if_(c(f"icmp ne i64 {from_}, {to}")):
            first, several = c.load("i32", self.first), c.load("i32", self.several)
            single = c(f"icmp eq i32 {several}, 0")
            who = c(f"select i1 {single}, i32 {c(f'sub i32 -1, {first}')}, i32 {c(f'or i32 {first}, {several}')}")
            head = f"ptr %w, i32 %site, i32 {who}, i32 {self.row}, ptr {c.at('%pointer', from_)}"
            address, length = c(f"add i64 {from_}, %begin"), c(f"sub i64 {to}, {from_}")
            c.do(f"call void @{self.told}({head}, i64 {address}, i64 {length})")


def _segments(c: Code, access: Access, row: int) -> tuple[str, str, str]:
    """Lanes that begin a segment; lanes whose bytes an earlier lane (not just the one before) has; lanes that share
    their bytes with any. In a segment every lane repeats or continues the one before it; in a partial warp each active
    lane is one."""
    kind = access.addresses
    now = c.load(kind, "%offsets", align=64)

    def shifted(distance: int) -> str:
        picks = ", ".join(f"i32 {max(n - distance, 0)}" for n in range(32))
        return c(f"shufflevector {kind} {now}, {kind} poison, {vec('i32')} <{picks}>")

    def lanes(test: str) -> str:
        return c(f"bitcast {vec('i1')} {test} to i32")

    def both(distance: int) -> str:
        """Active lanes with an active lane that far below."""
        return c(f"and i32 %m, {c(f'shl i32 %m, {distance}')}")

    before = shifted(1)
    same = c(f"and i32 {lanes(c(f'icmp eq {kind} {now}, {before}'))}, {both(1)}")
    next_ = lanes(c(f"icmp eq {kind} {now}, {c(f'add {kind} {before}, {splat(access.address, row)}')}"))
    repeats, among = "0", c(f"or i32 {same}, {c(f'lshr i32 {same}, 1')}")
    for distance in (2, 4, 8, 16):
        again = c(f"and i32 {lanes(c(f'icmp eq {kind} {now}, {shifted(distance)}'))}, {both(distance)}")
        repeats = c(f"or i32 {repeats}, {again}")
        earlier = c(f"lshr i32 {again}, {distance}")
        among = c(f"or i32 {among}, {c(f'or i32 {again}, {earlier}')}")
    repeats = c(f"and i32 {repeats}, {c(f'xor i32 {same}, -1')}")
    changes = [c(f"xor i32 {lanes_}, {c(f'shl i32 {lanes_}, 1')}") for lanes_ in (repeats, among)]
    continues = c(f"or i32 {same}, {next_}")
    breaks = c(f"or i32 {c(f'xor i32 {continues}, -1')}, {c(f'or i32 {changes[0]}, {changes[1]}')}")
    whole = c("icmp eq i32 %m, -1")
    return c(f"select i1 {whole}, i32 {c(f'or i32 {breaks}, 1')}, i32 %m"), repeats, among


def _end_of_segment(c: Code, access: Access, breaks: str, lane: str, row: int) -> str:
    """Offset behind the last lane before the next break; of a partial warp, behind the lane itself."""
    later = c(f"and i32 {breaks}, {c(f'shl i32 -2, {lane}')}")
    next_ = c(f"call i32 @llvm.cttz.i32(i32 {later}, i1 false)")
    last = c(f"select i1 {c('icmp eq i32 %m, -1')}, i32 {c(f'sub i32 {next_}, 1')}, i32 {lane}")
    return c(f"add i64 {offset_of(c, access, '%offsets', last)}, {row}")
