"""The query of the simt main loop in f32, brought to the scores' scale: a lane's dims of every head in registers, or
all of it in shared memory."""

from __future__ import annotations

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.loops.simt.layout import Lanes
from ptxgen.attention.decode.loops.simt.load import Loader
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.dot import multiply

CHUNK = 8  # elements that a thread stages at a time


class Query:
    """Owns `%q_dim<n>`: head by head the dims of this lane, or the one piece that was read from shared memory last."""

    def __init__(self, b: Builder, attention: Attention, task: Task, lanes: Lanes, loader: Loader) -> None:
        self.b, self.attention, self.task, self.lanes, self.loader = b, attention, task, lanes, loader
        self._last_head: Reg | None = None
        self.q = b.array("q_dim", "f32", lanes.elements if lanes.staged else lanes.heads * lanes.dims)
        self.factor = attention.variant.factor

    @property
    def pitch(self) -> int:
        """Bytes between staged heads."""
        return 4 * self.attention.problem.qk_dim

    @staticmethod
    def staged_bytes(attention: Attention, lanes: Lanes) -> int:
        """Shared memory of a staged query."""
        return 4 * attention.problem.qk_dim * lanes.heads if lanes.staged else 0

    def _left_at_least(self) -> int:
        """Heads of the group that every CTA has."""
        return (self.attention.problem.group - 1) % self.lanes.heads + 1

    # -- in registers ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """The lane's dims of every head; heads that the group does not have become copies of the last."""
        b, lanes, size = self.b, self.lanes, self.attention.problem.q_dtype.bytes
        raw = b.array("q_raw", "b32", lanes.elements * size // 4) if size < 4 else None
        for head in range(lanes.heads):
            row = self._head_row(head)
            for piece in range(lanes.pieces):
                address = convert.scratch(b, "q_piece", "u64")
                b.op("mad.wide.u32", address, self._piece(piece), lanes.elements * size, row)
                first = (head * lanes.pieces + piece) * lanes.elements
                values = self.q[first : first + lanes.elements]
                words = values if raw is None else raw
                convert.load_words(b, words, address)
                convert.unpack(b, values, words, self.attention.problem.q_dtype)
                multiply(b, values, self.factor)

    def _head_row(self, head: int) -> Reg:
        b, task = self.b, self.task
        if head == 0:
            return task.q_row
        row = convert.scratch(b, "q_head_row", "u64")
        pitch = self.attention.problem.query_bytes
        if task.heads_left is None or head < self._left_at_least():
            b.op("add.u64", row, task.q_row, head * pitch)
            return row
        index = convert.scratch(b, "q_head", "s32")
        b.op("min.s32", index, self.last_head(), head)
        b.op("mad.wide.s32", row, index, pitch, task.q_row)
        return row

    def last_head(self) -> Reg:
        """The last head of this CTA that the group has."""
        b = self.b
        assert self.task.heads_left is not None
        if self._last_head is None:
            self._last_head = b.op("sub.s32", "q_last_head", self.task.heads_left, 1)
        return self._last_head

    def _piece(self, piece: int) -> Reg:
        """Which piece of a row this is in this lane; a lane without a last piece takes the row's last."""
        b, lanes, dim_lane = self.b, self.lanes, self.loader.dim_lane
        if piece == 0 and not (lanes.uneven and lanes.pieces == 1):
            return dim_lane
        index = convert.scratch(b, f"q_piece{piece}", "u32")
        b.op("add.u32", index, dim_lane, piece * lanes.dim_lanes)
        if lanes.uneven and piece == lanes.pieces - 1:
            b.op("min.u32", index, index, lanes.row_pieces - 1)
        return index

    # -- in shared memory ----------------------------------------------------------------------------------------------

    @property
    def chunks(self) -> int:
        """Chunks of 8 elements that the CTA stages."""
        return self.lanes.heads * self.attention.problem.qk_dim // CHUNK

    def stage_start(self) -> None:
        """The thread's first chunk, and the last one that the group has."""
        b, task = self.b, self.task
        self.chunk = b.op("mov.u32", "q_chunk", task.tid)
        if task.heads_left is not None:
            chunks = self.attention.problem.qk_dim // CHUNK
            last = self.last_chunk = b.op("mul.lo.u32", "q_last_chunk", task.heads_left, chunks)
            b.op("sub.u32", last, last, 1)
        self.more = b.op("setp.lt.u32", "q_more", self.chunk, self.chunks)

    def stage(self, arena: Shared, threads: int) -> None:
        """One chunk of the query, from global to shared memory; past the group's heads its last chunk."""
        b, have = self.b, self.attention.problem.q_dtype
        chunk, values = self.chunk, b.array("q_value", "f32", CHUNK)
        raw = convert.word_array(b, "q_raw", values, have)
        source = chunk
        if self.task.heads_left is not None:
            source = b.op("min.u32", "q_source", chunk, self.last_chunk)
        address = b.op("mad.wide.u32", "q_address", source, CHUNK * have.bytes, self.task.q_row)
        convert.load_words(b, raw, address)
        convert.unpack(b, values, raw, have)
        multiply(b, values, self.factor)
        place = b.op("mov.u32", "q_place", arena)
        b.op("mad.lo.u32", place, chunk, 4 * CHUNK, place)
        convert.store_words(b, place, values, space="shared")
        b.op("add.u32", chunk, chunk, threads)
        b.op("setp.lt.u32", self.more, chunk, self.chunks)

    def locate_staged(self, arena: Shared) -> None:
        """Where this lane's pieces lie."""
        b, lanes = self.b, self.lanes
        start = b.op("mov.u32", "q_arena", arena)
        last = lanes.pieces - 1
        self._rows = [b.op("mad.lo.u32", "q_lane", self.loader.dim_lane, 4 * lanes.elements, start)] * lanes.pieces
        self._offsets = [4 * lanes.elements * lanes.dim_lanes * piece for piece in range(lanes.pieces)]
        if lanes.uneven:
            index = self._piece(last)
            self._rows[last] = b.op("mad.lo.u32", "q_lane_last", index, 4 * lanes.elements, start)
            self._offsets[last] = 0

    def piece(self, head: int, piece: int) -> tuple[Reg, ...]:
        """The elements of a piece of one head; from shared memory they are read here."""
        lanes = self.lanes
        if lanes.staged:
            offset = self._offsets[piece] + head * self.pitch
            convert.load_words(self.b, self.q, self._rows[piece], offset, space="shared")
            return self.q.regs
        first = (head * lanes.pieces + piece) * lanes.elements
        registers: tuple[Reg, ...] = self.q[first : first + lanes.elements]
        return registers
