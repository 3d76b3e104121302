"""One tile of the simt main loop: scores, masks, the running softmax, the output; and the warp's sums at the end.

A lane holds some positions of a tile and some dims of every head. Maxima are the warp's, so that a rescale is one
branch; sums and outputs are the lane's own until the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.bounds import Bounds
from ptxgen.attention.decode.contract import Partials, Task
from ptxgen.attention.decode.loops.simt.layout import Lanes
from ptxgen.attention.decode.loops.simt.load import Loader, Rows
from ptxgen.attention.decode.loops.simt.query import Query
from ptxgen.attention.variant import PerHead
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.reduce import halves, over_lanes

SLACK = 8.0  # log2: the maximum is raised only when a score exceeds it by this much
MINUS_INFINITY = float("-inf")


class Step:
    """Registers of a lane's softmax and output, and the code that adds a tile to them."""

    def __init__(
        self, b: Builder, attention: Attention, task: Task, lanes: Lanes, loader: Loader, query: Query
    ) -> None:
        self.b, self.attention, self.task, self.lanes = b, attention, task, lanes
        self.loader, self.query = loader, query
        self.acc = b.array("acc", "f32", lanes.heads * lanes.dims)
        self.scores = b.array("score", "f32", lanes.tokens * lanes.heads)
        self.run_max = b.array("run_max", "f32", lanes.heads)
        self.run_sum = b.array("run_sum", "f32", lanes.heads)
        self.bounds = Bounds(b, task, lanes.tile)
        self._per_head: dict[PerHead, RegArray] = {}
        self.raises = b.reg("run_raises", "pred")
        slots = lanes.tokens if lanes.staged else 1  # pieces that are widened at a time
        if lanes.element < 4:
            self.wide = b.array("row_wide", "f32", lanes.elements * slots)
        if attention.cache.quantised:
            self.factors, self.product = b.array("row_scale", "f32", slots), b.reg("score_product", "f32")

    def start(self) -> None:
        """No position seen yet."""
        for register in (*self.acc, *self.run_sum):
            self.b.op("mov.f32", register, 0.0)
        for register in self.run_max:
            self.b.op("mov.f32", register, MINUS_INFINITY)

    def load_per_head(self) -> None:
        """What heads bring to the variant's steps; heads that the group does not have repeat its last."""
        b, task = self.b, self.task
        for value, source in task.per_head.items():
            registers = self._per_head[value] = b.array(value.name, "f32", self.lanes.heads)
            for head, register in enumerate(registers):
                if task.heads_left is None or value.of_kv_head:
                    b.op("ld.global.f32", register, source[0 if value.of_kv_head else 4 * head])
                else:
                    index, address = scratch(b, "score_head", "s32"), scratch(b, f"{value.name}_address", "u64")
                    b.op("min.s32", index, self.query.last_head(), head)
                    b.op("mad.wide.s32", address, index, 4, source)
                    b.op("ld.global.f32", register, address[0])
                if value.factor != 1.0:
                    b.op("mul.f32", register, register, value.factor)

    def _score(self, token: int, head: int) -> Reg:
        return self.scores[token * self.lanes.heads + head]

    # -- scores ------------------------------------------------------------------------------------------------------

    def dot(self) -> None:
        """Products of the lane's pieces of K with the query, then their sums over the lanes that share a position."""
        lanes = self.lanes
        for piece in range(lanes.pieces):
            if lanes.staged:
                values = [self._widened(self.loader.k, token, piece, token) for token in range(lanes.tokens)]
                for head in range(lanes.heads):
                    query = self.query.piece(head, piece)
                    for token in range(lanes.tokens):
                        self._dot(token, head, piece, query, values[token], token)
            else:
                for token in range(lanes.tokens):
                    self.b.note(f"the lane's position {token}, piece {piece} of K", after=convert.RUN)
                    wide = self._widened(self.loader.k, token, piece, 0)
                    for head in range(lanes.heads):
                        self._dot(token, head, piece, self.query.piece(head, piece), wide, 0)
        b, other = self.b, scratch(self.b, "score_other", "f32")
        over_lanes(b, "add.f32", self.scores, halves(lanes.dim_lanes), other)

    def _widened(self, rows: Rows, token: int, piece: int, slot: int) -> tuple[Reg, ...]:
        """The f32 values of a piece: the registers of the load themselves, or converted into `slot` with the scale."""
        words = self.loader.words(rows, token, piece)
        if self.lanes.element == 4:
            return words
        count = self.lanes.elements
        values: tuple[Reg, ...] = self.wide[slot * count : (slot + 1) * count]
        convert.unpack(self.b, values, words, self.attention.problem.kv_dtype)
        if self.attention.cache.quantised:
            self.b.op("cvt.f32.f16", self.factors[slot], self.loader.scale(rows, token, piece))
        return values

    def _dot(
        self, token: int, head: int, piece: int, query: tuple[Reg, ...], values: tuple[Reg, ...], slot: int
    ) -> None:
        b, score = self.b, self._score(token, head)
        if not self.attention.cache.quantised:
            for index, (q, k) in enumerate(zip(query, values, strict=True)):
                if piece == index == 0:
                    b.op("mul.f32", score, q, k)
                else:
                    b.op("fma.rn.f32", score, q, k, score)
            return
        for index, (q, k) in enumerate(zip(query, values, strict=True)):
            if index == 0:
                b.op("mul.f32", self.product, q, k)
            else:
                b.op("fma.rn.f32", self.product, q, k, self.product)
        if piece == 0:
            b.op("mul.f32", score, self.product, self.factors[slot])
        else:
            b.op("fma.rn.f32", score, self.product, self.factors[slot], score)

    def finish_scores(self) -> None:
        """Products to scores; the query has brought the factor."""
        self.attention.variant.apply(self.b, self, factored=True)

    @property
    def registers(self) -> Sequence[Reg]:
        """The lane's scores."""
        return self.scores

    def heads(self, value: PerHead) -> Iterator[tuple[Reg, Sequence[Reg]]]:
        """What a head brings, and its scores of all the lane's positions."""
        for head, register in enumerate(self._per_head[value]):
            yield register, [self._score(token, head) for token in range(self.lanes.tokens)]

    def positions(self, value: PerHead) -> Iterator[tuple[Reg, Reg, Reg]]:
        """Every score with what its head brings, and how far behind the newest position it is."""
        b = self.b
        behind, distance = scratch(b, "score_behind", "s32"), scratch(b, "score_distance", "f32")
        b.op("sub.s32", behind, self.loader.token, self.bounds.left)
        b.op("add.s32", behind, behind, 1)
        for token in range(self.lanes.tokens):
            b.op("cvt.rn.f32.s32", distance, behind)
            for head, register in enumerate(self._per_head[value]):
                yield self._score(token, head), register, distance
            b.op("add.s32", behind, behind, self.lanes.token_lanes)

    # -- softmax -----------------------------------------------------------------------------------------------------

    def mask(self) -> None:
        """Scores of invisible positions to -inf, by selection: K's rows there may hold anything."""
        for token in range(self.lanes.tokens):
            visible = self._visible(token)
            for head in range(self.lanes.heads):
                score = self._score(token, head)
                self.b.op("selp.f32", score, score, MINUS_INFINITY, visible)

    def _visible(self, token: int) -> Reg:
        place = scratch(self.b, "row_place", "s32")
        scratch(self.b, "row_visible", "pred")
        self.b.op("add.s32", place, self.loader.token, token * self.lanes.token_lanes)
        return self.bounds.visible("row_visible", place)

    def maximum(self) -> None:
        """Whether any score exceeds its head's maximum by so much that the sums must be rescaled: one vote."""
        b, exceeds = self.b, scratch(self.b, "run_exceeds", "pred")
        limit = scratch(b, "run_limit", "f32")
        for head in range(self.lanes.heads):
            top = self._top(head)
            b.op("add.f32", limit, self.run_max[head], SLACK)
            if head == 0:
                b.op("setp.gt.f32", exceeds, top, limit)
            else:
                b.op("setp.gt.or.f32", exceeds, top, limit, exceeds)
        b.op("vote.sync.any.pred", self.raises, exceeds, -1)

    def _top(self, head: int) -> Reg:
        """The lane's largest score of a head."""
        if self.lanes.tokens == 1:
            return self._score(0, head)
        top = scratch(self.b, "score_top", "f32")
        self.b.op("max.f32", top, self._score(0, head), self._score(1, head))
        for token in range(2, self.lanes.tokens):
            self.b.op("max.f32", top, top, self._score(token, head))
        return top

    def raise_maximum(self) -> None:
        """New maxima over the warp's positions; sums and outputs follow."""
        b, lanes = self.b, self.lanes
        other, factor = scratch(b, "score_other", "f32"), scratch(b, "run_factor", "f32")
        raised = scratch(b, "run_raised", "f32")
        for head in range(lanes.heads):
            b.op("max.f32", raised, self._top(head), self.run_max[head])
            over_lanes(b, "max.f32", raised, self._token_distances(), other)
            b.op("sub.f32", factor, self.run_max[head], raised)
            b.op("ex2.approx.ftz.f32", factor, factor)
            b.op("mov.f32", self.run_max[head], raised)
            b.op("mul.f32", self.run_sum[head], self.run_sum[head], factor)
            for acc in self._acc(head):
                b.op("mul.f32", acc, acc, factor)

    def _token_distances(self) -> list[int]:
        """Lane distances over which positions lie side by side."""
        return [d for d in (1, 2, 4, 8, 16) if d >= self.lanes.dim_lanes]

    def _acc(self, head: int) -> tuple[Reg, ...]:
        registers: tuple[Reg, ...] = self.acc[head * self.lanes.dims : (head + 1) * self.lanes.dims]
        return registers

    def weights(self) -> None:
        """Scores to weights 2^(score - maximum), and their sums."""
        b = self.b
        for token in range(self.lanes.tokens):
            for head in range(self.lanes.heads):
                score = self._score(token, head)
                b.op("sub.f32", score, score, self.run_max[head])
                b.op("ex2.approx.ftz.f32", score, score)
                b.op("add.f32", self.run_sum[head], self.run_sum[head], score)

    # -- output ------------------------------------------------------------------------------------------------------

    def clear_hidden(self) -> None:
        """V's invisible rows to zero: their weight is zero, but zero times NaN is not. int8: their scales to zero."""
        b, loader = self.b, self.loader
        for token in range(self.lanes.tokens):
            visible = self._visible(token)
            for piece in range(self.lanes.pieces):
                if self.attention.cache.quantised:
                    scale = loader.scale(loader.v, token, piece)
                    b.op("selp.b16", scale, scale, 0, visible)
                    continue
                for word in loader.words(loader.v, token, piece):
                    b.op(f"selp.{word.type}", word, word, 0.0 if word.type == "f32" else 0, visible)

    def values(self) -> None:
        """Add weights · V to the output."""
        b, lanes = self.b, self.lanes
        weight = scratch(b, "score_weight", "f32") if self.attention.cache.quantised else None
        for token in range(lanes.tokens):
            for piece in range(lanes.pieces):
                wide = self._widened(self.loader.v, token, piece, 0)
                for head in range(lanes.heads):
                    score = self._score(token, head)
                    if weight is not None:
                        b.op("mul.f32", weight, score, self.factors[0])
                        score = weight
                    first = piece * lanes.elements
                    for acc, value in zip(self._acc(head)[first : first + lanes.elements], wide, strict=True):
                        b.op("fma.rn.f32", acc, score, value, acc)

    # -- at the end --------------------------------------------------------------------------------------------------

    def collect_start(self) -> None:
        """The least distance of lanes whose positions lie side by side."""
        self.distance = self.b.op("mov.u32", scratch(self.b, "acc_distance", "u32"), self.lanes.dim_lanes)

    def collect(self) -> None:
        """Sums and outputs over the lanes at `%acc_distance` from each other, and the next distance: a loop's body."""
        b, other = self.b, scratch(self.b, "score_other", "f32")
        distance = self.distance
        over_lanes(b, "add.f32", (*self.run_sum, *self.acc), (distance,), other)
        b.op("shl.b32", distance, distance, 1)
        b.op("setp.lt.u32", "acc_more", distance, 32)

    def store(self, partials: Partials, arena: Shared) -> None:
        """Maxima, sums and outputs to shared memory, by the lanes of the first position."""
        b, task, lanes = self.b, self.task, self.lanes
        start = b.op("mov.u32", "acc_arena", arena)
        row = b.op("mad.lo.u32", "acc_row", task.warp, partials.warp_stride, start)
        b.op("mad.lo.u32", row, self.loader.dim_lane, 4 * lanes.elements, row)
        statistics = b.op("mad.lo.u32", "acc_statistics", task.warp, partials.statistics_stride, start)
        first = b.op("setp.eq.u32", "acc_first", self.loader.token, 0)
        first_last = first
        if self.loader.has_last is not None:
            first_last = b.op("and.pred", "acc_first_last", first, self.loader.has_last)
        for head in range(lanes.heads):
            for piece in range(lanes.pieces):
                values = self._acc(head)[piece * lanes.elements : (piece + 1) * lanes.elements]
                offset = partials.row(0) + head * partials.pitch_bytes + 4 * piece * lanes.dim_lanes * lanes.elements
                guard = first_last if piece == lanes.pieces - 1 else first
                convert.store_words(b, row, values, offset, space="shared", pred=guard)
        leads = b.op("setp.eq.u32", "acc_leads", task.lane, 0)
        convert.store_words(b, statistics, self.run_max, partials.maximum(0), space="shared", pred=leads)
        convert.store_words(b, statistics, self.run_sum, partials.total(0), space="shared", pred=leads)
