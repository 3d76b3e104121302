"""Loads and stores of a warp: one function per space, vector length and element size.

`ld.SPACE.vN.bM(w, addresses, offset, mask, site[, out])`, `st.SPACE.vN.bM(w, addresses, offset, mask, site, value|in)`.
Addresses are `<32 x i64>` (`<32 x i32>` for shared and local); vectors of registers pass through memory as N rows of
32 elements. Lanes that share a run of bytes take a fast path; the others go one by one. The word `check` adds the shadow, and
`ordered` too, for accesses that order others (volatile, acquire, release, relaxed).
"""

from __future__ import annotations

from ptxgen.runtime.cpu.ir import Code, indices, lanes_of, splat, vec
from ptxgen.runtime.cpu.layout import CTA, SHARED_BASE, WARP, WINDOW_SHIFT
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.core import FAULT_ALIGN, FAULT_BOUNDS, site_cache

_CHUNK = 8  # lanes that one shuffle turns from rows of a lane into rows of a register


def address_type(space: str) -> str:
    """LLVM type of one lane's address in a space."""
    return "i32" if space in ("shared", "local") else "i64"


class _Access:
    """What the code of one access needs to know."""

    def __init__(self, kind: str, space: str, vector: str, bits: str, check: str) -> None:
        self.space, self.count, self.bits = space, int(vector[1:]), int(bits[1:])
        self.element = f"i{self.bits}"
        self.row = self.count * self.bits // 8  # bytes of a lane
        self.address = address_type(space)
        self.check = check
        words = [kind, space, vector, bits] + ([check] if check else [])
        self.name = ".".join(words)
        self.simple = self.count == 1
        self.value = vec(self.element)
        self.row_type = self.element if self.simple else vec(self.element, self.count)

    def watched(self, what: str) -> str:
        """The shadow's word for the access: accesses with an order of their own are treated like atomics."""
        return ("order" if what == "read" else "publish") if self.check == "ordered" else what

    def same(self, c: Code, step: int) -> str:
        """i1: every active lane's address is lane 0's plus `step` a lane."""
        first = c(f"extractelement {vec(self.address)} %a, i64 0")
        expected = c.spread(self.address, first)
        if step:
            expected = c(f"add {vec(self.address)} {expected}, {lanes_of(self.address, step)}")
        equal = c(f"bitcast {vec('i1')} {c(f'icmp eq {vec(self.address)} %a, {expected}')} to i32")
        merged = c(f"or i32 {equal}, {c('xor i32 %m, -1')}")
        return c(f"icmp eq i32 {merged}, -1")

    def base(self, c: Code) -> str:
        """Lane 0's address as an i64, with the instruction's offset."""
        first = c(f"extractelement {vec(self.address)} %a, i64 0")
        if self.address == "i32":
            total = c(f"add i32 {first}, {c('trunc i64 %off to i32')}")
            return c(f"zext i32 {total} to i64")
        return c(f"add i64 {first}, %off")

    def each(self, c: Code, slots: str, lane: str) -> str:
        """The address of a lane as an i64, from the addresses spilled to `slots`."""
        mine = c.load(self.address, c(f"getelementptr {self.address}, ptr {slots}, i32 {lane}"))
        if self.address == "i32":
            total = c(f"add i32 {mine}, {c('trunc i64 %off to i32')}")
            return c(f"zext i32 {total} to i64")
        return c(f"add i64 {mine}, %off")


