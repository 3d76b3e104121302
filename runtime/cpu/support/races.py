"""Check mode: accesses of shared memory that no barrier orders, between warps and between lanes of a warp.

A CTA counts its synchronisations (`epoch`); an access carries the count at which it was made. A warp's vector clock
says, for each warp, up to which count that warp's accesses come before its own now. A barrier takes in the clocks of
those that arrive and gives them to those that leave, and so does every atomic, as it may be a lock or a flag. Two
accesses of different warps race if one writes and the later one's clock does not cover the earlier one.

Two lanes of a warp race if one writes and the warp has not synchronised since (bar.warp.sync, a barrier, an atomic):
lanes advance together here, but on a GPU they need not.

Per 4 bytes of shared memory (a cell) there are a write stamp (count · 32 + warp), a read stamp, the bytes written and
read, each warp's last read, and the lanes of the last write and read. Stamps of earlier CTAs need no clearing, as
counts only grow.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.ir import Code, lanes_of, splat, vec
from ptxgen.runtime.cpu.layout import CHECK, CTA, LAUNCH, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.core import FAULT_PROXY, FAULT_RACE
from ptxgen.runtime.cpu.support.shadow import FLAG_FLYING, FLAG_WRITTEN, report

_PARAMETERS = "ptr %w, i32 %site, i32 %lane, i32 %row, ptr %p, i64 %a, i64 %n, i64 %offset"
_CHUNKS = (16, 4)  # cells that are looked at together
_CLOCK = vec("i32")
_ALL_BYTES = 0xF
_SEVERAL = 0x80  # in a cell's read bytes: more than one warp has read it since it was last safe
_MANY_LANES, _ANY_LANE = 32, 33  # instead of a lane: several lanes; not known (a part of a cell), which races with none
_PROXY = 34  # as unknown, and written by the asynchronous proxy
_IS_LANES = 1 << 17  # in a report's extra word, with the other lane from bit 24 on


class _Cells:
    """The arrays of a CTA's cells, and what the executing warp may rely on."""

    def __init__(self, c: Code) -> None:
        self.c = c
        self.cta = c.load("ptr", "%w", WARP["cta"])
        block = c.load("ptr", self.cta, CTA["races"])
        self.count = c.load("i64", block, CHECK["cells"])
        self.writes, self.reads, self.last_reads, self.written, self.read = (
            c.load("ptr", block, CHECK[name]) for name in ("writes", "reads", "last_reads", "written", "read")
        )
        self.warp = c.load("i32", "%w", WARP["id"])
        self.now = c.load("i32", self.cta, CTA["epoch"])
        self.stamp = c(f"or i32 {c(f'shl i32 {self.now}, 5')}, {self.warp}")
        self.warps = c.load("i32", self.cta, CTA["warp_count"])
        self.safe = c.load("i32", "%w", WARP["safe"])  # stamps below this are covered, whichever warp they are of
        self.synced = c.load("i32", "%w", WARP["synced"])  # and the warp's own below this, whichever lane they are of
        self.write_lanes, self.read_lanes = (c.load("ptr", block, CHECK[f"{name}_lanes"]) for name in ("write", "read"))
        self.first = c("lshr i64 %offset, 2")
        self.lane_base, self.lane_shift = _lanes_of_cells(c)

    def lanes(self, cell: str, size: int) -> str:
        """Which lanes access `size` cells from a cell on, as a vector of i8."""
        c, kind = self.c, vec("i32", size)
        behind = c(f"trunc i64 {c(f'sub i64 {cell}, {self.first}')} to i32")
        numbers = c(f"add {kind} {_everywhere(c, behind, size)}, {lanes_of('i32', 1, size)}")
        rows = c(f"lshr {kind} {numbers}, {_everywhere(c, self.lane_shift, size)}")
        lanes = c(f"add {kind} {rows}, {_everywhere(c, self.lane_base, size)}")
        return c(f"trunc {kind} {lanes} to {vec('i8', size)}")

    def mine(self) -> str:
        """The row of last reads of the executing warp."""
        wide = self.c(f"zext i32 {self.warp} to i64")
        return self.c.at(self.last_reads, self.c(f"mul i64 {wide}, {self.c(f'shl i64 {self.count}, 2')}"))


