"""Decode attention in one launch: one query position per sequence against its KV cache, whatever the length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths, rules
from ptxgen.attention.attention import Attention
from ptxgen.attention.cache import Cache
from ptxgen.attention.decode import place as locate
from ptxgen.attention.decode import release
from ptxgen.attention.decode.loops.choice import choose
from ptxgen.attention.decode.merge.compose import Outlet, build_merges
from ptxgen.attention.decode.merge.records import RECORD_FLOATS
from ptxgen.attention.decode.parts import parts_of, place_loop
from ptxgen.attention.decode.plan import CHIPS, Plan, plan
from ptxgen.attention.problem import Problem
from ptxgen.attention.reference import attend, cached_rows
from ptxgen.attention.variant import SCALE, SOFT_CAP, WINDOW, Variant
from ptxgen.dtypes import DType, bf16, f16, f32, s8, s32, u32
from ptxgen.idioms.programmatic import programmatic_rules
from ptxgen.kernel import KernelType, Reading, kernel_type
from ptxgen.launch import Extent, Launch, Param, buffer, scalar, workspace
from ptxgen.parity import LIMITS, limit_of_types
from ptxgen.products.digits_bf16 import layout as bf16_layout
from ptxgen.products.digits_bf16.digits import ElementDigits
from ptxgen.products.problem.readings import EXACT, digit_readings
from ptxgen.products.wgmma.tokens import layout as tiles
from ptxgen.products.wgmma.tokens.attention_output import ElementTiles
from ptxgen.spec.cache_fields import (
    CAPACITY,
    HEAD_SCALES,
    KV_DTYPES,
    KV_HEADS,
    ONE_CACHE,
    PAGE_LAYOUT,
    PAGE_SIZE,
    Q_DTYPES,
    RING_ROWS,
    STRIDED,
    given_head_scales,
    head_rules,
    head_scales_rules,
    one_cache_rules,
    place_rules,
    strided_rules,
)
from ptxgen.spec.fields import field
from ptxgen.targets import STATIC_SHARED_LIMIT, Target
from ptxgen.targets import target as parse_target
from ptxgen.weights.format import CHUNK, OWN

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.kernel import Arrays

_WHOLE = 1 << 30  # of an example's sizes: the whole cache


@kernel_type
class IncrementalAttention(KernelType):
    """out = softmax(scale · q · Kᵀ) · V over the first `seq_len` positions of a cache; query head h reads KV head
    h // (n_heads / n_kv_heads).

    q, out `[n_heads, head_dim]`, caches `[n_kv_heads, max_len, head_dim]`; `batched`: a leading "batch" everywhere, and
    `seq_lens ["batch"]`; `indirect`: `seq_len` is read from device memory. A length below 0 counts as 0 and gives
    zeros, one above max_len as max_len; memory past a length is never used.

    `page_size`: caches `[pages, n_kv_heads, page_size, head_dim]`, in the `page_layout` "nhd" `[pages, page_size,
    n_kv_heads, head_dim]`, with `page_table ["batch", ceil(max_len / page_size)]`. `ring`, with a window: a cache has
    so many rows instead of max_len, and position p is in row p % ring; a page table that repeats pages has the same
    effect. `strided`: caches `["batch", n_kv_heads, n_keys, head_dim]` with n_keys given at launch (the scalar
    kv_rows), for libraries whose caches grow or whose prompts are padded on the left: position 0 of sequence s is in
    row `starts[s]`, its positions end before row `seq_lens[s]`, and there are at most max_len of them. int8 caches have
    `k_scales`, `v_scales` `[…, max_len, ceil(head_dim / 32)]` in f16.

    `scale` (default 1/√head_dim), `soft_cap` (cap · tanh(score / cap)), `window` (only the last so many positions),
    `alibi` (`alibi_slopes [n_heads]`: + slope · (position − seq_len + 1)), `sinks` (`sinks [n_heads]`: a logit without
    a value), `head_scales` (of e4m3 caches: `k_scale`, `v_scale [n_kv_heads]`, f32 factors of keys and values; for a
    scale per tensor repeat it for each head), `lse` (also the natural log-sum-exp `[n_heads]`).

    `programmatic`: may start before the preceding kernel has ended, and reads lengths, page table and all positions but
    the newest at once: these must be final before the first kernel of an unbroken chain of programmatic launches. q and
    the newest position are read after the wait.

    `batch_invariant`: a sequence's result has the same bytes in every batch, whatever its size and its other members.
    Splits then depend on the length alone, which costs time if they do not fill the GPU. `one_cache`: the queries of a
    batch are of one sequence, caches `[n_kv_heads, max_len, head_dim]`; query s sees the first seq_lens[s] positions,
    none below 1. `halves`: out is so many bf16 digits of each value, as DigitGemm reads them, or with `tile_tokens` in
    tiles of so many sequences, as PackedGemm reads them; elements without a sequence are left unchanged.
    """

    bundled_as = "decode"
    golden_lines = 1350  # rows of 64 elements that end anywhere

    max_len: int = field(like=CAPACITY)
    head_dim: int
    n_heads: int
    n_kv_heads: int = field(like=KV_HEADS)
    q_dtype: DType = f32
    kv_dtype: DType = f32
    indirect: bool = False
    batched: bool = False
    scale: float | None = field(default=None, like=SCALE)
    soft_cap: float = field(default=0.0, like=SOFT_CAP)
    window: int = field(default=0, like=WINDOW)
    page_size: int = field(default=0, like=PAGE_SIZE)
    alibi: bool = False
    sinks: bool = False
    lse: bool = False
    programmatic: bool = False
    batch_invariant: bool = False
    page_layout: str = field(default="hnd", like=PAGE_LAYOUT)
    ring: int = field(default=0, like=RING_ROWS)
    strided: bool = field(default=False, like=STRIDED)
    head_scales: bool = field(default=False, like=HEAD_SCALES)
    halves: int = field(default=0, draws=(0, 1, 3), later=True, doc="0: out is of q_dtype; else so many bf16 digits")
    sums: bool = field(default=False, later=True, doc="sums of out go beside bf16 digits, for weights with mins")
    tile_tokens: int = field(default=0, later=True, doc="bf16 digits lie in tiles of so many tokens, for PackedGemm")
    one_cache: bool = field(default=False, like=ONE_CACHE)

    # q_factor: what random queries are multiplied by.
    sizes = {"batch": 2, "pages": 8, "n_keys": 48, "seq_len": _WHOLE, "q_factor": 1}
    # 3000 keys of strided caches are several splits; with queries times 60 a later tile's scores rescale the sums.
    trials = (
        {"n_keys": 3000}, {"seq_len": 37}, {"seq_len": 19}, {"n_keys": 3000, "q_factor": 60}, {"seq_len": 11},
    )  # fmt: skip
    early = ("k_cache", "v_cache", "k_scales", "v_scales", "seq_len", "seq_lens", "page_table")
    unreported = {
        r"/(l48_d80|l64_d8_h2)_.* arrival .*expect_tx": "does not matter: there are no more tiles, so no lane "
        "executes it",
        r" barrier .*tickets_param": "does not matter: every record tells by itself whether it is there",
        r"/(l48_d80|l64_d8_h2)_.* barrier .*%tile_next, %tile_next": "does not matter: so short a cache has no "
        "third tile",
        r"/(l48_d80|l64_d8_h2)_.* barrier .*%tile_next, %tile;": "the relaxed loads behind it may be flags",
    }
    goldens: ClassVar[tuple[Mapping[str, object], ...]] = (
        dict(max_len=32, head_dim=16, n_heads=2, n_kv_heads=2, q_dtype=f16, kv_dtype=f16),
        dict(max_len=128, head_dim=8, n_heads=2, n_kv_heads=1, q_dtype=f16, kv_dtype=f16, indirect=True),
        dict(
            max_len=32, head_dim=8, n_heads=1, n_kv_heads=1, q_dtype=f16, kv_dtype=s8, batched=True, page_size=16,
            window=20, lse=True,
        ),
        dict(max_len=30, head_dim=16, n_heads=2, n_kv_heads=1, q_dtype=f16, kv_dtype=f16, programmatic=True),
        dict(
            max_len=128, head_dim=8, n_heads=1, n_kv_heads=1, q_dtype=f16, kv_dtype=f16, batched=True,
            programmatic=True,
        ),
        dict(max_len=32, head_dim=8, n_heads=1, n_kv_heads=1, soft_cap=30.0, alibi=True, sinks=True),
        dict(max_len=48, head_dim=80, n_heads=1, n_kv_heads=1, q_dtype=f16, kv_dtype=f16, indirect=True),
        dict(
            max_len=32, head_dim=8, n_heads=2, n_kv_heads=2, q_dtype=f16, kv_dtype=f16, batched=True, page_size=16,
            page_layout="nhd", window=20,
        ),
        dict(max_len=200, head_dim=8, n_heads=1, n_kv_heads=1, q_dtype=f16, kv_dtype=f16, window=40, ring=64),
        dict(max_len=64, head_dim=16, n_heads=2, n_kv_heads=1, q_dtype=f16, kv_dtype=f16, batched=True, strided=True),
        dict(max_len=32, head_dim=16, n_heads=4, n_kv_heads=2, q_dtype=f16, kv_dtype="e4m3", head_scales=True),
        dict(max_len=32, head_dim=8, n_heads=8, n_kv_heads=8, batched=True, halves=3),
        dict(max_len=32, head_dim=16, n_heads=16, n_kv_heads=16, batched=True, halves=3, sums=True),
        dict(max_len=32, head_dim=24, n_heads=4, n_kv_heads=4, batched=True, halves=3, tile_tokens=8),
        dict(max_len=64, head_dim=8, n_heads=2, n_kv_heads=1, kv_dtype=f16, batched=True, one_cache=True),
        dict(  # the last sequences first, and loads with L2::evict_unchanged: a row of the tuning table
            max_len=32769, head_dim=64, n_heads=8, n_kv_heads=8, q_dtype=f16, kv_dtype=f16, batched=True, strided=True,
        ),
    )  # fmt: skip

    # -- what is legal -----------------------------------------------------------------------------------------------

    def rules(self) -> Iterator[str]:
        yield from rules.between("max_len", self.max_len, 1, 1 << 24)
        yield from rules.multiple_of("head_dim", self.head_dim, 8, 8, 512)
        yield from head_rules(self.n_heads, self.n_kv_heads, 4096)
        yield from rules.one_of("q_dtype", self.q_dtype.name, Q_DTYPES)
        yield from rules.one_of("kv_dtype", self.kv_dtype.name, KV_DTYPES)
        yield from rules.softmax_factors(self.scale, self.soft_cap, signed=True)
        yield from rules.between("window", self.window, 0, max(self.max_len, 0))
        if self.page_size:
            yield from rules.multiple_of("page_size", self.page_size, 16, 16, 1 << 16)
        if self.page_size and not self.batched:
            yield "page_size: needs batched=True"
        yield from place_rules(self.page_size, self.page_layout, self.ring, self.window)
        yield from head_scales_rules(self.head_scales, self.kv_dtype.name)
        if self.strided:
            yield from strided_rules(self.batched, self.page_size, self.ring, self.programmatic)
        if self.one_cache:
            yield from one_cache_rules(self.batched, self.page_size, self.strided, self.programmatic)
        if self.batch_invariant and not self.batched:
            yield "batch_invariant: needs batched=True"
        yield from self._rules_of_digits()
        if self.indirect and self.batched:
            yield "indirect: batched lengths are in device memory already (got indirect=True, batched=True)"

    def _rules_of_digits(self) -> Iterator[str]:
        """Of results as bf16 digits."""
        yield from rules.one_of("halves", self.halves, (0, *sorted(bf16_layout.DIGITS.values())))
        if self.halves and not self.batched:
            yield f"halves: needs batched=True (got halves={self.halves}, batched=False; nearest: halves=0)"
        width = self.n_heads * self.head_dim
        unit = bf16_layout.columns(sums=self.sums)
        if self.halves and width % unit and not self.tile_tokens:
            yield f"halves: n_heads * head_dim must be a multiple of {unit} (got {width}; nearest: halves=0)"
        if self.sums and not (self.halves and self.head_dim % CHUNK == 0):
            yield f"sums: needs bf16 digits and heads of whole chunks of {CHUNK} (got sums=True; nearest: sums=False)"
        yield from rules.one_of("tile_tokens", self.tile_tokens, (0, *tiles.TOKENS))
        if self.tile_tokens and (self.sums or not self.halves):
            got = f"halves={self.halves}, sums={self.sums}"
            yield f"tile_tokens: needs bf16 digits without sums (got {got}; nearest: tile_tokens=0)"

    def target_rules(self, target: Target) -> Iterator[str]:
        chosen = choose(self.attention, target)
        if isinstance(chosen, str):
            yield chosen
        yield from programmatic_rules(self.programmatic, target)

    @property
    def error_limit(self) -> float | None:  # type: ignore[override]
        """The one limit of a recording, which compares every digit: a value at a tie rounds to either bf16."""
        return 2e-2 if self.halves else None

    def readings(self, output: str, values: np.ndarray) -> Iterator[Reading]:
        own = limit_of_types(self)
        if self.halves and output == "out":
            if own == LIMITS["f32"] and not self.soft_cap and self.scale is None:  # these have errors of large scores
                own = EXACT
            if self.tile_tokens:
                yield from digit_readings(output, values, 2, own)
                return
            yield from bf16_layout.readings(output, values, self.halves, own, sums=self.sums)
        else:
            capped = output == "lse" and self.soft_cap  # a score is off by 1e-6 of its cap, and may be all there is
            yield Reading(output, values, max(own, 1e-4) if capped else own)

    # -- parameters and geometry -------------------------------------------------------------------------------------

    @property
    def attention(self) -> Attention:
        """The attention this computes."""
        dims, dtypes = (self.head_dim, self.head_dim), (self.q_dtype, self.kv_dtype)
        problem = Problem(self.n_heads, self.n_kv_heads, *dims, *dtypes)
        cache = Cache(
            problem, self.max_len, self.batched and not self.one_cache, self.page_size, page_layout=self.page_layout,
            ring=self.ring, strided=self.strided,
        )  # fmt: skip
        return Attention(Variant.of(self, self.head_dim), cache)

    def plan(self, target: Target) -> Plan:
        """The geometry for a target."""
        return plan(
            self.attention, target, batched=self.batched, invariant=self.batch_invariant, programmatic=self.programmatic
        )

    def params(self) -> tuple[Param, ...]:
        lead = ("batch",) if self.batched else ()
        attention = self.attention
        problem = attention.problem
        out = [problem.q(*lead), *attention.cache.params(), *attention.variant.params(problem)]
        out += problem.outputs(*lead, lse=self.lse)
        if self.halves:
            width, align = self.n_heads * self.head_dim, 16
            shape = bf16_layout.shape(width, self.halves, "batch", sums=self.sums)
            if self.tile_tokens:
                shape, align = tiles.shape(width, self.tile_tokens, self.halves, rows="batch"), 128
            packed = buffer("out", bf16, *shape, access="out", align=align)
            out = [packed if param.name == "out" else param for param in out]
        if self.batched:
            out.append(buffer("seq_lens", s32, *lead, align=4))
        elif self.indirect:
            out.append(buffer("seq_len", s32, 1, align=4))
        else:
            out.append(scalar("seq_len", s32))
        return (*out, *self._workspaces(lead))

    def _workspaces(self, lead: tuple[Extent, ...]) -> Iterator[Param]:
        """Records and tickets of split units, as large as any target needs them."""
        targets = [parse_target(name) for name in CHIPS]
        plans = [self.plan(t) for t in targets if not isinstance(choose(self.attention, t), str)]
        plans = [p for p in plans if p.most_splits > 1]
        if not plans:
            return
        units = [self.n_kv_heads * p.parts for p in plans]
        floats = [u * p.shape.heads * p.v_dim // 4 * RECORD_FLOATS for u, p in zip(units, plans, strict=True)]
        most = _largest([(n, p.splits) for n, p in zip(floats, plans, strict=True)])
        yield workspace("records", f32, *lead, most, zeroed=True)
        tickets = max(u * p.cluster for u, p in zip(units, plans, strict=True))
        yield workspace("tickets", u32, *lead, tickets, zeroed=True, align=4)

    def launch(self, target: Target) -> Launch:
        plan = self.plan(target)
        splits: Extent = plan.splits
        if isinstance(splits, int):
            splits *= plan.cluster
        elif plan.cluster > 1:
            splits = f"{plan.cluster} * {splits}"
        grid = (splits, self.n_kv_heads * plan.parts, "batch" if self.batched else 1)
        shared = plan.arena_bytes if plan.arena_bytes > STATIC_SHARED_LIMIT // 2 else 0
        cluster = (plan.cluster, 1, 1)
        return Launch(grid, (plan.shape.threads, 1, 1), shared, cluster, programmatic=self.programmatic)

    # -- code --------------------------------------------------------------------------------------------------------

    def template(self, target: Target) -> str:
        return "attention/incremental_attention"

    def build(self, b: Builder) -> None:
        attention, plan = self.attention, self.plan(b.target)
        align = 128 if plan.shape.stages else 16  # bulk copies are slow to other places
        arena = b.shared("arena", plan.arena_bytes, align, dynamic=self.launch(b.target).shared > 0)
        # loads before the length is known pay where most CTAs have work: not where a batch's long sequences are split
        blind = self.indirect or self.batched
        blind = blind and not (self.window or self.page_size or self.strided or plan.split_tiles)
        with b.fragment("locate", "split, KV head and sequence, and where their rows lie"):
            if self.programmatic:
                release.at_once(b, plan)
            where, task = locate.place(b, attention, plan, batched=self.batched)
            task = task._replace(early=blind or self.programmatic, late_newest=self.programmatic)
        if self.programmatic:
            with b.fragment("wait_for_previous"):
                b.op("griddepcontrol.wait")
        with b.fragment("length_load"):
            kind = "batch" if self.batched else "buffer" if self.indirect else "scalar"
            locate.load_length(b, task, where, name="seq_lens" if self.batched else "seq_len", kind=kind)
        with b.fragment("lengths", "the length, the warp's tiles, and which splits work"):
            locate.lengths(b, attention, plan, task, where)
        # ptxas may put the length's load behind those of the first tile, on their scoreboard: reading the length
        # then waits for the tile. So the cluster meets before, unless the length says which splits end, or which loads
        # are made.
        meets_early = plan.cluster > 1 and plan.most_splits == 1 and blind and not self.programmatic
        loop = plan.loop.build(b, attention, plan.shape, task, plan.partials, arena)
        if self.programmatic:
            release.later(b, plan, task, where)
        parts = parts_of(plan, programmatic=self.programmatic, meets_early=meets_early, drains=loop.drains)
        place_loop(b, loop, parts.meet)
        b.expose(plan=plan, parts=parts)
        heads = self.n_heads, self.head_dim
        outlet: Outlet | None = None
        if self.tile_tokens:
            outlet = partial(ElementTiles, self.halves, self.tile_tokens, *heads)
        elif self.halves:
            outlet = partial(ElementDigits, self.halves, self.sums, *heads)
        build_merges(
            b,
            attention,
            plan,
            where,
            task,
            arena,
            lse=self.lse,
            sinks=self.sinks,
            outlet=outlet,
            together=CHUNK // OWN if self.sums else 1,
        )

    # -- behaviour ---------------------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        keys = sizes["n_keys"]
        rows = {"starts": (0, keys), "kv_rows": (1, keys)} if self.strided else {}
        within = dict.fromkeys(("seq_len", "seq_lens"), (0, keys if self.strided else self.max_len))
        return {
            **super().ranges(sizes), **within, **rows, "page_table": (-1, sizes["pages"] - 1), "q_factor": (1, 1024),
        }  # fmt: skip

    def past(self, arguments: Arrays) -> lengths.Past:
        attention = self.attention
        caches = [arguments[name] for name in ("k_cache", "v_cache", "k_scales", "v_scales") if name in arguments]
        if self.page_size:
            inside = attention.cache.heads_inside
            yield from lengths.past_pages(caches, arguments["page_table"], arguments["seq_lens"], inside)
        elif self.one_cache:
            yield from lengths.past_lengths([cache[None] for cache in caches], [max(arguments["seq_lens"], default=0)])
        elif self.batched:
            yield from lengths.past_lengths(caches, arguments["seq_lens"])
            for s, first in enumerate(arguments.get("starts", ())):
                yield from ((cache, (s, slice(None), slice(0, first))) for cache in caches)
        else:
            length = int(arguments["seq_len"][0] if self.indirect else arguments["seq_len"])
            yield from lengths.past_lengths([cache[None] for cache in caches], [length])

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        """`seq_len` is the length, or the largest of a batch. Sequences share pages where there are too few."""
        import numpy as np

        from ptxgen.spec.examples import scaled

        out: dict[str, Any] = {}
        attention = self.attention
        length = self.max_len if sizes["seq_len"] == _WHOLE else sizes["seq_len"]
        if self.strided:
            length = min(length, sizes["n_keys"])
            out["kv_rows"] = sizes["n_keys"]
        if self.batched:
            out["seq_lens"] = rng.integers(0, length, sizes["batch"], np.int32, endpoint=True)
            if self.strided:
                out["starts"] = rng.integers(0, out["seq_lens"] // 2, dtype=np.int32, endpoint=True)
        else:
            out["seq_len"] = np.array([length], np.int32) if self.indirect else length
        out |= attention.cache.given_table(rng, sizes, np.asarray(out.get("seq_lens", 0)))
        out |= attention.cache.given_scales(rng, sizes, 0.5 / 73, 1.5 / 73)
        if self.head_scales:
            out |= given_head_scales(rng, self.n_kv_heads)
        if self.alibi:
            out["alibi_slopes"] = (2.0 ** -rng.uniform(1, 8, self.n_heads)).astype(np.float32)
        if sizes["q_factor"] != 1:
            out["q"] = scaled(self.params()[0], rng, sizes, sizes["q_factor"])
        return out

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        attention = self.attention
        ends = np.ravel(a["seq_lens"] if self.batched else a["seq_len"])
        first = np.maximum(a["starts"], 0) if self.strided else np.zeros_like(ends)
        if self.strided:
            ends = np.minimum(ends, a["kv_rows"])
        lengths = np.clip(ends - first, 0, self.max_len)
        q = a["q"].reshape(len(lengths), self.n_heads, 1, self.head_dim)
        pairs = []
        for s, length in enumerate(map(int, lengths)):
            k, v = (rows[:, first[s] :][:, :length] for rows in cached_rows(attention, a, s))
            pairs.append(attend(attention, q[s], k, v, length - 1, a))
        outs, lses = (np.stack(part) for part in zip(*pairs, strict=True))
        results = {"out": outs.reshape(a["q"].shape).astype(self.q_dtype.numpy)}
        if self.halves:
            results["out"] = self._packed(outs.reshape(len(lengths), -1).astype(np.float32), a["out"])
        if self.lse:
            results["lse"] = lses.reshape(a["q"].shape[:-1]).astype(np.float32)
        return results

    def _packed(self, rows: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Rows as bf16 digits, over what was there `before`."""
        import numpy as np

        if self.tile_tokens:
            packed = tiles.pack(rows, self.tile_tokens, bf16, self.halves)
            written = tiles.pack(np.ones_like(rows), self.tile_tokens, bf16, self.halves)[:, :, :1].astype(bool)
        else:
            packed = bf16_layout.pack(rows, self.halves, sums=self.sums)
            written = bf16_layout.has_row(packed.shape, len(rows), self.halves, sums=self.sums)
        return np.where(written, packed, before)


def _largest(sizes: list[tuple[int, Extent]]) -> Extent:
    """The largest of count · extent, as a number or a formula."""
    fixed = [count * extent for count, extent in sizes if isinstance(extent, int)]
    terms = [str(max(fixed))] if fixed else []
    terms += dict.fromkeys(f"{count} * {extent}" for count, extent in sizes if isinstance(extent, str))
    if len(terms) == 1:
        return int(terms[0]) if fixed else terms[0]
    return f"max({', '.join(terms)})"
