"""x of a product, which other CTAs publish: polled value by value, normed, and left in shared memory as bf16 digits.

A word of the exchange is 0 until it is written; what is written is the complement of the value's bits, so that 0 stands
for a NaN that no instruction makes. So a reader sees by the value itself that it is there, without a counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.dtypes import bf16
from ptxgen.idioms import convert
from ptxgen.idioms.polls import LOAD
from ptxgen.idioms.reduce import over_warp
from ptxgen.persistent.begin import Begin, Share
from ptxgen.persistent.plan import LOAD_COLUMNS, WARPS, Plan
from ptxgen.products.tokens.digits import DIGIT_BYTES, DIGITS
from ptxgen.weights.format import CHUNK, OWN

if TYPE_CHECKING:
    from ptxgen.persistent.steps import Steps


class Inputs:
    """Fragments `begin_x`, `ask_norm`, `ask_x`, `keep_x`, `next_x`, `keep_squares`.

    A warp takes the columns of its own tiles, four neighbours a lane, and waits for no other warp.
    """

    def __init__(self, b: Builder, plan: Plan, begin: Begin, digits: Reg) -> None:
        self.b, self.plan, self.at, self.digits = b, plan, begin, digits
        kind = plan.kind
        per_tile = kind.tile_k // OWN  # lanes that a tile needs
        # of the loads of a round: their column past the lane's first
        self.half = max(1, plan.loads // 4)  # the loads that always count, 2048 columns
        self.columns = []
        for load in range(plan.loads):
            part, within = divmod(32 * load, per_tile)
            self.columns.append(part * WARPS * kind.tile_k + within * OWN)

    def build(self, steps: Steps) -> None:
        """Build the fragments that bring an op's x to shared memory; `steps` says where x is."""
        b, plan = self.b, self.plan
        self._locate()
        self.words = b.array("x_word", "b32", OWN * plan.loads)
        self.norms = b.array("x_norm", "f32", OWN * plan.normed_loads)
        self.inside, self.padded = b.array("x_inside", "pred", plan.loads), b.array("x_padded", "pred", plan.loads)
        self.total = b.reg("square_sum", "f32")
        self._begin(steps)
        self._ask_norm(steps)
        self._ask_one()
        self._ask()
        self._ask_first(steps, self.words, self.inside, self.column)
        self._keep(steps)
        self._next(steps.share)
        with b.fragment("keep_squares", "the warp's sum of squares to shared memory"):
            over_warp(b, "add.f32", self.total)
            place = b.op("mad.lo.u32", "squares_at", self.at.warp, 4, steps.squares)
            b.op("st.shared.f32", place[0], self.total, pred=steps.first_lane)

    def _locate(self) -> None:
        b, at, kind = self.b, self.at, self.plan.kind
        with b.fragment("locate_x", "the lane's first columns of every x, and where their digits go"):
            per_tile = kind.tile_k // OWN
            part, within = b.reg("x_part", "u32"), b.reg("x_within", "u32")
            if per_tile >= 32:
                b.op("mov.u32", part, 0)
                b.op("mov.u32", within, at.lane)
            else:
                b.op("div.u32", part, at.lane, per_tile)
                b.op("rem.u32", within, at.lane, per_tile)
            first = b.op("mad.lo.u32", "x_first", part, WARPS, at.warp)
            b.op("mul.lo.u32", first, first, kind.tile_k)
            b.op("mad.lo.u32", first, within, OWN, first)
            chunk, quarter = b.op("shr.u32", "x_chunk", first, 4), b.op("and.b32", "x_quarter", within, 3)
            self.place = b.op("mad.lo.u32", "x_place", chunk, DIGITS * DIGIT_BYTES, self.digits)
            b.op("mad.lo.u32", self.place, quarter, 2 * OWN, self.place)
            self.first = first

    def _begin(self, steps: Steps) -> None:
        b = self.b
        with b.fragment("begin_x", "where x is read from, and how far"):
            self.column, self.done = b.op("mov.u32", "x_column", self.first), b.op("mov.u32", "x_done", 0)
            self.source = b.op("mad.wide.u32", "x_from", self.column, 4, steps.x)
            self.weights = b.op("mad.wide.u32", "norm_from", self.column, 4, steps.norm)
            self.target = b.op("mov.u32", "x_to", self.place)
            b.op("mov.f32", self.total, 0.0)
            self.at.polls.allow()

    def _ask_norm(self, steps: Steps) -> None:
        b, plan, share = self.b, self.plan, steps.share
        with b.fragment("ask_norm", "the columns of this round, and the norm's weights"):
            here = b.reg("x_here", "u32")
            for load, offset in enumerate(self.columns):
                b.op("add.u32", here, self.column, offset)
                b.op("setp.lt.u32", self.inside[load], here, share.cols)
                b.op("setp.lt.u32", self.padded[load], here, share.padded)
            left = b.op("sub.u32", "x_left", share.padded, self.done)
            b.op("setp.gt.u32", "x_goes_on", left, self.half * LOAD_COLUMNS)
            for value in self.norms:
                b.op("mov.f32", value, 1.0)
            asks = b.reg("asks_norm", "pred")
            for load, offset in enumerate(self.columns[: plan.normed_loads]):
                b.op("and.pred", asks, self.inside[load], steps.normed)
                own = self.norms[OWN * load : OWN * (load + 1)]
                b.op("ld.global.nc.v4.f32", own, self.weights[4 * offset], pred=asks)

    def _ask_one(self) -> None:
        b = self.b
        with b.fragment("ask_one", "the first load alone, until it is there: fewer bytes while others compute"):
            own = self.words[:OWN]
            for word in own:
                b.op("mov.b32", word, -1)
            b.op(f"{LOAD}.v4.b32", own, self.source[0], pred=self.inside[0])
            one = b.op("min.u32", "x_one", own[0], own[1])
            for word in own[2:]:
                b.op("min.u32", one, one, word)
            there = b.op("setp.ne.u32", "one_is_there", one, 0)
            b.op("vote.sync.all.pred", "one_arrived", there, -1)
            self.at.polls.count()

    def _ask(self) -> None:
        b, words = self.b, self.words
        with b.fragment("ask_x", "read until nothing is missing"):
            for word in words:
                b.op("mov.b32", word, -1)
            for load, offset in enumerate(self.columns):
                own = words[OWN * load : OWN * (load + 1)]
                b.op(f"{LOAD}.v4.b32", own, self.source[4 * offset], pred=self.inside[load])
            least = b.reg("x_least", "u32")
            b.op("min.u32", least, words[0], words[1])
            for word in words[2:]:
                b.op("min.u32", least, least, word)
            there = b.op("setp.ne.u32", "x_is_there", least, 0)
            b.op("vote.sync.all.pred", "x_arrived", there, -1)
            self.at.polls.count()

    def _keep(self, steps: Steps) -> None:
        b, loads = self.b, range(self.plan.loads)
        values, digit = b.array("x_value", "f32", OWN), b.array("x_new_digit", "b32", 2 * DIGITS)
        for name, what, some in (
            ("keep_x", "squares into the sum, the norm's weights, and digits to shared memory", loads[: self.half]),
            ("keep_more", "the second half of a round", loads[self.half :]),
        ):
            with b.fragment(name, what):
                for load in some:
                    self._keep_load(steps, load, values, digit)
                b.op("bar.warp.sync", -1)

    def _keep_load(self, steps: Steps, load: int, values: RegArray, digit: RegArray) -> None:
        """One load's columns; part of an open fragment."""
        b, plan = self.b, self.plan
        pairs = [digit[2 * i : 2 * i + 2] for i in range(DIGITS)]
        for j, value in enumerate(values):
            word = self.words[OWN * load + j]
            b.op("not.b32", word, word)
            b.op("mov.b32", value, word)
            if load < plan.normed_loads:
                b.op("fma.rn.f32", self.total, value, value, self.total)
                factor = self.norms[OWN * load + j]
                if plan.spec.norm_offset:
                    b.op("add.f32", factor, factor, plan.spec.norm_offset, pred=steps.normed)
                b.op("mul.f32", value, value, factor)
        convert.split_digits(b, values.regs, pairs)
        for number, pair in enumerate(pairs):
            to = self.columns[load] // CHUNK * DIGITS * DIGIT_BYTES + DIGIT_BYTES * number
            b.op("st.shared.v2.b32", self.target[to], pair, pred=self.padded[load])

    def _next(self, share: Share) -> None:
        b, reach = self.b, self.plan.loads * LOAD_COLUMNS
        with b.fragment("next_x", "on to the next round"):
            b.op("add.u32", self.column, self.column, reach)
            b.op("add.u64", self.source, self.source, 4 * reach)
            b.op("add.u64", self.weights, self.weights, 4 * reach)
            b.op("add.u32", self.target, self.target, reach // CHUNK * DIGITS * DIGIT_BYTES)
            b.op("add.u32", self.done, self.done, reach)
            b.op("setp.lt.u32", "more_x", self.done, share.padded)

    def _ask_first(self, steps: Steps, words: RegArray, inside: RegArray, column: Reg) -> None:
        """The first op's x is there already; it is brought to the form of what is published."""
        b, plan = self.b, self.plan
        with b.fragment("ask_first", "the token's embedding, in the form of what is published"):
            for word in words:
                b.op("mov.b32", word, 0)
            for load, offset in enumerate(self.columns):
                own = words[OWN * load : OWN * (load + 1)]
                if plan.spec.embeds:
                    self._embed(steps, own, column, offset, inside[load])
                else:
                    source = convert.scratch(b, "first_from", "u64")
                    b.op("mad.wide.u32", source, column, 4, steps.source)
                    b.op("ld.global.v4.b32", own, source[4 * offset], pred=inside[load])
            for word in words:
                b.op("not.b32", word, word)

    def _embed(self, steps: Steps, own: Sequence[Reg], column: Reg, offset: int, inside: Reg) -> None:
        """Four neighbours of the token's row, which one lane of a tile owns."""
        b = self.b
        place, chunk, quarter = (
            convert.scratch(b, f"embed_{n}", t) for n, t in (("at", "u64"), ("chunk", "u32"), ("quarter", "u32"))
        )
        b.op("add.u32", chunk, column, offset)
        b.op("shr.u32", quarter, chunk, 2)
        b.op("and.b32", quarter, quarter, 3)
        b.op("shr.u32", chunk, chunk, 4)
        b.op("mad.wide.u32", place, chunk, 512, steps.source)
        b.op("mad.wide.u32", place, quarter, 16, place)
        pair = convert.scratch_array(b, "embed_word", "b32", 2)
        values = convert.scratch_array(b, "embed_value", "f32", OWN)
        convert.clear(b, pair)
        for word, at in zip(pair, (0, 8), strict=True):
            b.op("ld.global.nc.b32", word, place[at], pred=inside)
        convert.unpack(b, values.regs, pair.regs, bf16)
        for word, value in zip(own, values, strict=True):
            b.op("mov.b32", word, value)
