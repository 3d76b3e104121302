"""Emits one entry as a warp function, block by block. The instructions themselves are families'.

What a family works with comes from three files: `values.py` (masks, registers), `operands.py` (sources, destinations,
findings) and `jumps.py` (ends of blocks, waiting).
"""

from __future__ import annotations

from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.emit.jumps import Jumps
from ptxgen.runtime.cpu.flow.flow import Block, Op
from ptxgen.runtime.cpu.native.layout import THREAD, WARP

SCRATCH_BYTES = 4096  # of the block through which vectors of registers pass to support functions


class Emitter(Jumps):
    """What an instruction emitter works with; see `registry.py` for the contract."""

    def run(self) -> str:
        """The text of the warp function."""
        c = self.c
        self.cta = c.load("ptr", "%w", WARP["cta"])
        self.thread = c.load("ptr", "%w", WARP["thread"])
        self.launch = c.load("ptr", self.thread, THREAD["launch"])
        self.scratch = c.var(f"[{SCRATCH_BYTES} x i8]", align=64)
        self.next = c.var("i32")
        c.do("br label %dispatch")
        for block in self.flow.blocks:
            self._emit_block(block)
        self._emit_dispatch()
        return self.tables() + c.text()

    # for those who count what is executed (`counting.py`) ---------------------------------------------------------
    def entered(self, block: Block) -> None:
        """The code of a block begins."""

    def before(self, op: Op) -> None:
        """An instruction is about to be emitted."""

    def after(self, op: Op) -> None:
        """An instruction has been emitted."""

    def _emit_block(self, block: Block) -> None:
        c = self.c
        self.block = block
        caches = (self._values, self._casts, self._dirty, self._old, self._guards, self._pointers, self._host_nans)
        for cache in caches:
            cache.clear()
        if self.defined:
            self.defined.begin(block)
        c.label(f"enq{block.number}")
        c.store("i32", block.number, self.next)
        c.do("br label %enqueue")
        c.label(f"b{block.number}")
        self.mask = c.load("i32", "%w", WARP["mask"])
        self._mask_vector = ""
        self.ended = False
        self.entered(block)
        for op in block.ops:
            self.op = op
            if self.defined:
                self.defined.start(op)
            assert op.family is not None
            self.before(op)
            try:
                if op in self.flow.past_barriers:
                    self.left_behind(self.flow.past_barriers[op])
                op.family.function(self, op)
            except IsaError as error:
                raise self.error(str(error)) from None
            except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise self.unsupported("with these operands") from error
            self.after(op)
        if not self.ended:
            self.spill()
            if block.next is None:
                c.do("br label %dispatch")
            else:
                self.goto(block.next, self.mask)
