"""Which thread does what: rows of heads cut into chunks, and where a row's chunk lies."""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.division import split

CHUNK = 8  # elements a thread moves: 16 bytes of f16
CTA_THREADS = 128  # enough to hide a load, few enough that one token spreads over several SMs


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def row_index(b: Builder, name: str | Reg, row: Reg, per_row: Reg | int, item: Reg) -> Reg:
    """`row · per_row + item` in 64 bits, of u32 values."""
    index: Reg = b.op("cvt.u64.u32", name, item)
    b.op("mad.wide.u32", index, row, per_row, index)
    return index


def chunk_address(b: Builder, buffer: Reg, row: Reg, row_bytes: int, chunk: Reg, chunk_bytes: int) -> Reg:
    """The address of a row's chunk, in the register that held the buffer's; `row` is a 64-bit index."""
    b.op("mad.lo.u64", buffer, row, row_bytes, buffer)
    b.op("mad.wide.u32", buffer, chunk, chunk_bytes, buffer)
    return buffer


class Place(NamedTuple):
    """What a thread got: a head of a part (one of `part_heads`), a chunk of it, and whether it has one at all.

    `since` has a predicate for every part but the first: the CTA belongs to that part or a later one.
    """

    head: Reg
    chunk: Reg
    has_chunk: Reg
    part_heads: Reg | int
    since: tuple[Reg, ...]


class HeadMap(NamedTuple):
    """Rows of heads over CTAs, part by part (q, k, v): whole heads to a CTA, a chunk of 8 elements to a thread.

    `grouped`: the chunks of a head are padded to groups of four lanes, which share an int8 scale.
    """

    dim: int
    parts: tuple[tuple[str, int], ...]
    grouped: bool = False

    @property
    def chunks(self) -> int:
        """Chunks of a head."""
        return self.dim // CHUNK

    @property
    def lanes(self) -> int:
        """Threads of a head."""
        return ceil_div(self.chunks, 4) * 4 if self.grouped else self.chunks

    @property
    def heads(self) -> int:
        """Heads of a CTA."""
        return max(1, min(CTA_THREADS // self.lanes, max(n for _, n in self.parts)))

    @property
    def threads(self) -> int:
        """Threads of a CTA: whole warps."""
        return ceil_div(self.heads * self.lanes, 32) * 32

    @property
    def ctas(self) -> int:
        """CTAs of a row."""
        return sum(ceil_div(n, self.heads) for _, n in self.parts)

    def locate_row(self, b: Builder) -> tuple[Reg, Place]:
        """The row of this CTA in a grid of rows by CTAs of a row, and this thread's place there."""
        row = b.op("mov.u32", "row", b.special("ctaid.x"))
        return row, self.locate(b, b.op("mov.u32", "cta_of_row", b.special("ctaid.y")))

    def locate(self, b: Builder, cta: Reg) -> Place:
        """This thread's place in CTA `cta` of the row's."""
        thread = b.op("mov.u32", "thread", b.special("tid.x"))
        local, chunk = split(b, "local_head", "chunk", thread, self.lanes)
        head = b.op("mad.lo.u32", "head", cta, self.heads, local)
        same = len({n for _, n in self.parts}) == 1
        part_heads: Reg | int = self.parts[0][1] if same else b.op("mov.u32", "part_heads", self.parts[0][1])
        since, first = [], 0
        for (_, count), (name, next_count) in zip(self.parts, self.parts[1:], strict=False):
            ctas = ceil_div(count, self.heads)
            first += ctas
            from_part = b.op("setp.ge.u32", f"from_{name}", cta, first)
            b.op("sub.u32", head, head, ctas * self.heads, pred=from_part)
            if isinstance(part_heads, Reg) and next_count != count:
                b.op("mov.u32", part_heads, next_count, pred=from_part)
            since.append(from_part)
        has_chunk = self._has_chunk(b, head, local, chunk, part_heads)
        return Place(head, chunk, has_chunk, part_heads, tuple(since))

    def _has_chunk(self, b: Builder, head: Reg, local: Reg, chunk: Reg, part_heads: Reg | int) -> Reg:
        conditions = [
            (head, part_heads, any(n % self.heads for _, n in self.parts)),
            (chunk, self.chunks, self.chunks < self.lanes),
            (local, self.heads, self.heads * self.lanes < self.threads),
        ]
        needed = [(value, limit) for value, limit, can_fail in conditions if can_fail] or [(local, self.heads)]
        has_chunk: Reg = b.op("setp.lt.u32", "has_chunk", *needed[-1])
        for value, limit in needed[:-1]:
            b.op("setp.lt.and.u32", has_chunk, value, limit, has_chunk)
        return has_chunk
