"""Attention of many query tokens: prefill, chunks of a prompt behind a cached prefix, and whole sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ptxgen import lengths, rules
from ptxgen.attention.attention import Attention
from ptxgen.attention.cache import Cache
from ptxgen.attention.prefill import example
from ptxgen.attention.prefill.contract import Prefill, problem_rules
from ptxgen.attention.prefill.loops import tiles
from ptxgen.attention.prefill.loops.mma.loop import TensorLoop
from ptxgen.attention.prefill.loops.simt import SimtLoop
from ptxgen.attention.prefill.parts import Shares
from ptxgen.attention.prefill.wgmma import kernel as wgmma
from ptxgen.attention.prefill.wgmma.tile import (
    CHIP_SMS,
    FEWEST,
    ROWS,
    WgmmaTile,
    adapts,
    makes_rows,
    promotes,
    runs_on_wgmma,
    shares_of,
    sums_are_long,
    tile_of,
    turns,
)
from ptxgen.attention.prefill.wgmma.workspace.rows_16bit import counters
from ptxgen.attention.prefill.wgmma.workspace.transposed_values import turned_values
from ptxgen.attention.prefill.wgmma.workspace.worth import is_worth_it, tile_rows
from ptxgen.attention.problem import Problem
from ptxgen.attention.variant import SCALE, SINKS, SOFT_CAP, WINDOW, Variant
from ptxgen.dtypes import DType, bf16, e4m3, f16, f32, s32, u32
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.kernel import KernelType, kernel_type
from ptxgen.launch import Launch, Param, buffer, grid3, scalar, workspace
from ptxgen.spec.cache_fields import (
    CAPACITY,
    HEAD_SCALES,
    INDIRECT,
    KV_DTYPES,
    KV_HEADS,
    PAGE_LAYOUT,
    PAGE_SIZE,
    Q_DTYPES,
    RING_ROWS,
    head_rules,
    head_scales_rules,
    place_rules,
)
from ptxgen.spec.fields import field
from ptxgen.targets import target as parse_target

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.kernel import Arrays
    from ptxgen.targets import Target


TARGETS_OF_TILES = ("sm_80", "sm_86", "sm_90", "sm_90a")  # between them tiles have every size that they have anywhere
WIDEST_SPLIT = 256  # elements of rows that a warp of the loop on mma.sync has by itself


def _heads_inside(drawn: Mapping[str, Any]) -> tuple[int, ...]:
    """No heads side by side, those of a KV head, all."""
    heads = drawn.get("n_heads", 1)
    return (0, heads // max(1, drawn.get("n_kv_heads", 1)), heads) if drawn.get("layout") == "heads" else (0,)


@kernel_type
class MultiHeadAttention(KernelType):
    """softmax(scale · q kᵀ) v for every token and head; query head h reads KV head h · n_kv_heads / n_heads.

    `layout="tokens"`: q, out `[n_tokens, n_heads, head_dim]`, k, v `[n_keys, n_kv_heads, head_dim]`; "heads": q, out
    `[n_heads, n_tokens, head_dim]`, k, v `[n_kv_heads, n_keys, head_dim]`, and the scalars q_rows, kv_rows are n_tokens
    and n_keys; with `heads_inside`, "heads" has q, out `[n_heads / heads_inside, n_tokens, heads_inside, head_dim]`,
    as projections write equally long sequences. With `max_len` k and v are caches `[n_kv_heads, max_len, head_dim]` in
    either layout. n_tokens and n_keys are capacities. Only the first q_len tokens and kv_len keys are used; these are
    scalars, or `[1]` in device memory when `indirect`. The grid depends on n_tokens alone.

    `batched`: a ragged batch over caches `[batch, n_kv_heads, max_len, head_dim]`. q, out `[n_tokens, n_heads,
    head_dim]` hold the sequences' tokens one after the other: sequence s has rows q_starts[s] … q_starts[s + 1] and
    kv_lens[s] keys; the scalar n_sequences is the number of sequences. The grid depends on n_tokens and batch.
    `page_size`: caches `[pages, n_kv_heads, page_size, head_dim]` with `page_table [batch, ceil(max_len / page_size)]`,
    in the `page_layout` "nhd" `[pages, page_size, n_kv_heads, head_dim]`. `ring`, with a window: caches have so many
    rows instead of max_len, and key p is in row p % ring; a ring must have at least window + q_len − 1 rows to hold
    the keys of all tokens.

    `causal`: the tokens are the last q_len of kv_len positions, and see the keys up to their own; with `window` only
    the last so many of them. `soft_cap`: scores become cap · tanh(score / cap). `lse`: the natural log of each row's
    sum of exponentials in f32, in the shape of out without head_dim. A row without keys gives zeros, and −inf. 16-bit
    and 8-bit keys go through tensor cores from sm_80 on (q is rounded to the keys' 16-bit type), f32 ones through FMA
    in f32; on sm_90a through wgmma, where q has 16 bits, k and v are of its type or of 8 bits, and head_dim is 16,
    or a multiple of 8 from 24 to 256 (with rings, and with caches of 8 bits that are not `widened`, a multiple of 16
    up to 192). `head_scales`: e4m3 keys and values are multiplied by `k_scale`, `v_scale [n_kv_heads]`, f32.
    int8 caches have k_scales, v_scales `[…, ceil(head_dim /
    32)]` in f16, a scale per 32 values. `fp8` (sm_90a): queries are rounded to e4m3, each row with a power of two as
    its scale, and multiplied with the e4m3 keys directly: for random queries a row of the output is off by some 3 % in
    the 2-norm. Where max_len is given, without pages and rings, probabilities are e5m2, too, and meet the e4m3 values,
    which are first written by element to a workspace: n_kv_heads · max_len · head_dim bytes, of a batch for each
    sequence (head_dim 32 twice that, above 128 a third more). Each launch writes the values that some token sees, even
    for few tokens; with a window these are few, but the workspace is as large. A row is off by some 6 %, with large
    queries 8 %, and lse by some 0.02, where one key has most of the weight by up to 0.4. Tensor cores then add up 1024
    keys at most, and sums in f32 take these. With a head_dim above 128 there are no such sums: with 4096 keys a row is
    off by some 8 % (2 % in place of 0.4 where values have a mean of half their deviation), and lse by 0.04 in the mean,
    as measured with a head_dim of 64 to 128. Without a max_len, and with a head_dim above 128 where a row may see more
    than 4096 keys, values become 16-bit ones instead.
    `widened` (sm_90a, head_dim as with caches of 16 bits, no ring): keys and values of 8 bits that some token sees are
    converted to 16 bits once for all tokens, in workspaces as large as a 16-bit cache of the same shape. It is for many
    tokens (`fastest` decides); the output is that of such a cache, but for rounding with a head_dim of 65 to 96.
    `split_keys` (from sm_80 on, head_dim up to 256, one sequence without a window, not `fp8` or `widened`): where
    tokens are too few for all multiprocessors, CTAs share the keys of a tile of rows, and the last of them merges what
    all have left in a workspace of 1 to 36 MB. It is for few tokens behind many keys (`fastest` decides).
    """

    bundled_as = "prefill"

    head_dim: int
    n_heads: int
    n_kv_heads: int = field(like=KV_HEADS)
    q_dtype: DType = f16
    kv_dtype: DType = f16
    max_len: int = field(default=0, like=CAPACITY)
    layout: str = field(
        default="tokens", doc="order of the axes: tokens (token, head, element) or heads (head, token, element)"
    )
    causal: bool = True
    scale: float | None = field(default=None, like=SCALE)
    soft_cap: float = field(default=0.0, like=SOFT_CAP)
    window: int = field(default=0, like=WINDOW)
    indirect: bool = field(default=False, like=INDIRECT)
    batched: bool = False
    page_size: int = field(default=0, like=PAGE_SIZE)
    lse: bool = False
    sinks: bool = field(default=False, like=SINKS)
    page_layout: str = field(default="hnd", like=PAGE_LAYOUT)
    ring: int = field(default=0, like=RING_ROWS)
    programmatic: bool = False
    head_scales: bool = field(default=False, like=HEAD_SCALES)
    fp8: bool = field(
        default=False, later=True,
        doc="on sm_90a queries become e4m3, a scale a row, and meet e4m3 keys as they are",
    )  # fmt: skip
    widened: bool = field(
        default=False, later=True,
        doc="on sm_90a keys and values of 8 bits become 16-bit ones in workspaces first, once for all tokens",
    )  # fmt: skip
    split_keys: bool = field(
        default=False, later=True,
        doc="from sm_80 on CTAs share the keys of tokens that are too few for all of them, through a workspace",
    )  # fmt: skip
    heads_inside: int = field(
        default=0, later=True, draws=_heads_inside, refuses=(-1,),
        doc="query heads that lie side by side for a token of q and out (layout heads); 0: a head's tokens do",
    )  # fmt: skip

    # −1: as many as there is room for. q_factor: what random queries are multiplied by.
    sizes = {"n_tokens": 40, "n_keys": 40, "batch": 3, "pages": 8, "q_len": -1, "kv_len": -1, "q_factor": 1}
    # Where keys before the tokens are a multiple of 16, wgmma pairs tiles of rows. Queries times 60 take the loops for
    # sums that overflow, on two tiles of keys.
    trials = (
        {"n_tokens": 90, "n_keys": 100}, {"n_tokens": 90, "n_keys": 100, "kv_len": 0},
        {"n_tokens": 90, "n_keys": 160, "q_len": 74, "kv_len": 138, "q_factor": 60}, {"q_len": 21, "kv_len": 37},
    )  # fmt: skip
    golden_targets = ("sm_75", "sm_80", "sm_90", "sm_90a")
    golden_lines = 1800  # on wgmma, which has two loops and two roles
    unreported = {
        r" barrier .*%scan_mine": "does not matter: keeps warps in step, for the assembler",
        r"_batched.* barrier .*%out_at": "orders a warp's lanes, where there are no keys",
        r" wait .*%q\d_empty_over": "does not matter: a CTA has one item; test_prefill_wgmma gives it several",
        r" arrival .*%(q_barrier\+80|k_barrier\+16|v_barrier\+48)": "does not matter: nothing waits for it any more",
        r"sm_90a.* barrier .*bar\.warp\.sync -1; (\$item_end|ld\.param)": "does not matter: the same",
        r"_l4104_fp8 fence .*wgmma\.fence": "registers that were only read since the product before: a GPU needs it",
        r"sm_90a.* fence .*wgmma\.fence": "does not matter: the one before the product with K covers the registers",
        r"_batched.* barrier .*bar\.warp\.sync -1; @%asks": "orders a warp's lanes, which advance together here",
        r"_no_causal_batched.* wait .*%v_full_over": "found in random order: the copying lane waits for the last "
        "box, too",
        r"_(s8|e4m3)_l\d+(_head_scales|_batched_page_size16_fp8)? wait .*%v_full": "does not matter: one for what they "
        "bring later does",
        r"_fp8 wait .*%k_full": "does not matter: the wait for queries, stored later by the same threads, does",
        r"_(s8|e4m3)_l\d+(_head_scales)? wait .*%k_full": "an arrival behind copies is taken for a release here",
        r"_(widened|fp8).* fence .*: fence\.proxy\.async;": "reads by tensor copies have no proxy here",
        r"_(widened|fp8).* barrier .*bar\.warp\.sync -1; (fence\.pr|setp.*counts|mov.*warps_left)": "lanes of a warp",
        r"_fp8.* barrier .*bar\.warp\.sync -1; @%is_first_lane .*q_barrier": "lanes of a warp",
        r"_(widened|fp8).* fence .*fence\.mbarrier_init": "does not matter: fence.proxy.async comes before a copy",
        r"_split_keys barrier .*bar\.warp\.sync -1; .*(%last_part|what other warps left)": "lanes of a warp",
        r" wait .*%[kv]_skipped_over": "does not matter: the other of the pair waits for it, and has its turn first",
    }
    goldens: ClassVar[tuple[Mapping[str, object], ...]] = (
        dict(head_dim=16, n_heads=2, n_kv_heads=1),
        dict(head_dim=8, n_heads=1, n_kv_heads=1, q_dtype=f32, max_len=64, window=20, soft_cap=30.0, indirect=True),
        dict(head_dim=8, n_heads=3, n_kv_heads=1, q_dtype=f32, kv_dtype=f32, layout="heads", causal=False, lse=True),
        dict(head_dim=8, n_heads=2, n_kv_heads=1, kv_dtype="s8", max_len=32, batched=True),
        dict(
            head_dim=8,
            n_heads=1,
            n_kv_heads=1,
            q_dtype=bf16,
            kv_dtype=bf16,
            max_len=40,
            batched=True,
            page_size=16,
            causal=False,
            lse=True,
        ),
        dict(head_dim=16, n_heads=4, n_kv_heads=2, kv_dtype=bf16, q_dtype=bf16, max_len=48, window=20, sinks=True),
        dict(head_dim=8, n_heads=1, n_kv_heads=1, q_dtype=f32, kv_dtype=f32, sinks=True, lse=True),
        dict(head_dim=8, n_heads=2, n_kv_heads=2, max_len=32, batched=True, page_size=16, page_layout="nhd"),
        dict(head_dim=8, n_heads=1, n_kv_heads=1, max_len=200, window=20, ring=64, indirect=True),
        dict(head_dim=16, n_heads=2, n_kv_heads=1, q_dtype=bf16, kv_dtype=bf16, layout="heads", scale=24.0, lse=True),
        dict(head_dim=16, n_heads=2, n_kv_heads=1, max_len=80, batched=True, page_size=16, causal=False),
        dict(head_dim=16, n_heads=4, n_kv_heads=2, kv_dtype="e4m3", max_len=48, head_scales=True),
        dict(head_dim=8, n_heads=1, n_kv_heads=1, programmatic=True),
        dict(head_dim=8, n_heads=1, n_kv_heads=1, q_dtype=f32, kv_dtype=f32, programmatic=True),
        dict(head_dim=16, n_heads=4, n_kv_heads=2, layout="heads", heads_inside=2, lse=True),
        dict(head_dim=16, n_heads=2, n_kv_heads=1, kv_dtype="s8", max_len=48),
        dict(head_dim=32, n_heads=4, n_kv_heads=1, kv_dtype="e4m3", max_len=200, fp8=True),
        dict(
            head_dim=32, n_heads=2, n_kv_heads=1, kv_dtype="e4m3", max_len=80, batched=True, page_size=16, fp8=True,
        ),
        dict(head_dim=32, n_heads=2, n_kv_heads=1, kv_dtype="e4m3", max_len=4104, fp8=True),
        dict(head_dim=16, n_heads=4, n_kv_heads=1, q_dtype=bf16, kv_dtype=bf16, scale=24.0),
        dict(head_dim=16, n_heads=4, n_kv_heads=2, kv_dtype="e4m3", max_len=48, head_scales=True, widened=True),
        dict(
            head_dim=16, n_heads=2, n_kv_heads=1, kv_dtype="s8", max_len=80, batched=True, page_size=16, window=20,
            widened=True,
        ),
        dict(head_dim=24, n_heads=4, n_kv_heads=2, layout="heads"),
        dict(head_dim=16, n_heads=4, n_kv_heads=2, max_len=160, lse=True, split_keys=True),
    )  # fmt: skip

    @property
    def error_limit(self) -> float | None:  # type: ignore[override]
        """Of probabilities in e5m2, whose mantissa has two bits, and of long sums by tensor cores alone."""
        if not turns(self.prefill):
            return None
        return 0.09 if sums_are_long(self.prefill) and not promotes(self.prefill) else 0.07

    def rules(self) -> Iterator[str]:
        yield from rules.multiple_of("head_dim", self.head_dim, 8, 8, 512)
        yield from head_rules(self.n_heads, self.n_kv_heads, 1024)
        yield from rules.one_of("q_dtype", self.q_dtype.name, Q_DTYPES)
        yield from rules.one_of("kv_dtype", self.kv_dtype.name, KV_DTYPES)
        yield from rules.one_of("layout", self.layout, ("tokens", "heads"))
        yield from rules.between("heads_inside", self.heads_inside, 0, 1024)
        if self.heads_inside and self.layout != "heads":
            yield f"heads_inside: needs layout='heads' (got {self.heads_inside}, layout={self.layout!r}; nearest: 0)"
        group = max(1, self.n_heads // max(1, self.n_kv_heads))
        if self.heads_inside and (self.n_heads % self.heads_inside or self.heads_inside % group):
            yield (
                f"heads_inside: must divide n_heads={self.n_heads} and be a multiple of the {group} that share a KV "
                f"head (got {self.heads_inside}; nearest: {self.n_heads})"
            )
        yield from rules.between("max_len", self.max_len, 0, 1 << 30)
        yield from rules.between("window", self.window, 0, 1 << 30)
        if self.window and not self.causal:
            yield f"window: needs causal=True (got window={self.window}, causal=False; nearest: 0)"
        if self.batched and not (self.max_len and self.layout == "tokens"):
            yield f"batched: needs max_len and layout='tokens' (got max_len={self.max_len}, layout={self.layout!r})"
        if self.batched and self.indirect:
            yield "indirect: the lengths of a batch are in device memory already (got indirect=True, batched=True)"
        if self.page_size:
            yield from rules.multiple_of("page_size", self.page_size, 16, 16, 1 << 16)
        if self.page_size and not self.batched:
            yield f"page_size: needs batched=True (got page_size={self.page_size}, batched=False; nearest: 0)"
        yield from place_rules(self.page_size, self.page_layout, self.ring, self.window)
        if self.ring and not self.max_len:
            yield f"ring: needs max_len (got ring={self.ring}, max_len=0; nearest: 0)"
        yield from rules.softmax_factors(self.scale, self.soft_cap)
        yield from head_scales_rules(self.head_scales, self.kv_dtype.name)
        if self.fp8:
            yield from self._fp8_rules()
        if self.widened and (self.kv_dtype.bits != 8 or self.q_dtype.bits != 16 or self.fp8):
            yield (
                f"widened: is of 16-bit queries over keys of 8 bits, without fp8 (got q_dtype={self.q_dtype}, "
                f"kv_dtype={self.kv_dtype}, fp8={self.fp8}; nearest: False)"
            )
        if self.widened and self.ring:
            yield f"widened: takes no ring (got ring={self.ring}, widened=True; nearest: False)"
        if self.split_keys:
            for name in ("batched", "window", "ring", "fp8", "widened"):
                if value := getattr(self, name):
                    yield f"split_keys: takes no {name} (got {name}={value!r}, split_keys=True; nearest: False)"

    def _fp8_rules(self) -> Iterator[str]:
        if self.kv_dtype != e4m3 or self.q_dtype.bits != 16:
            yield (
                f"fp8: is of 16-bit queries over e4m3 keys (got q_dtype={self.q_dtype}, kv_dtype={self.kv_dtype}; "
                "nearest: False)"
            )
        if self.head_dim % 32:
            yield f"fp8: needs a head_dim that is a multiple of 32 (got head_dim={self.head_dim}; nearest: False)"
        if self.soft_cap:
            yield f"fp8: scores have no cap (got soft_cap={self.soft_cap:g}; nearest: False)"

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from problem_rules(self.attention.problem)
        yield from programmatic_rules(self.programmatic, target)
        if self.fp8 and not runs_on_wgmma(self.prefill, target):
            yield f"fp8: needs sm_90a and a head_dim of at most 192 (got {target}, head_dim={self.head_dim})"
        if self.widened and not runs_on_wgmma(self.prefill, target):
            yield (
                f"widened: needs sm_90a and a head_dim of 16, or a multiple of 8 from 24 to 256 (got {target}, "
                f"head_dim={self.head_dim})"
            )
        if self.split_keys and not self._splits_on(target):
            yield (
                f"split_keys: needs sm_80 or later, k and v of 16 or 8 bits and a head_dim of at most {WIDEST_SPLIT} "
                f"(got {target}, kv_dtype={self.kv_dtype}, head_dim={self.head_dim}; nearest: False)"
            )

    @property
    def attention(self) -> Attention:
        """The attention this computes."""
        dims, dtypes = (self.head_dim, self.head_dim), (self.q_dtype, self.kv_dtype)
        problem = Problem(
            self.n_heads, self.n_kv_heads, *dims, *dtypes, queries="n_tokens", by_token=self.layout == "tokens",
            heads_inside=self.heads_inside,
        )  # fmt: skip
        cache = Cache(problem, self.max_len, self.batched, self.page_size, page_layout=self.page_layout, ring=self.ring)
        return Attention(Variant.of(self, self.head_dim), cache)

    def fastest(self, target: Target, tokens: int, keys: int, sequences: int = 1) -> MultiHeadAttention:
        """The same attention, `split_keys` or `widened` where that is to be had and `tokens` queries in all, the last
        of so many `keys` of each sequence, are sooner done so."""
        ways = _ways(self, target)
        best, shared = ways.plain, 1
        if ways.split is not None:
            rows, of_split = tokens * self.n_heads // self.n_kv_heads, ways.split.prefill
            each = ways.mma_rows or tile_rows(of_split, rows)
            shared = ways.split.shares(target).worth(self.n_kv_heads * -(-rows // each), keys)
            best = ways.split if shared > 1 else best
        if ways.wide is None:
            return best
        wider = is_worth_it(ways.wide.prefill, tokens, keys, sequences, shared, ways.mma_rows)
        return ways.wide if wider else best

    # -- parameters and geometry ---------------------------------------------------------------------------------------

    def params(self) -> tuple[Param, ...]:
        attention = self.attention
        problem = attention.problem
        out = [problem.q(), *attention.cache.params(""), *attention.variant.params(problem)]
        out += problem.outputs(lse=self.lse)
        if self.widened:
            rows = attention.cache.extents
            out += [workspace(f"wide_{x}", self.compute_dtype, *rows, self.head_dim) for x in "kv"]
        if turns(self.prefill):
            out.append(turned_values(self.prefill))
        if self.split_keys:
            out += self._records()
        if makes_rows(self.prefill):
            out.append(workspace("widening", u32, counters(self.prefill), align=4, zeroed=True))
        if self.batched:
            starts = buffer("q_starts", s32, "batch + 1", align=4, doc="first token of each sequence, and the end")
            lengths = buffer("kv_lens", s32, "batch", align=4, doc="keys of each sequence, its tokens' own among them")
            return (*out, starts, lengths, scalar("n_sequences", s32, doc="sequences that count"))
        for name, what in (("q_len", "tokens"), ("kv_len", "keys, the tokens' own among them")):
            doc = f"number of {what}"
            out.append(buffer(name, s32, 1, align=4, doc=doc) if self.indirect else scalar(name, s32, doc=doc))
        if not problem.by_token:
            out.append(scalar("q_rows", s32, doc="tokens from head to head of q and out: n_tokens"))
            if not self.max_len:
                out.append(scalar("kv_rows", s32, doc="keys from head to head of k and v: n_keys"))
        return tuple(out)

    def shares(self, target: Target) -> Shares:
        """How CTAs share keys, with `split_keys`."""
        tile = self.tile(target)
        if isinstance(tile, WgmmaTile):
            return shares_of(self.prefill)
        assert isinstance(tile, tiles.TensorTile), "on tensor cores alone"
        return tile.shares(self.head_dim)

    def _records(self) -> Iterator[Param]:
        """What parts of keys leave, and counters of parts, as many as any target needs."""
        each = [self.shares(target) for target in map(parse_target, TARGETS_OF_TILES) if self._splits_on(target)]
        floats = max((one.records * one.warps * one.record_floats for one in each), default=1)
        counters = max((one.ctas * one.warps for one in each), default=1)
        yield workspace("part_records", f32, floats)
        yield workspace("parts_left", u32, counters, align=4, zeroed=True)

    @property
    def scratch_bytes(self) -> int:
        """Bytes that need not begin as zeros, of an attention over one sequence with a `max_len`: what parts of keys
        leave, or 16-bit rows."""
        return sum(p.nbytes({}) for p in self.params() if p.access == "workspace" and not p.zeroed)

    def _splits_on(self, target: Target) -> bool:
        """Whether CTAs can share keys there."""
        return self.tensor(target) and self.head_dim <= WIDEST_SPLIT

    def tensor(self, target: Target) -> bool:
        """Whether tensor cores compute it."""
        return self.kv_dtype != f32 and target.includes_any(("sm_80",))

    @property
    def compute_dtype(self) -> DType:
        """The 16-bit type of q, k, v and the probabilities on tensor cores."""
        if self.kv_dtype.bits == 16:
            return self.kv_dtype
        return self.q_dtype if self.q_dtype.bits == 16 else f16

    @property
    def prefill(self) -> Prefill:
        """The attention, and how rows of tokens come and go."""
        return Prefill(self.attention, self.indirect, self.lse, self.fp8, self.widened, self.split_keys)

    def tile(self, target: Target) -> WgmmaTile | tiles.TensorTile | tiles.SimtTile:
        """What a CTA takes."""
        if runs_on_wgmma(self.prefill, target):
            return tile_of(self.prefill)
        if self.tensor(target):
            beside = tiles.TOLD_BYTES if self.split_keys else 0
            return tiles.tensor_tile(self.head_dim, target, self.kv_dtype.bits == 8, beside)
        return tiles.simt_tile(self.head_dim, target)

    def launch(self, target: Target) -> Launch:
        tile = self.tile(target)
        rows = f"n_tokens * {self.attention.problem.group}" if self.attention.problem.group > 1 else "n_tokens"
        fewest = ROWS * FEWEST if isinstance(tile, WgmmaTile) and adapts(self.prefill) else tile.rows
        tiles_of_rows = f"ceil_div({rows}, {fewest})"
        if self.batched:  # each sequence may leave one tile unfilled
            tiles_of_rows = f"({tiles_of_rows} + batch)"
        ctas = f"{self.n_kv_heads} * {tiles_of_rows}"
        if isinstance(tile, WgmmaTile):
            # those that have no rows of q make rows of keys, or take a part of them
            most = CHIP_SMS if makes_rows(self.prefill) or self.split_keys else f"min({CHIP_SMS}, {ctas})"
            shape, resident = (grid3(most), (tile.threads, 1, 1), tile.shared_bytes), 1
        else:
            least = f"max({ctas}, {self.shares(target).ctas})" if self.split_keys else ctas
            shared, resident = tiles.dynamic(tile.shared_bytes(self.head_dim)), tile.resident
            shape = grid3(least), (tile.threads, 1, 1), shared
        return Launch(*shape, programmatic=self.programmatic, resident=resident)

    def template(self, target: Target) -> str:
        if isinstance(self.tile(target), WgmmaTile):
            return "attention/multi_head_attention_wgmma"
        return f"attention/multi_head_attention_{'tensor' if self.tensor(target) else 'simt'}"

    def build(self, b: Builder) -> None:
        attention, tile = self.attention, self.tile(b.target)
        b.expose(rows=tile.rows, group=attention.problem.group)
        wait_for_producer(b, self.programmatic)
        if isinstance(tile, WgmmaTile):
            wgmma.build(b, self.prefill, tile, self.compute_dtype)
        elif isinstance(tile, tiles.TensorTile):
            TensorLoop(b, self.prefill, tile, self.compute_dtype).build()
        else:
            SimtLoop(b, self.prefill, tile).build()

    # -- example and reference -----------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        tokens, keys = sizes["n_tokens"], sizes["n_keys"]
        return {
            **super().ranges(sizes),
            **dict.fromkeys(("q_len", "q_starts"), (0, tokens)),
            **dict.fromkeys(("kv_len", "kv_lens"), (0, self.max_len or keys)),
            "n_sequences": (0, sizes["batch"]), "page_table": (-1, sizes["pages"] - 1), "q_factor": (1, 1024),
            "q_rows": (tokens, tokens), "kv_rows": (keys, keys),
        }  # fmt: skip

    def past(self, arguments: Arrays) -> lengths.Past:
        return example.past(self.prefill, arguments)

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return example.given(self.prefill, rng, sizes)

    def reference(self, **arguments: Any) -> Arrays:
        """Rows that no token has stay as they are."""
        return example.reference(self.prefill, arguments)


class _Ways(NamedTuple):
    """How an attention may be computed on a target, between which `fastest` chooses; `mma_rows`: rows of a tile where
    `plain` and `split` go through mma.sync."""

    plain: MultiHeadAttention
    split: MultiHeadAttention | None
    wide: MultiHeadAttention | None
    mma_rows: int


@lru_cache(maxsize=256)
def _ways(spec: MultiHeadAttention, target: Target) -> _Ways:
    plain = replace(spec, widened=False, split_keys=False)
    splits = plain._splits_on(target) and not (plain.batched or plain.window or plain.fp8)
    wide = None
    if plain.kv_dtype.bits == 8 and plain.q_dtype.bits == 16 and not (plain.fp8 or plain.ring):
        wide = replace(plain, widened=True)
        wide = wide if runs_on_wgmma(wide.prefill, target) else None
    tile = plain.tile(target)
    mma_rows = tile.rows if isinstance(tile, tiles.TensorTile) else 0
    return _Ways(plain, replace(plain, split_keys=True) if splits else None, wide, mma_rows)
