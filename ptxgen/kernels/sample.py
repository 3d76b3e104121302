"""The next token of every row: drawn at random from its logits, or the most likely one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import f32, s32, u64
from ptxgen.idioms.elements import widest
from ptxgen.idioms.log2 import LOG2E
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.rows import RowShare
from ptxgen.idioms.sampling import philox, probabilities
from ptxgen.idioms.sampling.draw import STEEPEST, Sampling
from ptxgen.idioms.threads import ceil_div
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


@kernel_type
class Sample(KernelType):
    """The next token of every row of logits; the same seeds and counters give the same tokens on every device.

    logits f32 `[rows, vocab]`, token s32 `[rows]`; a row's parameters f32 `[rows]`: temperature, top_p, min_p, with
    `history` penalty; s32 `[rows]`: top_k, counter; seed u64 `[rows]`. In this order: the logits of tokens among the
    first history_len (s32 `[rows]`) of history (s32 `[rows, history]`) are divided by the penalty, negative ones
    multiplied; each token's weight is exp((logit − largest) / temperature); the top_k largest weights are kept; of
    these the fewest largest whose sum reaches top_p of the total; of these those of at least min_p times the largest.
    Each step also keeps tokens equal to the last one kept. One token is drawn by weight, with the Philox-4x32-10 word
    of (seed, counter): it depends on the row's own parameters alone. Off: top_k 0 or at least vocab, top_p 1, min_p 0,
    penalty 1.

    Weights are integers in units of 2⁻³¹ of the largest, computed by operations that are exact or rounded once, so the
    token is the same on every device and for every order of threads; a token with a smaller weight is never drawn.
    Temperature 0, below 0 or NaN, and rows whose largest logit is not finite, give the most likely token as `ArgMax`
    does: the lowest index among equals, the first NaN before all.
    """

    vocab: int = field(draws=(1, 2, 33, 1000, 1001, 40_000, 128_256, 262_144), refuses=(0,), doc="logits of a row")
    history: int = field(default=0, draws=(0, 1, 100), refuses=(-1,), doc="tokens that may be penalised; 0: none")
    programmatic: bool = False

    sizes = {"rows": 8}
    golden_lines = 1800  # the searches over a row stand four times in the smallest text
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
        wait_for_producer(b, self.programmatic)
        Sampling(b, self.vocab, self.history, self.share(b.target)).build()

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
        out["logits"][::4, -1] += 9  # found only where every element is looked at
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
        weight = probabilities.probabilities((x - x[best]) * slope)
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
        least = np.float32(np.clip(np.nan_to_num(a["min_p"][row]), 0, 1)) * np.float32(1 << probabilities.ONE_BITS)
        stays &= weight >= max(1, math.ceil(least))
        reached = np.cumsum(np.where(stays, weight, np.uint64(0)))
        seed = int(a["seed"][row])
        words = philox.words((int(a["counter"][row]) & 0xFFFFFFFF, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
        goal = (int(reached[-1]) * (words[0] | words[1] << 32) >> 64) + 1
        return int(np.searchsorted(reached, np.uint64(goal)))
