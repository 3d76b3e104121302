"""What a score goes through between q · k and the softmax, which positions are seen, and what a row ends with.

A `Step` is one thing that happens to scores: its instructions for every loop of decode and of prefill, the values that
a head brings, and the same in NumPy. Loops show a step their scores (`Scores`) and know nothing of it. Scores are in
units of log2 from the first step on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ptxgen.attention.problem import Problem
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.log2 import LOG2E
from ptxgen.launch import Param, buffer
from ptxgen.spec.fields import MOST_DRAWN, Said

if TYPE_CHECKING:
    import numpy as np


def _windows(drawn: Mapping[str, Any]) -> Sequence[object]:
    longest = drawn.get("max_len") or MOST_DRAWN
    return [min(window, longest) for window in (0, 1, 100, 4096)]


# What is known of fields of kernel types that compute attention.
SCALE = Said(doc="factor of the logits; default 1 / sqrt(head_dim)", draws=(None, 0.0625, 1.0))
SOFT_CAP = Said(doc="logits become soft_cap * tanh(logit / soft_cap); 0: off", draws=(0.0, 30.0, 50.0), refuses=(-1.0,))
SINKS = Said(doc="a logit per head joins the softmax without a value, from a parameter")
WINDOW = Said(doc="a query sees only that many latest positions; 0: all", draws=_windows, refuses=(-1,))


class PerHead(NamedTuple):
    """An f32 that every query head brings: the parameter `[n_heads]`, the array its registers are called, a factor."""

    param: str
    name: str
    factor: float = 1.0
    of_kv_head: bool = False  # the parameter is `[n_kv_heads]`


SINK = PerHead("sinks", "sink")
K_SCALE = PerHead("k_scale", "score_k_scale", of_kv_head=True)
V_SCALE = PerHead("v_scale", "output_v_scale", of_kv_head=True)


class Scores(Protocol):
    """The scores of a tile that a thread holds, as a loop shows them to a step."""

    @property
    def registers(self) -> Sequence[Reg]:
        """The registers of all scores."""

    def heads(self, value: PerHead) -> Iterator[tuple[Reg, Sequence[Reg]]]:
        """The thread's heads: what the head brings, and its scores."""

    def positions(self, value: PerHead) -> Iterator[tuple[Reg, Reg, Reg]]:
        """Every score, what its head brings, and as an f32 its position less that of the newest (so at most 0).

        Emits instructions between one score and the next.
        """


class Step(Protocol):
    """One thing that happens to scores; a frozen dataclass, as it is part of a spec."""

    @property
    def per_head(self) -> tuple[PerHead, ...]:
        """The values, one a head, that this step reads: slopes, sinks, scales."""

    def apply(self, b: Builder, scores: Scores) -> None:
        """Change the scores; part of an open fragment."""

    def reference(self, scores: np.ndarray, distance: np.ndarray, arguments: Any) -> np.ndarray:
        """The same in NumPy on natural scores `[n_heads, queries, keys]`; `distance` is a key's position less its
        query's, `arguments` are the launch's."""


@dataclass(frozen=True)
class Alibi:
    """+ slope(h) · (position − newest position)."""

    slope = PerHead("alibi_slopes", "score_slope", LOG2E)

    @property
    def per_head(self) -> tuple[PerHead, ...]:
        return (self.slope,)

    def apply(self, b: Builder, scores: Scores) -> None:
        for score, slope, distance in scores.positions(self.slope):
            b.op("fma.rn.f32", score, slope, distance, score)

    def reference(self, scores: np.ndarray, distance: np.ndarray, arguments: Any) -> np.ndarray:
        slopes: np.ndarray = arguments[self.slope.param].astype("float64")
        raised: np.ndarray = scores + slopes[:, None, None] * distance
        return raised


