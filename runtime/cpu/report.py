"""What a finding says: kernel, line and text, CTA, warp, lanes, address, nearest allocation, what would be right."""

from __future__ import annotations

from ptxgen.runtime.cpu import layout
from ptxgen.runtime.cpu.entry import Entry
from ptxgen.runtime.cpu.layout import (
    CTA,
    GANG,
    LOCAL_WINDOW,
    PARK,
    PARK_NAMES,
    SHARED_BASE,
    SHARED_WINDOW,
    THREAD,
    WARP,
)
from ptxgen.runtime.cpu.memory import Memory
from ptxgen.runtime.cpu.state import Gang, Worker
from ptxgen.runtime.cpu.support import core

_TITLES = {
    core.FAULT_BOUNDS: "out of bounds",
    core.FAULT_ALIGN: "misaligned access",
    core.FAULT_TRAP: "trap",
    core.FAULT_UNINITIALISED: "read of uninitialised memory",
    core.FAULT_RACE: "race",
    core.FAULT_DIVERGED: "divergent aligned barrier",
    core.FAULT_REGISTER: "read of an uninitialised register",
    core.FAULT_OPERAND: "operand",
    core.FAULT_ASSERT: "wrong use",
    core.FAULT_READ_ONLY: "write to read-only memory",
    core.FAULT_CUSTOM: "finding",
    core.FAULT_IN_FLIGHT: "use of bytes that an asynchronous copy is still writing",
}
_ADVICE = {
    core.FAULT_TRAP: "the kernel stops itself here",
    core.FAULT_UNINITIALISED: "write it before it is read",
    core.FAULT_DIVERGED: "every lane of the warp that has not exited must execute an .aligned barrier together",
    core.FAULT_READ_ONLY: "pass a writable buffer",
    core.FAULT_IN_FLIGHT: "wait for the copy first: cp.async.wait_group in the lanes that issued it, or its mbarrier",
}
_WITH_ADDRESS = (
    core.FAULT_BOUNDS, core.FAULT_ALIGN, core.FAULT_UNINITIALISED, core.FAULT_RACE, core.FAULT_READ_ONLY,
    core.FAULT_IN_FLIGHT,
)  # fmt: skip


class Source:
    """Where the text of lines comes from."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self._lines = text.splitlines()

    def at(self, line: int, fallback: str = "") -> str:
        """`file:12: ld.global.f32 %f1, [%rd4];`"""
        text = self._lines[line - 1].strip() if 0 < line <= len(self._lines) else fallback
        return f"{self.file}:{line}: {text}"


def lanes_text(mask: int) -> str:
    """`lanes 0-15, 31`."""
    runs: list[str] = []
    lane = 0
    while lane < 32:
        if mask >> lane & 1:
            last = lane
            while last < 31 and mask >> last + 1 & 1:
                last += 1
            runs.append(str(lane) if lane == last else f"{lane}-{last}")
            lane = last
        lane += 1
    return ("lane " if mask.bit_count() == 1 else "lanes ") + (", ".join(runs) or "none")


def fault_text(entry: Entry, source: Source, worker: Worker, gangs: list[Gang], memory: Memory) -> str:
    """The text of the fault that a worker's thread recorded."""
    thread = worker.thread
    kind, site, mask = (thread.get("I", THREAD[name]) for name in ("fault", "site", "mask"))
    size, address = thread.get("I", THREAD["bytes"]), thread.get("Q", THREAD["address"])
    line, text, remark = entry.sites[site]
    lines = [f"{_TITLES.get(kind, 'finding')} in kernel {entry.name}", source.at(line, text)]
    lines.append(
        f"{_where(gangs, thread.get('Q', THREAD['cta']), thread.get('Q', THREAD['warp']))}, {lanes_text(mask)}"
    )
    if kind in _WITH_ADDRESS:
        lines.append(_address_text(entry, memory, text, address, size))
    if kind == core.FAULT_ALIGN:
        lines.append(f"an access of {size} bytes must be aligned to {size} (got {address:#x}, {address % size} over)")
    elif kind == core.FAULT_RACE:
        lines.append(_race_text(thread.get("Q", THREAD["extra"])))
    elif kind == core.FAULT_REGISTER:
        lines.append(f"{remark} is read here, but no instruction that these lanes executed has written it")
    elif remark:
        lines.append(remark)
    if kind in _ADVICE:
        lines.append(_ADVICE[kind])
    return "\n  ".join(lines)


