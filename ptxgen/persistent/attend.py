"""Attention of one KV head by a CTA, or by several that share its positions.

It takes the head's queries, key and value as other CTAs publish them, rotates them, appends key and value to the cache,
goes over the positions before this one, and publishes the result. The new position is a part of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms import convert
from ptxgen.idioms.log2 import LOG2E
from ptxgen.idioms.reduce import halves, over_lanes
from ptxgen.persistent.begin import Begin
from ptxgen.persistent.inputs import LOAD, allow_polls, count_poll
from ptxgen.persistent.plan import THREADS, WARPS, Plan
from ptxgen.persistent.steps import Steps

NOTHING = -1e30  # a maximum of no scores, in units of log2
PARTS = 4  # of other splits that are asked for together
CHUNK = 8  # elements of a row of K or V that a lane has


class Attend:
    """Fragments; `templates/persistent/attend.ptx.j2` places them."""

    def __init__(self, b: Builder, plan: Plan, begin: Begin, steps: Steps, digits: Reg) -> None:
        self.b, self.plan, self.at, self.steps = b, plan, begin, steps
        self.group, self.dim = plan.group, plan.spec.head_dim
        self.words = convert.words_of(plan.kv_dtype, CHUNK)
        self.heads = b.shared("heads", 4 * (self.group + 2) * self.dim)
        self.extremes = b.shared("extremes", 8 * WARPS * self.group)
        self.news = b.shared("news", 4 * self.group, 4)
        self.outputs = digits

    def build(self) -> None:
        """All of them."""
        self._locate()
        self._take()
        self._rotate()
        self._append()
        self._score_new()
        self._go_over()
        self._meet()
        self._merge()
        self._publish()

    def _locate(self) -> None:
        b, plan, at = self.b, self.plan, self.at
        row_bytes = self.dim * plan.kv_dtype.bytes
        with b.fragment("locate_attention", "the CTA's KV head, and its part of the positions"):
            b.op("setp.lt.u32", "has_head", at.cta, plan.attending)
            self.head = b.op("rem.u32", "kv_head", at.cta, plan.spec.n_kv_heads)
            self.split = b.op("div.u32", "split", at.cta, plan.spec.n_kv_heads)
            past = b.op("min.u32", "past", at.position, plan.spec.max_len)
            share = b.op("add.u32", "split_positions", past, plan.splits - 1)
            b.op("div.u32", share, share, plan.splits)
            b.op("max.u32", share, share, plan.spec.split_rows)
            active = b.op("add.u32", "active_splits", past, share)
            b.op("sub.u32", active, active, 1)
            b.op("div.u32", active, active, share)
            self.active = b.op("max.u32", active, active, 1)
            self.first = b.op("mul.lo.u32", "first_position", self.split, share)
            self.end = b.op("add.u32", "end_position", self.first, share)
            b.op("min.u32", self.end, self.end, past)
            b.op("min.u32", self.first, self.first, self.end)
            self.leads = b.op("setp.eq.u32", "is_first_split", self.split, 0)
            self.takes_part = b.op("setp.lt.u32", "takes_part", self.split, self.active)
            b.op("setp.lt.and.u32", "appends", at.position, plan.spec.max_len, self.leads)
            self.cache_row = b.op("mul.wide.u32", "head_rows", self.head, plan.spec.max_len * row_bytes)
            sub, group = b.reg("row_lane", "u32"), b.reg("lane_group", "u32")
            b.op("and.b32", sub, at.lane, plan.row_lanes - 1)
            b.op("div.u32", group, at.lane, plan.row_lanes)
            self.sub, self.row_group = sub, group

    def _take(self) -> None:
        b, plan, at, steps = self.b, self.plan, self.at, self.steps
        quads = (self.group + 2) * self.dim // 4
        q = self.group * self.dim
        row_bytes = self.dim * plan.kv_dtype.bytes
        with b.fragment("fetch_cache", "the head's keys and values; those that are not asked for at once come to L2"):
            self.caches = b.array("cache_base", "u64", 2)
            self._find_caches()
            ahead = b.op("sub.u32", "rows_ahead", self.end, self.first)
            fetches = b.op("setp.gt.and.u32", "fetches_ahead", ahead, 0, at.leads)
            size = b.op("mul.lo.u32", "ahead_bytes", ahead, row_bytes)
            for base in self.caches:
                b.op("mad.wide.u32", base, self.first, row_bytes, base)
                b.op("cp.async.bulk.prefetch.L2.global", base[0], size, pred=fetches)
        with b.fragment("begin_take", "where the head's queries, its key and its value come"):
            self._find_caches()
            if plan.splits > 1:
                self._clear_part()
            element = b.op("mul.lo.u32", "take_element", at.thread, 4)
            b.op("setp.lt.u32", "takes", element, 4 * quads)
            allow_polls(b)
        with b.fragment("locate_take", "where the head's query, key and value lie in what q, k and v have published"):
            at_q = b.op("mad.lo.u32", "take_from", self.head, q, element)
            at_k = b.op("mad.lo.u32", "take_key", self.head, self.dim, element)
            b.op("add.u32", at_k, at_k, plan.q_width - q)
            at_v = b.op("add.u32", "take_value", at_k, plan.kv_width - self.dim)
            is_k = b.op("setp.ge.u32", "takes_key", element, q)
            is_v = b.op("setp.ge.u32", "takes_value", element, q + self.dim)
            b.op("mov.u32", at_q, at_k, pred=is_k)
            b.op("mov.u32", at_q, at_v, pred=is_v)
            source = b.op("mad.wide.u32", "take_at", at_q, 4, steps.now)
            b.op("add.u64", source, source, 4 * plan.regions["qkv"][0])
        taken = b.array("taken", "b32", 4)
        with b.fragment("try_take", "read until nothing is missing"):
            b.op(f"{LOAD}.v4.b32", taken.regs, source[0])
            least = b.op("min.u32", "take_least", taken[0], taken[1])
            for word in taken[2:]:
                b.op("min.u32", least, least, word)
            b.op("setp.ne.u32", "is_taken", least, 0)
            count_poll(b)
        with b.fragment("keep_taken", "published values, inverted, are f32"):
            for word in taken:
                b.op("not.b32", word, word)
            place = b.op("mov.u32", "heads_at", self.heads)
            b.op("mad.lo.u32", place, element, 4, place)
            b.op("st.shared.v4.b32", place[0], taken.regs)
            b.op("add.u32", element, element, 4 * THREADS)
            b.op("setp.lt.u32", "takes_more", element, 4 * quads)

    def _find_caches(self) -> None:
        """The head's rows of K and V in this layer; part of an open fragment."""
        b = self.b
        b.op("ld.shared.v2.u64", self.caches.regs, self.steps.layer_at[0])
        for base in self.caches:
            b.op("add.u64", base, base, self.cache_row)

    def _rotate(self) -> None:
        b, at, rotation = self.b, self.at, self.plan.spec.rotation
        pairs = (self.group + 1) * rotation.half
        with b.fragment("begin_rotation"):
            pair = b.op("mov.u32", "pair", at.thread)
            b.op("setp.lt.u32", "rotates", pair, pairs)
        with b.fragment("rotate", "a pair of a query or of the key, turned by its angle"):
            head = b.op("div.u32", "pair_head", pair, rotation.half)
            index = b.op("rem.u32", "pair_index", pair, rotation.half)
            place = b.op("mov.u32", "pair_at", self.heads)
            b.op("mad.lo.u32", place, head, 4 * self.dim, place)
            b.op("mad.lo.u32", place, index, 4 if rotation.style == "neox" else 8, place)
            apart = 4 * rotation.half if rotation.style == "neox" else 4
            x, y = b.op("ld.shared.f32", "pair_x", place[0]), b.op("ld.shared.f32", "pair_y", place[apart])
            turn = b.op("mov.u32", "pair_turn", at.turns)
            b.op("mad.lo.u32", turn, index, 8, turn)
            cos, sin = b.array("pair_factor", "f32", 2)
            b.op("ld.shared.v2.f32", (cos, sin), turn[0])
            one, two = b.op("mul.f32", "pair_cross_x", y, sin), b.op("mul.f32", "pair_cross_y", x, sin)
            b.op("neg.f32", one, one)
            b.op("fma.rn.f32", x, x, cos, one)
            b.op("fma.rn.f32", y, y, cos, two)
            b.op("st.shared.f32", place[0], x)
            b.op("st.shared.f32", place[apart], y)
            b.op("add.u32", pair, pair, THREADS)
            b.op("setp.lt.u32", "rotates_more", pair, pairs)

    def _append(self) -> None:
        """Key and value to the cache: eight elements a thread."""
        b, plan, at = self.b, self.plan, self.at
        with b.fragment("begin_append"):
            b.op("setp.lt.and.u32", "appends_here", at.thread, 2 * self.dim // CHUNK, b.registers["appends"])
        with b.fragment("append", "eight elements of the key or of the value to the cache"):
            values = b.array("appended", "f32", CHUNK)
            words = convert.word_array(b, "appended_word", values, plan.kv_dtype)
            source = b.op("mov.u32", "append_from", self.heads)
            b.op("mad.lo.u32", source, at.thread, 4 * CHUNK, source)
            convert.load_words(b, values, source, 4 * self.group * self.dim, space="shared")
            convert.pack(b, words, values, plan.kv_dtype)
            of_v = b.op("setp.ge.u32", "appends_value", at.thread, self.dim // CHUNK)
            chunk = b.op("rem.u32", "append_chunk", at.thread, self.dim // CHUNK)
            to = b.op("selp.b64", "append_to", self.caches[1], self.caches[0], of_v)
            b.op("mad.wide.u32", to, at.position, self.dim * plan.kv_dtype.bytes, to)
            b.op("mad.wide.u32", to, chunk, CHUNK * plan.kv_dtype.bytes, to)
            convert.store_words(b, to, words)

    def _rounded(self, value: Reg) -> None:
        """As the cache has it."""
        b, kind = self.b, self.plan.kv_dtype
        if kind.bytes == 2:
            word, other = convert.scratch(b, "rounded_word", "b32"), convert.scratch(b, "rounded_other", "f32")
            convert.pack(b, (word,), (value, value), kind)
            convert.unpack(b, (value, other), (word,), kind)

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
            b.op("mul.f32", score, score, self._factor())
            to = b.op("mov.u32", "new_to", self.news)
            b.op("mad.lo.u32", to, head, 4, to)
            b.op("st.shared.f32", to[0], score, pred=self.steps.first_lane)
            b.op("add.u32", head, head, WARPS)
            b.op("setp.lt.u32", "scores_more", head, self.group)

    def _factor(self) -> float:
        """What brings q·k to units of log2."""
        return LOG2E / math.sqrt(self.dim)

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
        words = [b.array(f"{side}_word", "b32", unroll * self.words) for side in "kv"]
        seen = b.array("is_seen", "pred", unroll)
        with b.fragment("ask_rows", "rows of K and V"):
            here = b.reg("row_here", "u32")
            for step in range(unroll):
                b.op("add.u32", here, row, step * plan.rows_at_once)
                b.op("setp.lt.u32", seen[step], here, self.end)
            for own, place in zip(words, sources, strict=True):
                convert.clear(b, own)
                for step in range(unroll):
                    part = own[step * self.words : (step + 1) * self.words]
                    offset = step * plan.rows_at_once * row_bytes
                    convert.load_words(b, part, place, offset, pred=seen[step])
        self._score_rows(words, seen)
        with b.fragment("next_rows", "on to the next positions of the warp"):
            b.op("add.u32", row, row, WARPS * warp_rows)
            b.op("add.u32", warp_at, warp_at, WARPS * warp_rows)
            for place in sources:
                b.op("add.u64", place, place, WARPS * warp_rows * row_bytes)
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
            for step in range(unroll):
                for score in scores[step * group : (step + 1) * group]:
                    b.op("mul.f32", score, score, self._factor())
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

    def _meet(self) -> None:
        """The groups of lanes of a warp."""
        b, plan, at = self.b, self.plan, self.at
        distances = [distance for distance in halves(32) if distance >= plan.row_lanes]
        with b.fragment("meet", "the warp's maxima, totals and sums to shared memory"):
            top, less = b.reg("met_maximum", "f32"), b.reg("met_shrink", "f32")
            for head in range(self.group):
                maximum, total = self.maxima[head], self.totals[head]
                outs = self.outs[head * CHUNK : (head + 1) * CHUNK]
                b.op("mov.f32", top, maximum)
                over_lanes(b, "max.f32", top, distances)
                b.op("sub.f32", less, maximum, top)
                b.op("ex2.approx.ftz.f32", less, less)
                b.op("mov.f32", maximum, top)
                for value in (total, *outs):
                    b.op("mul.f32", value, value, less)
                over_lanes(b, "add.f32", (total, *outs), distances)
            leaves = b.op("setp.eq.u32", "leaves_heads", self.row_group, 0)
            to = b.op("mad.lo.u32", "outs_to", at.warp, 4 * self.group * self.dim, self.outputs)
            b.op("mad.lo.u32", to, self.sub, 4 * CHUNK, to)
            for head in range(self.group):
                own = self.outs[head * CHUNK : (head + 1) * CHUNK]
                convert.store_words(b, to, own, 4 * head * self.dim, space="shared", pred=leaves)
            place = b.op("mov.u32", "extremes_to", self.extremes)
            b.op("mad.lo.u32", place, at.warp, 8 * self.group, place)
            for head in range(self.group):
                both = (self.maxima[head], self.totals[head])
                b.op("st.shared.v2.f32", place[8 * head], both, pred=self.steps.first_lane)

    def _merge(self) -> None:
        b, plan, at = self.b, self.plan, self.at
        elements = self.group * self.dim
        with b.fragment("begin_merge"):
            element = self.element = b.op("mov.u32", "merged", at.thread)
            b.op("setp.lt.u32", "merges", element, elements)
        with b.fragment("merge", "an element of the head's output: all warps in order, then the new position"):
            head = self.merged_head = b.op("div.u32", "merged_head", element, self.dim)
            offset = b.op("rem.u32", "merged_offset", element, self.dim)
            place = b.op("mov.u32", "merge_extremes", self.extremes)
            b.op("mad.lo.u32", place, head, 8, place)
            both = b.array("merge_part", "f32", 2 * WARPS)
            for warp in range(WARPS):
                own = both[2 * warp : 2 * warp + 2]
                b.op("ld.shared.v2.f32", own, place[8 * self.group * warp])
            news = b.op("mov.u32", "merge_new", self.news)
            b.op("mad.lo.u32", news, head, 4, news)
            fresh = b.op("ld.shared.f32", "fresh_score", news[0])
            b.op("selp.f32", fresh, fresh, NOTHING, self.leads)
            source = b.op("mad.lo.u32", "merge_from", element, 4, self.outputs)
            value_at = b.op("mov.u32", "fresh_at", self.heads)
            b.op("mad.lo.u32", value_at, offset, 4, value_at)
            value = b.op("ld.shared.f32", "fresh_value", value_at[4 * (self.group + 1) * self.dim])
            self._rounded(value)
            top = self.top = b.op("mov.f32", "merge_top", fresh)
            for warp in range(WARPS):
                b.op("max.f32", top, top, both[2 * warp])
            b.op("sub.f32", fresh, fresh, top)
            b.op("ex2.approx.ftz.f32", fresh, fresh)
            b.op("selp.f32", fresh, fresh, 0.0, self.leads)
            total = self.total = b.op("mov.f32", "merge_total", 0.0)
            out = self.out = b.op("mov.f32", "merge_out", 0.0)
            one = b.reg("merge_one", "f32")
            for warp in range(WARPS):
                factor, weight = both[2 * warp : 2 * warp + 2]
                b.op("sub.f32", factor, factor, top)
                b.op("ex2.approx.ftz.f32", factor, factor)
                b.op("fma.rn.f32", total, weight, factor, total)
                b.op("ld.shared.f32", one, source[4 * elements * warp])
                b.op("fma.rn.f32", out, one, factor, out)
            b.op("add.f32", total, total, fresh)
            b.op("fma.rn.f32", out, value, fresh, out)
        if plan.splits > 1:
            self._merge_splits()
        else:
            b.without("begin_parts", "locate_part", "try_part", "add_part", "leave_part")

    def _part_place(self, name: str, slot: Reg, split: Reg) -> Reg:
        """Address of a split's part of the CTA's head."""
        place = self.b.reg(name, "u64")
        self._find_part(place, slot, split)
        return place

    def _find_part(self, place: Reg, slot: Reg, split: Reg) -> None:
        b, plan = self.b, self.plan
        pitch = -(-plan.part_words // 4) * 4
        index = convert.scratch(b, "part_index", "u32")
        b.op("mad.lo.u32", index, self.head, plan.splits, split)
        b.op("min.u32", index, index, plan.attending - 1)
        b.op("mad.wide.u32", place, index, 4 * pitch, slot)
        b.op("add.u64", place, place, 4 * plan.regions["parts"][0])

    def _clear_part(self) -> None:
        """Every split clears its part of the next layer, whether it takes part now or not."""
        b, plan, at = self.b, self.plan, self.at
        place = self._part_place("part_clear", self.steps.next, self.split)
        b.op("mad.wide.u32", place, at.thread, 4, place)
        here = b.reg("clears_part", "pred")
        for first in range(0, plan.part_words, THREADS):
            b.op("setp.lt.u32", here, at.thread, plan.part_words - first)
            b.op("st.relaxed.gpu.global.b32", place[4 * first], 0, pred=here)

    def _merge_splits(self) -> None:
        b, steps = self.b, self.steps
        elements = self.group * self.dim
        with b.fragment("begin_parts", "the other splits' parts, in order"):
            other = b.op("mov.u32", "other_split", 1)
            b.op("setp.lt.u32", "has_parts", other, self.active)
        parts = [b.array(f"part_{name}", "b32", 3) for name in "abcd"[:PARTS]]
        places = b.array("part_place", "u64", PARTS), b.array("part_tail_at", "u64", PARTS)
        there = b.array("part_counts", "pred", PARTS)
        with b.fragment("locate_part", "where the other splits publish"):
            one = b.reg("one_split", "u32")
            for i, (place, extremes) in enumerate(zip(*places, strict=True)):
                b.op("add.u32", one, other, i)
                b.op("setp.lt.u32", there[i], one, self.active)
                self._find_part(place, steps.now, one)
                b.op("mad.wide.u32", extremes, self.merged_head, 8, place)
                b.op("mad.wide.u32", place, self.element, 4, place)
            allow_polls(b)
        with b.fragment("try_part", "read until nothing is missing"):
            least = b.reg("part_least", "u32")
            b.op("mov.u32", least, -1)
            for words in parts:
                for word in words:
                    b.op("mov.b32", word, -1)
            for words, place, extremes, counts in zip(parts, *places, there, strict=True):
                b.op(f"{LOAD}.b32", words[0], place[0], pred=counts)
                b.op(f"{LOAD}.b32", words[1], extremes[4 * elements], pred=counts)
                b.op(f"{LOAD}.b32", words[2], extremes[4 * elements + 4], pred=counts)
            for words in parts:
                for word in words:
                    b.op("min.u32", least, least, word)
            b.op("setp.ne.u32", "part_is_there", least, 0)
            count_poll(b)
        with b.fragment("add_part", "scale both to the larger maximum, and add"):
            out, top, total = b.array("part_value", "f32", 3)
            both, mine, theirs = (b.reg(name, "f32") for name in ("both_top", "mine_shrink", "part_shrink"))
            for words, counts in zip(parts, there, strict=True):
                for value, word in zip((out, top, total), words, strict=True):
                    b.op("not.b32", word, word)
                    b.op("mov.b32", value, word)
                b.op("selp.f32", top, top, NOTHING, counts)
                b.op("max.f32", both, self.top, top)
                for factor, maximum in ((mine, self.top), (theirs, top)):
                    b.op("sub.f32", factor, maximum, both)
                    b.op("ex2.approx.ftz.f32", factor, factor)
                b.op("mov.f32", self.top, both)
                for whole, part in ((self.total, total), (self.out, out)):
                    b.op("mul.f32", whole, whole, mine)
                    b.op("fma.rn.f32", whole, part, theirs, whole)
            b.op("add.u32", other, other, PARTS)
            b.op("setp.lt.u32", "more_parts", other, self.active)
        with b.fragment("leave_part", "sums, maximum and total to the first split"):
            to = self._part_place("part_to", steps.now, self.split)
            tail = b.op("mad.wide.u32", "part_tail", self.merged_head, 8, to)
            b.op("mad.wide.u32", to, self.element, 4, to)
            bits = b.reg("part_bits", "b32")
            for value, place_, offset in ((self.out, to, 0), (self.top, tail, 4 * elements),
                                          (self.total, tail, 4 * elements + 4)):  # fmt: skip
                b.op("mov.b32", bits, value)
                b.op("not.b32", bits, bits)
                guard = None if offset == 0 else self._first_of_head()
                b.op("st.relaxed.gpu.global.b32", place_[offset], bits, pred=guard)

    def _first_of_head(self) -> Reg:
        b = self.b
        first = convert.scratch(b, "is_first_of_head", "pred")
        b.op("setp.eq.u32", first, b.registers["merged_offset"], 0)
        return first

    def _publish(self) -> None:
        b, plan, steps = self.b, self.plan, self.steps
        elements = self.group * self.dim
        with b.fragment("publish_heads", "to every copy; the same place of the next layer is cleared"):
            b.op("div.rn.f32", self.out, self.out, self.total)
            bits = b.op("mov.b32", "head_bits", self.out)
            b.op("not.b32", bits, bits)
            b.op("min.u32", self.element, self.element, elements - 1)
            index = b.op("mad.lo.u32", "head_element", self.head, elements, self.element)
            offset, width = plan.regions["attended"]
            to = b.op("mad.wide.u32", "head_to", index, 4, steps.now)
            clear = b.op("mad.wide.u32", "head_clear", index, 4, steps.next)
            pitch = -(-width // 4) * 4
            for copy in range(plan.copies):
                b.op("st.relaxed.gpu.global.b32", clear[4 * (offset + copy * pitch)], 0)
                b.op("st.relaxed.gpu.global.b32", to[4 * (offset + copy * pitch)], bits)
        with b.fragment("next_merged"):
            b.op("add.u32", self.element, self.element, THREADS)
            b.op("setp.lt.u32", "merges_more", self.element, elements)
