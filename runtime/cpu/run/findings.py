"""What a finding says: kernel, line and text, CTA, warp, lanes, address, what would be right.

Where an address lies is in `address_names.py`, which warps wait where in `standstill.py`.
"""

from __future__ import annotations

import re

from ptxgen.finding import Finding, Spot, lanes_of
from ptxgen.lines.sources import in_brackets, origin
from ptxgen.runtime.arrays.tensormap import BEGIN_ALIGN
from ptxgen.runtime.cpu.compile.entry import Entry
from ptxgen.runtime.cpu.emit.wgmma_products import LATE_READ
from ptxgen.runtime.cpu.flow.calls import ASSERTION
from ptxgen.runtime.cpu.native import layout
from ptxgen.runtime.cpu.native.layout import CTA, WARP
from ptxgen.runtime.cpu.run.address_names import Places
from ptxgen.runtime.cpu.run.native_state import Fault, Gang
from ptxgen.runtime.cpu.support import faults

EQUAL_STORES = "unordered stores of equal values"
UNWRITTEN_REGISTER = "read of an uninitialised register"
_TITLES = {
    faults.FAULT_BOUNDS: "out of bounds",
    faults.FAULT_ALIGN: "misaligned access",
    faults.FAULT_TRAP: "trap",
    faults.FAULT_UNINITIALISED: "read of uninitialised memory",
    faults.FAULT_RACE: "race",
    faults.FAULT_REGISTER: UNWRITTEN_REGISTER,
    faults.FAULT_OPERAND: "operand",
    faults.FAULT_ASSERT: "wrong use",
    faults.FAULT_READ_ONLY: "write to read-only memory",
    faults.FAULT_IN_FLIGHT: "use of bytes that an asynchronous copy is still writing",
    faults.FAULT_PROXY: "asynchronous read of ordinary writes",
    faults.FAULT_ORDER: "race",
    faults.FAULT_EARLY: "use of what the kernel before may still write",
    faults.FAULT_CONSTANT: "read-only load of what this launch writes",
    faults.FAULT_GONE: "exit while another CTA uses its shared memory",
    faults.FAULT_LEFT: "exit before an asynchronous copy is over",
    faults.FAULT_PRODUCT: "registers of wgmma without a wait or a fence",
    faults.FAULT_COORDINATE: "wrong use",
    faults.FAULT_PHASE: "wrong use",
    faults.FAULT_DIVERGED: "divergent aligned barrier",
    faults.FAULT_EQUAL_RACE: EQUAL_STORES,
    faults.FAULT_EQUAL_ORDER: EQUAL_STORES,
}
DIVERGED = "every lane of the warp that has not exited must execute an .aligned barrier together"
_NO_HARM = 'both store what is there already, so their order does not matter (equal_stores="finding" stops for it)'
_ADVICE = {
    faults.FAULT_DIVERGED: DIVERGED,
    faults.FAULT_TRAP: "the kernel stops itself here",
    faults.FAULT_UNINITIALISED: "write it before it is read",
    faults.FAULT_READ_ONLY: "kernels may not write there: pass a writable buffer",
    faults.FAULT_PROXY: "these bytes were written by st or the like: a fence.proxy.async must stand between",
    faults.FAULT_CONSTANT: "ld.global.nc may give what was there before the launch: use ld.global",
    faults.FAULT_LEFT: "it uses the CTA's shared memory: wait for its mbarrier first or, for a copy out, by "
    "cp.async.bulk.wait_group (or .read) in the lane that issued it",
    faults.FAULT_PHASE: "the mbarrier's phase was over before these bytes had come: expect_tx must count those of all "
    "copies that are to end in the phase",
    faults.FAULT_EARLY: "a programmatic launch may run beside the kernel before it, which has written these bytes: "
    "griddepcontrol.wait must come first",
    **dict.fromkeys((faults.FAULT_EQUAL_RACE, faults.FAULT_EQUAL_ORDER), _NO_HARM),
    faults.FAULT_IN_FLIGHT: "wait for the copy first: cp.async.wait_group in the lanes that issued it, or its mbarrier",
}
_WITH_ADDRESS = (
    faults.FAULT_BOUNDS, faults.FAULT_ALIGN, faults.FAULT_UNINITIALISED, faults.FAULT_RACE, faults.FAULT_READ_ONLY,
    faults.FAULT_IN_FLIGHT, faults.FAULT_PROXY, faults.FAULT_ORDER, faults.FAULT_EARLY, faults.FAULT_CONSTANT,
    faults.FAULT_PHASE, faults.FAULT_EQUAL_RACE, faults.FAULT_EQUAL_ORDER,
)  # fmt: skip
_WITH_REMARK = (faults.FAULT_ASSERT, faults.FAULT_OPERAND, faults.FAULT_TRAP, faults.FAULT_PRODUCT)

