"""One tile of the mma main loop: scores, masks, the running softmax, the output product. What follows: `store.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.bounds import Bounds
from ptxgen.attention.decode.contract import LoopShape, Task
from ptxgen.attention.decode.loops.mma import convert as mma_convert
from ptxgen.attention.decode.loops.mma.layout import TILE, Placed, Ring
from ptxgen.attention.decode.loops.mma.load import Loader
from ptxgen.attention.decode.loops.mma.query import Query
from ptxgen.attention.decode.loops.mma.stages import Stages
from ptxgen.attention.variant import PerHead
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.reduce import over_lanes

SLACK = 8.0  # log2: the maximum is raised only when a score exceeds it by this much; 2⁸ still fits an f16
MINUS_INFINITY = float("-inf")
_ONES = {"f16": 0x3C003C00, "bf16": 0x3F803F80}


class Step:
    """Registers of a warp's softmax and output, and the code that adds a tile to them.

    A lane holds, of every 8-head tile, heads 2q and 2q + 1: scores of tokens g and g + 8, and output dims by g.
    `once`: there is one tile, and nothing before it.
    """

    def __init__(
        self,
        b: Builder,
        attention: Attention,
        task: Task,
        ring: Ring,
        loader: Loader | Stages,
        query: Query,
        *,
        once: bool = False,
    ) -> None:
        self.b, self.attention, self.task, self.ring = b, attention, task, ring
        self.loader, self.query, self.once = loader, query, once
        self.tiles = query.tiles
        self.acc: RegArray = b.array("acc", "f32", 4 * ring.layout.output_tiles * self.tiles)
        self.score: RegArray = b.array("score", "f32", 4 * self.tiles)
        # Two chains of products halve the latency of long rows.
        self.chains = 2 if sum(block.steps for block in ring.layout.k_blocks) >= 4 else 1
        self.odd = b.array("score_odd", "f32", 4 * self.tiles).regs if self.chains == 2 else ()
        self.weight: RegArray = b.array("score_weight", "b32", 2 * self.tiles)
        self.run_max: RegArray = b.array("run_max", "f32", 2 * self.tiles)
        self.top = self.run_max if once else b.array("score_top", "f32", 2 * self.tiles)
        self.run_limit = () if once else b.array("run_limit", "f32", 2 * self.tiles).regs
        self.run_sum: RegArray = b.array("run_sum", "f32", 4 * self.tiles)
        self.ones = b.reg("run_ones", "b32")
        self.zero = b.reg("score_zero", "f32")
        self.bounds = Bounds(b, task, TILE)
        self._per_head: dict[PerHead, RegArray] = {}

    def start(self) -> None:
        """Accumulators, sums and maxima before the first tile: no token seen yet; and constants."""
        if not self.once:
            self.nothing()
        self.b.op("mov.f32", self.zero, 0.0)
        for register in self.run_limit:
            self.b.op("mov.f32", register, MINUS_INFINITY)
        self.b.op("mov.b32", self.ones, _ONES[self.query.dtype.name], note="1, 1")
        mma_convert.constants(self.b, self.attention.problem.kv_dtype)

    def nothing(self) -> None:
        """The softmax over no token."""
        for register in (*self.acc, *self.run_sum):
            self.b.op("mov.f32", register, 0.0)
        for register in self.run_max:
            self.b.op("mov.f32", register, MINUS_INFINITY)

    # -- scores ------------------------------------------------------------------------------------------------------

    def scores(self, turn: int) -> None:
        """Products of the tile's K with the query; every consumed unit makes room for one further down the stream."""
        done = 0
        for index, unit in enumerate(self.ring.units):
            if unit.kind != "k":
                break
            position = turn * len(self.ring.units) + index
            for placed in unit.blocks:
                done = self._block_scores(position, placed, done)
            self._refill(position)
        for even, odd in zip(self.score, self.odd, strict=False):
            self.b.op("add.f32", even, even, odd)

    def _block_scores(self, position: int, placed: Placed, done: int) -> int:
        block, b = placed.block, self.b
        rows = []
        for row, name in enumerate(("score_k", "score_k8_")):
            words = [self.loader.register(position, placed, block.word(row, i)) for i in range(block.words)]
            scale = self.loader.register(position, placed, block.scale(row)) if block.scaled else None
            rows.append(mma_convert.k_pairs(b, self.attention.problem.kv_dtype, words, block.elements, scale, name))
        for step in range(block.steps):
            for tile in range(self.tiles):
                into = self.odd if self.chains == 2 and done % 2 else self.score.regs
                total = into[4 * tile : 4 * tile + 4]
                before = total if done >= self.chains else (self.zero,) * 4
                query = self.query.fragment(block, placed.number, step, tile)
                wide = len(query) == 2
                pairs = (2 * step, 2 * step + 1) if wide else (step,)
                a = tuple(rows[row][pair] for pair in pairs for row in (0, 1))
                b.op(self._mma("k16" if wide else "k8"), total, a, query, before)
            done += 1
        return done

    def _mma(self, depth: str) -> str:
        name = self.query.dtype.name
        return f"mma.sync.aligned.m16n8{depth}.row.col.f32.{name}.{name}.f32"

    # -- softmax -----------------------------------------------------------------------------------------------------

    def finish_scores(self) -> None:
        """Products to scores."""
        self.attention.variant.apply(self.b, self)

    @property
    def registers(self) -> Sequence[Reg]:
        """The lane's scores."""
        return self.score

    def heads(self, value: PerHead) -> Iterator[tuple[Reg, Sequence[Reg]]]:
        """What a head brings, and its scores of both tokens."""
        for column, register in enumerate(self._per_head[value]):
            base = 4 * (column // 2) + column % 2
            yield register, (self.score[base], self.score[base + 2])

    def positions(self, value: PerHead) -> Iterator[tuple[Reg, Reg, Reg]]:
        """Every score with what its head brings, and how far behind the newest position it is."""
        b, distances = self.b, []
        behind = scratch(b, "score_behind", "s32")
        for row in (0, 8):
            distances.append(scratch(b, f"score_distance{row}", "f32"))
            b.op("sub.s32", behind, self.loader.g, self.bounds.left)
            b.op("add.s32", behind, behind, row + 1)
            b.op("cvt.rn.f32.s32", distances[-1], behind)
        values = self._per_head[value]
        for index, score in enumerate(self.score):
            yield score, values[index // 4 * 2 + index % 2], distances[index // 2 % 2]

    def load_per_head(self, shape: LoopShape) -> None:
        """What the lane's heads bring to the variant's steps; heads that the group does not have repeat its last."""
        b, task = self.b, self.task
        for value, source in task.per_head.items():
            registers = self._per_head[value] = b.array(value.name, "f32", 2 * self.tiles)
            if value.of_kv_head:
                for register in registers:
                    b.op("ld.global.f32", register, source[0])
                continue
            head, address = scratch(b, "score_head", "s32"), scratch(b, f"{value.name}_address", "u64")
            last: Reg | int = shape.heads - 1
            if task.heads_left is not None:
                last = scratch(b, "score_last_head", "s32")
                b.op("sub.s32", last, task.heads_left, 1)
                b.op("min.s32", last, last, shape.heads - 1)
            for index, register in enumerate(registers):
                b.op("mad.lo.s32", head, self.loader.q, 2, 8 * (index // 2) + index % 2)
                b.op("min.s32", head, head, last)
                b.op("mad.wide.s32", address, head, 4, source)
                b.op("ld.global.f32", register, address[0])
                if value.factor != 1.0:
                    b.op("mul.f32", register, register, value.factor)

    def mask(self) -> None:
        """Scores of invisible positions to −inf, by selection: K's rows there may hold anything."""
        b = self.b
        for row in (0, 8):
            visible = self._visible(self.loader.g, row, f"row_k{row}_visible")
            for tile in range(self.tiles):
                for column in (0, 1):
                    score = self.score[4 * tile + row // 4 + column]
                    b.op("selp.f32", score, score, MINUS_INFINITY, visible)

    def _visible(self, lane: Reg, row: int, name: str) -> Reg:
        scratch(self.b, name, "pred")
        if not row:
            return self.bounds.visible(name, lane)
        place = scratch(self.b, "row_place", "s32")
        self.b.op("add.s32", place, lane, row)
        return self.bounds.visible(name, place)

    def maximum(self) -> None:
        """Whether any score exceeds its head's maximum by so much that the sums must be rescaled: one vote."""
        b, exceeds = self.b, scratch(self.b, "run_exceeds", "pred")
        for column, top in enumerate(self.top):
            self._top(column)
            if column == 0:
                b.op("setp.gt.f32", exceeds, top, self.run_limit[column])
            else:
                b.op("setp.gt.or.f32", exceeds, top, self.run_limit[column], exceeds)
        b.op("vote.sync.any.pred", scratch(b, "run_raises", "pred"), exceeds, -1)

    def first_maximum(self) -> None:
        """The maxima over the tile's tokens; there is nothing to rescale."""
        for column in range(len(self.top)):
            self._top(column)
            self._over_tokens(column)

    def raise_maximum(self) -> None:
        """New maxima over the tile's tokens; sums and outputs follow."""
        b, factor = self.b, scratch(self.b, "run_factor", "f32")
        for column, top in enumerate(self.top):
            self._over_tokens(column)
            b.op("max.f32", top, top, self.run_max[column])
            b.op("sub.f32", factor, self.run_max[column], top)
            b.op("ex2.approx.ftz.f32", factor, factor)
            b.op("mov.f32", self.run_max[column], top)
            b.op("add.f32", self.run_limit[column], top, SLACK)
            for half in (0, 2):
                total = self.run_sum[4 * (column // 2) + half + column % 2]
                b.op("mul.f32", total, total, factor)
            for number in range(self.ring.layout.output_tiles):
                for half in (0, 2):
                    acc = self.output(number, column // 2)[half + column % 2]
                    b.op("mul.f32", acc, acc, factor)

    def _top(self, column: int) -> None:
        """The larger of the lane's two scores of a head."""
        base = 4 * (column // 2) + column % 2
        self.b.op("max.f32", self.top[column], self.score[base], self.score[base + 2])

    def _over_tokens(self, column: int) -> None:
        """A head's top score over the lanes that have its tokens."""
        over_lanes(self.b, "max.f32", self.top[column], (4, 8, 16), scratch(self.b, "score_other", "f32"))

    def output(self, number: int, tile: int) -> tuple[Reg, ...]:
        """The four accumulators of an output tile of 16 dims and a head tile."""
        first = 4 * (number * self.tiles + tile)
        registers: tuple[Reg, ...] = self.acc[first : first + 4]
        return registers

    def weights(self) -> None:
        """Scores to weights, as B fragments of the output product (tokens along K); their sums, as products with ones:
        of the rounded weights, as the outputs are, and complete in every lane."""
        b = self.b
        for index, score in enumerate(self.score):
            b.op("sub.f32", score, score, self.run_max[index // 4 * 2 + index % 2])
            b.op("ex2.approx.ftz.f32", score, score)
        for index, weight in enumerate(self.weight):
            b.op(f"cvt.rn.{self.query.dtype.name}x2.f32", weight, self.score[2 * index + 1], self.score[2 * index])
            b.op("movmatrix.sync.aligned.m8n8.trans.b16", weight, weight)
        for tile in range(self.tiles):
            total = self.run_sum[4 * tile : 4 * tile + 4]
            b.op(self._mma("k16"), total, (self.ones,) * 4, self.weight[2 * tile : 2 * tile + 2], self._before(total))

    # -- output ------------------------------------------------------------------------------------------------------

    def groups(self) -> list[list[int]]:
        """Indices of V's units, in groups that are loaded before the first is used; padding goes with the last."""
        indices = list(range(self.ring.layout.first_v, len(self.ring.units)))
        if self.ring.ahead:
            return [indices]
        filled = [i for i in indices if self.ring.units[i].blocks]
        return [[i] for i in filled[:-1]] + [indices[len(filled) - 1 :]]

    def clear_hidden(self, turn: int, group: list[int]) -> None:
        """V's invisible rows to zero: their weight is zero, but zero times NaN is not. int8: their scales to zero."""
        for row in range(4):
            distance = (0, 1, 8, 9)[row]
            visible = self._visible(self.loader.token, distance, f"row_v{distance}_visible")
            for index in group:
                position = turn * len(self.ring.units) + index
                for placed in self.ring.units[index].blocks:
                    block = placed.block
                    held = [block.scale(row)] if block.scaled else [block.word(row, i) for i in range(block.words)]
                    for number in held:
                        register = self.loader.register(position, placed, number)
                        self.b.op("selp.b32", register, register, 0, visible)

    def values(self, turn: int, group: list[int]) -> None:
        """Add weights · V to the output."""
        for index in group:
            position = turn * len(self.ring.units) + index
            for placed in self.ring.units[index].blocks:
                self._block_values(position, placed)
            self._refill(position)

    def _refill(self, position: int) -> None:
        """What was consumed makes room, if anything is to follow."""
        if not self.once:
            self.loader.refill(position)

    def _block_values(self, position: int, placed: Placed) -> None:
        block = placed.block
        rows = [
            [self.loader.register(position, placed, block.word(r, i)) for i in range(block.words)] for r in range(4)
        ]
        scales = [self.loader.register(position, placed, block.scale(r)) for r in range(4)] if block.scaled else None
        before = sum(other.steps for other in self.ring.layout.v_blocks[: placed.number])
        for step in range(block.steps):
            a = mma_convert.v_fragments(self.b, self.attention.problem.kv_dtype, rows, step, scales)
            for tile in range(self.tiles):
                acc = self.output(before + step, tile)
                self.b.op(self._mma("k16"), acc, a, self.weight[2 * tile : 2 * tile + 2], self._before(acc))

    def _before(self, total: tuple[Reg, ...]) -> tuple[Reg, ...]:
        """What a product is added to."""
        return (self.zero,) * 4 if self.once else total
