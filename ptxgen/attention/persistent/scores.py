"""Scores of a KV head's positions: the new one, which is a part of its own, and those before it, by warps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ptxgen.attention.persistent.heads import Heads
from ptxgen.attention.persistent.plan import CHUNK
from ptxgen.attention.variant import PerHead
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import halves, over_lanes

NOTHING = -1e30  # a maximum of no scores, in units of log2


@dataclass(frozen=True)
class Shown:
    """Scores of some rows by `group` query heads, row by row, as steps of a variant want to see them.

    `brought`: what the heads bring. `positions_of`: a row's position less that of the newest, as an f32.
    """

    registers: Sequence[Reg]
    group: int
    brought: Mapping[PerHead, Sequence[Reg]]
    position_of: Callable[[int], Reg]

    def heads(self, value: PerHead) -> Iterator[tuple[Reg, Sequence[Reg]]]:
        """What a head brings, and its scores."""
        for head, register in enumerate(self.brought[value]):
            yield register, self.registers[head :: self.group]

    def positions(self, value: PerHead) -> Iterator[tuple[Reg, Reg, Reg]]:
        """Every score with what its head brings, and how far behind the newest position it is."""
        for row in range(len(self.registers) // self.group):
            position = self.position_of(row)
            scores = self.registers[row * self.group : (row + 1) * self.group]
            for score, register in zip(scores, self.brought[value], strict=True):
                yield score, register, position


class Scores(Heads):
    """The fragments from the first score to every warp's sums."""

    def _score_new(self) -> None:
        """Of a query head by a warp."""
        b, at = self.b, self.at
        with b.fragment("begin_new"):
            head = b.op("mov.u32", "new_head", at.warp)
            b.op("setp.lt.u32", "scores_new", head, self.group)
        with b.fragment("score_new", "the score of the new position, with the key as the cache has it"):
            source = b.op("mov.u32", "new_from", self.heads)
            b.op("mad.lo.u32", source, at.lane, 4, source)
            query = b.op("mad.lo.u32", "new_query", head, 4 * self.dim, source)
            score, mine, theirs = b.op("mov.f32", "new_score", 0.0), b.reg("new_q", "f32"), b.reg("new_k", "f32")
            here = b.reg("new_here", "pred")
            for first in range(0, self.dim, 32):
                guard = None
                if self.dim - first < 32:
                    guard = b.op("setp.lt.u32", here, at.lane, self.dim - first)
                    convert.clear(b, (mine, theirs))
                b.op("ld.shared.f32", mine, query[4 * first], pred=guard)
                b.op("ld.shared.f32", theirs, source[4 * (self.group * self.dim + first)], pred=guard)
                self._rounded(theirs)
                b.op("fma.rn.f32", score, mine, theirs, score)
            over_lanes(b, "add.f32", score)
            self.variant.apply(b, Shown([score], 1, self._brought_by(head), self._newest))
            to = b.op("mov.u32", "new_to", self.news)
            b.op("mad.lo.u32", to, head, 4, to)
            b.op("st.shared.f32", to[0], score, pred=self.at.first_lane)
            b.op("add.u32", head, head, self.plan.warps)
            b.op("setp.lt.u32", "scores_more", head, self.group)

    def _brought_by(self, head: Reg) -> dict[PerHead, list[Reg]]:
        """What one of the CTA's query heads brings to the variant; part of an open fragment."""
        b, found = self.b, {}
        for value, source in self.per_head.items():
            place = convert.scratch(b, "brought_at", "u64")
            b.op("mad.wide.u32", place, head, 4, source)
            found[value] = [self._bring(value, b.reg(f"new_{value.name}", "f32"), place, 0)]
        return found

    def _newest(self, _: int) -> Reg:
        """The newest position less itself."""
        behind = convert.scratch(self.b, "score_behind", "f32")
        self.b.op("mov.f32", behind, 0.0)
        return behind

    def _bring(self, value: PerHead, register: Reg, source: Reg, head: int) -> Reg:
        self.b.op("ld.global.nc.f32", register, source[4 * head])
        if value.factor != 1.0:
            self.b.op("mul.f32", register, register, value.factor)
        return register

    def _go_over(self) -> None:
        b, plan, at = self.b, self.plan, self.at
        group, unroll = self.group, plan.unroll
        warp_rows = unroll * plan.rows_at_once
        self.queries = b.array("query", "f32", (1 if self.plan.crowded else group) * CHUNK)
        self.outs = b.array("out", "f32", group * CHUNK)
        self.maxima, self.totals = b.array("maximum", "f32", group), b.array("weight_sum", "f32", group)
        with b.fragment("begin_ahead", "the warp's first rows, asked for before the queries come; the others to L2"):
            warp_at = b.op("mad.lo.u32", "warp_position", at.warp, warp_rows, self.first)
            row = b.op("add.u32", "lane_position", warp_at, self.row_group)
            row_bytes = self.dim * plan.kv_dtype.bytes
            sources = b.array("kv_from", "u64", 2)
            for place, base in zip(sources, self.caches, strict=True):
                b.op("mad.wide.u32", place, row, row_bytes, base)
                b.op("mad.wide.u32", place, self.sub, CHUNK * plan.kv_dtype.bytes, place)
        with b.fragment("begin_positions", "the lane's eight elements of every query"):
            source = b.op("mov.u32", "query_from", self.heads)
            b.op("mad.lo.u32", source, self.sub, 4 * CHUNK, source)
            self.query_from = source
            for head in range(0 if plan.crowded else group):
                self._ask_query(head, head)
            convert.clear(b, self.outs)
            convert.clear(b, self.totals)
            for maximum in self.maxima:
                b.op("mov.f32", maximum, NOTHING)
            b.op("setp.lt.u32", "has_positions", warp_at, self.end)
            self.brought = {
                value: [self._bring(value, each, source, i) for i, each in enumerate(b.array(value.name, "f32", group))]
                for value, source in self.per_head.items()
            }
        self.row = row
        keys, values = (b.array(f"{side}_word", "b32", unroll * self.words) for side in "kv")
        seen = b.array("is_seen", "pred", unroll)

        def ask(own: RegArray, place: Reg) -> None:
            convert.clear(b, own)
            for step in range(unroll):
                part = own[step * self.words : (step + 1) * self.words]
                convert.load_words(b, part, place, step * plan.rows_at_once * row_bytes, pred=seen[step])

        with b.fragment("ask_keys", "rows of K"):
            here = b.reg("row_here", "u32")
            for step in range(unroll):
                b.op("add.u32", here, row, step * plan.rows_at_once)
                b.op("setp.lt.u32", seen[step], here, self.end)
            ask(keys, sources[0])
        with b.fragment("ask_values", "rows of V"):
            ask(values, sources[1])
        self._score_rows([keys, values], seen)
        with b.fragment("next_rows", "on to the next positions of the warp: keys are asked for before values count"):
            b.op("add.u32", row, row, plan.warps * warp_rows)
            b.op("add.u32", warp_at, warp_at, plan.warps * warp_rows)
            for place in sources:
                b.op("add.u64", place, place, plan.warps * warp_rows * row_bytes)
            b.op("setp.lt.u32", "more_positions", warp_at, self.end)

    def _score_rows(self, words: list[RegArray], seen: RegArray) -> None:
        b, plan, group, unroll = self.b, self.plan, self.group, self.plan.unroll
        wide = b.array("kv_value", "f32", CHUNK)
        scores = b.array("score", "f32", unroll * group)
        with b.fragment("score_rows", "scores of the rows that the lane's group has"):
            if plan.crowded:  # queries come head by head, and rows stay
                keys = wide if unroll == 1 else b.array("key_value", "f32", unroll * CHUNK)
                for step in range(unroll):
                    self._widen(keys[step * CHUNK : (step + 1) * CHUNK], words[0], step)
                for head in range(group):
                    self._ask_query(head, 0)
                    for step in range(unroll):
                        self._dot(
                            scores[step * group + head], self.queries.regs, keys[step * CHUNK : (step + 1) * CHUNK]
                        )
            for step in range(0 if plan.crowded else unroll):
                self._widen(wide.regs, words[0], step)
                for head in range(group):
                    own = self.queries[head * CHUNK : (head + 1) * CHUNK]
                    self._dot(scores[step * group + head], own, wide.regs)
            over_lanes(b, "add.f32", scores.regs, halves(plan.row_lanes))
            self.variant.apply(b, Shown(scores.regs, group, self.brought, self._behind))
            for step in range(unroll):
                for score in scores[step * group : (step + 1) * group]:
                    b.op("selp.f32", score, score, float("-inf"), seen[step])
        with b.fragment("weigh_rows", "softmax as it goes: maxima, totals, weighted sums of V"):
            top, less = b.reg("new_maximum", "f32"), b.reg("shrink", "f32")
            for head in range(group):
                mine = [scores[step * group + head] for step in range(unroll)]
                maximum, total = self.maxima[head], self.totals[head]
                b.op("max.f32", top, maximum, mine[0])
                for score in mine[1:]:
                    b.op("max.f32", top, top, score)
                b.op("sub.f32", less, maximum, top)
                b.op("ex2.approx.ftz.f32", less, less)
                b.op("mov.f32", maximum, top)
                b.op("mul.f32", total, total, less)
                for out in self.outs[head * CHUNK : (head + 1) * CHUNK]:
                    b.op("mul.f32", out, out, less)
                for score in mine:
                    b.op("sub.f32", score, score, top)
                    b.op("ex2.approx.ftz.f32", score, score)
                    b.op("add.f32", total, total, score)
            for step in range(unroll):
                self._widen(wide.regs, words[1], step)
                for head in range(group):
                    for j, value in enumerate(wide):
                        out = self.outs[head * CHUNK + j]
                        b.op("fma.rn.f32", out, scores[step * group + head], value, out)

    def _behind(self, step: int) -> Reg:
        """A row's position less the newest one."""
        b = self.b
        apart, behind = convert.scratch(b, "rows_behind", "s32"), convert.scratch(b, "score_behind", "f32")
        b.op("sub.s32", apart, self.row, self.at.position)
        b.op("add.s32", apart, apart, step * self.plan.rows_at_once)
        b.op("cvt.rn.f32.s32", behind, apart)
        return behind

    def _ask_query(self, head: int, place: int) -> None:
        """The lane's eight elements of a query."""
        own = self.queries[place * CHUNK : (place + 1) * CHUNK]
        convert.load_words(self.b, own, self.query_from, 4 * head * self.dim, space="shared")

    def _dot(self, score: Reg, query: Sequence[Reg], key: Sequence[Reg]) -> None:
        for j, (x, y) in enumerate(zip(query, key, strict=True)):
            if j:
                self.b.op("fma.rn.f32", score, x, y, score)
            else:
                self.b.op("mul.f32", score, x, y)

    def _widen(self, wide: Sequence[Reg], words: RegArray, step: int) -> None:
        convert.unpack(self.b, wide, words[step * self.words : (step + 1) * self.words], self.plan.kv_dtype)
