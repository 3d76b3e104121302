"""An epilogue for the logits of a token: the largest is found on the way, and its index is the next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import s32
from ptxgen.idioms.sampling.best import Best
from ptxgen.idioms.sampling.order import largest_of_warp, ordered_key
from ptxgen.products.epilogue.results import Epilogue
from ptxgen.products.geometry.groups import Geometry
from ptxgen.products.geometry.runs import Runs

if TYPE_CHECKING:
    from ptxgen.products.mainloop.loop import TileLoop
    from ptxgen.products.mainloop.stream import Stream
    from ptxgen.products.problem.product import Product


class LikeliestEpilogue(Epilogue):
    """Every thread keeps its best result; in the end the last CTA writes the token, and counts the position.

    `max_len`: positions of the sequence; 0: none is counted.
    """

    def __init__(self, b: Builder, spec: Product, at: Geometry | Runs, max_len: int) -> None:
        super().__init__(b, spec, at)
        self.max_len = max_len

    def begin(self) -> None:
        b = self.b
        with b.fragment("read_early", "nothing found so far"):
            self.best = b.op("mov.b64", "best_so_far", 0)

    def store(self, out_row: Reg) -> None:
        super().store(out_row)
        b = self.b
        b.note("as an ordered key above the complement of the row: the lowest among equals is the largest")
        key, low = b.reg("result_key", "u32"), b.reg("row_complement", "b32")
        ordered_key(b, key, self.values[0])
        b.op("not.b32", low, out_row)
        both = b.op("mov.b64", "key_and_row", (low, key))
        b.op("max.u64", self.best, self.best, both)

    def end(self, loop: TileLoop | Stream) -> Sequence[tuple[str, str]]:
        b = self.b
        with b.body("best"):
            with b.fragment("reduce_warp", "the warp's best, in every lane"):
                key, low = b.reg("key", "u32"), b.reg("low", "b32")
                b.op("mov.b64", (low, key), self.best)
                largest_of_warp(b, key, low)
            merge = Best(b, key, low, loop.thread, self.at.warps)
            merge.over_cta()
            merge.over_ctas(self.at.launched)
            with b.fragment("store", "write the token, and count the position"):
                token = b.ld_param("token")
                b.op("st.global.s32", token[0], b.op("not.b32", "winner", low))
                if self.max_len:
                    self._count()
        return [("parts/best.ptx.j2", "best")]

    def _count(self) -> None:
        """One more, where the position is inside: as `Advance` does."""
        b = self.b
        places = [b.ld_param(name) for name in ("position", "length")]
        values = [b.op("ld.global.s32", f"{place.name}_now", place[0]) for place in places]
        b.note("one unsigned comparison refuses negative positions too")
        counts = b.op("setp.lt.u32", "counts", values[0], self.max_len)
        for value, place in zip(values, places, strict=True):
            b.op("add.s32", value, value, 1)
            b.op(f"st.global.{s32.name}", place[0], value, pred=counts)
