"""Reading what other CTAs publish until it is there, and giving up where it does not come."""

from __future__ import annotations

from ptxgen.builder import Builder

POLLS = 1 << 22  # of one value, some seconds, before the kernel gives up
LOAD = "ld.relaxed.gpu.global"


class Polls:
    """How often a thread may still ask; its methods are parts of an open fragment."""

    def __init__(self, b: Builder) -> None:
        self.b, self.left, self.over = b, b.reg("polls_left", "u32"), b.reg("polled_out", "pred")

    def allow(self) -> None:
        """Set how many polls are left."""
        self.b.op("mov.u32", self.left, POLLS)

    def count(self) -> None:
        """Once more; the last time ends the launch."""
        self.b.op("sub.u32", self.left, self.left, 1)
        self.b.op("setp.eq.u32", self.over, self.left, 0)
        self.b.op("trap", pred=self.over)