def _race_text(extra: int) -> str:
    other, was_write, lane = extra & 0xFFFF, extra >> 16 & 1, extra >> 24
    if extra >> 17 & 1:
        who = f"lane {lane}" if lane < layout.WARP_LANES else "other lanes"
        return (
            f"{who} of this warp {'wrote' if was_write else 'read'} these bytes, and nothing has ordered the warp's "
            "lanes since; a bar.warp.sync between them would"
        )
    return (
        f"warp {other} has {'written' if was_write else 'read'} these bytes and nothing orders that access before this "
        "one; a barrier between them would"
    )


def _where(gangs: list[Gang], cta_address: int, warp_address: int) -> str:
    for gang in gangs:
        offset = cta_address - gang.ctas.address
        if 0 <= offset < gang.ctas.size:
            x, y, z = (gang.ctas.get("I", offset + CTA["id_" + axis]) for axis in "xyz")
            number = gang.warps.get("I", warp_address - gang.warps.address + WARP["id"])
            return f"CTA ({x}, {y}, {z}), warp {number}"
    return "CTA unknown"


def _space_of(text: str) -> str:
    opcode = text.split()[1 if text.startswith("@") else 0] if text else ""
    for word in opcode.split("."):
        base = word.partition("::")[0].rstrip(";")
        if base in ("shared", "local", "global", "const", "param"):
            return base
    return "generic"


def _address_text(entry: Entry, memory: Memory, text: str, address: int, size: int) -> str:
    space = _space_of(text)
    if space == "generic" and address >= SHARED_WINDOW:
        space = "local" if address & LOCAL_WINDOW else "shared"
        address &= (1 << layout.WINDOW_SHIFT) - 1
    if space == "shared":
        return _shared_text(entry, address, size)
    if space == "local":
        return f"address {address:#x} of local memory ({entry.local_bytes} bytes a thread)"
    found = memory.find(address)
    if found is not None:
        where = f"byte {address - found.begin} of {found.describe()}"
        return f"address {address:#x} ({size} bytes): {where}"
    return f"address {address:#x} ({size} bytes): {memory.explain(address, size)}"


def _shared_text(entry: Entry, address: int, size: int) -> str:
    offset = address - SHARED_BASE
    named = [v for v in entry.variables if v[1] <= address]
    near = max(named, key=lambda v: v[1]) if named else None
    where = (
        f"byte {address - near[1]} of {near[0]}" + (f" ({near[2]} bytes)" if near[2] else "") if near else "no variable"
    )
    return f"shared address {address:#x} ({size} bytes), offset {offset} of the CTA's shared memory: {where}"


def deadlock_text(entry: Entry, source: Source, gang: Gang) -> str:
    """Who waits where, when nothing can run."""
    lines, torn = [], False
    for cta, (x, y, z) in _ctas(gang):
        for number in range(gang.geometry.warps):
            lines += [
                f"CTA ({x}, {y}, {z}), warp {number}: {text}" for text in _waits(entry, source, gang, cta, number)
            ]
            torn = torn or _waits_at_aligned_barrier(entry, gang, cta, number)
    shown = lines[:12]
    if len(lines) > len(shown):
        shown.append(f"… and {len(lines) - len(shown)} more")
    if torn:
        title, advice = f"divergent aligned barrier in kernel {entry.name}", _ADVICE[core.FAULT_DIVERGED]
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
        if kind == layout.PARK_BARRIER:
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


def spinning_text(entry: Entry, source: Source, gangs: list[Gang]) -> str:
    """Which warps go round in circles."""
    lines = [f"no progress in kernel {entry.name}: the warps that can run repeat the same state"]
    for gang in gangs:
        for rank, (x, y, z) in _ctas(gang):
            for number in range(gang.geometry.warps):
                here = (rank * gang.geometry.warps + number) * gang.shape.stride
                if gang.warps.get("I", here + WARP["state"]) == layout.YIELDED:
                    block = gang.warps.get("I", here + WARP["block"])
                    lines.append(f"CTA ({x}, {y}, {z}), warp {number} spins at {source.at(*entry.stops[block])}")
                else:
                    waits = _waits(entry, source, gang, rank, number)
                    lines += [f"CTA ({x}, {y}, {z}), warp {number}: {text}" for text in waits]
    shown = lines[:12]
    if len(lines) > len(shown):
        shown.append(f"… and {len(lines) - len(shown)} more")
    return "\n  ".join(shown)


__all__ = ["GANG", "Source", "deadlock_text", "fault_text", "lanes_text", "spinning_text"]
