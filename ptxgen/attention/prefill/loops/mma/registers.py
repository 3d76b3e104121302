"""What a thread of the tensor-core loop holds: registers of scores, output and query, and which rows and columns.

Accumulators are those of mma.m16n8: row lane / 4 and 8 further, columns 2 · (lane % 4) and the next.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.copies import pitch
from ptxgen.attention.prefill.loops.softmax import RunningSoftmax
from ptxgen.attention.prefill.loops.tiles import TensorTile
from ptxgen.attention.prefill.rows import Rows
from ptxgen.attention.prefill.softmax import Owned, Score
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import scratch


class TensorRegisters:
    """Of one tile of rows and keys, of 16-bit type `dtype`; `declare` makes the registers."""

    def __init__(self, b: Builder, spec: Prefill, tile: TensorTile, dtype: DType) -> None:
        self.b, self.spec, self.tile, self.dtype = b, spec, tile, dtype
        self.pitch = pitch(2 * spec.dim)
        self.steps, self.tail = divmod(spec.dim, 16)
        self.columns = -(-spec.dim // 8 // tile.column_groups)  # accumulator tiles of a warp
        self.shares = tile.shares(spec.dim) if spec.split_keys else None
        self.rows = Rows(b, spec, tile.rows, tile.keys, self.shares)
        self.column_group: Reg  # of two; there is none where a warp has all columns
        self.owns_first: Reg | None = None  # of two column groups this is the first

    def declare(self) -> None:
        b, t = self.b, self.tile
        self.score = b.array("score", "f32", t.m_tiles * t.keys // 8 * 4)
        self.acc = b.array("acc", "f32", t.m_tiles * self.columns * 4)
        self.q_held = b.array("q_held", "b32", t.m_tiles * self.held_words()) if self.held_words() else ()
        self.q_fragment = b.array("q_frag", "b32", t.m_tiles * 4) if t.q_steps < self.all_steps() else ()
        self.k_fragment = b.array("k_frag", "b32", 4)
        self.v_fragment = b.array("v_frag", "b32", 4)
        self.p_fragment = b.array("p_frag", "b32", t.m_tiles * 4)
        half = t.keys // 8 * 2
        scores = [[self._score(r, i) for i in range(half)] for r in range(2 * t.m_tiles)]
        self.softmax = RunningSoftmax(b, self.spec, self.rows, scores, 4, self.row_steps(), self.owned)
        self.accumulators = [
            [v for n in range(self.columns) for v in self.acc_of(r // 2, n)[2 * (r % 2) : 2 * (r % 2) + 2]]
            for r in range(2 * t.m_tiles)
        ]

    def _score(self, row: int, i: int) -> Score:
        """Score i of a thread's row: two neighbouring keys of every 8."""
        tile, pair = divmod(i, 2)
        return Score(self.scores_of(row // 2, tile)[2 * (row % 2) + pair], 8 * tile + pair)

    def scores_of(self, m: int, n: int) -> tuple[Reg, ...]:
        first = (m * self.tile.keys // 8 + n) * 4
        return tuple(self.score[first : first + 4])

    def acc_of(self, m: int, n: int) -> tuple[Reg, ...]:
        first = (m * self.columns + n) * 4
        return tuple(self.acc[first : first + 4])

    def row_steps(self) -> list[int]:
        """Rows from the thread's first to each of its rows."""
        return [16 * (r // 2) + 8 * (r % 2) for r in range(2 * self.tile.m_tiles)]

    def all_steps(self) -> int:
        """Steps over head_dim, the last of 8 columns where head_dim is no multiple of 16."""
        return self.steps + bool(self.tail)

    def held_words(self) -> int:
        """Registers of q that a row tile keeps."""
        held = min(self.tile.q_steps, self.all_steps())
        return 4 * held - 2 * (held > self.steps)

    def second_group(self) -> int:
        """First accumulator tile of the second column group; it may share one tile with the first group."""
        return self.spec.dim // 8 - self.columns

    def own(self) -> None:
        """The rows and columns of this thread's accumulators; part of an open fragment.

        Computed where they are needed, at masks and at the end: registers are scarcest in between.
        """
        b, t = self.b, self.tile
        b.note("accumulators: row lane / 4 of the warp's, and 8 further; columns 2 (lane % 4) and the next")
        thread = self._thread = b.op("mov.u32", scratch(b, "own_thread", "u32"), b.special("tid.x"))
        self.quad_row = scratch(b, "quad_row", "s32")
        self.first_column = scratch(b, "first_column", "s32")
        self.thread_row = scratch(b, "thread_row", "s32")
        warp = b.op("shr.u32", scratch(b, "own_warp", "u32"), thread, 5 + t.column_groups.bit_length() - 1)
        b.op("bfe.u32", self.quad_row, thread, 2, 3)
        b.op("mad.lo.s32", self.quad_row, warp, 16 * t.m_tiles, self.quad_row)
        b.op("add.s32", self.thread_row, self.quad_row, self.rows.first_row)
        b.op("and.b32", self.first_column, thread, 3)
        b.op("shl.b32", self.first_column, self.first_column, 1)

    def own_column_group(self) -> None:
        """Which of the warps that share rows this is; part of an open fragment, after `own`."""
        bits = self.tile.column_groups.bit_length() - 1
        self.b.op("bfe.u32", self.column_group, self._thread, 5, bits)

    def owned(self) -> Owned:
        """`own`, as the softmax asks for it."""
        self.own()
        return Owned(self.thread_row, self.first_column)