_LONG_LINE = 200  # characters: generated texts may stand in one line
_LATE_COPY = "a copy reads its source until cp.async.bulk.wait_group (or .read) covers its group; this is at that wait"
_UNORDERED = "nothing orders that access before this one"
_STRONG = {"atom", "red", "volatile", "relaxed", "acquire", "release", "acq_rel"}
_OF_SCOPE = "\n  both are atomic (or the like), but the scope of one of them is its CTA (.cta): other CTAs need .gpu"
_OF_STRONG = (
    "\n  that was an atomic (or volatile, relaxed) access, which others of the kind may meet without an order: what a "
    "loop of atom.cas begins with is read by ld.volatile or ld.relaxed; an ordinary access needs "
)


class Source:
    """A text, as findings show its lines."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self._text = file, text
        self._lines = text.splitlines()

    def line(self, line: int, instruction: str = "") -> str:
        """The text of a line; the instruction alone where the line is long, or no line of the text."""
        text = self._lines[line - 1].strip() if 0 < line <= len(self._lines) else instruction
        if len(text) > _LONG_LINE and instruction:
            text = instruction
        return text if len(text) <= _LONG_LINE else f"{text[: _LONG_LINE - 40]} … {text[-36:]}"

    def at(self, line: int, fallback: str = "") -> str:
        """`file:12: ld.global.f32 %f1, [%rd4]; [fragment 'load', a.py:7, templates/k.ptx.j2:3]`"""
        return f"{self.file}:{line}: {self.line(line, fallback)}{in_brackets(origin(self._text, line))}"

    def spot(self, line: int, fallback: str, who: tuple[tuple[int, int, int], int] | None, mask: int = 0) -> Spot:
        """The same with its threads: (CTA, number of the warp), and lanes."""
        cta, warp = who or (None, None)
        return Spot(line, self.line(line, fallback), origin(self._text, line), cta, warp, lanes_of(mask))


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


def found(entry: Entry, source: Source, fault: Fault, gangs: list[Gang], places: Places) -> Finding:
    """A fault that native code has recorded."""
    kind, site, mask, size, address, _, cta, warp = fault
    line, instruction, _ = entry.sites[site]
    text = _text(entry, source, fault, gangs, places)
    valid = kind not in (faults.FAULT_BOUNDS, faults.FAULT_ALIGN)
    inside = kind in _WITH_ADDRESS
    spots = [source.spot(line, instruction, _who(gangs, cta, warp), mask)]
    if kind == faults.FAULT_DIVERGED:
        spots.append(source.spot(*entry.sites[size][:2], _who(gangs, cta, warp), fault.extra))
    return Finding(
        text,
        kind=text.partition(" in kernel ")[0],
        kernel=entry.name,
        file=source.file,
        spots=spots,
        buffer=places.buffer(instruction, address, size, valid) if inside else "",
        memory=places.text(instruction, address, size, valid) if inside else "",
        advice=text.splitlines()[-1].strip(),
    )


def _text(entry: Entry, source: Source, fault: Fault, gangs: list[Gang], places: Places) -> str:
    kind, site, mask, size, address, extra, cta, warp = fault
    if kind == faults.FAULT_BOUNDS and places.read_only(address, size):
        kind = faults.FAULT_READ_ONLY
    line, text, remark = entry.sites[site]
    lines = [f"{_TITLES[kind]} in kernel {entry.name}", source.at(line, text)]
    lines.append(f"{_where(gangs, cta, warp)}, {lanes_text(mask)}")
    if kind in _WITH_ADDRESS:
        lines.append(places.text(text, address, size, valid=kind not in (faults.FAULT_BOUNDS, faults.FAULT_ALIGN)))
    if kind == faults.FAULT_ALIGN:
        lines.append(f"an access of {size} bytes must be aligned to {size} (got {address:#x}, {address % size} over)")
    elif kind in (faults.FAULT_RACE, faults.FAULT_EQUAL_RACE):
        if extra & layout.LATE_WRITER:
            lines.append(f"warp {extra & 0xFFFF} has written these bytes meanwhile")
            lines.append(remark if remark == LATE_READ else _LATE_COPY)
        else:
            lines.append(_race_text(extra))
    elif kind in (faults.FAULT_ORDER, faults.FAULT_EQUAL_ORDER):
        lines.append(_order_text(extra, gangs, cta, strong=bool(_STRONG & set(re.split(r"[\s.:]+", text)))))
    elif kind == faults.FAULT_GONE:
        number, warp = _writer(extra)
        lines.append(
            f"CTA {_coordinates(gangs[0], number)}, warp {warp}, executed this on the shared memory of the CTA that "
            "exits, which has not waited for it; a cluster barrier behind the access would do"
        )
    elif kind == faults.FAULT_COORDINATE:
        lines.append(_coordinate_text(extra, address - (address >> 63 << 64), size))
    elif kind == faults.FAULT_DIVERGED:
        lines.append(f"{lanes_text(extra)} went past it: {source.at(*entry.sites[size][:2])}")
    elif kind == faults.FAULT_REGISTER:
        lines.append(remark)
    elif remark == ASSERTION:
        message, file = places.string(address), places.string(extra)
        return "\n  ".join([*lines, f"assertion `{message}` failed, {file}:{size}"])
    elif remark and kind in _WITH_REMARK:
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
    did = "written" if was_write else "read"
    return f"warp {other} has {did} these bytes and {_UNORDERED}; a barrier between them would"


def _order_text(extra: int, gangs: list[Gang], cta_address: int, strong: bool) -> str:
    """An access by another CTA of the launch, or another warp of this one, that is not ordered before this access."""
    number, warp = _writer(extra)
    did = "read" if extra & layout.READER else "written"
    for gang in gangs:
        offset = cta_address - gang.ctas.address
        if 0 <= offset < gang.ctas.size and gang.ctas.get("q", offset + CTA["index"]) == number:
            who, order = f"warp {warp}", "a barrier between them"
            break
    else:
        who = f"CTA {_coordinates(gangs[0], number)}, warp {warp}, of this launch"
        order = (
            "a release by its warp and an acquire here (atom.acq_rel, or a fence on either side), or a cluster barrier"
        )
    advice = f"{_OF_STRONG}{order}" if extra & layout.STRONG_WRITER else f"; {order} would"
    if extra & layout.STRONG_WRITER and strong:
        advice = _OF_SCOPE
    return f"{who} has {did} these bytes and {_UNORDERED}{advice}"


def _coordinate_text(dimension: int, coordinate: int, size: int) -> str:
    """A coordinate of a tensor copy, whose elements have `size` bytes, that no GPU takes."""
    ends = "or a GPU ends this with an illegal instruction"
    if dimension == 0 and coordinate * size % BEGIN_ALIGN:
        return (
            f"the innermost coordinate (the first in braces) is {coordinate}, byte {coordinate * size} of a row: it "
            f"must be a multiple of {BEGIN_ALIGN} bytes, here of {BEGIN_ALIGN // size} elements, {ends}"
        )
    return (
        f"coordinate {dimension} (0 is the innermost, the first in braces) is {coordinate}: a store or a reduction "
        f"must begin at 0 or above in every dimension, {ends}; only loads may begin before the array"
    )


def _writer(extra: int) -> tuple[int, int]:
    """(number of the CTA in the grid, number of the warp in it); a CTA has at most 32 warps."""
    return (extra >> 8) - 1, extra & layout.WARP_LANES - 1


def _coordinates(gang: Gang, number: int) -> str:
    x, y, _ = gang.geometry.grid
    return f"({number % x}, {number // x % y}, {number // (x * y)})"


def _where(gangs: list[Gang], cta_address: int, warp_address: int) -> str:
    who = _who(gangs, cta_address, warp_address)
    return "CTA unknown" if who is None else f"CTA {who[0]}, warp {who[1]}"


def _who(gangs: list[Gang], cta_address: int, warp_address: int) -> tuple[tuple[int, int, int], int] | None:
    """(coordinates of the CTA, number of the warp in it)."""
    for gang in gangs:
        offset = cta_address - gang.ctas.address
        if 0 <= offset < gang.ctas.size:
            x, y, z = (gang.ctas.get("I", offset + CTA["id_" + axis]) for axis in "xyz")
            number = gang.warps.get("I", warp_address - gang.warps.address + WARP["id"])
            return (x, y, z), number
    return None
