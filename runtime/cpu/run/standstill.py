"""What a report says of kernels that make no progress: which warps wait where, or repeat the same states."""

from __future__ import annotations

from ptxgen.runtime.cpu.compile.entry import Entry
from ptxgen.runtime.cpu.native import layout
from ptxgen.runtime.cpu.native.layout import CTA, PARK, PARK_NAMES, SHARED_BASE, WARP
from ptxgen.runtime.cpu.run.address_names import readable
from ptxgen.runtime.cpu.run.findings import DIVERGED, Source, lanes_text
from ptxgen.runtime.cpu.run.native_state import Gang
from ptxgen.runtime.cpu.support import mbarrier

_MOST_LINES = 12


def deadlock_text(entry: Entry, source: Source, gang: Gang) -> str:
    """Who waits where, when nothing can run."""
    lines, torn = [], False
    for cta, (x, y, z) in _ctas(gang):
        for number in range(gang.geometry.warps):
            lines += [
                f"CTA ({x}, {y}, {z}), warp {number}: {text}" for text in _waits(entry, source, gang, cta, number)
            ]
            torn = torn or _waits_at_aligned_barrier(entry, gang, cta, number)
    shown = lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} more"]
    if torn:
        title, advice = f"divergent aligned barrier in kernel {entry.name}", DIVERGED
    else:
        title = f"deadlock in kernel {entry.name}: no warp can run"
        advice = "each of these needs lanes or arrivals that never come"
    return "\n  ".join([title, *shown, advice])


def _waits_at_aligned_barrier(entry: Entry, gang: Gang, rank: int, number: int) -> bool:
    """Whether lanes of a warp wait at an aligned barrier for the rest of their warp."""
    here = (rank * gang.geometry.warps + number) * gang.shape.stride
    for block in range(1, gang.shape.blocks):
        opcode = entry.stops[block][1]
        aligned = (opcode.startswith("bar.") and not opcode.startswith("bar.warp")) or (
            opcode.startswith("barrier") and "aligned" in opcode
        )
        if aligned and gang.warps.get("I", here + gang.shape.pending + 4 * block):
            return True
    return False


def _ctas(gang: Gang) -> list[tuple[int, tuple[int, int, int]]]:
    found = []
    for rank in range(gang.geometry.ctas_per_gang):
        at = rank * CTA["_stride"]
        x, y, z = (gang.ctas.get("I", at + CTA["id_" + axis]) for axis in "xyz")
        found.append((rank, (x, y, z)))
    return found


def _waits(entry: Entry, source: Source, gang: Gang, rank: int, number: int) -> list[str]:
    """One text for each group of waiting lanes of a warp."""
    here = (rank * gang.geometry.warps + number) * gang.shape.stride
    texts = []
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
        texts.append(f"{lanes_text(mask)} wait at {what}: {source.at(line, text)}")
    for block in range(1, gang.shape.blocks):
        mask = gang.warps.get("I", here + gang.shape.pending + 4 * block)
        if mask:
            texts.append(f"{lanes_text(mask)} wait for other lanes of the warp: {source.at(*entry.stops[block])}")
    return texts


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


def spinning_text(entry: Entry, source: Source, gangs: list[Gang], remark: str = "") -> str:
    """Which warps repeat the same states."""
    title = f"no progress in kernel {entry.name}: the warps that can run repeat the same state"
    return "\n  ".join([title, *_whereabouts(entry, source, gangs, "spins"), *([remark] if remark else [])])


def late_text(entry: Entry, source: Source, gangs: list[Gang], seconds: float) -> str:
    """Where the warps are of a launch that was given so much time."""
    title = f"no progress in kernel {entry.name}: it has not ended within {seconds:g} s (time_limit)"
    return "\n  ".join([title, *_whereabouts(entry, source, gangs, "is")])


def _whereabouts(entry: Entry, source: Source, gangs: list[Gang], does: str) -> list[str]:
    lines = []
    for gang in gangs:
        for rank, (x, y, z) in _ctas(gang):
            for number in range(gang.geometry.warps):
                here = (rank * gang.geometry.warps + number) * gang.shape.stride
                state = gang.warps.get("I", here + WARP["state"])
                if state in (layout.YIELDED, layout.RUNNABLE):
                    block = gang.warps.get("I", here + WARP["block"])
                    lines.append(f"CTA ({x}, {y}, {z}), warp {number} {does} at {source.at(*entry.stops[block])}")
                elif state == layout.PARKED:
                    waits = _waits(entry, source, gang, rank, number)
                    lines += [f"CTA ({x}, {y}, {z}), warp {number}: {text}" for text in waits]
    return lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} more"]
