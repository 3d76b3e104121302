"""Check mode: reads of global memory that the entry may also write, for the writes that come after them.

An allocation that is followed has marks for every 4 bytes: the last reader and the last one before it of another warp,
each a stamp as writes leave (`global_races.py`) and which of the bytes it read; and the last reader's lane. Other
warps, and other lanes of the warp, race with it as they do in shared memory (`shared_races.py`).
"""

from __future__ import annotations

from ptxgen.runtime.cpu.check.global_races import HEAD, WARP_BITS, present
from ptxgen.runtime.cpu.check.shadow import report
from ptxgen.runtime.cpu.check.shared_cells import (
    ALL_BYTES,
    ANY_LANE,
    IS_LANES,
    MANY_LANES,
    Accessing,
    cell_at,
    everywhere,
    last_cell,
    others,
    place_of,
    touched,
)
from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.native.layout import READER, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.faults import FAULT_ORDER, FAULT_RACE

_PARAMETERS = f"{HEAD}, i64 %a, i64 %n, ptr %marks, i64 %cells, i64 %offset"
_TOGETHER = 8  # cells that are marked together
_WHO = -1 << 32 | (1 << WARP_BITS) - 1  # bits of a stamp that are the same in all reads of a warp


@support("readers")
def readers(what: str, access: str = "") -> str:
    """`readers.note(w, site, lane, row, address, bytes, marks, cells, offset)` marks a read, and
    `readers.look.weak|strong(…)` reports a write of what others have read, if nothing orders it after that."""
    return _note() if what == "note" else _look(access)


class _Marks:
    """An allocation's marks: of the last reader, and of the one before."""

    def __init__(self, c: Code) -> None:
        wide = c("shl i64 %cells, 3")
        self.stamps, self.stamps_before = "%marks", c.at("%marks", wide)
        self.read = c.at(self.stamps_before, wide)
        self.read_before = c.at(self.read, "%cells")
        self.lanes = c.at(self.read_before, "%cells")
        _, self.now = present(c, strong=False)
        whole, part = (c.load("i32", "%w", WARP[name]) for name in ("synced", "met"))
        self.synced = c(f"call i32 @llvm.umax.i32(i32 {whole}, i32 {part})")
        self.accessing = Accessing(c)

    def own(self, c: Code, stamps: str, size: int) -> tuple[str, str]:
        """(stamps of the executing warp, those since it last synchronised)."""
        kind, lanes, narrow = vec("i64", size), vec("i1", size), vec("i32", size)
        changed = c(f"xor {kind} {stamps}, {everywhere(c, self.now, size, 'i64')}")
        who = c(f"and {kind} {changed}, {splat('i64', _WHO)}")
        own = c(f"icmp eq {kind} {who}, zeroinitializer")
        since = c(f"icmp uge {narrow} {c(f'trunc {kind} {stamps} to {narrow}')}, {everywhere(c, self.synced, size)}")
        return own, c(f"and {lanes} {own}, {since}")


def _note() -> str:
    c = Code(f"define internal void @readers.note({_PARAMETERS}) noinline")
    marks = _Marks(c)
    last, at = last_cell(c), c.var("i64", marks.accessing.first)
    ragged = c(f"and i64 {c('or i64 %offset, %n')}, 3")
    with c.if_(c(f"icmp eq i64 {ragged}, 0")), c.loop() as out:
        cell = c.load("i64", at)
        c.leave(out, c(f"icmp ugt i64 {c(f'add i64 {cell}, {_TOGETHER - 1}')}, {last}"))
        _mark(c, marks, cell, _TOGETHER, splat("i8", ALL_BYTES), marks.accessing.lanes(cell, _TOGETHER))
        c.store("i64", c(f"add i64 {cell}, {_TOGETHER}"), at)
    with c.loop() as out:
        cell = c.load("i64", at)
        c.leave(out, c(f"icmp ugt i64 {cell}, {last}"))
        here, lane = _of_cell(c, marks, cell)
        _mark(c, marks, cell, 1, c(f"insertelement {vec('i8', 1)} poison, i8 {here}, i64 0"), lane)
        c.store("i64", c(f"add i64 {cell}, 1"), at)
    c.ret()
    return c.text()


def _of_cell(c: Code, marks: _Marks, cell: str) -> tuple[str, str]:
    """(bits of the bytes that are accessed, the lane as a vector of one: unknown in a part of a cell)."""
    here = touched(c, cell)
    part = c(f"insertelement {vec('i1', 1)} poison, i1 {c(f'icmp ne i8 {here}, {ALL_BYTES}')}, i64 0")
    kind, whole = vec("i8", 1), marks.accessing.lanes(cell, 1)
    return here, c(f"select {vec('i1', 1)} {part}, {kind} {splat('i8', ANY_LANE)}, {kind} {whole}")


