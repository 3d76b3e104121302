"""Check mode: the cells of a CTA's shared memory, 4 bytes each, and comparing an access with what a cell holds.

A cell has a write stamp (count · 32 + warp), a read stamp, the bytes written and read, each warp's last read, the lanes
of the last write and read; a stamp of the last strong read of all of it (`polls`); and, where the last write was
strong, of the last strong one before it by another warp (`strongs`); and of the first small write since the CTA began
(`inits`). Stamps of earlier CTAs need no clearing, as counts
only grow. What they mean is in `shared_races.py`.
"""

from __future__ import annotations

from ptxgen.runtime.cpu.check.shadow import report
from ptxgen.runtime.cpu.native.ir import Code, lanes_of, splat, vec
from ptxgen.runtime.cpu.native.layout import CHECK, CTA, WARP
from ptxgen.runtime.cpu.support.faults import FAULT_RACE

PARAMETERS = "ptr %w, i32 %site, i32 %lane, i32 %row, ptr %p, i64 %a, i64 %n, i64 %offset"
ALL_BYTES = 0xF
SEVERAL = 0x80  # in a cell's read bytes: more than one warp has read it since it was last safe
MANY_LANES, ANY_LANE = 32, 33  # instead of a lane: several lanes; not known (a part of a cell), which races with none
PROXY = 34  # as unknown, and written by the asynchronous proxy
STRONG = 35  # as unknown, and written by an atomic, volatile or relaxed access, which others of the kind may meet
IS_LANES = 1 << 17  # in a report's extra word, with the other lane from bit 24 on


class Accessing:
    """Which lanes access which cells: `first` is the first cell of the access."""

    def __init__(self, c: Code) -> None:
        self.c = c
        self.first = c("lshr i64 %offset, 2")
        self.lane_base, self.lane_shift = _lanes_of_cells(c)

    def lanes(self, cell: str, size: int) -> str:
        """Which lanes access `size` cells from a cell on, as a vector of i8."""
        c, kind = self.c, vec("i32", size)
        behind = c(f"trunc i64 {c(f'sub i64 {cell}, {self.first}')} to i32")
        numbers = c(f"add {kind} {everywhere(c, behind, size)}, {lanes_of('i32', 1, size)}")
        rows = c(f"lshr {kind} {numbers}, {everywhere(c, self.lane_shift, size)}")
        lanes = c(f"add {kind} {rows}, {everywhere(c, self.lane_base, size)}")
        return c(f"trunc {kind} {lanes} to {vec('i8', size)}")


class Cells(Accessing):
    """The arrays of a CTA's cells, and what the executing warp may rely on."""

    def __init__(self, c: Code) -> None:
        super().__init__(c)
        self.cta = c.load("ptr", "%w", WARP["cta"])
        block = c.load("ptr", self.cta, CTA["races"])
        self.count = c.load("i64", block, CHECK["cells"])
        self.writes, self.reads, self.last_reads, self.polls, self.strongs, self.inits, self.written, self.read = (
            c.load("ptr", block, CHECK[name])
            for name in ("writes", "reads", "last_reads", "polls", "strongs", "inits", "written", "read")
        )
        self.warp = c.load("i32", "%w", WARP["id"])
        self.now = c.load("i32", self.cta, CTA["epoch"])
        self.stamp = c(f"or i32 {c(f'shl i32 {self.now}, 5')}, {self.warp}")
        self.warps = c.load("i32", self.cta, CTA["warp_count"])
        self.safe = c.load("i32", "%w", WARP["safe"])  # stamps below this are covered, whichever warp they are of
        self.synced = c.load("i32", "%w", WARP["synced"])  # and the warp's own below this, whichever lane they are of
        self.write_lanes, self.read_lanes = (c.load("ptr", block, CHECK[f"{name}_lanes"]) for name in ("write", "read"))

    def mine(self) -> str:
        """The row of last reads of the executing warp."""
        wide = self.c(f"zext i32 {self.warp} to i64")
        return self.c.at(self.last_reads, self.c(f"mul i64 {wide}, {self.c(f'shl i64 {self.count}, 2')}"))


def everywhere(c: Code, value: str, size: int, element: str = "i32") -> str:
    """An integer in all elements of a vector."""
    kind = vec(element, size)
    one = c(f"insertelement {kind} poison, {element} {value}, i64 0")
    return c(f"shufflevector {kind} {one}, {kind} poison, {vec('i32', size)} zeroinitializer")


def _lanes_of_cells(c: Code) -> tuple[str, str]:
    """(base, shift): cell number n of the access belongs to lane base + (n >> shift); see `shadow` for `%lane`."""
    first = c("sub i32 -1, %lane")
    log = c("call i32 @llvm.cttz.i32(i32 %row, i1 false)")
    small = c("icmp ult i32 %row, 4")
    run_base = c(f"select i1 {small}, i32 {ANY_LANE}, i32 {first}")
    run_shift = c(f"select i1 {small}, i32 31, i32 {c(f'sub i32 {log}, 2')}")
    one = c(f"call i32 @llvm.umin.i32(i32 %lane, i32 {MANY_LANES})")
    is_run = c("icmp slt i32 %lane, 0")
    return c(f"select i1 {is_run}, i32 {run_base}, i32 {one}"), c(f"select i1 {is_run}, i32 {run_shift}, i32 31")


