"""Sums of warpgroups that have the same rows and share a stage's tiles of k: each finishes some of the tokens, is given
the others' sums of these, and adds all up. They travel as they lie in registers, where results are left afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms import convert
from ptxgen.products.wgmma.geometry import OCTET, WARPS, Geometry
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tasks import Tasks

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

VECTOR = 4  # sums that a lane has of an octet
BYTES = 4 * VECTOR
THREADS = 32 * WARPS
MEETING = 3  # the barrier of both; the warpgroups' own are 1 and 2


class Pairs:
    """Fragments `give_sums` and `take_sums`, for two warpgroups; `sums`: those of a warpgroup's tokens."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        self.b, self.spec, self.at, self.ring = b, spec, at, ring
        self.own = at.own_tokens // OCTET
        self.row_bytes = BYTES * THREADS  # of an octet

    def build(self, tasks: Tasks, sums: Sequence[Sequence[Reg]]) -> list[RegArray]:
        """Both fragments; the sums that the warpgroup finishes."""
        b, at, rank = self.b, self.at, tasks.along_rank
        assert rank is not None
        (values,) = sums
        half = VECTOR * self.own
        with b.fragment("give_sums", "of the other warpgroup's tokens"):
            first = b.op("setp.eq.u32", "is_first_half", rank, 0)
            second = b.op("setp.ne.u32", "is_second_half", rank, 0)
            area = b.op("add.u32", "sums_place", b.op("mov.u32", "ring_of_sums", self.ring.memory), at.results_at)
            of_group = b.op("and.b32", "thread_of_pair", tasks.thread, THREADS - 1)
            b.op("mad.lo.u32", area, of_group, BYTES, area)
            mine = b.op("mad.lo.u32", "own_sums", rank, self.own * self.row_bytes, area)
            theirs = b.op("selp.u32", "their_sums", self.own * self.row_bytes, 0, first)
            b.op("add.u32", theirs, theirs, area)
            for index in range(self.own):
                for begin, guard in ((half, first), (0, second)):
                    four = tuple(values[begin + VECTOR * index : begin + VECTOR * (index + 1)])
                    b.op("st.shared.v4.f32", theirs[index * self.row_bytes], four, pred=guard)
        taken = b.array("whole", "f32", half)
        got = b.array("got", "f32", half)
        with b.fragment("take_sums", "both warpgroups' sums of this one's tokens"):
            for index in range(self.own):
                some = got[VECTOR * index : VECTOR * (index + 1)]
                convert.load_words(b, some, mine, index * self.row_bytes, space="shared")
            for index, (total, more) in enumerate(zip(taken, got, strict=True)):
                b.op("selp.f32", total, values[index], values[half + index], first)
                b.op("add.f32", total, total, more)
        b.expose(pairs_meeting=MEETING)
        return [taken]
