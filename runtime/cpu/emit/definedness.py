"""Check mode: which lanes (and bytes) of a register have been written, in the code of a warp function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.runtime.cpu.emit.defined_bytes import ALL, Planes, by_byte, bytes_of_result
from ptxgen.runtime.cpu.emit.warp_code import WarpCode
from ptxgen.runtime.cpu.emit.wgmma_products import Products
from ptxgen.runtime.cpu.flow.blocks import Block, Op
from ptxgen.runtime.cpu.flow.symbols import Reg
from ptxgen.runtime.cpu.flow.unwritten import Unwritten


class DefinedLanes:
    """Registers that some path leaves unwritten: the lanes of their bytes that are written, as masks."""

    def __init__(self, code: WarpCode) -> None:
        self.e = code
        self.products = Products(code)
        self._unwritten: Unwritten | None = None
        self._by_byte = by_byte(self.e.flow)
        self.now: dict[int, Planes | None] = {}  # None: all lanes that are here
        self.base: dict[int, Planes] = {}
        self._joint: dict[Planes, str] = {}
        self.width = 0  # bytes of a source that count, from the lowest on; 0: all
        self.checked: set[int] = set()
        self.silent = False
        self.carries = False  # whether reading what is not defined makes results so, and is no finding
        self.sources: str | None = None  # of the present instruction: lanes in which all it has read is defined

    def begin(self, block: Block) -> None:
        """Forget the previous block."""
        self.now, self.base, self.checked, self._joint = {}, {}, set(), {}
        self.block = block
        self.products.begin()

    def start(self, op: Op) -> None:
        """Forget the previous instruction."""
        self.sources, self.carries, self.width = None, op.pure, 0

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
        planes = self.planes(reg)
        if planes is None:
            return None
        lanes = self._all_of(planes[: self.width or None])
        return None if lanes == ALL else lanes

    def planes(self, reg: Reg) -> Planes | None:
        """The lanes in which each of its bytes is defined, or None if that is known to be all."""
        if reg.index not in self.now:
            if not self.e.flow.loose >> reg.index & 1 or self.block.defined_in >> reg.index & 1:
                self.now[reg.index] = None
            else:
                slot = self._slot(reg)
                loaded = [self.e.c.load("i32", slot, 4 * n) for n in range(self._kept(reg))]
                self.base[reg.index] = tuple(loaded) * (_bytes(reg) // len(loaded))
                self.now[reg.index] = self.base[reg.index]
        return self.now[reg.index]

    def both(self, a: str, b: str) -> str:
        """The lanes that are among both."""
        if a in (ALL, b):
            return b
        return a if b == ALL else self.e.c(f"and i32 {a}, {b}")

    def _all_of(self, planes: Planes) -> str:
        if planes not in self._joint:
            joint = ALL
            for lanes in dict.fromkeys(planes):
                joint = self.both(joint, lanes)
            self._joint[planes] = joint
        return self._joint[planes]

    def _slot(self, reg: Reg) -> str:
        return self.e.c.at("%w", self.e.place(-1 - reg.index, 4 * self._kept(reg)))

    def _kept(self, reg: Reg) -> int:
        """How many masks are kept of a register: for each byte, or one for all."""
        return _bytes(reg) if self._by_byte >> reg.index & 1 else 1

    def check(self, reg: Reg) -> None:
        """A register is read: by arithmetic, whose result is then no more defined than it; by anything else, which is
        reported for the executing lanes in which it was not written."""
        e = self.e
        if self.silent or (reg is e.op.guard and (e.op in e.flow.split_loads or e.op in e.flow.idle_loads)):
            return  # a guard that a load was given is another instruction's
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
            held = e.held(e.op.guard)
            mask = e.c(f"and i32 {mask}, {e.c(f'xor i32 {held}, -1') if e.op.negated else held}")
        else:
            self.checked.add(reg.index)
        self.report(reg, e.c(f"and i32 {mask}, {e.c(f'xor i32 {lanes}, -1')}"))

    def report(self, reg: Reg, lanes: str) -> None:
        """Report that a register is read that these lanes (an i32) have not written."""
        from ptxgen.runtime.cpu.support.faults import FAULT_REGISTER

        self._unwritten = self._unwritten or Unwritten(self.e.flow)
        self.e.fault_if(lanes, FAULT_REGISTER, remark=self._unwritten.sentence(reg, self.e.op))

    def write(self, reg: Reg) -> None:
        """The executing lanes of the register are now as defined as what the instruction has read."""
        e = self.e
        self.products.write(reg)
        fresh: Planes | None = None
        if self.sources is not None:
            fresh = (bytes_of_result(self, reg) if e.op.pure else None) or (self.sources,) * _bytes(reg)
            fresh = fresh[: self._kept(reg)] * (_bytes(reg) // self._kept(reg))
        if e.op.guard is None:
            self.now[reg.index] = fresh
            self.checked.discard(reg.index)
            return
        before = self.planes(reg)
        if before is None and fresh is None:
            return
        self.checked.discard(reg.index)
        here = e.exec_mask()
        others = e.c(f"xor i32 {here}, -1")
        everywhere = (ALL,) * _bytes(reg)
        merged: dict[tuple[str, str], str] = {}
        for pair in zip(before or everywhere, fresh or everywhere, strict=True):
            if pair not in merged:
                kept = e.c(f"and i32 {pair[0]}, {others}")
                merged[pair] = e.c(f"or i32 {kept}, {e.c(f'and i32 {pair[1]}, {here}')}")
        self.now[reg.index] = tuple(
            merged[pair] for pair in zip(before or everywhere, fresh or everywhere, strict=True)
        )

    def spill(self) -> None:
        """Keep the lanes for later blocks, for every register whose state is not known statically everywhere."""
        e = self.e
        for index, planes in self.now.items():
            if not (e.flow.loose & self.block.live_out) >> index & 1 or planes == self.base.get(index, ()):
                continue
            reg = e.flow.registers[index]
            slot = self._slot(reg)
            for n, lanes in enumerate((planes or (ALL,) * _bytes(reg))[: self._kept(reg)]):
                before, here = e.c.load("i32", slot, 4 * n), e.mask
                if lanes != ALL:
                    before = e.c(f"and i32 {before}, {e.c(f'xor i32 {e.mask}, -1')}")
                    here = e.c(f"and i32 {lanes}, {e.mask}")
                e.c.store("i32", e.c(f"or i32 {before}, {here}"), slot, 4 * n)


def _bytes(reg: Reg) -> int:
    """Bytes whose lanes are followed; of a predicate there is one."""
    return max(reg.bits // 8, 1)
