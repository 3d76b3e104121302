"""Parts of a warp's load or store: where its lanes point, whether they may, rows against columns. Moves no data."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.runtime.cpu.native.ir import Code, indices, lanes_of, splat, vec
from ptxgen.runtime.cpu.native.layout import CTA, LAUNCH, SHARED_BASE, THREAD, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.equal_stores import begin, settle
from ptxgen.runtime.cpu.support.faults import FAULT_ALIGN, FAULT_BOUNDS, resolver, site_cache

_SEVERAL = 32  # in a lane number for the shadow: other lanes access the same bytes
_CHUNK = 8  # lanes that one shuffle turns from rows of a lane into rows of a register


def address_type(space: str) -> str:
    """LLVM type of one lane's address in a space."""
    return "i32" if space in ("shared", "local") else "i64"


class Access:
    """What the code of one access needs to know: `row` is the bytes of a lane."""

    def __init__(self, kind: str, space: str, vector: str, bits: str, check: str) -> None:
        self.space, self.count, self.bits = space, int(vector[1:]), int(bits[1:])
        self.element = f"i{self.bits}"
        self.row = self.count * self.bits // 8
        self.address = address_type(space)
        self.addresses = vec(self.address)
        self.check, self.writes = check, kind == "st"
        self.name = ".".join([kind, space, vector, bits] + ([check] if check else []))
        self.collective = check == "collective"  # what a lane accesses belongs to several (ldmatrix)
        self.simple = self.count == 1
        self.value = vec(self.element)
        self.row_type = self.element if self.simple else vec(self.element, self.count)
        self.host_align = min(self.bits // 8, 8)  # registered host arrays are aligned to their elements only

    @property
    def maskable(self) -> bool:
        """Whether a part of the lanes can be moved by one masked vector access."""
        return self.simple and self.bits in (32, 64)

    def watched(self, what: str) -> str:
        """The shadow's word for the access: accesses with an order of their own are treated like atomics."""
        if self.check in ("constant", "glance"):
            return self.check
        return ("order" if what == "read" else "publish") if self.check == "ordered" else what


def covers(c: Code, lanes: str) -> str:
    """i1: every lane of the mask is among the `<32 x i1>`."""
    bits = c(f"bitcast {vec('i1')} {lanes} to i32")
    inactive = c("xor i32 %m, -1")
    return c(f"icmp eq i32 {c(f'or i32 {bits}, {inactive}')}, -1")


def regular(c: Code, access: Access, step: int) -> str:
    """i1: every active lane's address is lane 0's plus `step` a lane."""
    kind = access.addresses
    first = c(f"extractelement {kind} %a, i64 0")
    expected = c.spread(access.address, first)
    if step:
        expected = c(f"add {kind} {expected}, {lanes_of(access.address, step)}")
    return covers(c, c(f"icmp eq {kind} %a, {expected}"))


def lane_0(c: Code, access: Access) -> str:
    """Lane 0's address as an i64, with the instruction's offset."""
    return widened(c, access, c(f"extractelement {access.addresses} %a, i64 0"))


def widened(c: Code, access: Access, address: str) -> str:
    """One lane's address plus the offset, as an i64; 32-bit addresses wrap."""
    if access.address == "i32":
        low = c("trunc i64 %off to i32")
        return c(f"zext i32 {c(f'add i32 {address}, {low}')} to i64")
    return c(f"add i64 {address}, %off")


def window(c: Code, access: Access) -> tuple[str, str, str]:
    """(first address, bytes, host pointer of the first byte) of what the site may touch without a look-up."""
    if access.space == "shared":
        cta = c.load("ptr", "%w", WARP["cta"])
        return str(SHARED_BASE), c.load("i64", cta, CTA["shared_bytes"]), c.load("ptr", cta, CTA["shared"])
    thread = c.load("ptr", "%w", WARP["thread"])
    if access.space == "local":
        launch = c.load("ptr", thread, THREAD["launch"])
        return "0", c.load("i64", launch, LAUNCH["local_stride"]), c.load("ptr", "%w", WARP["local"])
    cache = site_cache(c, thread)
    begin = c.load("i64", cache)
    return begin, c.load("i64", cache, 8), c(f"inttoptr i64 {begin} to ptr")


def reachable(c: Code, access: Access, base: str, length: object) -> tuple[str, str]:
    """(i1: the `length` bytes at the address `base` are in the window and aligned, their host pointer)."""
    begin, size, pointer = window(c, access)
    offset = c(f"sub i64 {base}, {begin}")
    end = c(f"add i64 {offset}, {length}")
    inside = c(f"and i1 {c(f'icmp ult i64 {offset}, {size}')}, {c(f'icmp ule i64 {end}, {size}')}")
    there = c.at(pointer, offset)
    if access.row == 1:
        return inside, there
    aligned = c(f"icmp eq i64 {c(f'and i64 {base}, {access.row - 1}')}, 0")
    return c(f"and i1 {inside}, {aligned}"), there


def scattered(c: Code, access: Access) -> tuple[str, str, str]:
    """(i1: every active lane is in the window and aligned, offsets in it by lane, host pointer of its first byte)."""
    begin, size, pointer = window(c, access)
    element, kind = access.address, access.addresses
    narrow = element == "i32"

    def scalar(value: str) -> str:
        return c(f"trunc i64 {value} to i32") if narrow else value

    shift = scalar(c(f"sub i64 %off, {begin}"))
    offsets = c(f"add {kind} %a, {c.spread(element, shift)}")
    room = scalar(c(f"sub i64 {size}, {access.row}"))
    fits = c(f"icmp uge i64 {size}, {access.row}")
    inside = c(f"icmp ule {kind} {offsets}, {c.spread(element, room)}")
    if access.row > 1:
        absolute = offsets if access.space in ("shared", "local") else c(f"add {kind} %a, {c.spread(element, '%off')}")
        low = c(f"and {kind} {absolute}, {splat(element, access.row - 1)}")
        aligned = c(f"icmp eq {kind} {low}, zeroinitializer")
        inside = c(f"and {vec('i1')} {inside}, {aligned}")
    fine = c(f"and i1 {fits}, {covers(c, inside)}")
    active = c(f"bitcast i32 %m to {vec('i1')}")
    offsets = c(f"select {vec('i1')} {active}, {kind} {offsets}, {kind} zeroinitializer")
    if access.space == "local":
        stride = c.spread("i32", c(f"trunc i64 {size} to i32"))
        mine = c(f"mul {kind} {lanes_of('i32', 1)}, {stride}")
        offsets = c(f"add {kind} {offsets}, {mine}")
    return fine, offsets, pointer


def offset_of(c: Code, access: Access, slots: str, lane: str) -> str:
    """A lane's offset as an i64, from offsets in memory."""
    mine = c.load(access.address, c(f"getelementptr {access.address}, ptr {slots}, i32 {lane}"))
    return c(f"zext i32 {mine} to i64") if access.address == "i32" else mine


def span(c: Code, access: Access, base: str) -> tuple[str, str]:
    """(address of the first active lane, bytes to the end of the last) when lanes lie one after the other."""
    first = c("call i32 @llvm.cttz.i32(i32 %m, i1 true)")
    after = c(f"sub i32 32, {c('call i32 @llvm.ctlz.i32(i32 %m, i1 true)')}")
    begin = c(f"mul i64 {c(f'zext i32 {first} to i64')}, {access.row}")
    finish = c(f"mul i64 {c(f'zext i32 {after} to i64')}, {access.row}")
    return c(f"add i64 {base}, {begin}"), c(f"sub i64 {finish}, {begin}")


def one_by_one(c: Code, access: Access, move: Callable[[str, str, str], None]) -> None:
    """Resolve each active lane and emit `move(lane, pointer, address)` for those that may access; report the others."""
    slots = c.var(access.addresses, align=64)
    c.store(access.addresses, "%a", slots)
    bad_bounds, bad_align = c.var("i32", 0), c.var("i32", 0)
    first_bad = c.var("i64", 0)
    with c.each_bit("%m") as lane:
        address = widened(
            c, access, c.load(access.address, c(f"getelementptr {access.address}, ptr {slots}, i32 {lane}"))
        )
        bit = c(f"shl i32 1, {lane}")
        head = f"ptr %w, i32 %site, i32 {lane}"
        pointer = c(f"call ptr @{resolver(access.space, access.writes)}({head}, i64 {address}, i64 {access.row})")
        missing = c(f"icmp eq ptr {pointer}, null")
        crooked = c(f"icmp ne i64 {c(f'and i64 {address}, {access.row - 1}')}, 0")
        with c.if_(c(f"or i1 {missing}, {crooked}"), likely=False):
            found = c(f"or i32 {c.load('i32', bad_bounds)}, {c.load('i32', bad_align)}")
            with c.if_(c(f"icmp eq i32 {found}, 0")):
                c.store("i64", address, first_bad)
            where = c(f"select i1 {crooked}, ptr {bad_align}, ptr {bad_bounds}")
            c.store("i32", c(f"or i32 {c.load('i32', where)}, {bit}"), where)
        with c.else_():
            move(lane, pointer, address)
    for slot, kind in ((bad_align, FAULT_ALIGN), (bad_bounds, FAULT_BOUNDS)):
        lanes = c.load("i32", slot)
        with c.if_(c(f"icmp ne i32 {lanes}, 0"), likely=False):
            tail = f"i32 {access.row}, i64 {c.load('i64', first_bad)}, i64 0"
            c.do(f"call void @fault(ptr %w, i32 %site, i32 {kind}, i32 {lanes}, {tail})")


def transpose(c: Code, access: Access, rows: str, columns: str, to_columns: bool) -> None:
    """Between a lane's rows (as in memory) and registers' columns, `_CHUNK` lanes at a time."""
    element, count = access.element, access.count
    size = access.bits // 8
    wide, narrow = vec(element, _CHUNK * count), vec(element, _CHUNK)
    with c.count("i64", 32 // _CHUNK) as chunk:
        row_pointer = c.at(rows, c(f"mul i64 {chunk}, {_CHUNK * access.row}"))
        column = c(f"mul i64 {chunk}, {_CHUNK * size}")
        places = [c.at(columns, c(f"add i64 {column}, {32 * size * k}")) for k in range(count)]
        if to_columns:
            loaded = c.load(wide, row_pointer, align=1)
            for k, place in enumerate(places):
                picks = indices([lane * count + k for lane in range(_CHUNK)])
                c.store(narrow, c(f"shufflevector {wide} {loaded}, {wide} poison, {picks}"), place, align=size)
        else:
            _interleave(c, access, [c.load(narrow, place, align=size) for place in places], row_pointer)


def _interleave(c: Code, access: Access, parts: list[str], row_pointer: str) -> None:
    """Columns of `_CHUNK` lanes to rows: concatenate pairwise, then one shuffle."""
    element, count, held = access.element, access.count, 1
    while held < count:
        parts = [_concatenate(c, element, _CHUNK * held, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        held *= 2
    wide = vec(element, _CHUNK * count)
    picks = indices([k * _CHUNK + lane for lane in range(_CHUNK) for k in range(count)])
    c.store(wide, c(f"shufflevector {wide} {parts[0]}, {wide} poison, {picks}"), row_pointer, align=1)


def _concatenate(c: Code, element: str, lanes: int, a: str, b: str) -> str:
    kind = vec(element, lanes)
    return c(f"shufflevector {kind} {a}, {kind} {b}, {indices(list(range(2 * lanes)))}")


# check mode -----------------------------------------------------------------------------------------------------------
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