def _everywhere(c: Code, value: str, size: int) -> str:
    """An i32 in all elements of a vector."""
    kind = vec("i32", size)
    one = c(f"insertelement {kind} poison, i32 {value}, i64 0")
    return c(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer")


def _lanes_of_cells(c: Code) -> tuple[str, str]:
    """(base, shift): cell number n of the access belongs to lane base + (n >> shift); see `shadow` for `%lane`."""
    first = c("sub i32 -1, %lane")
    log = c("call i32 @llvm.cttz.i32(i32 %row, i1 false)")
    small = c("icmp ult i32 %row, 4")
    run_base = c(f"select i1 {small}, i32 {_ANY_LANE}, i32 {first}")
    run_shift = c(f"select i1 {small}, i32 31, i32 {c(f'sub i32 {log}, 2')}")
    one = c(f"call i32 @llvm.umin.i32(i32 %lane, i32 {_MANY_LANES})")
    is_run = c("icmp slt i32 %lane, 0")
    return c(f"select i1 {is_run}, i32 {run_base}, i32 {one}"), c(f"select i1 {is_run}, i32 {run_shift}, i32 31")


def _others(c: Code, a: str, b: str, size: int) -> str:
    """Whether lanes that are known differ, cell by cell."""
    kind = vec("i8", size)
    differ = c(f"icmp ne {kind} {a}, {b}")
    most = c(f"call {kind} @llvm.umax.v{size}i8({kind} {a}, {kind} {b})")
    known = c(f"icmp ult {kind} {most}, {splat('i8', _ANY_LANE)}")
    return c(f"and {vec('i1', size)} {differ}, {known}")


def _at(c: Code, base: str, cell: str, size: int) -> str:
    return c.at(base, c(f"mul i64 {cell}, {size}") if size > 1 else cell)


@support("race")
def race(what: str, mode: str = "") -> str:
    """`race.read|write|atomic(w, site, lane, row, pointer, address, bytes, offset)`, `offset` in shared memory.

    `race.release(w, clock)` adds the warp's knowledge to a clock, `race.acquire(w, clock)` the clock to the warp's;
    `race.fetch(…)` looks for a proxy fence before a read by the asynchronous proxy; `race.fence(w)` is one, and
    `race.proxied(w, offset, bytes)` marks what the asynchronous proxy wrote itself;
    `race.kept(…, since)` reports what was written at that count or later, whatever orders it.

    `race.settle(w)` follows every change of a warp's clock; `race.turn(w)` orders its lanes. `race.quick.read|write(w,
    lane, row, offset, bytes)` enters whole cells where that needs no closer look, and says whether it has.
    """
    if what in ("release", "acquire"):
        return _exchange(what)
    if what == "settle":
        return _settle()
    if what in ("turn", "fence", "proxied", "kept"):
        return {"turn": _turn, "fence": _fence, "proxied": _proxied, "kept": _kept}[what]()
    if what == "quick":
        return _quick(mode)
    c = Code(f"define internal void @race.{what}({_PARAMETERS}) noinline")
    if what == "atomic":
        _atomic(c)
    elif what == "fetch":
        _fetch(c)
    else:
        _access(c, what)
    c.ret()
    return c.text()


def _exchange(what: str) -> str:
    c = Code(f"define internal void @race.{what}(ptr %w, ptr %clock) noinline")
    mine, theirs = c.load(_CLOCK, "%w", WARP["vclock"], align=64), c.load(_CLOCK, "%clock", align=64)
    both = c(f"call {_CLOCK} @llvm.umax.v32i32({_CLOCK} {mine}, {_CLOCK} {theirs})")
    if what == "acquire":
        c.store(_CLOCK, both, "%w", WARP["vclock"], align=64)
        c.do("call void @race.settle(ptr %w)")
    else:
        cta = c.load("ptr", "%w", WARP["cta"])
        now, warp = c.load("i32", cta, CTA["epoch"]), c.load("i32", "%w", WARP["id"])
        c.store(_CLOCK, both, "%clock", align=64)
        c.store("i32", now, c(f"getelementptr i32, ptr %clock, i32 {warp}"))
        c.store("i32", c(f"add i32 {now}, 1"), cta, CTA["epoch"])
    c.ret()
    return c.text()


def _turn() -> str:
    """What the warp's lanes did comes before what they do next."""
    c = Code("define internal void @race.turn(ptr %w) noinline")
    cta = c.load("ptr", "%w", WARP["cta"])
    now = c(f"add i32 {c.load('i32', cta, CTA['epoch'])}, 1")
    c.store("i32", now, cta, CTA["epoch"])
    c.store("i32", c(f"shl i32 {now}, 5"), "%w", WARP["synced"])
    c.ret()
    return c.text()


def _fence() -> str:
    """The asynchronous proxy sees what the warp wrote up to now."""
    c = Code("define internal void @race.fence(ptr %w) noinline")
    cta = c.load("ptr", "%w", WARP["cta"])
    now = c.load("i32", cta, CTA["epoch"])
    c.store("i32", now, "%w", WARP["proxy"])
    c.store("i32", c(f"add i32 {now}, 1"), cta, CTA["epoch"])
    c.ret()
    return c.text()


def _proxied() -> str:
    c = Code("define internal void @race.proxied(ptr %w, i64 %offset, i64 %n) noinline")
    block = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["races"])
    place = c.at(c.load("ptr", block, CHECK["write_lanes"]), c("lshr i64 %offset, 2"))
    c.do(f"call void @llvm.memset.p0.i64(ptr {place}, i8 {_PROXY}, i64 {c('lshr i64 %n, 2')}, i1 false)")
    c.ret()
    return c.text()


