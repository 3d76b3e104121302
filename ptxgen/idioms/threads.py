"""Which thread does what: rows of elements cut into chunks, and index arithmetic with constants."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.builder import Builder
from ptxgen.values import Reg

CHUNK = 8  # elements a thread moves: 16 bytes of f16
CTA_THREADS = 128  # enough to hide a load, few enough that one token spreads over several SMs


def ceil_div(a: int, b: int) -> int:
    """Rounded up."""
    return -(-a // b)


def split(b: Builder, quotient: str, remainder: str, value: Reg, divisor: int) -> tuple[Reg, Reg]:
    """`value // divisor` and `value % divisor` of a u32 and a constant, in registers of those names."""
    if divisor & (divisor - 1) == 0:
        whole = b.op("shr.u32", quotient, value, divisor.bit_length() - 1)
        return whole, b.op("and.b32", remainder, value, divisor - 1)
    whole = b.op("div.u32", quotient, value, divisor)
    return whole, b.op("mad.lo.s32", remainder, whole, -divisor, value)


@dataclass(frozen=True)
class HeadMap:
    """A row of `n_heads` heads over CTAs: whole heads to a CTA, a thread to a chunk of 8 elements.

    `grouped`: chunks of a head are padded to groups of four lanes, which share an int8 scale.
    """

    head_dim: int
    n_heads: int
    grouped: bool = False

    @property
    def chunks(self) -> int:
        """Chunks of a head."""
        return self.head_dim // CHUNK

    @property
    def lanes(self) -> int:
        """Threads of a head."""
        return ceil_div(self.chunks, 4) * 4 if self.grouped else self.chunks

    @property
    def heads(self) -> int:
        """Heads of a CTA."""
        return max(1, min(CTA_THREADS // self.lanes, self.n_heads))

    @property
    def threads(self) -> int:
        """Threads of a CTA: whole warps."""
        return ceil_div(self.heads * self.lanes, 32) * 32

    @property
    def ctas(self) -> int:
        """CTAs of a row."""
        return ceil_div(self.n_heads, self.heads)

    def locate(self, b: Builder, cta: Reg) -> tuple[Reg, Reg, Reg]:
        """Head, chunk, and whether this thread has one, for CTA `cta` of the row's."""
        thread = b.op("mov.u32", "thread", b.special("tid.x"))
        local, chunk = split(b, "local_head", "chunk", thread, self.lanes)
        head = b.op("mad.lo.u32", "head", cta, self.heads, local)
        conditions = [
            (head, self.n_heads, self.ctas * self.heads > self.n_heads),
            (chunk, self.chunks, self.chunks < self.lanes),
            (local, self.heads, True),
        ]
        needed = [(value, limit) for value, limit, can_fail in conditions if can_fail]
        has_chunk: Reg = b.op("setp.lt.u32", "has_chunk", *needed[-1])
        for value, limit in needed[:-1]:
            b.op("setp.lt.and.u32", has_chunk, value, limit, has_chunk)
        return head, chunk, has_chunk