def others(c: Code, a: str, b: str, size: int) -> str:
    """Whether lanes that are known differ, cell by cell."""
    kind = vec("i8", size)
    differ = c(f"icmp ne {kind} {a}, {b}")
    most = c(f"call {kind} @llvm.umax.v{size}i8({kind} {a}, {kind} {b})")
    known = c(f"icmp ult {kind} {most}, {splat('i8', ANY_LANE)}")
    return c(f"and {vec('i1', size)} {differ}, {known}")


def cell_at(c: Code, base: str, cell: str, size: int) -> str:
    return c.at(base, c(f"mul i64 {cell}, {size}") if size > 1 else cell)


def differ(c: Code, cells: Cells, stamp: str, lanes: tuple[str, str]) -> str:
    """i1: the stamp is the warp's own, and of other lanes with which this one has not synchronised since."""
    own = c(f"icmp eq i32 {c(f'and i32 {stamp}, 31')}, {cells.warp}")
    open_ = c(f"icmp uge i32 {stamp}, {cells.synced}")
    vectors = [c(f"insertelement {vec('i8', 1)} poison, i8 {lane}, i32 0") for lane in lanes]
    apart = c(f"extractelement {vec('i1', 1)} {others(c, vectors[0], vectors[1], 1)}, i32 0")
    found = c.var("i1", c(f"and i1 {c(f'and i1 {own}, {open_}')}, {apart}"))
    with c.if_(c.load("i1", found), likely=False):  # only then: what lanes know of one another is memory of its own
        met = c(f"call i1 @turns.known(ptr %w, i32 {stamp}, i8 {lanes[0]}, i8 {lanes[1]})")
        c.store("i1", c(f"xor i1 {met}, true"), found)
    return c.load("i1", found)


def compare_lanes(
    c: Code, cells: Cells, cell: str, stamp: str, lanes: tuple[str, str], bytes_: str, wrote: bool, same: str = "0"
) -> None:
    """Report a race with another lane of the warp; `lanes`: of the earlier access, and of this one. `same`: see
    `compare`."""
    shared = c(f"icmp ne i8 {c(f'and i8 {bytes_}, {ALL_BYTES}')}, 0")
    with c.if_(c(f"and i1 {differ(c, cells, stamp, lanes)}, {shared}"), likely=False):
        earlier = c(f"shl i32 {c(f'zext i8 {lanes[0]} to i32')}, 24")
        extra = c(f"or i32 {earlier}, {IS_LANES | (1 << 16 if wrote else 0)}")
        report_at(c, cell, extra, same)


def compare(c: Code, cells: Cells, cell: str, warp: str, time: str, bytes_: str, wrote: bool, same: str = "0") -> None:
    """Report a race with another warp's access that this warp's clock does not cover.

    `same`: how many bytes this access (two stores race) may leave as they are; then it is no more than a note.
    """
    known = c.load("i32", c(f"getelementptr i32, ptr {c.at('%w', WARP['vclock'])}, i32 {warp}"))
    open_ = c(f"icmp ugt i32 {time}, {known}")
    other = c(f"icmp ne i32 {warp}, {cells.warp}")
    shared = c(f"icmp ne i8 {c(f'and i8 {bytes_}, {ALL_BYTES}')}, 0")
    racing = c(f"and i1 {c(f'and i1 {open_}, {other}')}, {shared}")
    with c.if_(racing, likely=False):
        report_at(c, cell, c(f"or i32 {warp}, {1 << 16 if wrote else 0}"), same)


def report_at(c: Code, cell: str, extra: str, same: str = "0") -> None:
    """A race at the access's first byte in a cell."""
    place = place_of(c, cell)
    bytes_ = (c.at("%p", place), same) if same != "0" else None
    report(c, FAULT_RACE, place, c(f"zext i32 {extra} to i64"), bytes_)


def place_of(c: Code, cell: str) -> str:
    """The access's first byte in a cell."""
    begin = c(f"sub i64 {c(f'shl i64 {cell}, 2')}, %offset")
    return c(f"call i64 @llvm.smax.i64(i64 {begin}, i64 0)")


def touched(c: Code, cell: str) -> str:
    """Which of the cell's four bytes the access covers, as bits of an i8."""
    begin = c(f"shl i64 {cell}, 2")
    low = c(f"call i64 @llvm.smax.i64(i64 {c(f'sub i64 %offset, {begin}')}, i64 0)")
    end = c("add i64 %offset, %n")
    high = c(f"call i64 @llvm.smin.i64(i64 {c(f'sub i64 {end}, {begin}')}, i64 4)")
    up_to = c(f"sub i64 {c(f'shl i64 1, {high}')}, 1")
    below = c(f"sub i64 {c(f'shl i64 1, {low}')}, 1")
    return c(f"trunc i64 {c(f'xor i64 {up_to}, {below}')} to i8")


def last_cell(c: Code) -> str:
    end = c("add i64 %offset, %n")
    return c(f"lshr i64 {c(f'sub i64 {end}, 1')}, 2")