def _fetch(c: Code) -> None:
    """Each cell's last write, where an ordinary one, must lie before a fence of its warp, or of this one."""
    cells = _Cells(c)
    launch = c.load("ptr", cells.cta, CTA["launch"])
    stride, warps = c.load("i64", launch, LAUNCH["warp_stride"]), c.load("ptr", cells.cta, CTA["warps"])
    mine = c.load("i32", "%w", WARP["proxy"])
    with c.count("i64", c(f"add i64 {_last_cell(c)}, 1"), cells.first) as cell:
        stamp, lane = c.load("i32", _at(c, cells.writes, cell, 4)), c.load("i8", _at(c, cells.write_lanes, cell, 1))
        of_warp = c(f"zext i32 {c(f'and i32 {stamp}, 31')} to i64")
        writer = c.at(warps, c(f"mul i64 {of_warp}, {stride}"))
        fenced = c(f"call i32 @llvm.umax.i32(i32 {mine}, i32 {c.load('i32', writer, WARP['proxy'])})")
        late = c(f"icmp ugt i32 {c(f'lshr i32 {stamp}, 5')}, {fenced}")
        with c.if_(c(f"and i1 {late}, {c(f'icmp ne i8 {lane}, {_PROXY}')}"), likely=False):
            report(c, FAULT_PROXY, _place_of(c, cell))
            c.ret(when="true")


def _kept() -> str:
    c = Code(f"define internal void @race.kept({_PARAMETERS}, i32 %since) noinline")
    cells = _Cells(c)
    with c.count("i64", c(f"add i64 {_last_cell(c)}, 1"), cells.first) as cell:
        stamp = c.load("i32", _at(c, cells.writes, cell, 4))
        with c.if_(c(f"icmp uge i32 {c(f'lshr i32 {stamp}, 5')}, %since"), likely=False):
            _report_at(c, cell, c(f"or i32 {c(f'and i32 {stamp}, 31')}, {1 << 16}"))
            c.ret(when="true")
    c.ret()
    return c.text()


def _settle() -> str:
    """Note the stamp below which the warp's clock covers every other warp of the CTA; its own lanes are together."""
    c = Code("define internal void @race.settle(ptr %w) noinline")
    clock = c.load(_CLOCK, "%w", WARP["vclock"], align=64)
    number = lanes_of("i32", 1)
    cta = c.load("ptr", "%w", WARP["cta"])
    warps = c.load("i32", cta, CTA["warp_count"])
    c.store("i32", c(f"shl i32 {c.load('i32', cta, CTA['epoch'])}, 5"), "%w", WARP["synced"])
    beyond = c(f"icmp uge {_CLOCK} {number}, {c.spread('i32', warps)}")
    own = c(f"icmp eq {_CLOCK} {number}, {c.spread('i32', c.load('i32', '%w', WARP['id']))}")
    ignored = c(f"or {vec('i1')} {beyond}, {own}")
    others = c(f"select {vec('i1')} {ignored}, {_CLOCK} {splat('i32', -1)}, {_CLOCK} {clock}")
    least = c(f"call i32 @llvm.vector.reduce.umin.v32i32({_CLOCK} {others})")
    least = c(f"call i32 @llvm.umin.i32(i32 {least}, i32 {(1 << 27) - 2})")
    c.store("i32", c(f"shl i32 {c(f'add i32 {least}, 1')}, 5"), "%w", WARP["safe"])
    c.ret()
    return c.text()


