"""Merge partial softmaxes of split attention, wherever they come from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.attention.decode.chunks import MAX_CHUNKS
from ptxgen.attention.decode.merge.cta import Partial, combine, empty, partials
from ptxgen.attention.variant import SINK, SINKS, take_sink
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, f32
from ptxgen.idioms import convert
from ptxgen.idioms.programmatic import programmatic_rules
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Launch, Param, buffer, grid3
from ptxgen.lines.words import counted
from ptxgen.spec.cache_fields import Q_DTYPES

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

QUAD = 4  # f32 values of a 16-byte access: what a thread owns of head_dim
THREADS = 256
MOST_GROUPS = 8  # groups of threads that share a head's partials
IN_FLIGHT, MOST_IN_FLIGHT = 4, 8  # partials that a thread loads at once; the latter where that is all of them


@dataclass(frozen=True)
class Where:
    """Registers: the thread, its four columns and its group of threads, whether the columns exist; the row among all
    sequences' heads; and of the partial that the group is at the number and the addresses."""

    thread: Reg
    quad: Reg
    group: Reg
    has_quad: Reg
    row: Reg
    chunk: Reg
    partials: Reg
    stats: Reg


@kernel_type
class FlashDecodingReduce(KernelType):
    """out = Σᵢ 2^(maxᵢ − M) · accᵢ / Σᵢ 2^(maxᵢ − M) · sumᵢ over a head's `max_chunks` partials, M the largest maxᵢ.

    A partial is (max, sum, acc): over some positions the largest score in units of log2 (natural scores times log2 e),
    Σ 2^(score − max), and Σ 2^(score − max) · V. `partials [batch, n_heads, max_chunks, head_dim]` and
    `stats [batch, n_heads, max_chunks, 2]` (max, sum), both f32. A partial with sum 0 is skipped whatever else it
    holds, so unused slots only need a sum of 0. Normalised attention from elsewhere is passed as the partial (log2 e ·
    log-sum-exp, 1, output). If all sums are 0, out is zeros and lse −inf. `out [batch, n_heads, head_dim]` in q_dtype;
    `lse`: the natural log-sum-exp `[batch, n_heads]`. `sinks [n_heads]`: a natural logit of each head that takes weight
    and has no value; a head without partials then gives zeros, and its sink as lse.
    """

    bundled_as = "decode_merge"

    head_dim: int
    n_heads: int
    max_chunks: int = field(default=64, like=MAX_CHUNKS)
    q_dtype: DType = f32
    lse: bool = False
    programmatic: bool = False
    sinks: bool = field(default=False, like=SINKS)

    sizes = {"batch": 2}
    goldens = (
        dict(head_dim=512, n_heads=2, max_chunks=3),
        dict(head_dim=40, n_heads=3, max_chunks=100, q_dtype="f16", lse=True),
        dict(head_dim=16, n_heads=3, max_chunks=5, sinks=True, lse=True),
    )

    def rules(self) -> Iterator[str]:
        yield from rules.multiple_of("head_dim", self.head_dim, 8, 8, 512)
        yield from rules.between("n_heads", self.n_heads, 1, 4096)
        yield from rules.between("max_chunks", self.max_chunks, 1, 4096)
        yield from rules.one_of("q_dtype", self.q_dtype.name, Q_DTYPES)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)

    # -- geometry ------------------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> int:
        """Threads of a group: a power of two, a thread per four columns."""
        return 1 << (self.head_dim // QUAD - 1).bit_length()

    @property
    def groups(self) -> int:
        """Groups of threads, whole warps of them; group g takes the partials g, g + groups, …"""
        useful = min(THREADS // self.lanes, MOST_GROUPS, 1 << (self.max_chunks - 1).bit_length())
        return max(1, 32 // self.lanes, useful)

    @property
    def in_flight(self) -> int:
        """Partials that a thread merges at a time."""
        share = -(-self.max_chunks // self.groups)
        return share if share <= MOST_IN_FLIGHT else IN_FLIGHT

    @property
    def per_turn(self) -> int:
        """Partials that the CTA merges at a time."""
        return self.groups * self.in_flight

    def params(self) -> tuple[Param, ...]:
        slots = ("batch", self.n_heads, self.max_chunks)
        out = [
            buffer("partials", f32, *slots, self.head_dim),
            buffer("stats", f32, *slots, 2, align=8),
            *([buffer(SINK.param, f32, self.n_heads, align=4)] if self.sinks else []),
            buffer("out", self.q_dtype, "batch", self.n_heads, self.head_dim, access="out"),
        ]
        if self.lse:
            out.append(buffer("lse", f32, "batch", self.n_heads, access="out", align=4))
        return tuple(out)

    def launch(self, target: Target) -> Launch:
        return Launch(grid3(self.n_heads, "batch"), (self.lanes * self.groups, 1, 1), programmatic=self.programmatic)

    # -- code ----------------------------------------------------------------------------------------------------------

    def template(self, target: Target) -> str:
        return "attention/flash_decoding_reduce"

    def build(self, b: Builder) -> None:
        merged = Partial(b.reg("merged_max", "f32"), b.reg("merged_sum", "f32"), b.array("merged", "f32", QUAD).regs)
        at = self._locate(b, merged)
        turns = self.per_turn < self.max_chunks
        b.expose(takes_turns=turns)
        if turns:
            self._merge_turn(b, at, merged, partials(b, "part", self.in_flight))
        else:
            self._merge_all(b, at, merged, partials(b, "part", self.in_flight - 1))
        if self.groups > 1:
            self._meet(b, at, merged)
        else:
            b.without("leave")
        self._finish(b, at, merged)

    def _locate(self, b: Builder, merged: Partial) -> Where:
        """Fragment `locate`: the row, the group and the lane of this thread, and its first partial."""
        with b.fragment("locate", "the head's partials, and the first one of this group of threads"):
            if self.programmatic:
                b.op("griddepcontrol.launch_dependents")
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            lane = b.op("and.b32", b.reg("quad", "u32"), thread, self.lanes - 1)
            group = b.op("shr.u32", "group", thread, self.lanes.bit_length() - 1)
            has_quad = b.op("setp.lt.u32", "has_quad", lane, self.head_dim // QUAD)
            head = b.op("mov.u32", "head", b.special("ctaid.x"))
            sequence = b.op("mov.u32", "sequence", b.special("ctaid.y"))
            row = b.op("mul.wide.u32", "row", sequence, self.n_heads)
            wide_head = b.op("cvt.u64.u32", "wide_head", head)
            b.op("add.u64", row, row, wide_head)
            acc, stats = b.ld_param("partials"), b.ld_param("stats")
            b.op("mad.lo.u64", acc, row, self.max_chunks * self.head_dim * 4, acc)
            b.op("mad.wide.u32", acc, group, self.head_dim * 4, acc)
            b.op("mad.wide.u32", acc, lane, QUAD * 4, acc)
            b.op("mad.lo.u64", stats, row, self.max_chunks * 8, stats)
            b.op("mad.wide.u32", stats, group, 8, stats)
            chunk = b.op("mov.u32", "chunk", group)
            empty(b, merged)
            if self.programmatic:
                b.op("griddepcontrol.wait")
        return Where(thread, lane, group, has_quad, row, chunk, acc, stats)

    def _merge_turn(self, b: Builder, where: Where, merged: Partial, loaded: tuple[Partial, ...]) -> None:
        """Fragment `merge`, a loop's body: the group's next partials into `merged`; the accumulators of used slots only
        are read."""
        chunk, acc, stats = where.chunk, where.partials, where.stats
        exists, used = b.array("exists", "pred", self.in_flight), b.array("used", "pred", self.in_flight)
        with b.fragment("merge", "merge the group's next partials"):
            for i, part in enumerate(loaded):
                empty(b, part)
                self._load_statistics(b, where, part, i, exists[i])
            for i, part in enumerate(loaded):
                b.op("setp.neu.and.f32", used[i], part.total, 0.0, exists[i])
                self._load_values(b, where, part, i, used[i])
            combine(b, merged, (merged, *loaded))
            b.op("add.u32", chunk, chunk, self.per_turn)
            b.op("add.u64", acc, acc, self.per_turn * self.head_dim * 4)
            b.op("add.u64", stats, stats, self.per_turn * 8)
            first = b.op("sub.u32", "turn_start", chunk, where.group)
            b.op("setp.lt.u32", "more_chunks", first, self.max_chunks)

    def _merge_all(self, b: Builder, where: Where, merged: Partial, loaded: tuple[Partial, ...]) -> None:
        """Fragments `merge`: the group's first partial, read without waiting to know whether it is used, which it is if
        any is; and `merge_later`, for groups of which more are used."""
        exists, used = b.array("exists", "pred", self.in_flight), b.array("used", "pred", self.in_flight)
        later = used[1] if len(loaded) == 1 else None
        with b.fragment("merge", "the group's partials: statistics, and the values of the first"):
            for i, part in enumerate((merged, *loaded)):
                if i:
                    empty(b, part)
                self._load_statistics(b, where, part, i, exists[i])
                if i == 0:
                    likely = b.op("and.pred", "first_exists", exists[0], where.has_quad)
                    b.op("ld.global.v4.f32", merged.values, where.partials[0], pred=likely)
            b.op("setp.neu.and.f32", used[0], merged.total, 0.0, exists[0])
            b.op("selp.f32", merged.maximum, merged.maximum, float("-inf"), used[0])
            for value in merged.values:
                b.op("selp.f32", value, value, 0.0, used[0])
            for i, part in enumerate(loaded, 1):
                b.op("setp.neu.and.f32", used[i], part.total, 0.0, exists[i])
                if i == 2:
                    later = b.op("or.pred", "later_used", used[1], used[2])
                elif i > 2:
                    b.op("or.pred", later, later, used[i])
        if not loaded:
            b.without("merge_later")
            return
        b.expose(any_later=later)
        with b.fragment("merge_later", "load the values of the partials that are left, and merge them"):
            for i, part in enumerate(loaded, 1):
                self._load_values(b, where, part, i, used[i])
            combine(b, merged, (merged, *loaded))

    def _load_statistics(self, b: Builder, where: Where, part: Partial, i: int, exists: Reg) -> None:
        """Maximum and sum of the group's partial number i of this turn, if there is such a slot."""
        b.op("setp.lt.u32", exists, where.chunk, self.max_chunks - i * self.groups)
        at = where.stats[i * self.groups * 8]
        b.op("ld.global.v2.f32", (part.maximum, part.total), at, pred=exists)

    def _load_values(self, b: Builder, where: Where, part: Partial, i: int, used: Reg) -> None:
        """Its accumulator where it is used; a partial that is not has the maximum of nothing."""
        b.op("selp.f32", part.maximum, part.maximum, float("-inf"), used)
        b.op("and.pred", used, used, where.has_quad)
        at = where.partials[i * self.groups * self.head_dim * 4]
        b.op("ld.global.v4.f32", part.values, at, pred=used)

    def _meet(self, b: Builder, where: Where, merged: Partial) -> None:
        """Fragments `leave`, for groups after the first, and `collect`, by the first group."""
        size = (QUAD + 2) * 4
        meeting = b.shared("meeting", (self.groups - 1) * self.lanes * size)
        with b.fragment("leave"):
            b.note(
                f"{self.groups} groups of {counted(self.lanes, 'thread')} shared the partials; the first merges them"
            )
            first = b.op("setp.eq.u32", "first_group", where.group, 0)
            thread = where.thread
            at = b.op("mov.u32", "meeting_at", meeting)
            b.op("mad.lo.u32", at, thread, QUAD * 4, at)
            pair_at = b.op("mov.u32", "pair_at", meeting)
            b.op("mad.lo.u32", pair_at, thread, 8, pair_at)
            pairs = (self.groups - 1) * self.lanes * QUAD * 4
            b.op("st.shared.v4.f32", at[-self.lanes * QUAD * 4], merged.values, pred=~first)
            b.op("st.shared.v2.f32", pair_at[pairs - self.lanes * 8], (merged.maximum, merged.total), pred=~first)
        others = partials(b, "other", self.groups - 1)
        with b.fragment("collect", "merge what the groups have"):
            for i, other in enumerate(others):
                b.op("ld.shared.v4.f32", other.values, at[i * self.lanes * QUAD * 4])
                b.op("ld.shared.v2.f32", (other.maximum, other.total), pair_at[pairs + i * self.lanes * 8])
            combine(b, merged, (merged, *others))

    def _finish(self, b: Builder, where: Where, merged: Partial) -> None:
        with b.fragment("store", "values over their sum to out"):
            if self.sinks:
                at = b.op("mad.wide.u32", "sink_address", b.op("mov.u32", "sink_head", b.special("ctaid.x")), 4,
                          b.ld_param(SINK.param))  # fmt: skip
                sink = b.op("ld.global.f32", "sink", at[0])
                take_sink(b, sink, merged.maximum, merged.total, merged.values)
            nothing = b.op("setp.eq.f32", "nothing", merged.total, 0.0)
            inverse = b.op("rcp.approx.ftz.f32", "inverse", merged.total)
            b.op("selp.f32", inverse, 0.0, inverse, nothing)
            for value in merged.values:
                b.op("mul.f32", value, value, inverse)
            out = b.ld_param("out")
            b.op("mad.lo.u64", out, where.row, self.head_dim * self.q_dtype.bytes, out)
            b.op("mad.wide.u32", out, where.quad, QUAD * self.q_dtype.bytes, out)
            words: Sequence[Reg] = merged.values
            if self.q_dtype != f32:
                words = b.array("out_word", "b32", convert.words_of(self.q_dtype, QUAD)).regs
            convert.pack(b, words, merged.values, self.q_dtype)
            convert.store_words(b, out, words, pred=where.has_quad)
            if self.lse:
                first = b.op("setp.eq.u32", "first_quad", where.quad, 0)
                value = b.op("lg2.approx.f32", "lse_value", merged.total)
                b.op("add.f32", value, value, merged.maximum)
                b.op("mul.f32", value, value, math.log(2))
                lse = b.ld_param("lse")
                b.op("mad.lo.u64", lse, where.row, 4, lse)
                b.op("st.global.f32", lse[0], value, pred=first)

    # -- example and reference -----------------------------------------------------------------------------------------

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Partials as a chunk kernel leaves them: about a third empty, their accumulators NaN."""
        import numpy as np

        shape = (sizes["batch"], self.n_heads, self.max_chunks)
        used = rng.random(shape) < 0.7
        stats = np.stack([rng.normal(0, 4, shape), rng.uniform(1, 50, shape)], -1)
        stats[~used] = (-np.inf, 0.0)
        acc = rng.standard_normal((*shape, self.head_dim)) * stats[..., 1:]
        acc[~used] = np.nan
        return {"partials": acc.astype(np.float32), "stats": stats.astype(np.float32)}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        maxima, sums = (a["stats"][..., i].astype(np.float64) for i in range(2))
        used = sums != 0
        largest = np.where(used, maxima, -np.inf).max(-1, keepdims=True)
        sinks = a["sinks"].astype(np.float64)[:, None] / math.log(2) if self.sinks else -np.inf
        largest = np.maximum(largest, sinks)
        weights = np.where(used, np.exp2(maxima - np.where(np.isfinite(largest), largest, 0.0)), 0.0)
        total = (weights * sums).sum(-1)
        if self.sinks:
            total = total + np.exp2(sinks - largest)[..., 0]
        acc = np.where(used[..., None], a["partials"].astype(np.float64), 0.0)
        values = (weights[..., None] * acc).sum(-2) / np.where(total == 0, 1.0, total)[..., None]
        results = {"out": values.astype(self.q_dtype.numpy)}
        if self.lse:
            with np.errstate(divide="ignore"):
                results["lse"] = ((np.log2(total) + largest[..., 0]) * math.log(2)).astype(np.float32)
        return results
