"""Check mode: accesses of shared memory that no barrier orders, between warps and between lanes of a warp.

Two accesses of different warps race if one writes, not both are strong (atomic, volatile, relaxed, acquire, release),
and the later one's clock (`vector_clocks.py`) does not cover the earlier one. Strong accesses exchange clocks too,
before they are compared, as each may be a lock or a flag. Only the first write of all must be known before: without
it, the lock has no value yet.

Two lanes of a warp race if one writes and the warp has not synchronised since: by bar.warp.sync, a barrier, or a
release of its own that it has acquired again. Lanes advance together here, but on a GPU they need not. (A release is
taken for that of all lanes, though one lane executes it.)

The stamps that accesses leave are those of `shared_cells.py`.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.check.shadow import FLAG_FLYING, FLAG_WRITTEN, SMALL, may_be_first
from ptxgen.runtime.cpu.check.shared_cells import (
    ALL_BYTES,
    ANY_LANE,
    MANY_LANES,
    PARAMETERS,
    PROXY,
    SEVERAL,
    STRONG,
    Cells,
    cell_at,
    compare,
    compare_lanes,
    differ,
    everywhere,
    last_cell,
    others,
    touched,
)
from ptxgen.runtime.cpu.native.ir import Code, splat, vec
from ptxgen.runtime.cpu.native.layout import CTA, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.equal_stores import doubted

_CHUNKS = (16, 4)  # cells that are looked at together


@support("race")
def race(what: str, mode: str = "") -> str:
    """`race.read|write|order|publish|atomic(w, site, lane, row, pointer, address, bytes, offset)`, `offset` in shared
    memory: what `shadow` means by these words. `race.quick.read|write(w, lane, row, offset, bytes)` enters whole cells
    where that needs no closer look, and says whether it has. `race.init(w, offset, bytes)` notes the first write.
    """
    if what == "quick":
        return _quick(mode)
    if what == "init":
        return _init()
    c = Code(f"define internal void @race.{what}({PARAMETERS}) noinline")
    if what in ("read", "write"):
        _access(c, what)
    else:
        _strong(c, what)
    c.ret()
    return c.text()


def _access(c: Code, what: str) -> None:
    """Chunks of whole cells at once where all of a chunk is covered, the others cell by cell."""
    cells = Cells(c)
    first = c("lshr i64 %offset, 2")
    last = last_cell(c)
    ragged = c(f"and i64 {c('or i64 %offset, %n')}, 3")
    whole = c(f"icmp eq i64 {ragged}, 0")
    at = c.var("i64", first)
    for size in _CHUNKS:
        with c.if_(whole), c.loop() as out:
            cell = c.load("i64", at)
            c.leave(out, c(f"icmp ugt i64 {c(f'add i64 {cell}, {size - 1}')}, {last}"))
            covered = _chunk(c, cells, cell, what, size)
            with c.if_(c(f"xor i1 {covered}, true"), likely=False), c.count("i64", size) as n:
                _one(c, cells, c(f"add i64 {cell}, {n}"), what)
            c.store("i64", c(f"add i64 {cell}, {size}"), at)
    with c.loop() as out:
        cell = c.load("i64", at)
        c.leave(out, c(f"icmp ugt i64 {cell}, {last}"))
        _one(c, cells, cell, what)
        c.store("i64", c(f"add i64 {cell}, 1"), at)


def _quick(what: str) -> str:
    """i1: the run of whole cells was written before (for a read), no other warp is in the way, and it is entered."""
    c = Code(f"define internal i1 @race.quick.{what}(ptr %w, i32 %lane, i32 %row, i64 %offset, i64 %n) noinline")
    ragged = c("or i64 %offset, %n")
    c.ret("i1 false", when=c(f"icmp ne i64 {c(f'and i64 {ragged}, 3')}, 0"))
    cells = Cells(c)
    valid = c.load("ptr", cells.cta, CTA["valid"])
    may_begin = may_be_first(c) if what == "write" else ""
    last, at = last_cell(c), c.var("i64", cells.first)
    for size in (*_CHUNKS, 1):
        kind, lanes = vec("i8", 4 * size), vec("i1", 4 * size)
        with c.loop() as out:
            cell = c.load("i64", at)
            c.leave(out, c(f"icmp ugt i64 {c(f'add i64 {cell}, {size - 1}')}, {last}"))
            flags = cell_at(c, valid, cell, 4)
            held = c.load(kind, flags, align=1)
            if what == "read":
                wrong = c(f"icmp ne {kind} {held}, {splat('i8', FLAG_WRITTEN)}")
            else:
                wrong = c(f"icmp eq {kind} {held}, {splat('i8', FLAG_FLYING)}")
                if size <= SMALL // 4:  # the first of a few bytes may be what a semaphore begins with
                    fresh = c(f"icmp eq {kind} {held}, zeroinitializer")
                    first = c(f"icmp ne i{4 * size} {c(f'bitcast {lanes} {fresh} to i{4 * size}')}, 0")
                    c.ret("i1 false", when=c(f"and i1 {may_begin}, {first}"))
            c.ret("i1 false", when=c(f"icmp ne i{4 * size} {c(f'bitcast {lanes} {wrong} to i{4 * size}')}, 0"))
            c.ret("i1 false", when=c(f"xor i1 {_chunk(c, cells, cell, what, size)}, true"))
            if what == "write":
                c.store(kind, splat("i8", FLAG_WRITTEN), flags, align=1)
            c.store("i64", c(f"add i64 {cell}, {size}"), at)
    c.ret("i1 true")
    return c.text()


def _chunk(c: Code, cells: Cells, cell: str, what: str, size: int) -> str:
    """i1: nothing in the chunk needs a closer look; then the access is entered for all of it."""
    kind, small, lanes = vec("i32", size), vec("i8", size), vec("i1", size)
    safe, mine, synced = (everywhere(c, v, size) for v in (cells.safe, cells.warp, cells.synced))
    accessing = cells.lanes(cell, size)

    def standing(stamps: str, place: str) -> tuple[str, str, str]:
        """(covered by the clock, the warp's own, of other lanes since the warp last synchronised)."""
        covered = c(f"icmp ult {kind} {stamps}, {safe}")
        of = c(f"and {kind} {stamps}, {splat('i32', 31)}")
        open_ = c(f"icmp uge {kind} {stamps}, {synced}")
        apart = c(f"and {lanes} {open_}, {others(c, c.load(small, place, align=1), accessing, size)}")
        return covered, c(f"icmp eq {kind} {of}, {mine}"), apart

    write_place, read_place = cell_at(c, cells.writes, cell, 4), cell_at(c, cells.reads, cell, 4)
    written_place, flag_place = cell_at(c, cells.written, cell, 1), cell_at(c, cells.read, cell, 1)
    lane_place, reader_place = cell_at(c, cells.write_lanes, cell, 1), cell_at(c, cells.read_lanes, cell, 1)
    covered, own, writers = standing(c.load(kind, write_place, align=4), lane_place)
    strong = c(f"icmp eq {small} {c.load(small, lane_place, align=1)}, {splat('i8', STRONG)}")
    open_ = c(f"xor {lanes} {covered}, splat (i1 true)")
    among = c(f"or {lanes} {writers}, {c(f'and {lanes} {strong}, {open_}')}")
    bad = c(f"select {lanes} {own}, {lanes} {among}, {lanes} {open_}")
    read_covered, read_own, readers = standing(c.load(kind, read_place, align=4), reader_place)
    flags = c.load(small, flag_place, align=1)
    if what == "write":
        several = c(f"icmp slt {small} {flags}, zeroinitializer")
        uncovered = c(f"xor {lanes} {read_covered}, splat (i1 true)")
        crowd = c(f"and {lanes} {several}, {uncovered}")
        in_way = c(f"select {lanes} {read_own}, {lanes} {c(f'or {lanes} {crowd}, {readers}')}, {lanes} {uncovered}")
        polls = c.load(kind, cell_at(c, cells.polls, cell, 4), align=4)
        known = c(f"icmp ult {kind} {polls}, {safe}")
        by = c(f"and {kind} {polls}, {splat('i32', 31)}")
        own_poll = c(f"icmp eq {kind} {by}, {mine}")
        polled = c(f"xor {lanes} {c(f'or {lanes} {known}, {own_poll}')}, splat (i1 true)")
        bad = c(f"or {lanes} {c(f'or {lanes} {bad}, {in_way}')}, {polled}")
    every = c(f"icmp eq i{size} {c(f'bitcast {lanes} {bad} to i{size}')}, 0")
    with c.if_(every):
        stamp = everywhere(c, cells.stamp, size)
        if what == "write":
            c.store(kind, stamp, write_place, align=4)
            c.store(small, splat("i8", ALL_BYTES), written_place, align=1)
            c.store(small, accessing, lane_place, align=1)
        else:
            c.store(kind, stamp, read_place, align=4)
            together = c(f"and {lanes} {read_own}, {readers}")
            joined = c(f"select {lanes} {together}, {small} {splat('i8', MANY_LANES)}, {small} {accessing}")
            c.store(small, joined, reader_place, align=1)
            times = c(f"lshr {kind} {stamp}, {splat('i32', 5)}")
            c.store(kind, times, cell_at(c, cells.mine(), cell, 4), align=4)
            kept = c(f"and {small} {flags}, {splat('i8', -SEVERAL)}")
            marked = c(f"select {lanes} {read_own}, {small} {kept}, {small} {splat('i8', -SEVERAL)}")
            marked = c(f"select {lanes} {read_covered}, {small} zeroinitializer, {small} {marked}")
            c.store(small, c(f"or {small} {marked}, {splat('i8', ALL_BYTES)}"), flag_place, align=1)
    return every


def _init() -> str:
    """`race.init(w, offset, bytes)`: bytes of these cells are written for the first time."""
    c = Code("define internal void @race.init(ptr %w, i32 %lane, i32 %row, i64 %offset, i64 %n) noinline")
    cells = Cells(c)
    with c.count("i64", c(f"add i64 {last_cell(c)}, 1"), cells.first) as cell:
        c.store("i32", cells.stamp, cell_at(c, cells.inits, cell, 4))
    c.ret()
    return c.text()


def _one(c: Code, cells: Cells, cell: str, what: str) -> None:
    """One cell: compare with the last write, for a write also with every warp's last read, and enter the access."""
    here = touched(c, cell)
    part = c(f"icmp ne i8 {here}, {ALL_BYTES}")
    whole = c(f"extractelement {vec('i8', 1)} {cells.lanes(cell, 1)}, i32 0")
    lane = c(f"select i1 {part}, i8 {ANY_LANE}, i8 {whole}")
    read_place, flag_place = cell_at(c, cells.reads, cell, 4), cell_at(c, cells.read, cell, 1)
    reader_place = cell_at(c, cells.read_lanes, cell, 1)
    writer = c.load("i8", cell_at(c, cells.write_lanes, cell, 1))
    same, doubts = "0", ""
    if what == "write":  # of two stores; atomics and copies may be changing the bytes yet
        count = c(f"zext i8 {c(f'call i8 @llvm.ctpop.i8(i8 {here})')} to i64")
        same = c(f"select i1 {c(f'icmp ult i8 {writer}, {PROXY}')}, i64 {count}, i64 0")
        doubts = doubted(c)
    earlier, common = _against_write(c, cells, cell, here, same)
    compare_lanes(c, cells, cell, earlier, (writer, lane), common, wrote=True, same=same)
    with c.if_(c(f"icmp eq i8 {writer}, {STRONG}")):
        _compare_stamp(c, cells, cell, c.load("i32", cell_at(c, cells.strongs, cell, 4)), common, wrote=True)
    last_read, flags, reader = c.load("i32", read_place), c.load("i8", flag_place), c.load("i8", reader_place)
    if what == "write":
        _against_reads(c, cells, cell, here)
        compare_lanes(c, cells, cell, last_read, (reader, lane), c(f"and i8 {flags}, {here}"), wrote=False)
        _compare_stamp(c, cells, cell, c.load("i32", cell_at(c, cells.polls, cell, 4)), here, wrote=False)
        with c.if_(c(f"icmp eq i32 {doubts}, {doubted(c)}")):  # else it may change nothing, and is then no write
            _enter_write(c, cells, cell, here, lane)
        return
    open_reads = c(f"icmp uge i32 {last_read}, {cells.safe}")
    last_warp = c(f"and i32 {last_read}, 31")
    own = c(f"icmp eq i32 {last_warp}, {cells.warp}")
    several = c(f"select i1 {own}, i8 {flags}, i8 {-SEVERAL}")
    kept = c(f"select i1 {open_reads}, i8 {c(f'or i8 {flags}, {several}')}, i8 0")
    c.store("i8", c(f"or i8 {kept}, {here}"), flag_place)
    c.store("i32", cells.stamp, read_place)
    c.store("i32", cells.now, cell_at(c, cells.mine(), cell, 4))
    together = differ(c, cells, last_read, (reader, lane))
    c.store("i8", c(f"select i1 {together}, i8 {MANY_LANES}, i8 {lane}"), reader_place)


def _against_write(c: Code, cells: Cells, cell: str, here: str, same: str = "0") -> tuple[str, str]:
    """Compare an access with the cell's last write; (its stamp, which of the bytes `here` it wrote)."""
    earlier = c.load("i32", cell_at(c, cells.writes, cell, 4))
    common = c(f"and i8 {c.load('i8', cell_at(c, cells.written, cell, 1))}, {here}")
    _compare_stamp(c, cells, cell, earlier, common, wrote=True, same=same)
    return earlier, common


def _compare_stamp(c: Code, cells: Cells, cell: str, stamp: str, bytes_: str, wrote: bool, same: str = "0") -> None:
    warp, time = c(f"and i32 {stamp}, 31"), c(f"lshr i32 {stamp}, 5")
    compare(c, cells, cell, warp, time, bytes_, wrote, same)


def _against_reads(c: Code, cells: Cells, cell: str, here: str) -> None:
    """Compare a write with every warp's last read of the cell."""
    last_read, flags = c.load("i32", cell_at(c, cells.reads, cell, 4)), c.load("i8", cell_at(c, cells.read, cell, 1))
    with c.if_(c(f"icmp uge i32 {last_read}, {cells.safe}")), c.count("i32", cells.warps) as warp:
        row = c(f"mul i64 {c(f'zext i32 {warp} to i64')}, {c(f'shl i64 {cells.count}, 2')}")
        time = c.load("i32", cell_at(c, c.at(cells.last_reads, row), cell, 4))
        compare(c, cells, cell, warp, time, c(f"and i8 {flags}, {here}"), wrote=False)


def _enter_write(c: Code, cells: Cells, cell: str, here: str, lane: object) -> None:
    """The cell's bytes `here` are written by the warp now."""
    place, written_place = cell_at(c, cells.writes, cell, 4), cell_at(c, cells.written, cell, 1)
    again = c(f"icmp eq i32 {c.load('i32', place)}, {cells.stamp}")
    kept = c(f"select i1 {again}, i8 {c.load('i8', written_place)}, i8 0")
    c.store("i8", c(f"or i8 {kept}, {here}"), written_place)
    c.store("i32", cells.stamp, place)
    c.store("i8", lane, cell_at(c, cells.write_lanes, cell, 1))


def _enter_strong(c: Code, cells: Cells, cell: str, here: str) -> None:
    """As `_enter_write`, but an ordinary write of the warp that no fence came after stays what others are compared
    with, and a strong one of another warp is kept beside."""
    earlier = c.load("i32", cell_at(c, cells.writes, cell, 4))
    written = c.load("i8", cell_at(c, cells.written, cell, 1))
    strong = c(f"icmp eq i8 {c.load('i8', cell_at(c, cells.write_lanes, cell, 1))}, {STRONG}")
    own = c(f"icmp eq i32 {c(f'and i32 {earlier}, 31')}, {cells.warp}")
    whole = c(f"and i1 {strong}, {c(f'icmp eq i8 {written}, {ALL_BYTES}')}")
    with c.if_(c(f"and i1 {whole}, {c(f'xor i1 {own}, true')}")):
        c.store("i32", earlier, cell_at(c, cells.strongs, cell, 4))
    fenced = c.load("i32", c(f"getelementptr i32, ptr {c.at('%w', WARP['fenced_cta'])}, i32 {cells.warp}"))
    since = c(f"icmp ugt i32 {c(f'lshr i32 {earlier}, 5')}, {fenced}")
    ordinary = c(f"and i1 {own}, {c(f'xor i1 {strong}, true')}")
    with c.if_(c(f"xor i1 {c(f'and i1 {ordinary}, {since}')}, true")):
        _enter_write(c, cells, cell, here, STRONG)


def _strong(c: Code, what: str) -> None:
    """`order` is a read, `publish` a write, `atomic` both: compared with what is not strong, in every other warp."""
    cells = Cells(c)
    if what in ("order", "atomic"):
        # the warp that began with these bytes must be known from elsewhere: it may come later
        with c.count("i64", c(f"add i64 {last_cell(c)}, 1"), cells.first) as cell:
            stamp = c.load("i32", cell_at(c, cells.inits, cell, 4))
            _compare_stamp(c, cells, cell, stamp, str(ALL_BYTES), wrote=True)
        c.do(f"call void @clock.take({PARAMETERS})")
    with c.count("i64", c(f"add i64 {last_cell(c)}, 1"), cells.first) as cell:
        here = touched(c, cell)
        writer = c.load("i8", cell_at(c, cells.write_lanes, cell, 1))
        with c.if_(c(f"icmp ne i8 {writer}, {STRONG}")):
            _against_write(c, cells, cell, here)
        if what == "order":
            with c.if_(c(f"icmp eq i8 {here}, {ALL_BYTES}")):  # neighbours in a cell would be taken for each other
                c.store("i32", cells.stamp, cell_at(c, cells.polls, cell, 4))
        else:
            _against_reads(c, cells, cell, here)
            _enter_strong(c, cells, cell, here)
    if what in ("publish", "atomic"):
        c.do(f"call void @clock.give({PARAMETERS})")