def _atomic(c: Code) -> None:
    """Not a race; it orders like a lock: what came before the last atomic on these bytes comes before this one."""
    block = c.load("ptr", c.load("ptr", "%w", WARP["cta"]), CTA["races"])
    clocks = c.load("i64", block, CHECK["clocks"])  # one for each 8 bytes of shared memory
    mine = c(f"shl i64 {c('lshr i64 %offset, 3')}, 7")
    clock = c.at(block, c(f"add i64 {clocks}, {mine}"))
    c.do(f"call void @race.acquire(ptr %w, ptr {clock})")
    c.do(f"call void @race.release(ptr %w, ptr {clock})")


def _access(c: Code, what: str) -> None:
    """Chunks of whole cells at once where all of a chunk is covered, the others cell by cell."""
    cells = _Cells(c)
    first = c("lshr i64 %offset, 2")
    last = _last_cell(c)
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
    cells = _Cells(c)
    valid = c.load("ptr", cells.cta, CTA["valid"])
    last, at = _last_cell(c), c.var("i64", cells.first)
    for size in (*_CHUNKS, 1):
        kind, lanes = vec("i8", 4 * size), vec("i1", 4 * size)
        with c.loop() as out:
            cell = c.load("i64", at)
            c.leave(out, c(f"icmp ugt i64 {c(f'add i64 {cell}, {size - 1}')}, {last}"))
            flags = _at(c, valid, cell, 4)
            held = c.load(kind, flags, align=1)
            if what == "read":
                wrong = c(f"icmp ne {kind} {held}, {splat('i8', FLAG_WRITTEN)}")
            else:
                wrong = c(f"icmp eq {kind} {held}, {splat('i8', FLAG_FLYING)}")
            c.ret("i1 false", when=c(f"icmp ne i{4 * size} {c(f'bitcast {lanes} {wrong} to i{4 * size}')}, 0"))
            c.ret("i1 false", when=c(f"xor i1 {_chunk(c, cells, cell, what, size)}, true"))
            if what == "write":
                c.store(kind, splat("i8", FLAG_WRITTEN), flags, align=1)
            c.store("i64", c(f"add i64 {cell}, {size}"), at)
    c.ret("i1 true")
    return c.text()


def _last_cell(c: Code) -> str:
    end = c("add i64 %offset, %n")
    return c(f"lshr i64 {c(f'sub i64 {end}, 1')}, 2")


