"""Two warpgroups have the same rows, and each multiplies its part of a tile's k (sliced K). Each sends the other its
sums for half of the tile's tokens, adds the sums it receives to its own for the other half, and finishes these.

Sums travel as they lie in registers, 16 bytes of a thread for each octet of tokens, to the same thread of the other
warpgroup. A sum of two numbers does not depend on their order, so both halves are deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms import convert
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.split_k.cluster import BYTES, VECTOR
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import OCTET, WARPS, Geometry
from ptxgen.products.wgmma.tiling.shape import SLICES

THREADS = 32 * WARPS
MEETING = 3  # the barrier of both; results have those of each warpgroup, 1 and 2


class Slices:
    """Fragments `give_half` and `take_half`, between which both warpgroups meet."""

    def __init__(self, b: Builder, at: Geometry, ring: Ring) -> None:
        self.b, self.at, self.ring = b, at, ring
        self.own = at.out_tokens // OCTET

    def build(self, tasks: Tasks, sums: Sequence[Sequence[Reg]]) -> list[RegArray]:
        """Both fragments; the sums that this warpgroup finishes."""
        b, at = self.b, self.at
        slice_ = tasks.slice
        assert slice_ is not None
        half, row_bytes = VECTOR * self.own, BYTES * THREADS
        slot_bytes = len(sums) * self.own * row_bytes
        wholes = [b.array(f"whole{block}_", "f32", half) for block in range(len(sums))]
        vectors = [(block, first) for block in range(len(sums)) for first in range(0, half, VECTOR)]
        each = [(*where, row_bytes * number) for number, where in enumerate(vectors)]
        with b.fragment("give_half", "to the other warpgroup the sums of its tokens"):
            is_first = b.op("setp.eq.u32", "is_first_slice", slice_, 0)
            place = b.op("mov.u32", "sums_place", self.ring.memory)
            b.op("add.u32", place, place, at.sums_at)
            of_group = b.op("and.b32", "thread_of_slice", tasks.thread, THREADS - 1)
            b.op("mad.lo.u32", place, of_group, BYTES, place)
            mine = b.op("mad.lo.u32", "given_at", slice_, slot_bytes, place)
            given = b.array("given_sum", "f32", VECTOR)
            for block, begin, offset in each:
                lower, upper = sums[block][begin:], sums[block][half + begin :]
                for value, low, high in zip(given, lower, upper, strict=False):
                    b.op("selp.f32", value, high, low, is_first)
                convert.store_words(b, mine, given, offset, space="shared")
        with b.fragment("take_half", "and what it gave to one's own"):
            other = b.op("xor.b32", "other_slice", slice_, 1)
            theirs = b.op("mad.lo.u32", "taken_sums_at", other, slot_bytes, place)
            for block, begin, offset in each:
                convert.load_words(b, wholes[block][begin : begin + VECTOR], theirs, offset, space="shared")
            own = convert.scratch(b, "own_sum", "f32")
            for whole, values in zip(wholes, sums, strict=True):
                for value, low, high in zip(whole, values[:half], values[half:], strict=True):
                    b.op("selp.f32", own, low, high, is_first)
                    b.op("add.f32", value, value, own)
        b.expose(slices_meet=(MEETING, SLICES * THREADS))
        return wholes
