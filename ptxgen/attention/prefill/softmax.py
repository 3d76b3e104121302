"""The online softmax of rows whose scores lie in registers, base 2, and the masks before it. Owns no scores.

A row's state is three registers: the score (in units of log2) above which its maximum must be raised, which is SLACK
above that maximum and −inf while no key was visible; what its exponents are shifted by, which is minus the maximum; and
this thread's share of the sum. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao,
"FlashAttention-2" (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.rows import Rows
from ptxgen.attention.variant import SINK, V_SCALE, PerHead, take_sink
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.dot import multiply
from ptxgen.idioms.log2 import LOG2E
from ptxgen.idioms.reduce import halves, over_lanes

# A maximum is raised only when a score exceeds it by 2^8: until then probabilities stay below 256, far within f16, and
# the accumulators need no rescaling. The result is the same softmax.
SLACK = 8.0


@dataclass(frozen=True)
class Score:
    """A score's register; its key is `column` past the thread's first of the tile."""

    reg: Reg
    column: int


@dataclass(frozen=True)
class Owned:
    """Registers: the thread's first row, and its first column of a tile."""

    row: Reg
    column: Reg


class Softmax:
    """State and steps for the rows of a thread.

    `scores[r]` are row r's scores of a tile; the row is `row_steps[r]` past the thread's first. `own` finds that and
    the thread's first column, in an open fragment. `lanes` threads share a row.
    """

    top = SLACK  # log2 of the probability of a score at which the maximum is raised

    def __init__(
        self,
        b: Builder,
        spec: Prefill,
        rows: Rows,
        scores: Sequence[Sequence[Score]],
        lanes: int,
        row_steps: Sequence[int],
        own: Callable[[], Owned],
    ) -> None:
        self.b, self.spec, self.variant = b, spec, spec.attention.variant
        self.rows, self.scores, self.lanes = rows, scores, lanes
        self.row_steps, self.own, self.group = row_steps, own, spec.attention.problem.group
        self._sources: dict[PerHead, Reg] = {}
        count = len(scores)
        self.limit = b.array("raise_above", "f32", count)
        self.total: Sequence[Reg] = b.array("row_sum", "f32", count)
        self.tile_max = b.array("tile_max", "f32", count)
        self.shift = b.array("row_shift", "f32", count)

    @property
    def plain(self) -> bool:
        """Whether a score is q·k times `factor`, and nothing else."""
        return self.variant.plain

    @property
    def factor(self) -> float | Reg:
        """What turns a score into units of log2; those that went through the variant already are."""
        return self.variant.factor if self.variant.plain else 1.0

    def factor_of(self, row: int) -> float | Reg:
        """That of one of the rows, where they have scales of their own."""
        return self.factor

    def clear(self) -> None:
        """No key seen yet; part of an open fragment."""
        for limit, total in zip(self.limit, self.total, strict=True):
            self.b.op("mov.f32", limit, float("-inf"))
            self.b.op("mov.f32", total, 0.0)

    def vary(self, tile_start: Reg) -> None:
        """Fragment `vary`, where a score is more than q·k times a factor: what it goes through."""
        if self.plain:
            self.b.without("vary")
            return
        with self.b.fragment("vary"):
            if self.variant.soft_cap:
                self.b.note(f"soft_cap={self.variant.soft_cap:g}")
            self.tile_start = tile_start
            self.variant.apply(self.b, self)

    @property
    def registers(self) -> Sequence[Reg]:
        """The thread's scores."""
        return [score.reg for row in self.scores for score in row]

    def heads(self, value: PerHead) -> Iterator[tuple[Reg, Sequence[Reg]]]:
        """What the head of every row brings, and the row's scores."""
        first = self.own().row
        for skip, row in zip(self.row_steps, self.scores, strict=True):
            yield self._head_value(value, first, skip), [score.reg for score in row]

    def positions(self, value: PerHead) -> Iterator[tuple[Reg, Reg, Reg]]:
        """Every score, what its row's head brings, and the key's position less the row's."""
        b, own = self.b, self.own()
        start = b.op("add.s32", scratch(b, "vary_start", "s32"), self.tile_start, own.column)
        behind, distance = scratch(b, "vary_behind", "s32"), scratch(b, "vary_distance", "f32")
        for skip, row in zip(self.row_steps, self.scores, strict=True):
            brought = self._head_value(value, own.row, skip)
            position = self.rows.position("mask_position", self._row(own.row, skip))
            for score in row:
                b.op("sub.s32", behind, start, position)
                b.op("add.s32", behind, behind, score.column)
                b.op("cvt.rn.f32.s32", distance, behind)
                yield score.reg, brought, distance

    def _row(self, first: Reg, skip: int) -> Reg:
        """The thread's row `skip` past its first."""
        if not skip:
            return first
        row: Reg = self.b.op("add.s32", scratch(self.b, "mask_row", "s32"), first, skip)
        return row

    def _head_value(self, value: PerHead, first: Reg, skip: int) -> Reg:
        """What the head of a row brings, in a scratch register."""
        b, head = self.b, self.rows.head("vary_head", self._row(first, skip))
        if value.of_kv_head and self.group > 1:
            b.op("div.u32", head, head, self.group)
        at, brought = scratch(b, f"{value.name}_at", "u64"), scratch(b, value.name, "f32")
        b.op("mad.wide.u32", at, head, 4, self._source(value))
        b.op("ld.global.nc.f32", brought, at[0])
        if value.factor != 1.0:
            b.op("mul.f32", brought, brought, value.factor)
        return brought

    def _source(self, value: PerHead) -> Reg:
        """The address of a parameter, loaded where first used."""
        if value not in self._sources:
            self._sources[value] = self.b.ld_param(value.param)
        return self._sources[value]

    def look_for_mask(self, tile_start: Reg) -> None:
        """Fragment `look_for_mask`, which sets the predicate `masked`: some row does not see all of the tile's keys."""
        b, rows = self.b, self.rows
        with b.fragment("look_for_mask"):
            masked = b.op("setp.gt.s32", "masked", tile_start, rows.plain_end)
            if self.variant.window:
                b.op("setp.lt.or.s32", masked, tile_start, rows.plain_begin, masked)

    def mask(self, tile_start: Reg) -> None:
        """Fragment `mask`: unseen keys get −inf; the keys of a thread start at tile_start + its first column."""
        b, rows, window = self.b, self.rows, self.variant.window
        with b.fragment("mask", "keys that a row does not see score -inf"):
            own = self.own()
            start = b.op("add.s32", "mask_start", tile_start, own.column)
            hidden = b.reg("hidden", "pred")
            limit = b.reg("last_seen", "s32")
            if not self.variant.causal:
                b.note("keys from kv_len on do not exist")
                b.op("sub.s32", limit, rows.kv_len, start)
                b.op("sub.s32", limit, limit, 1)
            else:
                b.note(f"a row sees the keys up to its position{f', the last {window}' if window else ''}")
                if rows.past_the_end:
                    last_row = b.op("sub.s32", "last_masked_row", rows.n_rows, 1)
            for skip, row in zip(self.row_steps, self.scores, strict=True):
                if self.variant.causal:
                    own_row = self._row(own.row, skip)
                    if rows.past_the_end:
                        own_row = b.op("min.s32", scratch(b, "mask_row", "s32"), own_row, last_row)
                    position = rows.position("mask_position", own_row)
                    b.op("sub.s32", limit, position, start)
                unseen = None
                if window:
                    unseen = b.op("sub.s32", scratch(b, "last_unseen", "s32"), limit, window)
                for score in row:
                    b.op("setp.lt.s32", hidden, limit, score.column)
                    if unseen is not None:
                        b.op("setp.ge.or.s32", hidden, unseen, score.column, hidden)
                    b.op("mov.f32", score.reg, float("-inf"), pred=hidden)

    def tile_maxima(self, exchanged: bool) -> None:
        """Fragment `tile_maxima`: the thread's largest score of every row, in units of log2; `exchanged`: the row's,
        known to all its lanes."""
        b = self.b
        whose = "every row's largest score of the tile" if exchanged else "this thread's largest score of every row"
        with b.fragment("tile_maxima", whose):
            for largest, row in zip(self.tile_max, self.scores, strict=True):
                if len(row) == 1:
                    b.op("mov.f32", largest, row[0].reg)
                for score in row[1:2]:
                    b.op("max.f32", largest, row[0].reg, score.reg)
                for score in row[2:]:
                    b.op("max.f32", largest, largest, score.reg)
            if exchanged:
                self.exchange_maxima()
            if self.plain:
                b.note("scale log2 e")
                for number, largest in enumerate(self.tile_max):
                    b.op("mul.f32", largest, largest, self.factor_of(number))

    def exchange_maxima(self) -> None:
        """The largest of the lanes' maxima, to every lane of the row; part of an open fragment."""
        other = self.b.reg("other_max", "f32")
        for largest in self.tile_max:
            self.over_lanes("max.f32", largest, other)

    def over_lanes(self, operation: str, value: Reg, other: Reg) -> None:
        """Reduce over the lanes that share a row; every lane gets the same bits."""
        over_lanes(self.b, operation, value, reversed(halves(self.lanes)), other)

    def exponentiate(self, row: int, scores: Sequence[Score], total: Reg) -> None:
        """Scores of a row to probabilities in the same registers, added to `total`; part of an open fragment.

        The row's `shift` must be known.
        """
        b = self.b
        for score in scores:
            if self.plain:
                b.op("fma.rn.f32", score.reg, score.reg, self.factor_of(row), self.shift[row])
            else:
                b.op("add.f32", score.reg, score.reg, self.shift[row])
            b.op("ex2.approx.ftz.f32", score.reg, score.reg)
            b.op("add.f32", total, total, score.reg)

    def finish(self, accumulators: Sequence[Sequence[Reg]]) -> None:
        """Sums over the lanes, and accumulators over sums; 0 for a row that saw no key; part of an open fragment."""
        b = self.b
        other, inverse = b.reg("other_sum", "f32"), b.reg("inverse_sum", "f32")
        empty = scratch(b, "saw_nothing", "pred")
        for row, (total, values) in enumerate(zip(self.total, accumulators, strict=True)):
            self.over_lanes("add.f32", total, other)
            if self.variant.sinks:
                self._take_sink(row, values)
            b.op("rcp.approx.ftz.f32", inverse, total)
            b.op("setp.eq.f32", empty, total, 0.0)
            b.op("selp.f32", inverse, 0.0, inverse, empty)
            if self.variant.head_scales:
                b.op("mul.f32", inverse, inverse, self._head_value(V_SCALE, self.own().row, self.row_steps[row]))
            multiply(b, values, inverse)

    def _take_sink(self, row: int, values: Sequence[Reg]) -> None:
        """The sink of a row's head joins its softmax."""
        b, limit = self.b, self.limit[row]
        sink = self._head_value(SINK, self.own().row, self.row_steps[row])
        b.op("sub.f32", limit, limit, self.top)
        take_sink(b, sink, limit, self.total[row], values)
        b.op("add.f32", limit, limit, self.top)

    def log_sum(self, row: int) -> Reg:
        """ln Σ exp(score) of a row, −inf where it saw no key; after `finish`; part of an open fragment."""
        b = self.b
        out, shift = scratch(b, "log_sum", "f32"), self.shift[row]
        b.op("sub.f32", shift, self.top, self.limit[row])
        b.op("lg2.approx.f32", out, self.total[row])
        b.op("sub.f32", out, out, shift)
        b.op("mul.f32", out, out, 1 / LOG2E)
        return out
