"""Check mode: which lanes of a register have been written, in the code of a warp function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ptxgen.runtime.cpu.emit.wgmma_products import Products
from ptxgen.runtime.cpu.flow.flow import Block, Op
from ptxgen.runtime.cpu.flow.symbols import Reg

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.emit.values import Values


class DefinedLanes:
    """Registers that some path leaves unwritten: their lanes that are written, as masks."""

    def __init__(self, values: Values) -> None:
        self.e = values
        self.products = Products(values)
        self.now: dict[int, str | None] = {}  # lanes as an i32; None: all that are here
        self.base: dict[int, str] = {}
        self.checked: set[int] = set()
        self.silent = False
        self.carries = False  # whether reading what is not defined makes results so, and is no finding
        self.sources: str | None = None  # of the present instruction: lanes in which all it has read is defined

    def begin(self, block: Block) -> None:
        """Forget the previous block."""
        self.now, self.base, self.checked = {}, {}, set()
        self.block = block
        self.products.begin()

    def start(self, op: Op) -> None:
        """Forget the previous instruction."""
        self.sources, self.carries = None, op.pure

    @contextmanager
    def reading(self, carries: bool) -> Iterator[None]:
        """Operands that matter here, or whose undefined lanes only make the results undefined."""
        before, self.carries = self.carries, carries
        yield
        self.carries = before

    def take(self) -> str | None:
        """The lanes in which all that was read is defined, or None; the results do not depend on that any more."""
        lanes, self.sources = self.sources, None
        return lanes

    def add(self, lanes: str) -> None:
        """The results are defined in these lanes at most."""
        self.sources = lanes if self.sources is None else self.e.c(f"and i32 {self.sources}, {lanes}")

    def join(self, reg: Reg) -> None:
        """The result is a part of a register: that is as defined as its best part."""
        before = self.lanes(reg)
        if self.sources is not None:
            self.sources = None if before is None else self.e.c(f"or i32 {before}, {self.sources}")

    def lanes(self, reg: Reg) -> str | None:
        """The lanes in which the register is defined, or None if that is known to be all."""
        if reg.index not in self.now:
            if not self.e.flow.loose >> reg.index & 1 or self.block.defined_in >> reg.index & 1:
                self.now[reg.index] = None
            else:
                self.base[reg.index] = self.e.c.load("i32", self._slot(reg))
                self.now[reg.index] = self.base[reg.index]
        return self.now[reg.index]

    def _slot(self, reg: Reg) -> str:
        return self.e.c.at("%w", self.e.place(-1 - reg.index, 4))

    def check(self, reg: Reg) -> None:
        """A register is read: by arithmetic, whose result is then no more defined than it; by anything else, which is
        reported for the executing lanes in which it was not written."""
        from ptxgen.runtime.cpu.support.faults import FAULT_REGISTER

        e = self.e
        if self.silent:
            return
        self.products.use(reg)
        lanes = self.lanes(reg)
        if lanes is None:
            return
        if self.carries and reg is not e.op.guard:
            self.add(lanes)
            return
        if reg.index in self.checked:
            return
        mask = e.mask
        if e.op.guard is not None and e.op.guard is not reg:
            held = e._values.get(e.op.guard.index, {}).get("i32") or e._from_file(e.op.guard, "i32")
            mask = e.c(f"and i32 {mask}, {e.c(f'xor i32 {held}, -1') if e.op.negated else held}")
        else:
            self.checked.add(reg.index)
        e.fault_if(e.c(f"and i32 {mask}, {e.c(f'xor i32 {lanes}, -1')}"), FAULT_REGISTER, remark=reg.name)

    def write(self, reg: Reg) -> None:
        """The executing lanes of the register are now as defined as what the instruction has read."""
        e = self.e
        self.products.write(reg)
        if e.op.guard is None:
            self.now[reg.index] = self.sources
            self.checked.discard(reg.index)
            return
        before = self.lanes(reg)
        if before is None and self.sources is None:
            return
        self.checked.discard(reg.index)
        here = e.exec_mask()
        kept = e.c(f"and i32 {before or '-1'}, {e.c(f'xor i32 {here}, -1')}")
        self.now[reg.index] = e.c(f"or i32 {kept}, {e.c(f'and i32 {self.sources or -1}, {here}')}")

    def spill(self) -> None:
        """Keep the lanes for later blocks, for every register whose state is not known statically everywhere."""
        e = self.e
        for index, lanes in self.now.items():
            if not (e.flow.loose & self.block.live_out) >> index & 1 or lanes == self.base.get(index, ""):
                continue
            slot = self._slot(e.flow.registers[index])
            others = e.c(f"and i32 {e.c.load('i32', slot)}, {e.c(f'xor i32 {e.mask}, -1')}")
            e.c.store("i32", e.c(f"or i32 {others}, {e.c(f'and i32 {lanes or -1}, {e.mask}')}"), slot)
