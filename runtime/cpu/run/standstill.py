"""What a report says of kernels that make no progress: which warps wait where, or repeat the same states."""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.finding import Finding, Spot
from ptxgen.runtime.cpu.compile.entry import Entry
from ptxgen.runtime.cpu.flow.aligned_barriers import is_aligned
from ptxgen.runtime.cpu.native import layout
from ptxgen.runtime.cpu.native.layout import CTA, PARK, PARK_NAMES, SHARED_BASE, WARP, WARP_LANES
from ptxgen.runtime.cpu.run.address_names import readable
from ptxgen.runtime.cpu.run.findings import DIVERGED, Source, lanes_text
from ptxgen.runtime.cpu.run.native_state import Gang
from ptxgen.runtime.cpu.support import mbarrier

_MOST_LINES = 12


class _Waiting(NamedTuple):
    """What is said of a group of lanes, and where they are."""

    text: str
    spot: Spot
    registers: bool = False  # what they wait for: it is told first


def deadlock(entry: Entry, source: Source, gang: Gang) -> Finding:
    """Who waits where, when nothing can run."""
    waiting, torn = [], False
    for cta, where in _ctas(gang):
        for number in range(gang.geometry.warps):
            waiting += [
                one._replace(text=f"CTA {where}, warp {number}: {one.text}")
                for one in _waits(entry, source, gang, cta, number)
            ]
            torn = torn or _waits_at_aligned_barrier(entry, gang, cta, number)
    if torn:
        return _finding(entry, source, "divergent aligned barrier", "", waiting, DIVERGED)
    return _finding(entry, source, "deadlock", ": no warp can run", waiting, _needs(entry))


def _needs(entry: Entry) -> str:
    if not entry.launch_registers:
        return "each of these needs lanes or arrivals that never come"
    return (
        "each of these needs lanes, arrivals or registers that never come: at its launch a CTA has "
        f"{entry.launch_registers} registers a thread, and setmaxnreg only shares these out"
    )


def _finding(entry: Entry, source: Source, title: str, more: str, waiting: list[_Waiting], advice: str) -> Finding:
    waiting = sorted(waiting, key=lambda one: not one.registers)
    lines = [one.text for one in waiting]
    shown = lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} more"]
    text = "\n  ".join([f"{title} in kernel {entry.name}{more}", *shown, *([advice] if advice else [])])
    spots = [one.spot for one in waiting[:_MOST_LINES]]
    return Finding(text, kind=title, kernel=entry.name, file=source.file, spots=spots, advice=advice)


def _waits_at_aligned_barrier(entry: Entry, gang: Gang, rank: int, number: int) -> bool:
    """Whether lanes of a warp wait at an aligned barrier for the rest of their warp."""
    here = (rank * gang.geometry.warps + number) * gang.shape.stride
    for block in range(1, gang.shape.blocks):
        opcode = entry.stops[block][1]
        if is_aligned(tuple(opcode.split("."))) and gang.warps.get("I", here + gang.shape.pending + 4 * block):
            return True
    return False


def _ctas(gang: Gang) -> list[tuple[int, tuple[int, int, int]]]:
    found = []
    for rank in range(gang.geometry.ctas_per_gang):
        at = rank * CTA["_stride"]
        x, y, z = (gang.ctas.get("I", at + CTA["id_" + axis]) for axis in "xyz")
        found.append((rank, (x, y, z)))
    return found