def _reachable(c: Code, access: _Access, base: str, length: object) -> tuple[str, str]:
    """(i1: the `length` bytes at the address `base` are in bounds and aligned, their host pointer)."""
    if access.space == "shared":
        cta = c.load("ptr", "%w", WARP["cta"])
        offset = c(f"sub i64 {base}, {SHARED_BASE}")
        size = c.load("i64", cta, CTA["shared_bytes"])
        pointer = c.at(c.load("ptr", cta, CTA["shared"]), offset)
    else:
        cache = site_cache(c, c.load("ptr", "%w", WARP["thread"]))
        offset = c(f"sub i64 {base}, {c.load('i64', cache)}")
        size = c.load("i64", cache, 8)
        pointer = c(f"inttoptr i64 {base} to ptr")
    end = c(f"add i64 {offset}, {length}")
    inside = c(f"and i1 {c(f'icmp ult i64 {offset}, {size}')}, {c(f'icmp ule i64 {end}, {size}')}")
    if access.row == 1:
        return inside, pointer
    aligned = c(f"icmp eq i64 {c(f'and i64 {base}, {access.row - 1}')}, 0")
    return c(f"and i1 {inside}, {aligned}"), pointer


def _one_by_one(c: Code, access: _Access, move: object, mask: str = "%m") -> None:
    """Resolve each lane of the mask and call `move(lane, pointer)` for those that may access; report the others."""
    slots = c.var(vec(access.address))
    c.store(vec(access.address), "%a", slots)
    bad_bounds, bad_align = c.var("i32", 0), c.var("i32", 0)
    first_bad = c.var("i64", 0)
    with c.each_bit(mask) as lane:
        address = access.each(c, slots, lane)
        bit = c(f"shl i32 1, {lane}")
        pointer = c(
            f"call ptr @resolve.{access.space}(ptr %w, i32 %site, i32 {lane}, i64 {address}, i64 {access.row})"
        )
        missing = c(f"icmp eq ptr {pointer}, null")
        crooked = c(f"icmp ne i64 {c(f'and i64 {address}, {access.row - 1}')}, 0")
        with c.if_(c(f"or i1 {missing}, {crooked}"), likely=False):
            found = c(f"or i32 {c.load('i32', bad_bounds)}, {c.load('i32', bad_align)}")
            with c.if_(c(f"icmp eq i32 {found}, 0")):
                c.store("i64", address, first_bad)
            where = c(f"select i1 {crooked}, ptr {bad_align}, ptr {bad_bounds}")
            c.store("i32", c(f"or i32 {c.load('i32', where)}, {bit}"), where)
        with c.else_():
            move(lane, pointer, address)  # type: ignore[operator]
    for slot, kind in ((bad_align, FAULT_ALIGN), (bad_bounds, FAULT_BOUNDS)):
        lanes = c.load("i32", slot)
        with c.if_(c(f"icmp ne i32 {lanes}, 0"), likely=False):
            where_bad = c.load("i64", first_bad)
            c.do(
                f"call void @fault(ptr %w, i32 %site, i32 {kind}, i32 {lanes}, i32 {access.row}, i64 {where_bad}, i64 0)"
            )


def _span(c: Code, access: _Access, base: str) -> tuple[str, str]:
    """(address of the first active lane, bytes to the end of the last) when lanes lie one after the other."""
    first = c("call i32 @llvm.cttz.i32(i32 %m, i1 true)")
    after = c(f"sub i32 32, {c('call i32 @llvm.ctlz.i32(i32 %m, i1 true)')}")
    begin = c(f"mul i64 {c(f'zext i32 {first} to i64')}, {access.row}")
    finish = c(f"mul i64 {c(f'zext i32 {after} to i64')}, {access.row}")
    return c(f"add i64 {base}, {begin}"), c(f"sub i64 {finish}, {begin}")


def _transpose(c: Code, access: _Access, rows: str, columns: str, to_columns: bool) -> None:
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


def _interleave(c: Code, access: _Access, parts: list[str], row_pointer: str) -> None:
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


