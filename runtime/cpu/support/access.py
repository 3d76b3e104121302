"""Parts of a warp's load or store: where its lanes point, whether they may, rows against columns. Moves no data."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.runtime.cpu.native.ir import Code, indices, lanes_of, splat, vec
from ptxgen.runtime.cpu.native.layout import CTA, LAUNCH, SHARED_BASE, THREAD, WARP
from ptxgen.runtime.cpu.support.faults import FAULT_ALIGN, FAULT_BOUNDS, resolver, site_cache

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