@dataclass(frozen=True)
class Variant:
    """score = scale · q·k, then cap · tanh(score / cap) where `soft_cap` is not 0, then the steps.

    Seen are positions below the length; `causal`: up to the query's own; `window`: of these the last so many (0: all).
    `sinks`: every head has a logit that takes weight and gives no value. `head_scales`: keys and values count times a
    scale of their KV head. `more`: steps behind those of the fields.
    """

    scale: float
    soft_cap: float = 0.0
    window: int = 0
    causal: bool = True
    alibi: bool = False
    sinks: bool = False
    head_scales: bool = False
    more: tuple[Step, ...] = ()

    @classmethod
    def of(cls, spec: Any, qk_dim: int) -> Variant:
        """From a kernel type's fields of these names; a `scale` of None is 1 / √qk_dim."""
        values = {f.name: getattr(spec, f.name) for f in fields(cls) if hasattr(spec, f.name)}
        return cls(**values | {"scale": 1 / math.sqrt(qk_dim) if spec.scale is None else spec.scale})

    @property
    def steps(self) -> tuple[Step, ...]:
        """What happens to scores behind scale and cap."""
        return (*((Alibi(),) if self.alibi else ()), *self.more)

    @property
    def per_head(self) -> tuple[PerHead, ...]:
        """What heads bring to scores."""
        return (*((K_SCALE,) if self.head_scales else ()), *(v for step in self.steps for v in step.per_head))

    @property
    def by_position(self) -> bool:
        """Whether something depends on where a query stands: which keys it sees, or a step."""
        return self.causal or bool(self.steps)

    @property
    def plain(self) -> bool:
        """Whether a score is q·k times `factor`, and nothing else."""
        return not (self.soft_cap or self.head_scales or self.steps)

    @property
    def factor(self) -> float:
        """What brings q·k to units of log2; with a cap to twice its argument in these units."""
        return self.scale / self.soft_cap * (2 * LOG2E) if self.soft_cap else self.scale * LOG2E

    def params(self, problem: Problem) -> tuple[Param, ...]:
        """What scales, steps and sinks read."""
        ends = (*((V_SCALE,) if self.head_scales else ()), *((SINK,) if self.sinks else ()))
        counts = {
            value.param: problem.n_kv_heads if value.of_kv_head else problem.n_heads
            for value in (*self.per_head, *ends)
        }
        return tuple(buffer(name, f32, count, align=4) for name, count in counts.items())

    def apply(self, b: Builder, scores: Scores, *, factored: bool = False) -> None:
        """q·k to scores; part of an open fragment. `factored`: the query has brought `factor`."""
        if self.head_scales:
            for scale, registers in scores.heads(K_SCALE):
                for score in registers:
                    b.op("mul.f32", score, score, scale)
        if self.soft_cap:
            soften(b, scores.registers, self.soft_cap, None if factored else self.factor)
        elif not factored:
            for score in scores.registers:
                b.op("mul.f32", score, score, self.factor)
        for step in self.steps:
            step.apply(b, scores)


def soften(b: Builder, scores: Iterable[Reg], cap: float, factor: float | None = None) -> None:
    """Every score x becomes cap · tanh(x / cap) in units of log2. A score times `factor` is 2 · log2(e) · x / cap; with
    None it is so already.

    cap · tanh(y) = cap − 2 · cap / (1 + e^2y); tanh.approx is good to 2⁻¹¹ only.
    """
    in_log2 = cap * LOG2E
    for score in scores:
        if factor is not None:
            b.op("mul.f32", score, score, factor)
        b.op("ex2.approx.ftz.f32", score, score)
        b.op("add.f32", score, score, 1.0)
        b.op("rcp.approx.ftz.f32", score, score)
        b.op("fma.rn.f32", score, score, -2 * in_log2, in_log2)


def take_sink(b: Builder, sink: Reg, maximum: Reg, total: Reg, values: Iterable[Reg]) -> None:
    """A natural logit joins a softmax of which `maximum` is in units of log2: it takes weight and gives no value.

    `sink` is overwritten; part of an open fragment.
    """
    b.op("mul.f32", sink, sink, LOG2E)
    top, factor = scratch(b, "sink_top", "f32"), scratch(b, "sink_factor", "f32")
    b.op("max.f32", top, sink, maximum)
    b.op("sub.f32", factor, maximum, top)
    b.op("ex2.approx.ftz.f32", factor, factor)
    for register in (total, *values):
        b.op("mul.f32", register, register, factor)
    b.op("sub.f32", sink, sink, top)
    b.op("ex2.approx.ftz.f32", sink, sink)
    b.op("add.f32", total, total, sink)
    b.op("mov.f32", maximum, top)
