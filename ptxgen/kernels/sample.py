"""The next token of every row: drawn at random from its logits, or the most likely one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32, s32, u64
from ptxgen.idioms import philox, weights
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.elements import Elements, pieces, widest
from ptxgen.idioms.marks import Marks
from ptxgen.idioms.order import ordered_bits, ordered_key
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.reduce import over_cta
from ptxgen.idioms.rows import RowShare, RowWalk
from ptxgen.idioms.threads import ceil_div
from ptxgen.idioms.threshold import search
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Launch, Param, buffer

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

MOST_THREADS = 512
ELEMENTS = 4  # of a thread in a pass
OF_CTA, MOST_CTAS = 1 << 14, 8  # elements that a CTA of a cluster is worth, CTAs of a cluster at most
MOST_ROWS = 65535  # of a grid's second extent
MARKED = 360448  # tokens whose marks fit in static shared memory beside the sums
MINUS_INFINITY, INFINITY = 0x007FFFFF, 0xFF800000  # as ordered keys; a NaN's is above both
STEEPEST = 1e30  # of log2(e) / temperature
LOG2E = math.log2(math.e)
Take = Callable[[Reg, "Reg | int", "Reg | None"], None]


@kernel_type
class Sample(KernelType):
    """The next token of every row of logits; the same seeds and counters give the same tokens on every device.

    logits f32 `[rows, vocab]`, token s32 `[rows]`; a row's parameters f32 `[rows]`: temperature, top_p, min_p, with
    `history` penalty; s32 `[rows]`: top_k, counter; seed u64 `[rows]`. In this order: the logits of tokens among the
    first history_len (s32 `[rows]`) of history (s32 `[rows, history]`) are divided by the penalty, those below zero
    multiplied; (logit − largest) / temperature is the exponent of a weight; of them stay the top_k largest; of these
    the fewest largest whose weights reach top_p of the sum; of these those of at least min_p times the largest. Whoever
    equals the last that stays, stays too. One is drawn by weight, with the Philox-4x32-10 word of (seed, counter): a
    row's token depends on its own parameters alone. Off: top_k 0 or at least vocab, top_p 1, min_p 0, penalty 1.

    Weights are integers in units of 2⁻³¹ of the largest, made by operations that are exact or rounded once, so that no
    device and no order of threads gives another token; what is less likely than that is never drawn. Temperature 0, one
    below, NaN, and rows whose largest logit is not finite: the most likely token as `ArgMax` has it, the lowest index
    among equals, the first NaN before all.
    """

    vocab: int = field(draws=(1, 2, 33, 1000, 1001, 40_000, 128_256, 262_144), refuses=(0,), doc="logits of a row")
    history: int = field(default=0, draws=(0, 1, 100), refuses=(-1,), doc="tokens that may be penalised; 0: none")
    programmatic: bool = False

    sizes = {"rows": 8}
    goldens = (
        dict(vocab=1000),
        dict(vocab=1001, history=40, programmatic=True),
        dict(vocab=20000),
    )

    unreported = {
        r"vocab20000 barrier .*cluster.wait": "check mode keeps the CTAs of a cluster within a step of each other, so "
        "that none overwrites what another still has to read; the executor's random order finds it for the idiom"
    }

    def rules(self) -> Iterator[str]:
        yield from rules.between("vocab", self.vocab, 1, MARKED if self.history else 1 << 20)
        yield from rules.between("history", self.history, 0, 1 << 20)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)

    def ctas(self, target: Target) -> int:
        """CTAs of a row, which are a cluster."""
        if not target.includes_any(("sm_90",)):
            return 1
        return min(MOST_CTAS, 1 << (ceil_div(self.vocab, OF_CTA) - 1).bit_length())

    def share(self, target: Target) -> RowShare:
        """How the CTAs of a row and their threads share it."""
        vector, ctas = min(ELEMENTS, widest(self.vocab, f32.bytes)), self.ctas(target)
        part = ceil_div(self.vocab, ctas)
        threads = min(MOST_THREADS, ceil_div(part, 32 * ELEMENTS) * 32)
        return RowShare(self.vocab, vector, threads, min(ceil_div(part, threads * vector), ELEMENTS // vector), ctas)

    def params(self) -> tuple[Param, ...]:
        logits = buffer("logits", f32, "rows", self.vocab, align=min(16, 4 * widest(self.vocab, f32.bytes)))
        kinds = {"temperature": f32, "top_k": s32, "top_p": f32, "min_p": f32, "seed": u64, "counter": s32}
        if self.history:
            kinds |= {"penalty": f32, "history_len": s32}
        params = [buffer(name, kind, "rows", align=kind.bytes) for name, kind in kinds.items()]
        params += [buffer("history", s32, "rows", self.history, align=4)] if self.history else []
        return (logits, *params, buffer("token", s32, "rows", access="out", align=4))

    def launch(self, target: Target) -> Launch:
        ctas, threads = self.ctas(target), self.share(target).threads
        return Launch((ctas, "rows", 1), (threads, 1, 1), cluster=(ctas, 1, 1), programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        _Sampling(b, self).build()

    # -- example and reference -----------------------------------------------------------------------------------------

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Row 0 takes the most likely token; the others draw, by limits that tell: the logits are near."""
        import numpy as np

        rows = np.arange(sizes["rows"])
        out: dict[str, Any] = {
            "logits": rng.standard_normal((len(rows), self.vocab)).astype(np.float32),
            "temperature": np.choose(rows % 4, (0.0, 1.0, 0.7, 1.5)).astype(np.float32),
            "top_k": np.choose(rows % 4, (0, 2, 0, 60)).astype(np.int32),
            "top_p": np.choose(rows % 4, (1.0, 1.0, 0.02, 0.1)).astype(np.float32),
            "min_p": np.choose(rows % 4, (0.0, 0.0, 0.0, 0.3)).astype(np.float32),
            "seed": rng.integers(0, 1 << 63, len(rows), np.uint64),
            "counter": rng.integers(0, 1 << 20, len(rows), np.int32),
        }
        out["logits"][::4, -1] += 9  # found by whoever looks at every element
        if self.history:  # the most likely tokens, which the penalty takes away
            likely = np.argsort(-out["logits"], axis=1, kind="stable")[:, : self.history]
            out["history"] = np.resize(likely, (len(rows), self.history)).astype(np.int32)
            out["history_len"] = np.maximum(1, self.history - rows).astype(np.int32)
            out["penalty"] = np.full(len(rows), 1.7, np.float32)
        return out

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), "rows": (1, MOST_ROWS), "history_len": (0, self.history)}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        return {"token": np.array([self._token(a, row) for row in range(len(a["token"]))], np.int32)}

    def _token(self, a: Mapping[str, Any], row: int) -> int:
        """One row's, as the class says it."""
        import numpy as np

        x = a["logits"][row] + np.float32(0)
        if self.history:
            listed = a["history"][row, : max(0, int(a["history_len"][row]))]
            seen = np.unique(listed[(listed >= 0) & (listed < self.vocab)])
            penalty = a["penalty"][row] if a["penalty"][row] > 0 else np.float32(1)
            x[seen] = np.where(x[seen] < 0, x[seen] * penalty, x[seen] / penalty)
        best = int(np.argmax(x))
        temperature, top_k, top_p = a["temperature"][row], int(a["top_k"][row]), a["top_p"][row]
        if not temperature > 0 or not np.isfinite(x[best]):
            return best
        slope = np.minimum(np.float32(LOG2E) / temperature, np.float32(STEEPEST))
        weight = weights.weights((x - x[best]) * slope)
        stays = np.ones(self.vocab, bool)
        if 0 < top_k < self.vocab:
            stays = x >= np.sort(x)[-top_k]
        if top_p < 1:
            order = np.argsort(-x, kind="stable")
            order = order[stays[order]]
            reached = np.cumsum(weight[order])
            share = int(np.float32(max(top_p, 0)) * np.float32(1 << 32))
            goal = max(1, int(reached[-1]) * share >> 32)
            stays &= x >= x[order[np.searchsorted(reached, np.uint64(goal))]]
        least = np.float32(np.clip(np.nan_to_num(a["min_p"][row]), 0, 1)) * np.float32(1 << weights.ONE_BITS)
        stays &= weight >= max(1, math.ceil(least))
        reached = np.cumsum(np.where(stays, weight, np.uint64(0)))
        seed = int(a["seed"][row])
        words = philox.words((int(a["counter"][row]) & 0xFFFFFFFF, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
        goal = (int(reached[-1]) * (words[0] | words[1] << 32) >> 64) + 1
        return int(np.searchsorted(reached, np.uint64(goal)))


class _Sampling:
    """The fragments, and what they share."""

    def __init__(self, b: Builder, spec: Sample) -> None:
        self.b, self.spec, self.share = b, spec, spec.share(b.target)
        self.walk = RowWalk(b, self.share)
        self.values = b.array("logit", "f32", self.share.elements)
        self.vectors: tuple[Elements, ...] = pieces(b, "", f32, self.values, self.share.vector)
        self.marks = Marks(b, spec.vocab, self.share.threads) if spec.history else None
        self.key, self.weight, self.exponent = b.reg("key", "u32"), b.reg("weight", "u32"), b.reg("exponent", "f32")

    def build(self) -> None:
        b, spec = self.b, self.spec
        wait_for_producer(b, spec.programmatic)
        with b.fragment("locate"):
            self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            row = b.op("mov.u32", "row", b.special("ctaid.y"))
            self.rank = b.op("mov.u32", "rank", b.special("ctaid.x"))
            self.logits = b.ld_param("logits")
            wide = b.op("cvt.u64.u32", "wide_row", row)
            b.op("mad.lo.u64", self.logits, wide, 4 * spec.vocab, self.logits)
        with b.fragment("read_row"):
            self.read = {
                name: self._of_row(name, row) for name in b.params if name not in ("logits", "history", "token")
            }
            if spec.history:
                history = b.ld_param("history")
                b.op("mad.lo.u64", history, wide, 4 * spec.history, history)
        if self.marks is not None:
            self.marks.build(self.thread, history, self.read["history_len"], spec.history)
        self._decide(*self._largest())
        self._limits()
        with b.fragment("store"):
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
        b, penalty = self.b, self.read["penalty"]
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
        with b.fragment("largest_start"):
            if self.marks is not None:
                penalty, positive = self.read["penalty"], b.reg("penalty_positive", "pred")
                b.op("setp.gt.f32", positive, penalty, 0.0)
                b.op("selp.f32", penalty, penalty, 1.0, positive)
            b.op("mov.u64", best, 0)
            self._begin()
        with b.fragment("largest"):
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
        with b.fragment("decide"):
            top = b.reg("top_key", "u32")
            b.op("mov.b64", (complement, top), best)
            self.chosen = b.op("not.b32", "chosen", complement)
            draws = b.op("setp.gt.f32", "draws", read["temperature"], 0.0)
            b.op("setp.gt.and.u32", draws, top, MINUS_INFINITY, draws)
            b.op("setp.lt.and.u32", draws, top, INFINITY, draws)
        with b.fragment("prepare"):
            self.peak = b.op("mov.b32", b.reg("peak", "f32"), ordered_bits(b, "peak_bits", top))
            self.slope = b.op("mov.f32", "slope", LOG2E)
            b.op("div.rn.f32", self.slope, self.slope, read["temperature"])
            b.op("min.f32", self.slope, self.slope, STEEPEST)
            self.floor = b.op("mov.u32", "floor_key", 0)
            least = b.op("max.f32", "least", read["min_p"], 0.0)
            b.op("min.f32", least, least, 1.0)
            b.op("mul.f32", least, least, float(1 << weights.ONE_BITS))
            self.least = b.op("cvt.rpi.u32.f32", "floor_weight", least)
            b.op("max.u32", self.least, self.least, 1)
            by_count = b.op("setp.gt.s32", "by_count", read["top_k"], 0)
            b.op("setp.lt.and.s32", by_count, read["top_k"], self.spec.vocab, by_count)
            by_mass = b.op("setp.lt.f32", "by_mass", read["top_p"], 1.0)
            share = b.op("max.f32", "share", read["top_p"], 0.0)
            b.op("mul.f32", share, share, float(1 << 32))
            low, high = b.op("mov.u32", "share_low", 0), b.reg("share_high", "u32")
            b.op("cvt.rzi.u32.f32", high, share, pred=by_mass)
            self.wide_share = b.op("mov.b64", "wide_share", (low, high))
        with b.fragment("random"):
            words = [b.op("mov.u32", f"word{i}", 0) for i in range(4)]
            b.op("mov.b32", words[0], read["counter"])
            key = b.reg("seed_low", "u32"), b.reg("seed_high", "u32")
            b.op("mov.b64", key, read["seed"])
            philox.emit(b, words, key)
            self.random_bits = b.op("mov.b64", "random_bits", (words[0], words[1]))

    def _weigh(self, value: Reg) -> None:
        """The weight of the current element."""
        b = self.b
        b.op("sub.rn.f32", self.exponent, value, self.peak)
        b.op("mul.rn.f32", self.exponent, self.exponent, self.slope)
        weights.emit(b, self.weight, self.exponent)

    def _limits(self) -> None:
        """The searches: by count and by mass for the least key that stays, by index for the token."""
        b, vocab = self.b, self.spec.vocab
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
            b.op("cvt.u64.s32", goal, self.read["top_k"])

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