def _waits(entry: Entry, source: Source, gang: Gang, rank: int, number: int) -> list[_Waiting]:
    """Each group of waiting lanes of a warp."""
    here = (rank * gang.geometry.warps + number) * gang.shape.stride
    who = dict(_ctas(gang))[rank], number
    found = []
    for slot in range(gang.warps.get("I", here + WARP["parked"])):
        at = here + WARP["parks"] + slot * layout.PARK_BYTES
        kind, which, mask, site, count = (
            gang.warps.get("I", at + PARK[n]) for n in ("kind", "id", "mask", "site", "count")
        )
        line, text, _ = entry.sites[site]
        what = PARK_NAMES.get(kind, "event")
        if kind == layout.PARK_MBARRIER:
            what = _mbarrier(entry, gang, gang.warps.get("Q", at + PARK["argument"]))
        elif kind == layout.PARK_BARRIER:
            bar = rank * CTA["_stride"] + CTA["bars"] + which * layout.BARRIER_BYTES
            arrived = gang.ctas.get("I", bar + layout.BAR["arrived"])
            needed = count or gang.ctas.get("I", rank * CTA["_stride"] + CTA["live"])
            what = f"barrier {which} ({arrived} of {needed} threads have arrived)"
        elif kind == layout.PARK_REGISTERS:
            what = _registers(entry, gang, here, rank, count)
        said = f"{lanes_text(mask)} wait at {what}: {source.at(line, text)}"
        found.append(_Waiting(said, source.spot(line, text, who, mask), kind == layout.PARK_REGISTERS))
    for block in range(1, gang.shape.blocks):
        mask = gang.warps.get("I", here + gang.shape.pending + 4 * block)
        if mask:
            said = f"{lanes_text(mask)} wait for other lanes of the warp: {source.at(*entry.stops[block])}"
            found.append(_Waiting(said, source.spot(*entry.stops[block], who, mask)))
    return found


def _registers(entry: Entry, gang: Gang, warp: int, rank: int, count: int) -> str:
    """What a warp that asks for `count` registers a thread wants of the pool of its CTA, and what is there."""
    change = gang.warps.get("i", warp + WARP["registers"])
    has = entry.launch_registers + change
    free = gang.ctas.get("I", rank * CTA["_stride"] + CTA["pool"])
    wanted = f"{count} a thread, {WARP_LANES * (count - has)} more than it has"
    return f"the CTA's pool of registers ({wanted}; {WARP_LANES * free} are free)"


def _mbarrier(entry: Entry, gang: Gang, pointer: int) -> str:
    """`mbarrier at offset 16 of its shared memory (1 arrival and 256 bytes are due)`."""
    stride = gang.shared.size // gang.geometry.ctas_per_gang
    offset = pointer - gang.shared.address
    if not 0 <= offset < gang.shared.size:
        return "mbarrier"
    word = gang.shared.get("Q", offset)
    arrivals = word >> mbarrier.PENDING_SHIFT & mbarrier.COUNT_MASK
    due = (word & (1 << mbarrier.PENDING_SHIFT) - 1) - mbarrier.TX_BIAS
    names = [v for v in entry.variables if v[1] <= offset % stride + SHARED_BASE]
    name = f" in {readable(max(names, key=lambda v: v[1])[0])}" if names else ""
    place = f"offset {offset % stride} of its shared memory{name}"
    return f"mbarrier at {place} ({arrivals} arrivals and {due} bytes are due in its phase)"


def spinning(entry: Entry, source: Source, gangs: list[Gang], remark: str = "") -> Finding:
    """Which warps repeat the same states."""
    more = ": the warps that can run repeat the same state"
    return _finding(entry, source, "no progress", more, _whereabouts(entry, source, gangs, "spins"), remark)


def late(entry: Entry, source: Source, gangs: list[Gang], seconds: float) -> Finding:
    """Where the warps are of a launch that was given so much time."""
    more = f": it has not ended within {seconds:g} s (time_limit)"
    return _finding(entry, source, "no progress", more, _whereabouts(entry, source, gangs, "is"), "")


def _whereabouts(entry: Entry, source: Source, gangs: list[Gang], does: str) -> list[_Waiting]:
    found = []
    for gang in gangs:
        for rank, where in _ctas(gang):
            for number in range(gang.geometry.warps):
                here = (rank * gang.geometry.warps + number) * gang.shape.stride
                state = gang.warps.get("I", here + WARP["state"])
                if state in (layout.YIELDED, layout.RUNNABLE):
                    block = gang.warps.get("I", here + WARP["block"])
                    said = f"CTA {where}, warp {number} {does} at {source.at(*entry.stops[block])}"
                    found.append(_Waiting(said, source.spot(*entry.stops[block], (where, number))))
                elif state == layout.PARKED:
                    waits = _waits(entry, source, gang, rank, number)
                    found += [one._replace(text=f"CTA {where}, warp {number}: {one.text}") for one in waits]
    return found
