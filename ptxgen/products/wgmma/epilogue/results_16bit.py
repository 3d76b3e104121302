"""From accumulators to 16-bit outputs: a warpgroup transposes them in shared memory, some tokens at a time.

Every warp has all tokens of few outputs. `stmatrix` writes a token's outputs next to each other, in pieces of eight.
Each thread then reads pieces that are adjacent in memory to the next thread's. Piece p of token r is at p ^ (r mod 8),
so neither access has bank conflicts. Two buffers alternate: one barrier of the warpgroup a round is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32
from ptxgen.idioms import convert
from ptxgen.idioms.activation import activate
from ptxgen.idioms.division import split
from ptxgen.products.wgmma.epilogue.transpose_rounds import build_rounds
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import OCTET, RESULT_BUFFERS, WARPS, Geometry, buffers
from ptxgen.products.wgmma.tokens import layout
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

PIECE = 8  # outputs of 16 bytes
THREADS = 32 * WARPS


class HalfResults:
    """Fragments `begin_results`, `find_output`, and `leave<n>` and `take<n>` of every round."""

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, sums: Sequence[Sequence[Reg]]
    ) -> None:
        self.b, self.spec, self.at, self.ring, self.sums = b, spec, at, ring, sums
        self.rows = at.rows // at.shape.groups  # outputs of a warpgroup
        self.pitch = 2 * self.rows
        self.pieces = self.rows // PIECE
        self.blocks = at.shape.blocks // at.parts
        self.buffer_bytes = at.result_tokens * self.pitch
        self.at_once = THREADS // self.pieces  # tokens that the warpgroup takes up with one load
        self.loads = -(-at.result_tokens // self.at_once)
        self.in_last = at.result_tokens % self.at_once if self.loads > 1 else 0  # tokens of a round's last load; 0: all
        self.words = b.array("result_word", "b32", 4)
        self.taken = b.array("taken_word", "b32", 4 * self.loads)
        self.dtype = spec.out_dtype
        self.bias = b.array("bias_value", "f32", 2 * self.blocks) if spec.bias else None

    def build(self, tasks: Tasks) -> None:
        """Build the fragments that turn sums to rows of 16 bits, in shared memory and from there to out."""
        b, at = self.b, self.at
        self.takes = tasks.takes
        with b.fragment("begin_results", "where this lane leaves pieces, and where it takes them up"):
            self._begin(tasks)
            self.own_token = tasks.own_token(self.token, at.out_tokens)
        with b.fragment("find_output", "the thread's first token and its outputs"):
            left = self._find(tasks)
            if at.crowded and self.spec.activation:
                left = b.op("mul.lo.u32", "tile_left", tasks.token_tile, at.tokens)
                b.op("sub.s32", left, tasks.count, left)
                if self.spec.packed_out:
                    # predicates that always hold still keep ptxas from beginning all activations at once: without them
                    # it spilled up to 48 bytes
                    b.note("zeros are wanted behind the last token: no round is left out")
                    b.op("max.s32", left, left, at.tokens)
        build_rounds(b, at, self.meeting, "results", self._leave, self._take, left=left)

    def _begin(self, tasks: Tasks) -> None:
        b, at, lane, warp = self.b, self.at, tasks.lane, tasks.warp
        area = b.op("add.u32", "results_place", b.op("mov.u32", "ring_of_results", self.ring.memory),
                    at.results_at)  # fmt: skip
        own_group = b.op("shr.u32", "own_group", warp, 2)
        b.op("mad.lo.u32", area, own_group, buffers(at.out_tokens, at.result_tokens) * self.buffer_bytes, area)
        self.meeting = b.op("add.u32", "meeting", own_group, 1)
        self._find_places(lane, warp, area)
        b.note("neighbouring threads take neighbouring pieces")
        of_group = b.op("and.b32", "thread_of_group", tasks.thread, THREADS - 1)
        self.token, piece = split(b, "taken_token", "taken_piece", of_group, self.pieces)
        self.column = b.op("mul.lo.u32", "taken_column", piece, PIECE)
        if tasks.slice is None:
            b.op("mad.lo.u32", self.column, own_group, self.rows, self.column)
        turned = b.op("and.b32", "taken_turn", self.token, 7)
        b.op("xor.b32", turned, turned, piece)
        there = b.op("min.u32", "token_there", self.token, at.result_tokens - 1)
        self.take_at = b.op("mad.lo.u32", "take_at", there, self.pitch, area)
        b.op("mad.lo.u32", self.take_at, turned, 2 * PIECE, self.take_at)
        self.out, self.to = b.ld_param("out"), b.reg("store_at", "u64")
        self.left, self.stores = b.reg("tokens_left", "s32"), b.reg("stores", "pred")
        self.has_last = b.op("setp.lt.u32", "has_last_token", self.token, self.in_last) if self.in_last else None
        self._begin_output(piece)
        if self.bias is not None:
            self._begin_bias(lane, tasks.row_warp)

    def _begin_bias(self, lane: Reg, warp: Reg) -> None:
        """Which rows' bias this lane adds."""
        b = self.b
        self.bias_from = b.ld_param("bias")
        self.bias_row = b.op("shr.u32", "bias_row", lane, 2)
        b.op("mad.lo.u32", self.bias_row, warp, TILE_ROWS * self.blocks, self.bias_row)

    def _find_places(self, lane: Reg, warp: Reg, area: Reg) -> None:
        """Where a lane leaves pieces, of a warpgroup's `area`."""
        b = self.b
        b.note("lanes 0 to 7 name the places of tokens 0 to 7 in the first piece, the next eight in the second")
        token = b.op("and.b32", "left_token", lane, 7)
        piece = b.op("bfe.u32", "left_piece", lane, 3, 1)
        in_group = b.op("and.b32", "warp_in_group", warp, WARPS - 1)
        b.op("mad.lo.u32", piece, in_group, 2 * self.blocks, piece)
        b.op("xor.b32", piece, piece, token)
        more = b.op("shr.u32", "left_octet", lane, 4)
        b.op("mad.lo.u32", token, more, OCTET, token)
        self.leave_at = b.array("leave_at", "u32", self.blocks)
        b.op("mad.lo.u32", self.leave_at[0], token, self.pitch, area)
        for block in reversed(range(self.blocks)):
            own = b.op("xor.b32", convert.scratch(b, "piece_of_block", "u32"), piece, 2 * block)
            b.op("mad.lo.u32", self.leave_at[block], own, 2 * PIECE, self.leave_at[0])

    def _begin_output(self, piece: Reg) -> None:
        """What the output asks for, of a thread that takes `piece` up."""
        self.row_bytes = self.dtype.bytes * self.spec.n

    def _find(self, tasks: Tasks) -> Reg | None:
        """The thread's outputs; the result: how many tokens the CTA finishes, where tiles differ in that."""
        b, spec, at = self.b, self.spec, self.at
        group, token_tile, token = tasks.group, tasks.token_tile, tasks.finished(self.own_token)
        row = b.op("mad.lo.u32", convert.scratch(b, "result_row_out", "u32"), token_tile, at.tokens, token)
        column = b.op(
            "mad.lo.u32", convert.scratch(b, "result_column", "u32"), group, at.rows // at.shape.units, self.column
        )
        self._find_place(token_tile, row, column)
        b.op("sub.s32", self.left, tasks.count, row)
        every = tasks.limit(self.left, self.token)
        inside = self.inside = b.op("setp.lt.u32", convert.scratch(b, "column_inside", "pred"), column, spec.n)
        if self.at_once > at.result_tokens:
            b.op("setp.lt.and.u32", inside, self.token, at.result_tokens, inside)
        if self.takes is not None:
            b.op("and.pred", inside, inside, self.takes)
        b.op("selp.s32", self.left, self.left, 0, inside)
        if self.bias is not None:
            self._find_bias(group)
        return every

    def _find_bias(self, group: Reg) -> None:
        """The bias of this lane's outputs."""
        assert self.bias is not None
        b, spec, at = self.b, self.spec, self.at
        row = b.op(
            "mad.lo.u32", convert.scratch(b, "biased_row", "u32"), group, at.rows // at.shape.units, self.bias_row
        )
        place = b.op("mad.wide.u32", convert.scratch(b, "bias_at", "u64"), row, f32.bytes, self.bias_from)
        convert.clear(b, self.bias)
        there = convert.scratch(b, "bias_there", "pred")
        for index, value in enumerate(self.bias):
            b.op("setp.lt.u32", there, row, max(0, spec.n - OCTET * index))
            b.op("ld.global.nc.f32", value, place[f32.bytes * OCTET * index], pred=there)

    def _find_place(self, token_tile: Reg, row: Reg, column: Reg) -> None:
        """Where the thread's first piece goes: of token `row`, from `column` on."""
        b = self.b
        b.op("mad.wide.u32", self.to, row, self.row_bytes, self.out)
        b.op("mad.wide.u32", self.to, column, self.dtype.bytes, self.to)

    def _buffer(self, first: int) -> int:
        """Where the results of tokens from `first` on are left."""
        return first // self.at.result_tokens % RESULT_BUFFERS * self.buffer_bytes

    def _leave(self, first: int) -> None:
        b, at = self.b, self.at
        end = first + at.result_tokens
        for token in range(first, end, 2 * OCTET):
            step = min(2 * OCTET, end - token)
            words = self.words[: step // 4]
            for block in range(self.blocks):
                b.note(f"tokens {token} to {token + step - 1}, block {block}", after=convert.RUN)
                for index, word in enumerate(words):
                    self._finish(word, token // OCTET + index // 2, index % 2, block)
                place = self.leave_at[block][self._buffer(first) + (token - first) * self.pitch]
                b.op(f"stmatrix.sync.aligned.m8n8.x{len(words)}.trans.shared.b16", place, tuple(words))

    def _finish(self, word: Reg, octet: int, half: int, block: int) -> None:
        """Two tokens' results of an output, with what stands around the product."""
        b, spec = self.b, self.spec
        first = 4 * octet + 2 * half
        values = self.sums[block * self.at.parts][first : first + 2]
        if self.bias is not None:
            for value in values:
                b.op("add.f32", value, value, self.bias[2 * block + half])
        if spec.activation:
            activate(b, spec.activation, values)
        if spec.gated:
            for value, factor in zip(values, self.sums[block * self.at.parts + 1][first : first + 2], strict=True):
                b.op("mul.f32", value, value, factor)
        convert.pack(b, (word,), values, self.dtype)

    def _take(self, first: int) -> None:
        b, at = self.b, self.at
        pieces = [self.taken[4 * load : 4 * load + 4] for load in range(self.loads)]
        for load, piece in enumerate(pieces):
            self._load(piece, self._buffer(first) + load * self.at_once * self.pitch, self._has(load))
        for load, piece in enumerate(pieces):
            b.op("setp.gt.s32", self.stores, self.left, first + load * self.at_once)
            self._store(piece, self._has(load))
            passed = self.at_once if load + 1 < self.loads else at.result_tokens - load * self.at_once
            if first + at.result_tokens < at.out_tokens or load + 1 < self.loads:
                b.op("add.u64", self.to, self.to, self.row_bytes * passed)

    def _has(self, load: int) -> Reg | None:
        """Whether the thread takes a token up with this load; None: every thread does."""
        return self.has_last if load == self.loads - 1 else None

    def _load(self, piece: Sequence[Reg], offset: int, has: Reg | None) -> None:
        convert.load_words(self.b, piece, self.take_at, offset, space="shared", pred=has)

    def _store(self, piece: Sequence[Reg], has: Reg | None) -> None:
        if has is not None:
            self.b.op("and.pred", self.stores, self.stores, has)
        convert.store_words(self.b, self.to, piece, pred=self.stores)


class HalfTiles(HalfResults):
    """The same into tiles as `tokens/layout.py` has them: a chunk's columns 4t and 4t + 1 in its first piece, 4t + 2
    and 4t + 3 in the second. Tokens from the last on are zero, as PackTokens has them."""

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, sums: Sequence[Sequence[Reg]]
    ) -> None:
        super().__init__(b, spec, at, ring, sums)
        self.dtype = spec.x_dtype
        self.other = b.array("other_word", "b32", 4)

    def _begin_output(self, piece: Reg) -> None:
        b = self.b
        self.row_bytes = layout.ROW_BYTES
        self.block_bytes = self.at.tokens * layout.ROW_BYTES
        self.second = b.reg("second_piece", "pred")
        odd = b.op("and.b32", "piece_of_chunk", piece, 1)
        b.op("setp.ne.u32", self.second, odd, 0)
        b.note("both pieces of a chunk: this thread's columns are in both")
        b.op("mul.lo.u32", odd, odd, 2 * PIECE)
        b.op("xor.b32", self.take_at, self.take_at, odd)
        self.other_at = b.op("xor.b32", "take_other_at", self.take_at, 2 * PIECE)

    def _find_place(self, token_tile: Reg, row: Reg, column: Reg) -> None:
        b = self.b
        b.op("mad.wide.u32", self.to, token_tile, layout.blocks(self.spec.n) * self.block_bytes, self.out)
        place = b.op("shr.u32", convert.scratch(b, "out_block", "u32"), column, 6)
        b.op("mad.wide.u32", self.to, place, self.block_bytes, self.to)
        b.op("mad.wide.u32", self.to, self.own_token, layout.ROW_BYTES, self.to)
        turned = b.op("and.b32", convert.scratch(b, "out_turned", "u32"), self.token, layout.GROUP - 1)
        b.op("bfe.u32", place, column, 3, 3)
        b.op("xor.b32", place, place, turned)
        b.op("mad.wide.u32", self.to, place, 2 * PIECE, self.to)

    def _load(self, piece: Sequence[Reg], offset: int, has: Reg | None) -> None:
        b = self.b
        super()._load(piece, offset, has)
        convert.load_words(b, self.other, self.other_at, offset, space="shared", pred=has)
        first, second, third, fourth = piece
        b.op("selp.b32", first, second, first, self.second)
        b.op("selp.b32", second, fourth, third, self.second)
        b.op("selp.b32", third, self.other[1], self.other[0], self.second)
        b.op("selp.b32", fourth, self.other[3], self.other[2], self.second)

    def _store(self, piece: Sequence[Reg], has: Reg | None) -> None:
        for word in piece:
            self.b.op("selp.b32", word, word, 0, self.stores)
        inside = self.inside
        if has is not None:
            inside = self.b.op("and.pred", convert.scratch(self.b, "last_inside", "pred"), inside, has)
        convert.store_words(self.b, self.to, piece, pred=inside)