def _chunk(c: Code, cells: _Cells, cell: str, what: str, size: int) -> str:
    """i1: nothing in the chunk needs a closer look; then the access is entered for all of it."""
    kind, small, lanes = vec("i32", size), vec("i8", size), vec("i1", size)
    safe, mine, synced = (_everywhere(c, v, size) for v in (cells.safe, cells.warp, cells.synced))
    accessing = cells.lanes(cell, size)

    def standing(stamps: str, place: str) -> tuple[str, str, str]:
        """(covered by the clock, the warp's own, of other lanes since the warp last synchronised)."""
        covered = c(f"icmp ult {kind} {stamps}, {safe}")
        of = c(f"and {kind} {stamps}, {splat('i32', 31)}")
        open_ = c(f"icmp uge {kind} {stamps}, {synced}")
        others = c(f"and {lanes} {open_}, {_others(c, c.load(small, place, align=1), accessing, size)}")
        return covered, c(f"icmp eq {kind} {of}, {mine}"), others

    write_place, read_place = _at(c, cells.writes, cell, 4), _at(c, cells.reads, cell, 4)
    written_place, flag_place = _at(c, cells.written, cell, 1), _at(c, cells.read, cell, 1)
    lane_place, reader_place = _at(c, cells.write_lanes, cell, 1), _at(c, cells.read_lanes, cell, 1)
    covered, own, others = standing(c.load(kind, write_place, align=4), lane_place)
    bad = c(f"select {lanes} {own}, {lanes} {others}, {lanes} {c(f'xor {lanes} {covered}, splat (i1 true)')}")
    read_covered, read_own, readers = standing(c.load(kind, read_place, align=4), reader_place)
    flags = c.load(small, flag_place, align=1)
    if what == "write":
        several = c(f"icmp slt {small} {flags}, zeroinitializer")
        uncovered = c(f"xor {lanes} {read_covered}, splat (i1 true)")
        crowd = c(f"and {lanes} {several}, {uncovered}")
        in_way = c(f"select {lanes} {read_own}, {lanes} {c(f'or {lanes} {crowd}, {readers}')}, {lanes} {uncovered}")
        bad = c(f"or {lanes} {bad}, {in_way}")
    every = c(f"icmp eq i{size} {c(f'bitcast {lanes} {bad} to i{size}')}, 0")
    with c.if_(every):
        stamp = _everywhere(c, cells.stamp, size)
        if what == "write":
            c.store(kind, stamp, write_place, align=4)
            c.store(small, splat("i8", _ALL_BYTES), written_place, align=1)
            c.store(small, accessing, lane_place, align=1)
        else:
            c.store(kind, stamp, read_place, align=4)
            together = c(f"and {lanes} {read_own}, {readers}")
            joined = c(f"select {lanes} {together}, {small} {splat('i8', _MANY_LANES)}, {small} {accessing}")
            c.store(small, joined, reader_place, align=1)
            times = c(f"lshr {kind} {stamp}, {splat('i32', 5)}")
            c.store(kind, times, _at(c, cells.mine(), cell, 4), align=4)
            kept = c(f"and {small} {flags}, {splat('i8', -_SEVERAL)}")
            marked = c(f"select {lanes} {read_own}, {small} {kept}, {small} {splat('i8', -_SEVERAL)}")
            marked = c(f"select {lanes} {read_covered}, {small} zeroinitializer, {small} {marked}")
            c.store(small, c(f"or {small} {marked}, {splat('i8', _ALL_BYTES)}"), flag_place, align=1)
    return every


def _one(c: Code, cells: _Cells, cell: str, what: str) -> None:
    """One cell: compare with the last write, for a write also with every warp's last read, and enter the access."""
    touched = _touched(c, cell)
    part = c(f"icmp ne i8 {touched}, {_ALL_BYTES}")
    whole = c(f"extractelement {vec('i8', 1)} {cells.lanes(cell, 1)}, i32 0")
    lane = c(f"select i1 {part}, i8 {_ANY_LANE}, i8 {whole}")
    write_place, read_place = _at(c, cells.writes, cell, 4), _at(c, cells.reads, cell, 4)
    written_place, flag_place = _at(c, cells.written, cell, 1), _at(c, cells.read, cell, 1)
    lane_place, reader_place = _at(c, cells.write_lanes, cell, 1), _at(c, cells.read_lanes, cell, 1)
    earlier, written = c.load("i32", write_place), c.load("i8", written_place)
    other, when = c(f"and i32 {earlier}, 31"), c(f"lshr i32 {earlier}, 5")
    common = c(f"and i8 {written}, {touched}")
    _compare(c, cells, cell, other, when, common, wrote=True)
    _compare_lanes(c, cells, cell, earlier, (c.load("i8", lane_place), lane), common, wrote=True)
    last_read, flags, reader = c.load("i32", read_place), c.load("i8", flag_place), c.load("i8", reader_place)
    open_reads = c(f"icmp uge i32 {last_read}, {cells.safe}")
    if what == "write":
        with c.if_(open_reads), c.count("i32", cells.warps) as warp:
            row = c(f"mul i64 {c(f'zext i32 {warp} to i64')}, {c(f'shl i64 {cells.count}, 2')}")
            time = c.load("i32", _at(c, c.at(cells.last_reads, row), cell, 4))
            _compare(c, cells, cell, warp, time, c(f"and i8 {flags}, {touched}"), wrote=False)
        _compare_lanes(c, cells, cell, last_read, (reader, lane), c(f"and i8 {flags}, {touched}"), wrote=False)
        again = c(f"icmp eq i32 {earlier}, {cells.stamp}")
        kept = c(f"select i1 {again}, i8 {written}, i8 0")
        c.store("i8", c(f"or i8 {kept}, {touched}"), written_place)
        c.store("i32", cells.stamp, write_place)
        c.store("i8", lane, lane_place)
    else:
        last_warp = c(f"and i32 {last_read}, 31")
        own = c(f"icmp eq i32 {last_warp}, {cells.warp}")
        several = c(f"select i1 {own}, i8 {flags}, i8 {-_SEVERAL}")
        kept = c(f"select i1 {open_reads}, i8 {c(f'or i8 {flags}, {several}')}, i8 0")
        c.store("i8", c(f"or i8 {kept}, {touched}"), flag_place)
        c.store("i32", cells.stamp, read_place)
        c.store("i32", cells.now, _at(c, cells.mine(), cell, 4))
        together = _differ(c, cells, last_read, (reader, lane))
        c.store("i8", c(f"select i1 {together}, i8 {_MANY_LANES}, i8 {lane}"), reader_place)


