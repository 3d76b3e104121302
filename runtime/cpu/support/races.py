"""Check mode: accesses of shared memory that no barrier orders.

A CTA counts its synchronisations (`epoch`); an access carries the count at which it was made. A warp's vector clock
says, for each warp, up to which count that warp's accesses come before its own now. A barrier takes in the clocks of
those that arrive and gives them to those that leave, and so does every atomic, as it may be a lock or a flag. Two
accesses of different warps race if one writes and the later one's clock does not cover the earlier one.

Per 4 bytes of shared memory (a cell) there are a write stamp (count · 32 + warp), a read stamp, the bytes written and
read, and each warp's last read. Stamps of earlier CTAs need no clearing, as counts only grow.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.ir import Code, lanes_of, splat, vec
from ptxgen.runtime.cpu.layout import CHECK, CTA, WARP
from ptxgen.runtime.cpu.support import support
from ptxgen.runtime.cpu.support.core import FAULT_RACE
from ptxgen.runtime.cpu.support.shadow import report

_PARAMETERS = "ptr %w, i32 %site, i32 %lane, i32 %row, ptr %p, i64 %a, i64 %n, i64 %offset"
_CHUNKS = (16, 4)  # cells that are looked at together
_CLOCK = vec("i32")
_ALL_BYTES = 0xF
_SEVERAL = 0x80  # in a cell's read bytes: more than one warp has read it since it was last safe


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

    def mine(self) -> str:
        """The row of last reads of the executing warp."""
        wide = self.c(f"zext i32 {self.warp} to i64")
        return self.c.at(self.last_reads, self.c(f"mul i64 {wide}, {self.c(f'shl i64 {self.count}, 2')}"))


def _at(c: Code, base: str, cell: str, size: int) -> str:
    return c.at(base, c(f"mul i64 {cell}, {size}") if size > 1 else cell)


@support("race")
def race(what: str, mode: str = "") -> str:
    """`race.read|write|atomic(w, site, lane, row, pointer, address, bytes, offset)`, `offset` in shared memory.

    `race.release(w, clock)` adds the warp's knowledge to a clock, `race.acquire(w, clock)` the clock to the warp's;
    `race.settle(w)` follows every change of a warp's clock. `race.quick.read|write(w, offset, bytes)` enters whole
    cells where that needs no closer look, and says whether it has.
    """
    if what in ("release", "acquire"):
        return _exchange(what)
    if what == "settle":
        return _settle()
    if what == "quick":
        return _quick(mode)
    c = Code(f"define internal void @race.{what}({_PARAMETERS}) noinline")
    if what == "atomic":
        _atomic(c)
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


def _settle() -> str:
    """Note the stamp below which the warp's clock covers every other warp of the CTA."""
    c = Code("define internal void @race.settle(ptr %w) noinline")
    clock = c.load(_CLOCK, "%w", WARP["vclock"], align=64)
    number = lanes_of("i32", 1)
    warps = c.load("i32", c.load("ptr", "%w", WARP["cta"]), CTA["warp_count"])
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
    c = Code(f"define internal i1 @race.quick.{what}(ptr %w, i64 %offset, i64 %n) noinline")
    ragged = c("or i64 %offset, %n")
    c.ret("i1 false", when=c(f"icmp ne i64 {c(f'and i64 {ragged}, 3')}, 0"))
    cells = _Cells(c)
    valid = c.load("ptr", cells.cta, CTA["valid"])
    several = c(f"icmp ugt i32 {cells.warps}, 1")
    last, at = _last_cell(c), c.var("i64", c("lshr i64 %offset, 2"))
    for size in (*_CHUNKS, 1):
        kind, lanes = vec("i8", 4 * size), vec("i1", 4 * size)
        with c.loop() as out:
            cell = c.load("i64", at)
            c.leave(out, c(f"icmp ugt i64 {c(f'add i64 {cell}, {size - 1}')}, {last}"))
            flags = _at(c, valid, cell, 4)
            if what == "read":
                missing = c(f"icmp eq {kind} {c.load(kind, flags, align=1)}, zeroinitializer")
                c.ret("i1 false", when=c(f"icmp ne i{4 * size} {c(f'bitcast {lanes} {missing} to i{4 * size}')}, 0"))
            with c.if_(several):
                c.ret("i1 false", when=c(f"xor i1 {_chunk(c, cells, cell, what, size)}, true"))
            if what == "write":
                c.store(kind, splat("i8", 1), flags, align=1)
            c.store("i64", c(f"add i64 {cell}, {size}"), at)
    c.ret("i1 true")
    return c.text()


