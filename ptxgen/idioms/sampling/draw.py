"""The draw of a token from a row of logits: the largest, what is left to draw from, and the one that is drawn.

Owns the fragments and the order of the steps; what the steps mean is told by the kernel type `Sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.elements import Elements, pieces
from ptxgen.idioms.log2 import LOG2E
from ptxgen.idioms.reduce import over_cta
from ptxgen.idioms.rows import RowShare, RowWalk
from ptxgen.idioms.sampling import philox, probabilities
from ptxgen.idioms.sampling.bit_set import BitSet
from ptxgen.idioms.sampling.order import ordered_bits, ordered_key
from ptxgen.idioms.sampling.threshold import search

MINUS_INFINITY, INFINITY = 0x007FFFFF, 0xFF800000  # as ordered keys; a NaN's is above both
STEEPEST = 1e30  # of log2(e) / temperature
Take = Callable[[Reg, "Reg | int", "Reg | None"], None]


class Settings(NamedTuple):
    """A row's parameters, in the order in which they are read; the last two where there is a history."""

    temperature: Reg
    top_k: Reg
    top_p: Reg
    min_p: Reg
    seed: Reg
    counter: Reg
    penalty: Reg | None = None
    history_len: Reg | None = None


class Sampling:
    """The fragments of a sampling kernel, and what they share; its parameters are the builder's.

    `vocab` logits of a row, `history` tokens at most that may be penalised (0: none), `share` of a row.
    """

    def __init__(self, b: Builder, vocab: int, history: int, share: RowShare) -> None:
        self.b, self.vocab, self.history, self.share = b, vocab, history, share
        self.walk = RowWalk(b, self.share)
        self.values = b.array("logit", "f32", self.share.elements)
        self.vectors: tuple[Elements, ...] = pieces(b, "", f32, self.values, self.share.vector)
        self.marks = BitSet(b, self.vocab, self.share.threads) if self.history else None
        self.key, self.weight, self.exponent = b.reg("key", "u32"), b.reg("weight", "u32"), b.reg("exponent", "f32")

    def build(self) -> None:
        """Build every fragment: the row's settings, its passes, the likeliest token, the one that is stored."""
        b = self.b
        with b.fragment("locate", "the row of logits, and the thread's and the CTA's place in it"):
            self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            row = b.op("mov.u32", "row", b.special("ctaid.y"))
            self.rank = b.op("mov.u32", "rank", b.special("ctaid.x"))
            self.logits = b.ld_param("logits")
            wide = b.op("cvt.u64.u32", "wide_row", row)
            b.op("mad.lo.u64", self.logits, wide, 4 * self.vocab, self.logits)
        with b.fragment("read_row", "the row's settings"):
            self.read = Settings(*(self._of_row(name, row) for name in Settings._fields if name in b.params))
            if self.history:
                history = b.ld_param("history")
                b.op("mad.lo.u64", history, wide, 4 * self.history, history)
        if self.marks is not None and self.read.history_len is not None:
            self.marks.build(self.thread, history, self.read.history_len, self.history)
        self._decide(*self._largest())
        self._limits()
        with b.fragment("store", "one thread writes the token"):
            writes = b.op("or.b32", "writer", self.thread, self.rank)
            writes = b.op("setp.eq.u32", "writes", writes, 0)
            token = b.ld_param("token")
            b.op("mad.wide.u32", token, row, 4, token)
            b.op("st.global.s32", token[0], self.chosen, pred=writes)

    def _of_row(self, name: str, row: Reg) -> Reg:
        """A row's parameter."""
        at, kind = self.b.ld_param(name), self.b.params[name].dtype
        self.b.op("mad.wide.u32", at, row, kind.bytes, at)
        value: Reg = self.b.op(f"ld.global.{kind.name}", f"row_{name}", at[0])
        return value

    def _begin(self) -> None:
        self.walk.begin(self.thread, self.rank if self.share.ctas > 1 else None)

    def _elements(self) -> Iterator[tuple[Reg, int, Reg | None]]:
        """A pass's elements, one after the other as `key`, and penalised as `logit`: (index of the vector, place in it,
        whether it exists)."""
        b, vector = self.b, self.share.vector
        self.walk.step()
        self.walk.load(self.walk.at("source", self.logits, f32.bytes), self.vectors)
        for i in range(self.share.flight):
            exists = self.walk.exists[i]
            bits = self.marks.read(self.walk.index[i], exists) if self.marks else None
            for j in range(vector):
                value = self.values[i * vector + j]
                if bits is not None:
                    self._penalise(bits, j, value)
                ordered_key(b, self.key, value)
                yield self.walk.index[i], j, exists

    def _penalise(self, bits: Reg, place: int, value: Reg) -> None:
        """As the class says, where the mark is set."""
        b, penalty = self.b, self.read.penalty
        bit, marked = scratch(b, "mark_of_token", "u32"), scratch(b, "is_marked", "pred")
        less, more = scratch(b, "is_negative", "pred"), scratch(b, "penalised", "f32")
        b.op("and.b32", bit, bits, 1 << place)
        b.op("setp.ne.u32", marked, bit, 0)
        b.op("setp.lt.and.f32", less, value, 0.0, marked)
        b.op("mul.rn.f32", more, value, penalty)
        b.op("div.rn.f32", value, value, penalty, pred=marked)
        b.op("selp.f32", value, more, value, less)

    def _largest(self) -> tuple[Reg, Reg]:
        """The row's largest key, with the complement of its lowest index in the low word; a register for that word."""
        b = self.b
        best, mine, low = b.reg("best", "u64"), b.reg("candidate", "u64"), b.reg("complement", "u32")
        with b.fragment("largest_start", "nothing found so far; the row's start"):
            if self.read.penalty is not None:
                penalty, positive = self.read.penalty, b.reg("penalty_positive", "pred")
                b.op("setp.gt.f32", positive, penalty, 0.0)
                b.op("selp.f32", penalty, penalty, 1.0, positive)
            b.op("mov.u64", best, 0)
            self._begin()
        with b.fragment("largest", "the largest logit of a pass, the first of equal ones"):
            for index, place, exists in self._elements():
                b.op("add.u32", low, index, place)
                b.op("not.b32", low, low)
                b.op("mov.b64", mine, (low, self.key))
                b.op("max.u64", best, best, mine, pred=exists)
            self.walk.advance("more_of_row")
        over_cta(b, "top", "max.u64", [best], self.thread, self.share.warps, cluster=self.share.ctas)
        return best, low

    def _decide(self, best: Reg, complement: Reg) -> None:
        """The most likely token, and whether to draw: with which limits and which random number."""
        b, read = self.b, self.read
        with b.fragment("decide", "the largest logit's token, and whether one is drawn instead"):
            top = b.reg("top_key", "u32")
            b.op("mov.b64", (complement, top), best)
            self.chosen = b.op("not.b32", "chosen", complement)
            draws = b.op("setp.gt.f32", "draws", read.temperature, 0.0)
            b.op("setp.gt.and.u32", draws, top, MINUS_INFINITY, draws)
            b.op("setp.lt.and.u32", draws, top, INFINITY, draws)
        with b.fragment("prepare", "how logits become weights, and the least weight that stays"):
            self.peak = b.op("mov.b32", b.reg("peak", "f32"), ordered_bits(b, "peak_bits", top))
            self.slope = b.op("mov.f32", "slope", LOG2E)
            b.op("div.rn.f32", self.slope, self.slope, read.temperature)
            b.op("min.f32", self.slope, self.slope, STEEPEST)
            self.floor = b.op("mov.u32", "floor_key", 0)
            least = b.op("max.f32", "least", read.min_p, 0.0)
            b.op("min.f32", least, least, 1.0)
            b.op("mul.f32", least, least, float(1 << probabilities.ONE_BITS))
            self.least = b.op("cvt.rpi.u32.f32", "floor_weight", least)
            b.op("max.u32", self.least, self.least, 1)
            by_count = b.op("setp.gt.s32", "by_count", read.top_k, 0)
            b.op("setp.lt.and.s32", by_count, read.top_k, self.vocab, by_count)
            by_mass = b.op("setp.lt.f32", "by_mass", read.top_p, 1.0)
            share = b.op("max.f32", "share", read.top_p, 0.0)
            b.op("mul.f32", share, share, float(1 << 32))
            low, high = b.op("mov.u32", "share_low", 0), b.reg("share_high", "u32")
            b.op("cvt.rzi.u32.f32", high, share, pred=by_mass)
            self.wide_share = b.op("mov.b64", "wide_share", (low, high))
        with b.fragment("random", "two random words from counter and seed, by Philox"):
            words = [b.op("mov.u32", f"word{i}", 0) for i in range(4)]
            b.op("mov.b32", words[0], read.counter)
            key = b.reg("seed_low", "u32"), b.reg("seed_high", "u32")
            b.op("mov.b64", key, read.seed)
            philox.emit(b, words, key)
            self.random_bits = b.op("mov.b64", "random_bits", (words[0], words[1]))

    def _weigh(self, value: Reg) -> None:
        """The weight of the current element."""
        b = self.b
        b.op("sub.rn.f32", self.exponent, value, self.peak)
        b.op("mul.rn.f32", self.exponent, self.exponent, self.slope)
        probabilities.emit(b, self.weight, self.exponent)

    def _limits(self) -> None:
        """The searches: by count and by mass for the least key that stays, by index for the token."""
        b, vocab = self.b, self.vocab
        valid, place_of = b.reg("stays", "pred"), b.reg("from_end", "u32")

        def count(take: Take) -> None:
            for _, _, exists in self._elements():
                take(self.key, 1, exists)

        def mass(take: Take) -> None:
            for i, (_, _, exists) in enumerate(self._elements()):
                self._weigh(self.values[i])
                self._at_least(valid, self.key, self.floor, exists)
                take(self.key, self.weight, valid)

        def choice(take: Take) -> None:
            for i, (index, place, exists) in enumerate(self._elements()):
                self._weigh(self.values[i])
                self._at_least(valid, self.key, self.floor, exists)
                b.op("setp.ge.and.u32", valid, self.weight, self.least, valid)
                b.op("sub.u32", place_of, vocab - 1 - place, index)
                take(place_of, self.weight, valid)

        def of_count(goal: Reg, total: Reg) -> None:
            b.op("cvt.u64.s32", goal, self.read.top_k)

        def of_mass(goal: Reg, total: Reg) -> None:
            b.op("mul.hi.u64", goal, total, self.wide_share)
            b.op("max.u64", goal, goal, 1)

        def of_choice(goal: Reg, total: Reg) -> None:
            b.op("mul.hi.u64", goal, total, self.random_bits)
            b.op("add.u64", goal, goal, 1)

        def raise_floor(found: Reg) -> None:
            b.op("max.u32", self.floor, self.floor, found)

        def choose(found: Reg) -> None:
            b.op("sub.u32", self.chosen, vocab - 1, found)

        common = dict(thread=self.thread, warps=self.share.warps, cluster=self.share.ctas)
        advance = self.walk.advance
        search(b, "count", 32, self._begin, count, advance, of_count, raise_floor, separates=True, **common)
        search(b, "mass", 32, self._begin, mass, advance, of_mass, raise_floor, separates=True, **common)
        bits = max(1, (vocab - 1).bit_length())
        search(b, "choice", bits, self._begin, choice, advance, of_choice, choose, **common)

    def _at_least(self, into: Reg, value: Reg, limit: Reg, exists: Reg | None) -> None:
        if exists is None:
            self.b.op("setp.ge.u32", into, value, limit)
        else:
            self.b.op("setp.ge.and.u32", into, value, limit, exists)