@support("ld")
def load(space: str, vector: str, bits: str, check: str = "") -> str:
    """A warp's load; lanes outside the mask, and those that may not read, get zero."""
    access = _Access("ld", space, vector, bits, check)
    head = f"ptr %w, {vec(access.address)} %a, i64 %off, i32 %m, i32 %site"
    if access.simple:
        c = Code(f"define internal {access.value} @{access.name}({head}) noinline")
        nothing = f"{access.value} zeroinitializer"
    else:
        c = Code(f"define internal void @{access.name}({head}, ptr %out) noinline")
        nothing = "void"
    c.ret(nothing, when=c("icmp eq i32 %m, 0"))
    if space == "generic":
        _forward_shared(c, access, ", ptr %out" if not access.simple else "")
    if space != "local":
        _load_fast(c, access)
    rows = c.var(f"[32 x {access.row_type}]", align=64)
    c.store(f"<{4 * access.row} x i64>", "zeroinitializer", rows)

    def move(lane: str, pointer: str, address: str) -> None:
        _before(c, access, "read", lane, pointer, address)
        value = c.load(access.row_type, pointer, align=_host_align(access))
        c.store(access.row_type, value, c(f"getelementptr {access.row_type}, ptr {rows}, i32 {lane}"), align=1)

    _one_by_one(c, access, move)
    if access.simple:
        c.ret(f"{access.value} " + c.load(access.value, rows))
    else:
        _transpose(c, access, rows, "%out", to_columns=True)
        c.ret()
    return c.text()


def _forward_shared(c: Code, access: _Access, tail: str) -> None:
    """Hand over to the function of shared memory where every active lane's generic address is in its window."""
    window = c(f"lshr {vec('i64')} %a, {splat('i64', WINDOW_SHIFT)}")
    test = c(f"icmp eq {vec('i64')} {window}, {splat('i64', 1)}")
    there = c(f"bitcast {vec('i1')} {test} to i32")
    merged = c(f"or i32 {there}, {c('xor i32 %m, -1')}")
    with c.if_(c(f"icmp eq i32 {merged}, -1")):
        low = c(f"trunc {vec('i64')} %a to {vec('i32')}")
        name = access.name.replace("generic", "shared", 1)
        call = f"@{name}(ptr %w, {vec('i32')} {low}, i64 %off, i32 %m, i32 %site{tail})"
        if access.simple and access.name.startswith("ld"):
            c.ret(f"{access.value} " + c(f"call {access.value} {call}"), when="true")
        else:
            c.do(f"call void {call}")
            c.ret(when="true")


