"""A ring of stages in shared memory: one warp brings tiles of weights and of tokens, the others multiply them.

Every stage has two mbarriers: `full`, which its bytes complete, and `empty`, at which every multiplying warp arrives
once its products have read it.
"""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Reg
from ptxgen.idioms.convert import scratch
from ptxgen.products.wgmma.tiling.geometry import SWIZZLE, Geometry

BELL = 16  # bytes of an mbarrier (8), and room to the next


class Ring:
    """Shared memory, mbarriers, and where the copying and the multiplying warps stand in the ring."""

    def __init__(self, b: Builder, at: Geometry) -> None:
        self.b, self.at = b, at
        self.memory = b.shared("ring", at.shared, align=SWIZZLE, dynamic=True)
        self.full_bells = b.shared("stage_full", BELL * at.stages * (1 + at.factored))
        self.empty_bells = b.shared("stage_empty", BELL * at.stages)
        if at.apart:
            self.sums_bell = b.shared("sums_come", BELL)
        self.offset, self.parity = b.reg("stage_offset", "u32"), b.reg("stage_parity", "u32")
        self.full, self.empty = b.reg("full_bell", "u32"), b.reg("empty_bell", "u32")
        self.is_full, self.is_empty = b.reg("is_full", "pred"), b.reg("is_empty", "pred")

    def make(self, takes: Reg | None) -> None:
        """Fragments `make_bells` and `publish_bells`: the mbarriers, by one thread, as compute-sanitizer's synccheck
        misses those that lanes make side by side; behind a branch, as under a predicate each would have a fence of its
        own. `takes`: whether the CTA finishes tokens, where not all that share k do."""
        b, at = self.b, self.at
        with b.fragment("make_bells", "a stage is full when its bytes are there, empty when every warp has read it"):
            for stage in range(at.stages):
                b.op("mbarrier.init.shared::cta.b64", self.full_bells[BELL * stage], 1 + at.factored)
                if at.factored:
                    b.op("mbarrier.init.shared::cta.b64", self.full_bells[BELL * (at.stages + stage)], 1)
                releases = at.warps * at.shape.share
                b.op("mbarrier.init.shared::cta.b64", self.empty_bells[BELL * stage], releases)
            if at.apart:
                b.op("mbarrier.init.shared::cta.b64", self.sums_bell[0], 1)
                size: Reg | int = at.sums_bytes  # that CTAs that share k send this one
                if takes is not None:
                    size = b.op("selp.b32", "sums_bytes", at.sums_bytes, 0, takes)
                b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, self.sums_bell[0], size)
        with b.fragment("publish_bells"):
            b.op("fence.mbarrier_init.release.cluster")

    def begin(self, *, copies: bool) -> None:
        """At the first stage, which is empty."""
        b = self.b
        b.op("mov.u32", self.offset, 0)
        b.op("mov.u32", self.parity, 1 if copies else 0)
        b.op("mov.u32", self.full, self.full_bells)
        b.op("mov.u32", self.empty, self.empty_bells)

    def skip(self, stages: int, pred: Reg | None) -> None:
        """From the first stage on past so many."""
        b, at = self.b, self.at
        if stages == at.stages:
            b.op("xor.b32", self.parity, self.parity, 1, pred=pred)
            return
        b.op("mov.u32", self.offset, stages * at.stage_bytes, pred=pred)
        b.op("add.u32", self.full, self.full, BELL * stages, pred=pred)
        b.op("add.u32", self.empty, self.empty, BELL * stages, pred=pred)

    def turn(self) -> None:
        """On to the next stage; behind the last, to the first with the other parity."""
        b, at = self.b, self.at
        b.op("add.u32", self.offset, self.offset, at.stage_bytes)
        b.op("add.u32", self.full, self.full, BELL)
        b.op("add.u32", self.empty, self.empty, BELL)
        wraps = b.op("setp.eq.u32", scratch(b, "ring_wraps", "pred"), self.offset, at.stages * at.stage_bytes)
        b.op("mov.u32", self.offset, 0, pred=wraps)
        b.op("mov.u32", self.full, self.full_bells, pred=wraps)
        b.op("mov.u32", self.empty, self.empty_bells, pred=wraps)
        b.op("xor.b32", self.parity, self.parity, 1, pred=wraps)
