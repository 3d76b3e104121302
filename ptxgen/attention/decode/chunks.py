"""How flash decoding cuts sequences into chunks: the same arithmetic as a launch formula, as PTX, and in Python.

How many chunks are launched follows from capacities alone; how many of them have work, from the length in device
memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.launch import Extent, evaluate
from ptxgen.spec.fields import Said

STEP = 64  # chunks begin at multiples of so many positions
LEAST = 128  # and hold at least so many,
SHORT, LEAST_OF_SHORT = 1024, 64  # or so many where no more positions than SHORT are ever visible
LONG = 4096  # positions: a longer sequence is cut even where its batch fills the GPU without
MAX_CHUNKS = Said(
    doc="parts of a sequence at most, of whose results there is room for so many",
    silent="no result depends on it within the capacity",
)
LAUNCHED = 1024  # CTAs at most for the sake of long sequences: one without work costs its start


@dataclass(frozen=True)
class Cut:
    """The cut of every sequence of a batch into at most `max_chunks` chunks, to keep `ctas` CTAs busy.

    `positions` are visible at most. A sequence that is short for its capacity uses fewer chunks, never shorter ones
    than `least`; sequences of a batch that fills the GPU by itself are cut only where they are longer than `LONG`.
    """

    max_chunks: int
    positions: int
    n_kv_heads: int
    ctas: int

    @property
    def least(self) -> int:
        """Positions that a chunk holds at least (but for a sequence's last)."""
        return LEAST_OF_SHORT if self.positions <= SHORT else LEAST

    @property
    def _useful(self) -> int:
        """Chunks that a sequence can have at most."""
        return min(self.max_chunks, -(-self.positions // self.least))

    @property
    def _long(self) -> int:
        """Chunks that its full length asks for in a batch."""
        return -(-self.positions // LONG)

    @property
    def grid(self) -> Extent:
        """Chunks that are launched for each sequence and KV head, from the capacity `batch`."""
        if self._useful == 1:
            return 1
        wanted = f"max(1, {self.ctas} // ({self.n_kv_heads} * batch))"
        if self._long > 1:
            most = f"max(1, {LAUNCHED} // ({self.n_kv_heads} * batch))"
            wanted = f"max({wanted}, min(batch - 1, 1) * min({self._long}, {most}))"
        return f"min({self._useful}, {wanted})"

    def launched(self, batch: int) -> int:
        """The kernel's scalar `grid`: how many CTAs run."""
        return evaluate(self.grid, {"batch": batch})

    def wanted(self, batch: int) -> int:
        """Chunks of a sequence that keep the CTAs busy, if all sequences are alike."""
        return max(1, self.ctas // (self.n_kv_heads * batch))

    def size(self, span: int, batch: int) -> int:
        """Positions of a chunk of a sequence of which `span` positions are visible."""
        share = max(-(-span // self.launched(batch)), self.least)
        if self._long > 1:
            share = max(share, min(-(-span // self.wanted(batch)), LONG))
        return -(-share // STEP) * STEP

    def emit_size(self, b: Builder, span: Reg) -> tuple[Reg, Reg]:
        """`size` in PTX, and the chunks that were launched."""
        b.note(f"chunks of equal size, a multiple of {STEP}, at least {self.least}")
        chunks = b.op("mov.u32", "chunks", b.special("nctaid.z"))
        size = _ceil_div(b, "chunk_size", span, chunks)
        if self._long > 1:
            b.note(f"no less than keeps {self.ctas} CTAs busy, up to {LONG}")
            wanted = b.op("mov.u32", "wanted", b.special("nctaid.y"))
            b.op("mul.lo.u32", wanted, wanted, self.n_kv_heads)
            b.op("div.u32", wanted, b.op("mov.u32", "busy", self.ctas), wanted)
            b.op("max.u32", wanted, wanted, 1)
            share = _ceil_div(b, "wanted_size", span, wanted)
            b.op("min.u32", share, share, LONG)
            b.op("max.u32", size, size, share)
        b.op("max.u32", size, size, self.least)
        b.op("add.u32", size, size, STEP - 1)
        b.op("and.b32", size, size, -STEP)
        return size, chunks


def _ceil_div(b: Builder, name: str, value: Reg, by: Reg) -> Reg:
    out: Reg = b.op("add.u32", name, value, by)
    b.op("sub.u32", out, out, 1)
    b.op("div.u32", out, out, by)
    return out