def _host_align(access: _Access) -> int:
    """Registered host arrays are aligned to their elements only, so a row's alignment is its element's."""
    return min(access.bits // 8, 8)


def _load_fast(c: Code, access: _Access) -> None:
    """Return at once where the lanes read one run of bytes, or all the same bytes."""
    with c.if_(access.same(c, access.row)):
        base = access.base(c)
        start, length = _span(c, access, base)
        fine, pointer = _reachable(c, access, start, length)
        whole = c("icmp eq i32 %m, -1")
        masked = access.simple and access.bits in (32, 64)
        if not masked:
            fine = c(f"and i1 {fine}, {whole}")
        with c.if_(fine):
            _before_run(c, access, "read", start, length, pointer)
            if masked:
                with c.if_(whole, likely=True):
                    c.ret(f"{access.value} " + c.load(access.value, pointer, align=access.bits // 8), when="true")
                back = c(f"sub i64 {base}, {start}")
                lanes = c(f"bitcast i32 %m to {vec('i1')}")
                origin = c.at(pointer, back)
                some = c(
                    f"call {access.value} @llvm.masked.load.v32{access.element}.p0(ptr {_aligned(origin, access)}, "
                    f"{vec('i1')} {lanes}, {access.value} zeroinitializer)"
                )
                c.ret(f"{access.value} {some}", when="true")
            elif access.simple:
                c.ret(f"{access.value} " + c.load(access.value, pointer, align=access.bits // 8), when="true")
            else:
                _transpose(c, access, pointer, "%out", to_columns=True)
                c.ret(when="true")
    in_lane_0 = c("trunc i32 %m to i1")
    with c.if_(c(f"and i1 {access.same(c, 0)}, {in_lane_0}")):
        fine, pointer = _reachable(c, access, access.base(c), access.row)
        with c.if_(fine):
            _before_run(c, access, "read", access.base(c), access.row, pointer)
            value = c.load(access.row_type, pointer, align=_host_align(access))
            if access.simple:
                c.ret(f"{access.value} " + c.spread(access.element, value), when="true")
            else:
                for k in range(access.count):
                    one = c(f"extractelement {access.row_type} {value}, i64 {k}")
                    c.store(access.value, c.spread(access.element, one), "%out", 4 * access.bits * k)
                c.ret(when="true")


def _aligned(pointer: str, access: _Access) -> str:
    return f"align {access.bits // 8} {pointer}"


@support("st")
def store(space: str, vector: str, bits: str, check: str = "") -> str:
    """A warp's store; of lanes that write the same bytes, the highest wins."""
    access = _Access("st", space, vector, bits, check)
    value = f"{access.value} %value" if access.simple else "ptr %in"
    c = Code(
        f"define internal void @{access.name}(ptr %w, {vec(access.address)} %a, i64 %off, i32 %m, i32 %site, {value}) "
        "noinline"
    )
    c.ret(when=c("icmp eq i32 %m, 0"))
    if space == "generic":
        _forward_shared(c, access, f", {value}")
    if space != "local":
        _store_fast(c, access)
    if access.simple:
        rows = c.var(f"[32 x {access.element}]", align=64)
        c.store(access.value, "%value", rows)
    else:
        rows = c.var(f"[32 x {access.row_type}]", align=64)
        _transpose(c, access, rows, "%in", to_columns=False)

    def move(lane: str, pointer: str, address: str) -> None:
        _before(c, access, "write", lane, pointer, address)
        mine = c(f"getelementptr {access.row_type}, ptr {rows}, i32 {lane}")
        c.store(access.row_type, c.load(access.row_type, mine, align=1), pointer, align=_host_align(access))

    _one_by_one(c, access, move)
    c.ret()
    return c.text()


def _store_fast(c: Code, access: _Access) -> None:
    """Return at once where the lanes write one run of bytes."""
    with c.if_(access.same(c, access.row)):
        base = access.base(c)
        start, length = _span(c, access, base)
        fine, pointer = _reachable(c, access, start, length)
        whole = c("icmp eq i32 %m, -1")
        masked = access.simple and access.bits in (32, 64)
        if not masked:
            fine = c(f"and i1 {fine}, {whole}")
        with c.if_(fine):
            _before_run(c, access, "write", start, length, pointer)
            if not access.simple:
                _transpose(c, access, pointer, "%in", to_columns=False)
                c.ret(when="true")
            else:
                with c.if_(whole, likely=True):
                    c.store(access.value, "%value", pointer, align=access.bits // 8)
                    c.ret(when="true")
                if masked:
                    origin = c.at(pointer, c(f"sub i64 {base}, {start}"))
                    lanes = c(f"bitcast i32 %m to {vec('i1')}")
                    c.do(
                        f"call void @llvm.masked.store.v32{access.element}.p0({access.value} %value, "
                        f"ptr {_aligned(origin, access)}, {vec('i1')} {lanes})"
                    )
                    c.ret(when="true")


def _before(c: Code, access: _Access, what: str, lane: str, pointer: str, address: str) -> None:
    """In check mode, tell the shadow of one lane's access before it happens."""
    if access.check:
        c.do(
            f"call void @shadow.{access.watched(what)}.{access.space}(ptr %w, i32 %site, i32 {lane}, i32 {access.row}, "
            f"ptr {pointer}, i64 {address}, i64 {access.row})"
        )


def _before_run(c: Code, access: _Access, what: str, start: str, length: object, pointer: str) -> None:
    """In check mode, tell the shadow of a run of bytes before it is accessed."""
    if access.check:
        first = c("call i32 @llvm.cttz.i32(i32 %m, i1 true)")
        lane = c(f"sub i32 -1, {first}")
        c.do(
            f"call void @shadow.{access.watched(what)}.{access.space}(ptr %w, i32 %site, i32 {lane}, i32 {access.row}, "
            f"ptr {pointer}, i64 {start}, i64 {length})"
        )
