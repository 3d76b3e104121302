"""What attention of a KV head begins with: its place, its queries, key and value as they are published, and the cache.

Queries and key are rotated, and key and value appended.
"""

from __future__ import annotations

from ptxgen.attention.persistent.plan import CHUNK, Exchange, Place, Plan
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.polls import LOAD


class Heads:
    """The fragments up to the append."""

    def __init__(self, b: Builder, plan: Plan, place: Place, exchange: Exchange, outputs: Reg) -> None:
        self.b, self.plan, self.at, self.exchange = b, plan, place, exchange
        self.group, self.dim = plan.group, plan.dim
        self.variant = plan.attention.variant
        self.words = convert.words_of(plan.kv_dtype, CHUNK)
        self.heads = b.shared("heads", 4 * (self.group + 2) * self.dim)
        self.extremes = b.shared("extremes", 8 * plan.warps * self.group)
        self.news = b.shared("news", 4 * self.group, 4)
        self.outputs = outputs

    def _locate(self) -> None:
        b, plan, at = self.b, self.plan, self.at
        row_bytes = self.dim * plan.kv_dtype.bytes
        with b.fragment("locate_attention", "the CTA's KV head, and its part of the positions"):
            b.op("setp.lt.u32", "has_head", at.cta, plan.attending)
            parts = plan.group_parts
            self.head = self.kv_head = b.op("rem.u32", "kv_head" if parts == 1 else "head_part", at.cta, plan.heads)
            if parts > 1:
                b.note(f"{parts} CTAs share a KV head: each has {self.group} of its query heads")
                self.kv_head = b.op("div.u32", "kv_head", self.head, parts)
            self.split = b.op("div.u32", "split", at.cta, plan.heads)
            past = b.op("min.u32", "past", at.position, plan.max_len)
            share = b.op("add.u32", "split_positions", past, plan.splits - 1)
            b.op("div.u32", share, share, plan.splits)
            b.op("max.u32", share, share, plan.split_rows)
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
            appends = b.op("setp.lt.and.u32", "appends", at.position, plan.max_len, self.leads)
            if parts > 1:
                part = b.op("rem.u32", "group_part", self.head, parts)
                b.op("setp.eq.and.u32", appends, part, 0, appends)
            self.appends = appends
            self.cache_row = b.op("mul.wide.u32", "head_rows", self.kv_head, plan.max_len * row_bytes)
            sub, group = b.reg("row_lane", "u32"), b.reg("lane_group", "u32")
            b.op("and.b32", sub, at.lane, plan.row_lanes - 1)
            b.op("div.u32", group, at.lane, plan.row_lanes)
            self.sub, self.row_group = sub, group
            self.per_head = {}
            for value in self.variant.per_head:
                source = self.per_head[value] = b.ld_param(value.param)
                b.op("mad.wide.u32", source, self.head, 4 * self.group, source)

    def _take(self) -> None:
        b, plan, at = self.b, self.plan, self.at
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
            at.polls.allow()
        with b.fragment("locate_take", "where the head's query, key and value lie in what q, k and v have published"):
            at_q = b.op("mad.lo.u32", "take_from", self.head, q, element)
            at_k = b.op("mad.lo.u32", "take_key", self.kv_head, self.dim, element)
            b.op("add.u32", at_k, at_k, plan.q_width - q)
            at_v = b.op("add.u32", "take_value", at_k, plan.kv_width - self.dim)
            is_k = b.op("setp.ge.u32", "takes_key", element, q)
            is_v = b.op("setp.ge.u32", "takes_value", element, q + self.dim)
            b.op("mov.u32", at_q, at_k, pred=is_k)
            b.op("mov.u32", at_q, at_v, pred=is_v)
            source = b.op("mad.wide.u32", "take_at", at_q, 4, self.exchange.now)
            b.op("add.u64", source, source, 4 * self.exchange.qkv.offset)
        taken = b.array("taken", "b32", 4)
        with b.fragment("try_take", "read until nothing is missing"):
            b.op(f"{LOAD}.v4.b32", taken.regs, source[0])
            least = b.op("min.u32", "take_least", taken[0], taken[1])
            for word in taken[2:]:
                b.op("min.u32", least, least, word)
            b.op("setp.ne.u32", "is_taken", least, 0)
            at.polls.count()
        with b.fragment("keep_taken", "published values, inverted, are f32"):
            for word in taken:
                b.op("not.b32", word, word)
            place = b.op("mov.u32", "heads_at", self.heads)
            b.op("mad.lo.u32", place, element, 4, place)
            b.op("st.shared.v4.b32", place[0], taken.regs)
            b.op("add.u32", element, element, 4 * plan.threads)
            b.op("setp.lt.u32", "takes_more", element, 4 * quads)

    def _find_caches(self) -> None:
        """The head's rows of K and V in this layer; part of an open fragment."""
        b = self.b
        b.op("ld.shared.v2.u64", self.caches.regs, self.exchange.caches[0])
        for base in self.caches:
            b.op("add.u64", base, base, self.cache_row)

    def _rotate(self) -> None:
        b, at, rotation = self.b, self.at, self.plan.rotation
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
            b.op("add.u32", pair, pair, self.plan.threads)
            b.op("setp.lt.u32", "rotates_more", pair, pairs)

    def _append(self) -> None:
        """Key and value to the cache: eight elements a thread."""
        b, plan, at = self.b, self.plan, self.at
        with b.fragment("begin_append"):
            b.op("setp.lt.and.u32", "appends_here", at.thread, 2 * self.dim // CHUNK, self.appends)
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
        """Round a value to the cache's type; part of an open fragment."""
        b, kind = self.b, self.plan.kv_dtype
        if kind.bytes == 2:
            word, other = convert.scratch(b, "rounded_word", "b32"), convert.scratch(b, "rounded_other", "f32")
            convert.pack(b, (word,), (value, value), kind)
            convert.unpack(b, (value, other), (word,), kind)

    def _part_place(self, name: str, slot: Reg, split: Reg) -> Reg:
        """Address of a split's part of the CTA's head."""
        place = self.b.reg(name, "u64")
        self._find_part(place, slot, split)
        return place

    def _find_part(self, place: Reg, slot: Reg, split: Reg) -> None:
        b, plan = self.b, self.plan
        index = convert.scratch(b, "part_index", "u32")
        b.op("mad.lo.u32", index, self.head, plan.splits, split)
        b.op("min.u32", index, index, plan.attending - 1)
        b.op("mad.wide.u32", place, index, 4 * plan.part_pitch, slot)
        b.op("add.u64", place, place, 4 * self.exchange.parts.offset)

    def _clear_part(self) -> None:
        """Every split clears its part of the next layer, whether it takes part now or not."""
        b, plan, at = self.b, self.plan, self.at
        place = self._part_place("part_clear", self.exchange.next, self.split)
        b.op("mad.wide.u32", place, at.thread, 4, place)
        here = b.reg("clears_part", "pred")
        for first in range(0, plan.part_words, plan.threads):
            b.op("setp.lt.u32", here, at.thread, plan.part_words - first)
            b.op("st.relaxed.gpu.global.b32", place[4 * first], 0, pred=here)