def _mark(c: Code, marks: _Marks, cell: str, size: int, read: str, lane: str) -> None:
    kind, small, lanes = vec("i64", size), vec("i8", size), vec("i1", size)
    stamps, stamps_before = cell_at(c, marks.stamps, cell, 8), cell_at(c, marks.stamps_before, cell, 8)
    bytes_, before, lane_place = (cell_at(c, m, cell, 1) for m in (marks.read, marks.read_before, marks.lanes))
    old, held = c.load(kind, stamps, align=8), c.load(small, bytes_, align=1)
    now = everywhere(c, marks.now, size, "i64")
    own, open_ = marks.own(c, old, size)
    older, older_held = c.load(kind, stamps_before, align=8), c.load(small, before, align=1)
    c.store(kind, c(f"select {lanes} {own}, {kind} {older}, {kind} {old}"), stamps_before, align=8)
    c.store(small, c(f"select {lanes} {own}, {small} {older_held}, {small} {held}"), before, align=1)
    kept = c(f"select {lanes} {c(f'icmp eq {kind} {old}, {now}')}, {small} {held}, {small} zeroinitializer")
    c.store(kind, now, stamps, align=8)
    c.store(small, c(f"or {small} {kept}, {read}"), bytes_, align=1)
    together = c(f"and {lanes} {open_}, {others(c, c.load(small, lane_place, align=1), lane, size)}")
    joined = c(f"select {lanes} {together}, {small} {splat('i8', MANY_LANES)}, {small} {lane}")
    c.store(small, joined, lane_place, align=1)


def _look(access: str) -> str:
    c = Code(f"define internal void @readers.look.{access}({_PARAMETERS}) noinline")
    marks = _Marks(c)
    both = ((marks.stamps, marks.read, c.var("i64", 0)), (marks.stamps_before, marks.read_before, c.var("i64", 0)))
    with c.count("i64", c(f"add i64 {last_cell(c)}, 1"), marks.accessing.first) as cell:
        here, lane = _of_cell(c, marks, cell)
        for stamps, read, known in both:
            stamp = c.load("i64", cell_at(c, stamps, cell, 8))
            meets = _meets(c, read, cell, here)
            news = c(f"icmp ne i64 {stamp}, {c.load('i64', known)}")
            with c.if_(c(f"and i1 {meets}, {news}")):
                c.store("i64", stamp, known)
                found = c(f"call i64 @between.unordered(ptr %w, i64 {stamp}, i1 false)")
                with c.if_(c(f"icmp ne i64 {found}, 0"), likely=False):
                    report(c, FAULT_ORDER, place_of(c, cell), c(f"or i64 {found}, {READER}"))
                    c.ret(when="true")
        if access == "weak":
            _compare_lanes(c, marks, cell, here, lane)
    c.ret()
    return c.text()


def _meets(c: Code, read: str, cell: str, here: str) -> str:
    """i1: some of the bytes are among those that were read."""
    bytes_ = c.load("i8", cell_at(c, read, cell, 1))
    return c(f"icmp ne i8 {c(f'and i8 {bytes_}, {here}')}, 0")


def _compare_lanes(c: Code, marks: _Marks, cell: str, here: str, lane: str) -> None:
    """Report a race with another lane of the warp, which read the bytes and has not synchronised since."""
    stamp = c.load(vec("i64", 1), cell_at(c, marks.stamps, cell, 8), align=8)
    _, open_ = marks.own(c, stamp, 1)
    earlier = c.load(vec("i8", 1), cell_at(c, marks.lanes, cell, 1), align=1)
    apart = c(f"and {vec('i1', 1)} {open_}, {others(c, earlier, lane, 1)}")
    differ = c(f"extractelement {vec('i1', 1)} {apart}, i64 0")
    with c.if_(c(f"and i1 {_meets(c, marks.read, cell, here)}, {differ}"), likely=False):
        number = c(f"extractelement {vec('i8', 1)} {earlier}, i64 0")
        who = c(f"shl i32 {c(f'zext i8 {number} to i32')}, 24")
        report(c, FAULT_RACE, place_of(c, cell), c(f"zext i32 {c(f'or i32 {who}, {IS_LANES}')} to i64"))
        c.ret(when="true")
