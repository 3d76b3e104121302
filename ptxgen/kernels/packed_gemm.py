"""Many tokens, packed by PackTokens, times a matrix of packed weights, on wgmma."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxgen.builder.values import Reg
from ptxgen.dtypes import bf16, f16, f32, u8, u32
from ptxgen.errors import SpecError
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.kernel import kernel_type
from ptxgen.launch import Launch, Param, buffer, workspace
from ptxgen.products.problem.reference import drawn_weight, multiplied
from ptxgen.products.problem.rows_given import n_rows_given, n_rows_param, rows_of
from ptxgen.products.wgmma.epilogue.carried import CarriedResults, Carrier
from ptxgen.products.wgmma.epilogue.norms import NormedResults, Roots, squares, squares_shape
from ptxgen.products.wgmma.epilogue.results import Results
from ptxgen.products.wgmma.epilogue.results_16bit import HalfResults, HalfTiles
from ptxgen.products.wgmma.mainloop.codes import CodeMultiplier
from ptxgen.products.wgmma.mainloop.multiplier import Multiplier
from ptxgen.products.wgmma.mainloop.promoted import PromotedMultiplier
from ptxgen.products.wgmma.mainloop.scaled import ScaledMultiplier, products_out_of_range
from ptxgen.products.wgmma.mainloop.skipped_tiles import Passing
from ptxgen.products.wgmma.mainloop.token_block_scales import FactoredMultiplier, FactorFinder
from ptxgen.products.wgmma.mainloop.weight_block_scales import BlockMultiplier
from ptxgen.products.wgmma.producer.all_lanes import LaneCopier
from ptxgen.products.wgmma.producer.elected_lane import ElectedCopier, elects
from ptxgen.products.wgmma.product import PackedProduct
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.rules import field_rules, fit_rules
from ptxgen.products.wgmma.split_k.cluster import ClusterExchange
from ptxgen.products.wgmma.split_k.memory import TURNS, MemoryExchange
from ptxgen.products.wgmma.split_k.sliced import Slices
from ptxgen.products.wgmma.split_k.stream import Streams
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tokens import layout

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target


@kernel_type
class PackedGemm(PackedProduct):
    """out = x · weightᵀ for the first n_rows tokens, few or many, which PackTokens has packed; out f32 `[rows, n]`.

    x `[ceil(rows / tokens), blocks of 64 columns, digits, tokens, 64]`; weight as in Gemm. n_rows is a scalar, or
    `[1]` in device memory when `indirect`; rows from n_rows on are not written. sm_90a.

    `n`: outputs. `k`: inputs. `weights`: the format. `tokens`: of a tile of x. `x_dtype`: of x. `activation`: "", silu,
    gelu_tanh, gelu or relu2. `gated`: out = activation(gate · x) · (up · x).

    `precision`: "fast": x is rounded to x_dtype once, weights of other types become a product of two numbers of it
    (relative error 2-norm below 4e-3, behind relu2 below 6e-3), sums are f32; "exact": x and weights are bf16 digits
    that add up to them (below 1e-6).

    Tokens in e4m3: with `x_dtype` e4m3, for weights in e4m3, x is `[…, blocks of 128 columns, 1, tokens, 128]`. Its
    bytes are multiplied and scales are applied to sums. x_scales f32 are its scales: `[…, 1, tokens]`, or `[…, blocks,
    tokens]` if weights have a scale for each 128 by 128. The latter must be powers of four (or 0 with bytes of 0), as
    PackTokens writes them: products of many tokens read only their upper bytes. Other scales give wrong results there,
    as do products with the weights' scales outside f32's normal range; the reference refuses both. With `row_scales` x
    has one scale a row with such weights, too, which is faster: numbers below 2^-14 of their row's largest lose bits,
    otherwise those below 2^-12 of their block's. Tensor cores add in some 14 bits (error 3e-3 at 14,336 columns;
    rounding x has 2.7e-2). `promoted`: sums of every 128 columns are added in f32 (2e-4), as they must be with block
    scales.

    Tokens in units of their rows: with `by_row`, of K-quants, and of codes without mins, x is f16 in units of its rows
    as PackTokens leaves it, x_scales f32 `[…, 1, tokens]` are the units, and x_sums f16 its sums for formats with mins.
    Codes, of K formats times their scales, are numbers that f16 has exactly ("exact", with two numbers a weight in
    Q6_K; "fast" rounds these to one, 2e-4): only x is rounded, to 22 bits (of what is below 2^-17 of a row's largest to
    2^-39 of that) or to 11 (3e-4). "Exact" products of weights with mins (Q4_K, Q5_K) multiply scale · code − zero,
    where the zero point of 32 columns is near dmin · min / d, and add one more product for d · zero − dmin · min.

    How work is shared out: `share`: CTAs of neighbouring rows copy tokens for each other. `split`: split-K: so many
    CTAs share k and add their sums, as a cluster (2, 3, 4, 8) or with `by_memory` through global memory (2 to 8; where
    clusters find no room). `stream`: stream-K: k of all tiles of at most 64 tokens is divided evenly among CTAs; the
    order of sums then depends on the number of tokens. `slices`: two warpgroups of a CTA have the same 64 rows, each
    its half of k, and add their sums. `last_tiles`: so many of the last tiles of rows are small, of one warpgroup, so
    that a CTA's last tile can be a small one. `last_split`: where the last turn of tiles leaves room for it, so many
    CTAs (2 to 8) share k of each of its tiles and add their sums through global memory (16-bit weights as they lie,
    more than 64 tokens); which tiles these are, and so the order of sums, depends on the number of tokens. `carried`:
    other warps store a tile's results, rows of 16 bits, while the next tile is multiplied. `evict_first`: weights are
    read with that L2 policy.

    Norms: with `norm` "rms" x is tiles as `norm_out` writes them; results are divided by sqrt(mean square + eps) of
    `squares`, before bias. `eps`: added to the mean square. `norm_out`, of at most 64 tokens in bf16: also writes the
    inputs of a product with `norm`: `digits`, tiles of out · (norm_offset + norm_weight), packed like x, of whose
    columns those past n stay as they are, and `out_squares` `[rows, n / 16]`, sums of squares of out over 16 columns.
    """

    sizes = {"rows": 7, "n_rows": -1}  # -1: all
    trials = ({}, {"rows": 17, "n_rows": 3})  # and tiles without a token
    lowest_target = "sm_90a"
    golden_targets = ("sm_90a",)
    golden_lines = 1150  # the weights of a tile of 256 columns, twice for gate and up
    early = ("weight",)
    unreported = {
        r"/n256_k1152_.* wait .*griddepcontrol": "does not matter: that warp reads only scales of weights",
        r" arrival .*%(released|their)_bell": "does not matter: nothing waits for the stage again",
        r"/n(40|44|52|66|140|256_k512)_.* arrival .*%full_bell": "does not matter: k ends before the ring's first wait",
        r"/n(128|130|140|250|256|40|44|48|68|80)_.* wait .* %is_empty": "does not matter: k ends before the ring turns",
        r"/n(52|56|64|66|76|78|88|512)_.* wait .* %is_empty": "does not matter: k ends before the ring turns",
        r"/n(130|34|72|78)_.* wait .*wgmma.wait_group": "does not matter: sums of every second part wait for all "
        "groups",
        r"/n128_k384_.* wait .*wgmma.wait_group": "does not matter: the turn passes earlier, or no product is open",
        r"/n(250|256|76|88)_.* wait .*wgmma.wait_group": "does not matter: k is one stage, no product is open before, "
        "or the wait behind the last stage follows",
        r"/n(44|48|52)_.* wait .*wgmma.wait_group": "does not matter: a tile's last part has waited for all products",
        r"/n88_.* barrier .*bar.warp.sync.*st.global.u32 .%given_at": "found in random order",
        r"/n52_.*weights_q[45]_k.* fence .*wgmma.fence": "does not matter: fragments are older than the fence before",
        r"/n128_k768_.* fence .*wgmma.fence": "sums were only read since the fence before, or not even that",
        r"/n(128_k768|256|60|512|68|44_k1024_weights_e4m3).* option: (split|tile_rows)=": "does not matter: the table "
        "says the same",
        r" barrier .*bar.warp.sync.*%tells_factors": "check mode takes a release for the warp's, not the lane's",
        r"/n(68|80)_.* barrier .*warp.sync.*red.release": "check mode takes a release for the warp's, not the lane's",
        r"/n88_.* barrier .*bar.warp.sync.*st.release": "check mode takes a release for the warp's, not the lane's",
        r" wait .*barrier.cluster.wait": "found in random order",
        r" barrier .*barrier.cluster.arrive": "does not matter: a warp that has ended counts as one that has arrived",
        r"/n(68|80)_.* barrier .*bar.warp.sync.*%resets": "found in random order",
        r"/n80_.* barrier .*%meeting, 128; ld.shared": "does not matter: of a shared tile no CTA has these tokens",
        r" barrier .*%meeting, 128; (add.u32 %tile,|mov.u32 %places_again)": "does not matter: no "
        "CTA of a golden has a second tile",
        r"/n(56|192)_.* (barrier .*%held_word0|arrival .*bar.arrive %left_full)": "does not matter: no CTA of a golden "
        "has a second tile",
        r" (barrier .*roots_free_end|arrival .*bar.arrive 6,)": "does not matter: no CTA of a golden has a second tile",
        r"/n512_.* barrier .*%is_first_slice": "does not matter: no CTA of a golden has a second tile",
        r" barrier .*before the next tile": "does not matter: no CTA of a golden has a second tile",
        r"/n(40|44|48|52|66|78|140)_.* barrier .*a phase behind": "does not matter: k ends before the ring's "
        "first wait",
    }
    goldens = (
        dict(n=128, k=256, tokens=8, precision="fast"),
        dict(n=66, k=512, tokens=16, precision="fast", residual=True, indirect=True, programmatic=True),
        dict(n=130, k=64, tokens=8, activation="silu", gated=True),
        dict(n=256, k=64, tokens=8, precision="fast", activation="silu", gated=True, packed_out=True),
        dict(n=250, k=64, tokens=192, precision="fast"),
        dict(n=388, k=512, tokens=128, precision="fast", out_dtype="bf16", tile_rows=192, share=2),
        dict(n=76, k=64, tokens=32, precision="fast", bias=True, out_dtype="bf16", tile_rows=128),
        dict(n=88, k=256, tokens=64, precision="fast", out_dtype="bf16", stream=True),
        dict(n=140, k=512, tokens=8, precision="fast", split=2, share=2, programmatic=True),
        dict(n=68, k=256, tokens=8, precision="fast", out_dtype="bf16", tile_rows=64, split=3, by_memory=True),
        dict(
            n=80, k=512, tokens=96, precision="fast", out_dtype="bf16", tile_rows=64, last_split=3, programmatic=True,
        ),
        dict(n=56, k=128, tokens=96, precision="fast", out_dtype="bf16", carried=True, evict_first=True),
        dict(n=60, k=1536, tokens=16, precision="fast", tile_rows=64, split=1, slices=2, programmatic=True),
        dict(n=192, k=1024, tokens=96, precision="fast", out_dtype="bf16", carried=True, last_tiles=1),
        dict(
            n=256, k=512, tokens=8, precision="fast", residual=True, norm_out=True, norm_offset=1.0, split=2,
            programmatic=True,
        ),
        dict(n=78, k=1024, tokens=8, norm="rms", bias=True, indirect=True),
        dict(
            n=512, k=512, tokens=16, precision="fast", norm="rms", activation="silu", gated=True, packed_out=True,
            tile_rows=128, split=1, slices=2,
        ),
        dict(
            n=40, k=1024, weights="e4m3_block", tokens=8, precision="fast", bias=True, indirect=True, programmatic=True,
        ),
        dict(
            n=34, k=2048, weights="e4m3_block", tokens=16, x_dtype="e4m3", precision="fast", split=1, programmatic=True,
        ),
        dict(
            n=72, k=2048, weights="e4m3_channel", tokens=64, x_dtype="e4m3", precision="fast", split=1,
            out_dtype="bf16", promoted=True,
        ),
        dict(n=36, k=2048, weights="e4m3", tokens=8, x_dtype="e4m3", precision="fast", split=1),
        dict(n=128, k=384, weights="e4m3_block", tokens=16, x_dtype="e4m3", precision="fast", tile_rows=128),
        dict(
            n=256, k=1152, weights="e4m3_block", tokens=96, x_dtype="e4m3", precision="fast", split=1,
            programmatic=True,
        ),
        dict(n=128, k=768, weights="e4m3_block", tokens=192, x_dtype="e4m3", precision="fast", split=1),
        dict(n=128, k=1152, weights="e4m3_block", tokens=96, x_dtype="e4m3", precision="fast", row_scales=True),
        dict(n=64, k=2304, tokens=16, precision="fast", out_dtype="bf16", programmatic=True),
        dict(n=52, k=1024, weights="q4_k", tokens=8, x_dtype="f16", by_row=True, split=1, programmatic=True),
        dict(n=52, k=512, weights="q5_k", tokens=8, x_dtype="f16", by_row=True, split=1),
        dict(n=44, k=1024, weights="q6_k", tokens=8, x_dtype="f16", by_row=True, split=2),
        dict(n=52, k=1024, weights="int4_g128", tokens=8, x_dtype="f16", by_row=True, split=1),
        dict(n=44, k=512, weights="q8_0", tokens=8, x_dtype="f16", by_row=True, split=2),
        dict(n=44, k=1024, weights="e4m3_block", tokens=8, x_dtype="f16", by_row=True, split=2, programmatic=True),
        dict(
            n=48, k=512, weights="q4_k", tokens=32, x_dtype="f16", by_row=True, precision="fast", activation="silu",
            gated=True, tile_rows=256,
        ),
    )  # fmt: skip

    def rules(self) -> Iterator[str]:
        found = list(field_rules(self))
        yield from found or fit_rules(self)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)
        if not target.includes_any(("sm_90a",)):
            yield f"wgmma: needs sm_90a (got {target}; nearest: sm_90a)"

    @classmethod
    def best(cls, rows: int, **fields: Any) -> PackedGemm:
        """A spec with these fields whose tiles are likely the fastest for so many rows: `tokens` unless it is among the
        fields, and so `tile_rows`, `split`, `by_memory`, `share`, `stream`, `slices`, `carried`, `evict_first`,
        `last_tiles`, `last_split`. PackTokens needs the same `tokens`. Raises `SpecError` where there is none.

        Tiles are for 132 multiprocessors. With `stream`, `by_memory` or `last_split` a launch is refused where not all
        of its CTAs are resident at once: on a GPU with fewer multiprocessors give `stream=False, by_memory=False,
        last_split=0`."""
        from ptxgen.products.wgmma.cost_model.choice import best

        return best(cls, fields, rows)

    def params(self) -> tuple[Param, ...]:
        kind, wide, at = self.kind, 16 if self.n % 4 == 0 else 4, Geometry.of(self)
        out = [buffer("x", self.x_dtype, *layout.shape(self.k, self.tokens, self.digits, self.x_dtype), align=128)]
        if self.scaled or self.by_row:
            scales = layout.scale_shape(self.k, self.tokens, self.x_group)
            doc = "powers of four, or 0: another scale gives wrong results" if self.by_block else ""
            out.append(buffer("x_scales", f32, *scales, align=16, doc=doc))
        if self.beside == "x_sums":
            out.append(buffer("x_sums", f16, *layout.sum_shape(self.k, self.tokens), align=16))
        out.append(buffer("weight", u8, self.parts * kind.records(self.n), kind.record_bytes(self.k)))
        if self.bias:
            out.append(buffer("bias", f32, self.n, align=wide))
        if self.packed_out:
            tiles = layout.shape(self.n, self.tokens, self.digits)
            out.append(buffer("out", self.x_dtype, *tiles, access="out", align=128))
        else:
            align = wide * self.out_dtype.bytes // f32.bytes
            access = "inout" if self.residual else "out"
            out.append(buffer("out", self.out_dtype, "rows", self.n, access=access, align=align))
        if self.norm:
            out.append(buffer("squares", f32, *squares_shape(self.k), align=16))
        if self.norm_out:
            out.append(buffer("norm_weight", f32, self.n, align=wide))
            tiles = layout.shape(self.n, self.tokens, self.digits)
            out.append(buffer("digits", bf16, *tiles, access="out", align=128))
            out.append(buffer("out_squares", f32, *squares_shape(self.n), access="out", align=16))
        if self.stream:
            ctas, threads = at.most_turns * at.shape.share, 32 * at.warps
            out.append(workspace("partial_sums", f32, ctas, at.shape.blocks * self.tokens // 2, threads))
            out.append(workspace("given", u32, ctas, at.warps, align=4, zeroed=True))
        if self.by_memory or self.last_split:
            split, threads, each = at.shape.sharers, 32 * at.warps, at.shape.blocks * at.shared_tokens // 2
            most = TURNS * at.most_turns if self.by_memory else at.most_shared
            clusters = f"min(ceil_div(rows, {self.tokens}) * {at.row_groups}, {most})"
            out.append(workspace("partial_sums", f32, clusters, at.takers, split, each, threads))
            out.append(workspace("given", u32, clusters, split, at.warps, align=4, zeroed=True))
        out.append(n_rows_param(self.indirect))
        return tuple(out)

    def launch(self, target: Target) -> Launch:
        at = Geometry.of(self)
        tiles = f"ceil_div(rows, {self.tokens}) * {at.row_groups // at.shape.share}"
        split, share = at.shape.split, at.shape.share
        grid = f"{tiles} * {split}" if at.shape.in_cluster else f"min({tiles}, {at.most_turns})"
        if self.by_memory:
            grid = f"{grid} * {split}"
        if self.last_split:
            grid = f"min({tiles} * {self.last_split}, {at.most_turns})"
        if self.stream:
            grid = f"{at.most_turns}"
        if share > 1:
            grid = f"{grid} * {share}"
        block, cluster = (at.threads, 1, 1), (split * share if at.shape.in_cluster else share, 1, 1)
        resident = 1 if at.exact else at.shape.resident  # digits of weights take registers
        resident = resident if resident > 1 or at.wide else 0  # warps that exchange registers need to know of all
        together = self.stream or self.by_memory or self.last_split > 0
        return Launch((grid, 1, 1), block, at.shared, cluster, self.programmatic, resident, together=together)

    def build(self, b: Builder) -> None:
        at = Geometry.of(self)
        rows = NormedResults if self.norm_out else Results
        b.without("ask_early")
        self.build_with(b, rows if not at.halves else HalfTiles if self.packed_out else HalfResults)

    def build_with(self, b: Builder, results_of: Callable[..., Results | HalfResults], releases: bool = True) -> None:
        """The product, and what becomes of its results; `releases`: the next kernel may start while this one runs."""
        at = Geometry.of(self)
        ring, tasks = Ring(b, at), Tasks(b, self, at)
        tasks.locate()
        ring.make(tasks.takes)
        if at.wide:
            fewer, more = at.shares_of_registers
            with b.fragment("fewer_registers"):
                b.op("setmaxnreg.dec.sync.aligned.u32", fewer)
            with b.fragment("more_registers"):
                b.op("setmaxnreg.inc.sync.aligned.u32", more)
        else:
            b.without("fewer_registers", "more_registers")
        wait_for_producer(b, self.programmatic, releases)
        tasks.build()
        counts_first = self.programmatic and not at.rows_first and not self.indirect
        early = at.early if self.programmatic and (at.rows_first or counts_first) else 0
        copier = ElectedCopier if elects(self, at) else LaneCopier
        copier(b, self, at, ring, early, tasks.has_tile if counts_first else None).build(tasks)
        kind = CodeMultiplier if self.by_row else Multiplier
        if self.scaled:
            kind = PromotedMultiplier if self.promotes else ScaledMultiplier
        if at.pipelined:
            kind = FactoredMultiplier if at.factored else BlockMultiplier
        if at.factored:
            FactorFinder(b, self, at, ring).build(tasks)
        multiplier = kind(b, self, at, ring)
        multiplier.build(tasks)
        if at.shape.last:
            Passing(b, at, multiplier).build()
        if self.stream:
            Streams(b, self, at, tasks).build(multiplier.sums)
        sums: Sequence[Sequence[Reg]] = multiplier.sums
        if at.shape.slices > 1:
            sums = Slices(b, at, ring).build(tasks, sums)
        elif at.shape.sharers > 1:
            exchange = ClusterExchange(b, at, ring) if at.shape.in_cluster else MemoryExchange(b, at)
            sums = exchange.build(tasks, sums)
        if self.norm:
            roots = Roots(b, self, at)
            roots.build(tasks)
            roots.times(sums)
        if at.carried:
            CarriedResults(b, self, at, ring, sums, multiplier.step).build(tasks)
            Carrier(b, self, at, ring).build(tasks)
        else:
            results_of(b, self, at, ring, sums).build(tasks)
        b.expose(
            geometry=at, in_cluster=at.shape.in_cluster, shares_tokens=at.shape.share > 1, counts_first=counts_first,
            finds_tile=not at.carried or self.bias or at.shape.last, others=_others(at), passing=tasks.passes,
        )  # fmt: skip

    # -- example and reference -----------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), "n_rows": (0, sizes["rows"])}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        import numpy as np

        weight = drawn_weight(rng, self.kind, self.n, self.k, self.parts)
        if self.by_block:
            x = layout.uneven(rng, sizes["rows"], self.k, self.x_group)
        else:
            x = rng.standard_normal((sizes["rows"], self.k), np.float32)
        if self.scaled:
            tiles, scales = layout.pack_scaled(x, self.tokens, self.x_dtype, self.x_group)
            given = {"x": tiles, "x_scales": scales}
        elif self.by_row:
            tiles, scales, sums = layout.pack_by_row(x, self.tokens, self.digits)
            given = {"x": tiles, "x_scales": scales} | ({"x_sums": sums} if self.beside else {})
        else:
            given = {"x": layout.pack(x, self.tokens, self.x_dtype, self.digits)}
        if self.norm:
            given["squares"] = squares(x / rng.uniform(0.5, 2.0, self.k).astype(np.float32))
        return given | {"weight": weight, "n_rows": n_rows_given(sizes, self.indirect)}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        count = rows_of(a)
        scales = a["x_scales"] if self.scaled or self.by_row else None
        if self.by_block and (wrong := layout.no_power_of_four(a["x_scales"], count, self.k // self.x_group)):
            raise SpecError(f"PackedGemm.x_scales: must be powers of four, or 0 (got {wrong})")
        if self.by_block and (wrong := products_out_of_range(self, a["x_scales"], a["weight"], count)):
            limits = "must be 0, or at least 2^-126 and below 2^128"
            raise SpecError(f"PackedGemm.x_scales: times the weights' {limits} ({wrong})")
        x = layout.unpack(a["x"], count, self.k, scales, apart=self.by_row)
        if self.norm:
            total = a["squares"][:count].astype(np.float64).sum(1, keepdims=True)
            x = x / np.sqrt(total / self.k + self.eps)
        y = multiplied(self, x, a)
        out = a["out"].copy()
        if self.packed_out:
            tiles = -(-count // self.tokens)
            out[:tiles] = layout.pack(y.astype(np.float32), self.tokens, self.x_dtype, self.digits)
            return {"out": out}
        out[:count] = (y + out[:count].astype(np.float64) if self.residual else y).astype(self.out_dtype.numpy)
        return {"out": out, **(self._beside(out[:count], a) if self.norm_out else {})}

    def _beside(self, rows: np.ndarray, a: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """What a product reads that norms the rows; columns of tiles past the last are not written."""
        import numpy as np

        gains = a["norm_weight"] + np.float32(self.norm_offset)
        digits, squared = a["digits"].copy(), a["out_squares"].copy()
        part = layout.pack(rows * gains, self.tokens, bf16, self.digits)
        every = np.ones((len(part) * self.tokens, self.n), np.float32)
        written = layout.pack(every, self.tokens, bf16, self.digits)[:, :, :1].astype(bool)
        digits[: len(part)] = np.where(written, part, digits[: len(part)])
        squared[: len(rows)] = squares(rows)
        return {"digits": digits, "out_squares": squared}


def _others(at: Geometry) -> str:
    """What the warps beside the copying one do, said behind that."""
    if at.carried:
        return ", one for each warpgroup stores its results"
    if at.roots:
        return ", one finds the roots of the tokens' mean squares"
    return ", three others have nothing to do" if at.wide else ""
