"""The mbarriers between the producer and the consumers: which they are, who arrives, and for which phase one waits.

A full barrier's phase ends when the threads that copy have arrived, each behind its copies, or the one that asks for
boxes, and all bytes of these have come; an empty one's when every warp of the consumers that read the slot has.
"""

from __future__ import annotations

from ptxgen.attention.prefill.wgmma.tile import STAGES, WgmmaTile
from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import SINK, Addr, Reg
from ptxgen.idioms.convert import scratch

WORD = 8  # bytes of an mbarrier
WARPS = 4  # of a warpgroup
K_FULL, K_EMPTY, V_FULL, V_EMPTY = (WORD * STAGES * n for n in range(4))


class Ring:
    """Offsets from the register `at`, the address of the first mbarrier."""

    def __init__(self, b: Builder, tile: WgmmaTile, kv_arrivals: int, q_arrivals: int, *, boxes: bool) -> None:
        self.b, self.tile, self.kv_arrivals, self.q_arrivals, self.boxes = b, tile, kv_arrivals, q_arrivals, boxes
        self.q_full = 4 * STAGES * WORD
        self.q_empty = self.q_full + tile.warpgroups * WORD
        self.at: Reg

    def begin(self, smem: Reg) -> None:
        """Where the mbarriers begin; part of an open fragment."""
        self.at = self.b.op("add.u32", "barriers", smem, self.tile.barriers_at)

    def make(self, smem: Reg) -> None:
        """One thread makes the mbarriers; behind a branch, as under a predicate each would have a fence of its own.
        Part of an open fragment."""
        b, tile = self.b, self.tile
        for stage in range(STAGES):
            for offset, count in (
                (K_FULL, self.kv_arrivals), (V_FULL, self.kv_arrivals),
                (K_EMPTY, WARPS * tile.warpgroups), (V_EMPTY, WARPS * tile.warpgroups),
            ):  # fmt: skip
                self._make(self.at[offset + WORD * stage], count)
        for group in range(tile.warpgroups):
            self._make(self.at[self.q_full + WORD * group], self.q_arrivals)
            self._make(self.at[self.q_empty + WORD * group], WARPS)
        if tile.tails:
            self._make(smem[tile.tail_at], 1)
        b.op("st.shared.b32", smem[tile.flag_at], b.op("mov.b32", b.reg("no_flag", "b32"), 0))
        if self.boxes:  # the asynchronous proxy counts them; for what threads do, the CTA's barrier is enough
            b.op("fence.mbarrier_init.release.cluster")

    def _make(self, at: Addr, count: int) -> None:
        self.b.op("mbarrier.init.shared::cta.b64", at, count)

    def slot(self, name: str, number: Reg) -> tuple[Reg, Reg, Reg]:
        """Of tile `number` the stage, its mbarriers' base and the parity of its phase, in registers that begin with
        `name`; part of an open fragment."""
        b = self.b
        stage = b.op("and.b32", scratch(b, f"{name}_stage", "u32"), number, STAGES - 1)
        at = b.op("mad.lo.u32", scratch(b, f"{name}_barrier", "u32"), stage, WORD, self.at)
        parity = b.op("bfe.u32", scratch(b, f"{name}_parity", "u32"), number, STAGES.bit_length() - 1, 1)
        return stage, at, parity

    def wait(self, name: str, at: Addr, parity: Reg) -> tuple[Fragment, Reg]:
        """The fragment `name` that asks whether the phase of that parity is over, and the predicate that says so."""
        with self.b.fragment(name) as wait:
            over = self.b.op("mbarrier.try_wait.parity.shared::cta.b64", f"{name}_over", at, parity)
        return wait, over

    def arrive(self, at: Addr, pred: Reg, count: Reg | int = 1) -> None:
        """A warp is through, and counts as so many; part of an open fragment."""
        self.b.op("mbarrier.arrive.shared::cta.b64", SINK, at, count, pred=pred)

    def arrive_all(self, at: Addr) -> None:
        """Every thread of the producer arrives; part of an open fragment."""
        self.b.op("mbarrier.arrive.shared::cta.b64", SINK, at, 1)

    def arrive_behind_copies(self, at: Addr) -> None:
        """A thread of the producer arrives when its copies so far have; part of an open fragment."""
        self.b.op("cp.async.mbarrier.arrive.noinc.shared::cta.b64", at)