def _last_cell(c: Code) -> str:
    end = c("add i64 %offset, %n")
    return c(f"lshr i64 {c(f'sub i64 {end}, 1')}, 2")


def _chunk(c: Code, cells: _Cells, cell: str, what: str, size: int) -> str:
    """i1: nothing in the chunk needs a closer look; then the access is entered for all of it."""
    kind, small, lanes = vec("i32", size), vec("i8", size), vec("i1", size)

    def everywhere(value: str) -> str:
        one = c(f"insertelement {kind} poison, i32 {value}, i64 0")
        return c(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer")

    safe, mine = everywhere(cells.safe), everywhere(cells.warp)

    def own_or_covered(stamps: str) -> tuple[str, str]:
        covered = c(f"icmp ult {kind} {stamps}, {safe}")
        of = c(f"and {kind} {stamps}, {splat('i32', 31)}")
        return covered, c(f"icmp eq {kind} {of}, {mine}")

    write_place, read_place = _at(c, cells.writes, cell, 4), _at(c, cells.reads, cell, 4)
    written_place, flag_place = _at(c, cells.written, cell, 1), _at(c, cells.read, cell, 1)
    covered, own = own_or_covered(c.load(kind, write_place, align=4))
    fine = c(f"or {lanes} {covered}, {own}")
    read_covered, read_own = own_or_covered(c.load(kind, read_place, align=4))
    flags = c.load(small, flag_place, align=1)
    if what == "write":
        several = c(f"icmp slt {small} {flags}, zeroinitializer")
        alone = c(f"and {lanes} {read_own}, {c(f'xor {lanes} {several}, splat (i1 true)')}")
        fine = c(f"and {lanes} {fine}, {c(f'or {lanes} {read_covered}, {alone}')}")
    every = c(f"icmp eq i{size} {c(f'bitcast {lanes} {fine} to i{size}')}, -1")
    with c.if_(every):
        stamp = everywhere(cells.stamp)
        if what == "write":
            c.store(kind, stamp, write_place, align=4)
            c.store(small, splat("i8", _ALL_BYTES), written_place, align=1)
        else:
            c.store(kind, stamp, read_place, align=4)
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
    write_place, read_place = _at(c, cells.writes, cell, 4), _at(c, cells.reads, cell, 4)
    written_place, flag_place = _at(c, cells.written, cell, 1), _at(c, cells.read, cell, 1)
    earlier, written = c.load("i32", write_place), c.load("i8", written_place)
    other, when = c(f"and i32 {earlier}, 31"), c(f"lshr i32 {earlier}, 5")
    _compare(c, cells, cell, other, when, c(f"and i8 {written}, {touched}"), wrote=True)
    last_read, flags = c.load("i32", read_place), c.load("i8", flag_place)
    open_reads = c(f"icmp uge i32 {last_read}, {cells.safe}")
    if what == "write":
        with c.if_(open_reads), c.count("i32", cells.warps) as warp:
            row = c(f"mul i64 {c(f'zext i32 {warp} to i64')}, {c(f'shl i64 {cells.count}, 2')}")
            time = c.load("i32", _at(c, c.at(cells.last_reads, row), cell, 4))
            _compare(c, cells, cell, warp, time, c(f"and i8 {flags}, {touched}"), wrote=False)
        again = c(f"icmp eq i32 {earlier}, {cells.stamp}")
        kept = c(f"select i1 {again}, i8 {written}, i8 0")
        c.store("i8", c(f"or i8 {kept}, {touched}"), written_place)
        c.store("i32", cells.stamp, write_place)
    else:
        reader = c(f"and i32 {last_read}, 31")
        several = c(f"select i1 {c(f'icmp eq i32 {reader}, {cells.warp}')}, i8 {flags}, i8 {-_SEVERAL}")
        kept = c(f"select i1 {open_reads}, i8 {c(f'or i8 {flags}, {several}')}, i8 0")
        c.store("i8", c(f"or i8 {kept}, {touched}"), flag_place)
        c.store("i32", cells.stamp, read_place)
        c.store("i32", cells.now, _at(c, cells.mine(), cell, 4))


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
        begin = c(f"sub i64 {c(f'shl i64 {cell}, 2')}, %offset")
        place = c(f"call i64 @llvm.smax.i64(i64 {begin}, i64 0)")
        extra = c(f"zext i32 {c(f'or i32 {warp}, {1 << 16 if wrote else 0}')} to i64")
        report(c, FAULT_RACE, place, extra)