def _differ(c: Code, cells: _Cells, stamp: str, lanes: tuple[str, str]) -> str:
    """i1: the stamp is the warp's own since it last synchronised, and of other lanes."""
    own = c(f"icmp eq i32 {c(f'and i32 {stamp}, 31')}, {cells.warp}")
    open_ = c(f"icmp uge i32 {stamp}, {cells.synced}")
    vectors = [c(f"insertelement {vec('i8', 1)} poison, i8 {lane}, i32 0") for lane in lanes]
    others = c(f"extractelement {vec('i1', 1)} {_others(c, vectors[0], vectors[1], 1)}, i32 0")
    return c(f"and i1 {c(f'and i1 {own}, {open_}')}, {others}")


def _compare_lanes(
    c: Code, cells: _Cells, cell: str, stamp: str, lanes: tuple[str, str], bytes_: str, wrote: bool
) -> None:
    """Report a race with another lane of the warp; `lanes`: of the earlier access, and of this one."""
    shared = c(f"icmp ne i8 {c(f'and i8 {bytes_}, {_ALL_BYTES}')}, 0")
    with c.if_(c(f"and i1 {_differ(c, cells, stamp, lanes)}, {shared}"), likely=False):
        earlier = c(f"shl i32 {c(f'zext i8 {lanes[0]} to i32')}, 24")
        extra = c(f"or i32 {earlier}, {_IS_LANES | (1 << 16 if wrote else 0)}")
        _report_at(c, cell, extra)


def _report_at(c: Code, cell: str, extra: str) -> None:
    """A race at the access's first byte in a cell."""
    report(c, FAULT_RACE, _place_of(c, cell), c(f"zext i32 {extra} to i64"))


def _place_of(c: Code, cell: str) -> str:
    """The access's first byte in a cell."""
    begin = c(f"sub i64 {c(f'shl i64 {cell}, 2')}, %offset")
    return c(f"call i64 @llvm.smax.i64(i64 {begin}, i64 0)")


def _touched(c: Code, cell: str) -> str:
    """Which of the cell's four bytes the access covers, as bits of an i8."""
    begin = c(f"shl i64 {cell}, 2")
    low = c(f"call i64 @llvm.smax.i64(i64 {c(f'sub i64 %offset, {begin}')}, i64 0)")
    end = c("add i64 %offset, %n")
    high = c(f"call i64 @llvm.smin.i64(i64 {c(f'sub i64 {end}, {begin}')}, i64 4)")
    up_to = c(f"sub i64 {c(f'shl i64 1, {high}')}, 1")
    below = c(f"sub i64 {c(f'shl i64 1, {low}')}, 1")
    return c(f"trunc i64 {c(f'xor i64 {up_to}, {below}')} to i8")


def _compare(c: Code, cells: _Cells, cell: str, warp: str, time: str, bytes_: str, wrote: bool) -> None:
    """Report a race with another warp's access that this warp's clock does not cover."""
    known = c.load("i32", c(f"getelementptr i32, ptr {c.at('%w', WARP['vclock'])}, i32 {warp}"))
    open_ = c(f"icmp ugt i32 {time}, {known}")
    other = c(f"icmp ne i32 {warp}, {cells.warp}")
    shared = c(f"icmp ne i8 {c(f'and i8 {bytes_}, {_ALL_BYTES}')}, 0")
    racing = c(f"and i1 {c(f'and i1 {open_}, {other}')}, {shared}")
    with c.if_(racing, likely=False):
        _report_at(c, cell, c(f"or i32 {warp}, {1 << 16 if wrote else 0}"))
