"""Check mode: registers of wgmma whose product is not waited for, or that no wgmma.fence has handed over.

Registers that one `wgmma.mma_async` names together (accumulators; fragments of a) are a set with a number. The warp's
state says by set in which group its last product is, and whether a fence stands behind the last other write to it.
PTX ISA, "Asynchronous Warpgroup Level Matrix Operations": accumulators may not be touched before the wait, fragments of
a may be read but not written, and a fence must come before the first product and after every other write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.runtime.cpu.flow.fragments import PRODUCT, fragments
from ptxgen.runtime.cpu.flow.symbols import Reg
from ptxgen.runtime.cpu.native.layout import WARP, WGMMA_SETS

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.emit.warp_code import WarpCode
    from ptxgen.runtime.cpu.flow.flow import Flow, Op

LATE_READ = "wgmma reads its operands until a wgmma.wait_group covers its group; this is at that wait"
_FLYING = "wgmma computes {} until a wgmma.wait_group covers its group (wgmma.commit_group ends one)"
_READING = (
    "wgmma (line {}) reads {} until a wgmma.wait_group covers its group; another register, or a wait before this write"
)
_UNFENCED = "a wgmma.fence must stand between the last write to {} and this, and before the first wgmma of a warp"


class Products:
    """The sets of an entry, and what is known of them in the present block."""

    def __init__(self, code: WarpCode) -> None:
        self.e = code
        self.sets, self.fragments = _sets(code.flow)
        self.landed: set[int] = set()  # sets of which no product is open in this block
        self.touched: set[int] = set()  # sets that this block has written otherwise

    def begin(self) -> None:
        """A block begins: its lanes may come from anywhere."""
        self.landed.clear()
        self.touched.clear()

    def use(self, reg: Reg) -> None:
        """Another instruction reads a register: no open product may compute it. (It may read it, too.)"""
        number = self._number(reg)
        if number is not None and number not in self.fragments:
            self._demand_landed(number, _FLYING.format(reg.name))

    def _demand_landed(self, number: int, remark: str) -> None:
        """No product of the set may be open."""
        from ptxgen.runtime.cpu.support.faults import FAULT_PRODUCT

        if number in self.landed:
            return
        e, c = self.e, self.e.c
        if e.op.guard is None:
            self.landed.add(number)
        group = c.load("i32", "%w", WARP["wgmma_groups"] + 4 * number)
        open_ = c(f"icmp ugt i32 {group}, {c.load('i32', '%w', WARP['wgmma_done'])}")
        lanes = c(f"select i1 {open_}, i32 {e.mask if e.op.guard is None else e.exec_mask()}, i32 0")
        e.fault_if(lanes, FAULT_PRODUCT, remark=remark)

    def write(self, reg: Reg) -> None:
        """Another instruction writes a register: wgmma may have it after a fence only. (Copies and constants do not
        count: nvcc puts those behind a fence that its source has behind them, and ptxas before it again.)"""
        number = self._number(reg)
        if number is None:
            return
        lines = self.fragments.get(number)
        said = _READING.format(" or ".join(map(str, lines)), reg.name) if lines else _FLYING.format(reg.name)
        self._demand_landed(number, said)
        if number not in self.touched and self.e.op.words[0] not in ("mov", "$move"):
            self.touched.add(number)
            c = self.e.c
            fenced = c.load("i32", "%w", WARP["wgmma_fenced"])
            c.store("i32", c(f"and i32 {fenced}, {~(1 << number) & 0xFFFFFFFF}"), "%w", WARP["wgmma_fenced"])

    def fence(self) -> None:
        """What was written is handed over."""
        self.touched.clear()
        self.e.c.store("i32", -1, "%w", WARP["wgmma_fenced"])

    def issue(self, op: Op) -> None:
        """A product of the open group: its registers must have been handed over, and are in flight."""
        from ptxgen.runtime.cpu.support.faults import FAULT_PRODUCT

        e, c = self.e, self.e.c
        registers = [*op.writes, *fragments(op)]
        numbers = {self.sets[reg.index]: reg for reg in reversed(registers) if reg.index in self.sets}
        fenced = c.load("i32", "%w", WARP["wgmma_fenced"])
        group = c(f"add i32 {c.load('i32', '%w', WARP['wgmma_committed'])}, 1")
        for number, reg in numbers.items():
            late = c(f"icmp eq i32 {c(f'and i32 {fenced}, {1 << number}')}, 0")
            lanes = c(f"select i1 {late}, i32 {e.mask}, i32 0")
            e.fault_if(lanes, FAULT_PRODUCT, remark=_UNFENCED.format(reg.name))
            c.store("i32", group, "%w", WARP["wgmma_groups"] + 4 * number)
        self.landed.difference_update(numbers)

    def commit(self) -> None:
        """The open group is complete, and another begins."""
        c = self.e.c
        now = c.load("i32", "%w", WARP["wgmma_committed"])
        c.store("i32", c(f"add i32 {now}, 1"), "%w", WARP["wgmma_committed"])

    def wait(self, keep: int) -> None:
        """All but the last `keep` groups are done."""
        c = self.e.c
        done = c(f"sub i32 {c.load('i32', '%w', WARP['wgmma_committed'])}, {keep}")
        before = c.load("i32", "%w", WARP["wgmma_done"])
        c.store("i32", c(f"call i32 @llvm.smax.i32(i32 {done}, i32 {before})"), "%w", WARP["wgmma_done"])

    def _number(self, reg: Reg) -> int | None:
        return None if self.e.op.words[0] == "wgmma" else self.sets.get(reg.index)


def _sets(flow: Flow) -> tuple[dict[int, int], dict[int, list[int]]]:
    """(number of its set by register, the lines that read it by number of a set that is fragments of a only).

    Sets that share a register are one; those beyond `WGMMA_SETS` are left out.
    """
    sets: list[set[int]] = []
    products = [op for block in flow.blocks for op in block.ops if op.words[:2] == PRODUCT]
    for op in products:
        for one in ({reg.index for reg in op.writes}, {reg.index for reg in fragments(op)}):
            meeting = [other for other in sets if other & one]
            sets = [other for other in sets if not other & one]
            if one:
                sets.append(one.union(*meeting))
    sets = sets[:WGMMA_SETS]
    sums = {reg.index for op in products for reg in op.writes}
    lines = {
        number: sorted({op.line for op in products if any(reg.index in one for reg in fragments(op))})
        for number, one in enumerate(sets)
        if not one & sums
    }
    return {index: number for number, one in enumerate(sets) for index in one}, lines
