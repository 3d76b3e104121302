"""Attention of one KV head by a CTA, or by several that share its positions.

It takes the head's queries, key and value as other CTAs publish them, rotates them, appends key and value to the cache,
goes over the positions before this one, and publishes the result. The new position is a part of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.attention.persistent.plan import CHUNK
from ptxgen.attention.persistent.scores import NOTHING, Scores
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms import convert
from ptxgen.idioms.polls import LOAD
from ptxgen.idioms.reduce import halves, over_lanes

PARTS = 4  # of other splits that are asked for together


@dataclass(frozen=True)
class Asked:
    """Other splits' parts while they are waited for: sum, maximum and total (`words`), and where these are published.

    `places`: of the sums; `tails`: of maximum and total, behind the sums; `counts`: is there such a split.
    """

    words: list[RegArray]
    places: RegArray
    tails: RegArray
    counts: RegArray


class Attend(Scores):
    """Fragments; `templates/attention/persistent/attend.ptx.j2` places them."""

    def build(self) -> None:
        """Build the fragments of a layer's attention, from q, k and v to what is published."""
        self._locate()
        self._take()
        self._rotate()
        self._append()
        self._score_new()
        self._go_over()
        self._meet()
        self._merge()
        self._publish()

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
                b.op("st.shared.v2.f32", place[8 * head], both, pred=self.at.first_lane)

    def _merge(self) -> None:
        b, plan, at = self.b, self.plan, self.at
        elements = self.group * self.dim
        with b.fragment("begin_merge"):
            element = self.element = b.op("mov.u32", "merged", at.thread)
            b.op("setp.lt.u32", "merges", element, elements)
        with b.fragment("merge", "an element of the head's output: all warps in order, then the new position"):
            head = self.merged_head = b.op("div.u32", "merged_head", element, self.dim)
            offset = self.merged_offset = b.op("rem.u32", "merged_offset", element, self.dim)
            place = b.op("mov.u32", "merge_extremes", self.extremes)
            b.op("mad.lo.u32", place, head, 8, place)
            both = b.array("merge_part", "f32", 2 * plan.warps)
            for warp in range(plan.warps):
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
            for warp in range(plan.warps):
                b.op("max.f32", top, top, both[2 * warp])
            b.op("sub.f32", fresh, fresh, top)
            b.op("ex2.approx.ftz.f32", fresh, fresh)
            b.op("selp.f32", fresh, fresh, 0.0, self.leads)
            total = self.total = b.op("mov.f32", "merge_total", 0.0)
            out = self.out = b.op("mov.f32", "merge_out", 0.0)
            one = b.reg("merge_one", "f32")
            for warp in range(plan.warps):
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

    def _merge_splits(self) -> None:
        b = self.b
        with b.fragment("begin_parts", "the other splits' parts, in order"):
            other = b.op("mov.u32", "other_split", 1)
            b.op("setp.lt.u32", "has_parts", other, self.active)
        asked = Asked(
            [b.array(f"part_{name}", "b32", 3) for name in "abcd"[:PARTS]],
            b.array("part_place", "u64", PARTS),
            b.array("part_tail_at", "u64", PARTS),
            b.array("part_counts", "pred", PARTS),
        )
        self._ask_parts(asked, other)
        self._add_parts(asked, other)
        self._leave_part()

    def _ask_parts(self, asked: Asked, other: Reg) -> None:
        b, elements = self.b, self.group * self.dim
        with b.fragment("locate_part", "where the other splits publish"):
            one = b.reg("one_split", "u32")
            for i, (place, tail) in enumerate(zip(asked.places, asked.tails, strict=True)):
                b.op("add.u32", one, other, i)
                b.op("setp.lt.u32", asked.counts[i], one, self.active)
                self._find_part(place, self.exchange.now, one)
                b.op("mad.wide.u32", tail, self.merged_head, 8, place)
                b.op("mad.wide.u32", place, self.element, 4, place)
            self.at.polls.allow()
        with b.fragment("try_part", "read until nothing is missing"):
            least = b.reg("part_least", "u32")
            b.op("mov.u32", least, -1)
            for words in asked.words:
                for word in words:
                    b.op("mov.b32", word, -1)
            for words, place, tail, counts in zip(asked.words, asked.places, asked.tails, asked.counts, strict=True):
                b.op(f"{LOAD}.b32", words[0], place[0], pred=counts)
                b.op(f"{LOAD}.b32", words[1], tail[4 * elements], pred=counts)
                b.op(f"{LOAD}.b32", words[2], tail[4 * elements + 4], pred=counts)
            for words in asked.words:
                for word in words:
                    b.op("min.u32", least, least, word)
            b.op("setp.ne.u32", "part_is_there", least, 0)
            self.at.polls.count()

    def _add_parts(self, asked: Asked, other: Reg) -> None:
        b = self.b
        with b.fragment("add_part", "scale both to the larger maximum, and add"):
            out, top, total = b.array("part_value", "f32", 3)
            both, mine, theirs = (b.reg(name, "f32") for name in ("both_top", "mine_shrink", "part_shrink"))
            for words, counts in zip(asked.words, asked.counts, strict=True):
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

    def _leave_part(self) -> None:
        b, elements = self.b, self.group * self.dim
        with b.fragment("leave_part", "sums, maximum and total to the first split"):
            to = self._part_place("part_to", self.exchange.now, self.split)
            tail = b.op("mad.wide.u32", "part_tail", self.merged_head, 8, to)
            b.op("mad.wide.u32", to, self.element, 4, to)
            bits = b.reg("part_bits", "b32")
            for value, place, offset in ((self.out, to, 0), (self.top, tail, 4 * elements),
                                         (self.total, tail, 4 * elements + 4)):  # fmt: skip
                b.op("mov.b32", bits, value)
                b.op("not.b32", bits, bits)
                guard = None if offset == 0 else self._first_of_head()
                b.op("st.relaxed.gpu.global.b32", place[offset], bits, pred=guard)

    def _first_of_head(self) -> Reg:
        b = self.b
        first = convert.scratch(b, "is_first_of_head", "pred")
        b.op("setp.eq.u32", first, self.merged_offset, 0)
        return first

    def _publish(self) -> None:
        b, plan, exchange = self.b, self.plan, self.exchange
        elements = self.group * self.dim
        with b.fragment("publish_heads", "to every copy; the same place of the next layer is cleared"):
            b.op("div.rn.f32", self.out, self.out, self.total)
            bits = b.op("mov.b32", "head_bits", self.out)
            b.op("not.b32", bits, bits)
            b.op("min.u32", self.element, self.element, elements - 1)
            index = b.op("mad.lo.u32", "head_element", self.head, elements, self.element)
            to = b.op("mad.wide.u32", "head_to", index, 4, exchange.now)
            clear = b.op("mad.wide.u32", "head_clear", index, 4, exchange.next)
            region = exchange.attended
            for copy in range(region.copies):
                place = 4 * (region.offset + copy * region.pitch)
                b.op("st.relaxed.gpu.global.b32", clear[place], 0)
                b.op("st.relaxed.gpu.global.b32", to[place], bits)
        with b.fragment("next_merged"):
            b.op("add.u32", self.element, self.element, plan.threads)
            b.op("setp.lt.u32", "merges_more", self.element, elements)
