"""A few tokens, packed by PackDigits, times a matrix of packed weights, on tensor cores of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import bf16, f32, u8
from ptxgen.idioms.programmatic import may_release, programmatic_rules, release_and_wait
from ptxgen.kernel import Reading, field, kernel_type
from ptxgen.launch import Launch, Param, buffer
from ptxgen.products.digits_bf16 import geometry as bf16_geometry
from ptxgen.products.digits_bf16 import layout as bf16_layout
from ptxgen.products.digits_bf16.columns import FewColumns, GroupColumns, SpanColumns
from ptxgen.products.digits_bf16.results import HalfResults, NormedResults
from ptxgen.products.digits_s8 import layout
from ptxgen.products.digits_s8.columns import TokenColumns
from ptxgen.products.digits_s8.geometry import SHAPES, SPLITS, TokenRuns, best, runs_on, share_runs
from ptxgen.products.digits_s8.results import TokenResults
from ptxgen.products.digits_s8.roots import Roots
from ptxgen.products.digits_s8.units import Units
from ptxgen.products.mainloop.stream import Stream
from ptxgen.products.problem.product import Tokens
from ptxgen.products.problem.readings import EXACT, ONE_DIGIT
from ptxgen.products.problem.reference import drawn_weight, multiplied
from ptxgen.products.problem.rows_given import n_rows_given, n_rows_param, rows_counted, rows_of
from ptxgen.products.problem.weighted import Weighted, activation_rules
from ptxgen.weights import weight_format, weight_formats
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg, Shared
    from ptxgen.products.mainloop.columns import Columns
    from ptxgen.targets import Target

FORMATS = (*bf16_geometry.FORMATS, *(name for name in weight_formats() if TokenColumns.takes(weight_format(name))))
MOST_ROWS = 1 << 22
MOST_NORMED = 1 << 16  # outputs with `norm_out`: with more, offsets of digits and squares exceed 32 bits


@kernel_type
class DigitGemm(Weighted):
    """out = x · weightᵀ for the first n_rows tokens, a few, which PackDigits has packed; out f32 `[rows, n]`.

    x `[ceil(rows / 8), units, bytes of a unit]` (`ptxgen.products.digits_s8.layout`); weight as in Gemm. n_rows is a
    scalar, or `[1]` in device memory when `indirect`; rows from n_rows on are not written. Sums over the columns of one
    scale are exact integers; the error of the whole product is about 3e-7. A token's result depends neither on the
    number of tokens nor on their order. sm_90.

    `n`: outputs. `k`: inputs. `weights`: the format. `tokens`: of a CTA. `split`: CTAs of a cluster that share k: with
    bf16 weights evenly, with other weights on bf16 digits so that at most 13 % of their tiles are unused. `share`: CTAs
    of a cluster that copy x for each other (`DigitGemm.best` has all three). `activation`: "", silu, gelu_tanh, gelu or
    relu2. `gated`: out = activation(gate · x) · (up · x). `eps`: added to the mean square.

    With `halves`, and with all formats but K-quants, x is bf16 digits `[ceil(rows / 8), units, elements of a unit]`
    (`ptxgen.products.digits_bf16.layout`), for up to 8 tokens; `precision` "exact" has three digits (error 5e-7),
    "fast" one, which rounds x (2e-3). Units have 64 columns; with K-quants they have 256, and sums of x.

    `packed_out`: out is packed like x, with zeros for tokens of a tile from n_rows on; with sums where weights are
    K-quants, without otherwise, or with `other_kind` the other way round.

    `norm_out`: also writes the inputs of a product with `norm`. `digits` are those of out · (norm_offset +
    norm_weight), packed like x; out_squares `[ceil(rows / 8), 8, n / 16]` are sums of squares of out over 16 columns.
    `norm` "rms": x is such digits. Before bias and activation, results are divided by sqrt(mean square + eps); the mean
    square comes from the sums in `squares` `[ceil(rows / 8), 8, k / 16]`.
    """

    n: int
    k: int = field(draws=(256, 512, 1024))
    weights: str = "q4_k"
    tokens: int = field(default=8, draws=(8, 16))
    bias: bool = field(default=False, doc="a vector is added to every row")
    activation: str = ""
    gated: bool = False
    residual: bool = field(default=False, doc="the residual stream is added")
    split: int = field(default=1, draws=(1, 2), doc="CTAs that share k and add up their sums")
    indirect: bool = field(default=False, doc="n_rows is read from device memory")
    programmatic: bool = False
    precision: str = field(default="exact", later=True)
    packed_out: bool = field(default=False, later=True, doc="out is packed as x is, for the next product")
    norm: str = field(default="", later=True, draws=("", "rms"))
    eps: float = field(default=1e-6, later=True, silent="beside squares about 1 it is less than a comparison tells")
    norm_out: bool = field(default=False, later=True, doc="also writes the inputs of a product with a norm")
    norm_offset: float = field(default=0.0, later=True, doc="added to the norm's weights, with norm_out")
    share: int = field(default=1, later=True, draws=(1, 2), doc="CTAs of a cluster that copy x for each other")
    halves: bool = field(default=False, later=True, doc="x is bf16 digits, as always with formats but K-quants")
    other_kind: bool = field(
        default=False, later=True, doc="what is packed is for weights of the other kind than these"
    )

    sizes = {"rows": 7, "n_rows": -1}  # -1: all
    lowest_target = "sm_90"
    golden_targets = ("sm_90",)
    early = ("weight",)
    unreported = {
        r"/n20_k256_.* barrier .*bar.sync 0; griddepcontrol.wait": "found in random order",
        r"/n(36_k512|64_k256)_.* barrier .*bar.sync 0; mov.u32 %cta_of_rows": "found in random order",
        r"_share2 fence .*mbarrier_init": "the barrier of the cluster tells of the mbarriers, too",
        r" option: tokens=": "does not matter: of how many tokens a CTA has results do not depend",
    }
    golden_lines = 1350  # the tiles of a run stand out one by one
    goldens = (
        dict(n=40, k=512),
        dict(n=20, k=256, weights="q6_k", residual=True, indirect=True, programmatic=True),
        dict(n=36, k=512, weights="q6_k", split=2, tokens=16),
        dict(n=16, k=256, activation="silu", gated=True),
        dict(n=36, k=512, weights="bf16", bias=True, split=2),
        dict(n=64, k=256, weights="bf16", activation="silu", gated=True, precision="fast", packed_out=True),
        dict(n=64, k=256, weights="bf16", packed_out=True, indirect=True),
        dict(n=256, k=256, weights="bf16", residual=True, norm_out=True, norm_offset=1.0, split=2),
        dict(n=2304, k=256, weights="bf16", precision="fast", residual=True, norm_out=True, norm="rms", share=2),
        dict(n=256, k=1024, halves=True, norm="rms", residual=True, norm_out=True, split=2, programmatic=True),
        dict(
            n=256, k=256, weights="q6_k", halves=True, precision="fast", activation="silu", gated=True, packed_out=True
        ),
        dict(n=64, k=512, weights="int4_g128", precision="fast", activation="silu", gated=True, packed_out=True),
        dict(n=64, k=512, weights="e4m3_channel", norm="rms", residual=True, norm_out=True, split=2),
        dict(n=192, k=576, weights="q5_0", norm="rms", residual=True, norm_out=True, split=2),
        dict(n=64, k=256, halves=True, residual=True, norm_out=True, other_kind=True),
        dict(
            n=256,
            k=64,
            weights="q5_0",
            precision="fast",
            activation="silu",
            gated=True,
            packed_out=True,
            other_kind=True,
        ),
    )

    def rules(self) -> Iterator[str]:
        found = list(self._rules_of_fields())
        yield from found
        if found:
            return  # without which there is no geometry
        if self.runs.ctas % self.share:
            yield self._unshared
        if not self.runs.fits:
            if self.of_halves and bf16_geometry.takes(self.kind, self.k, self.precision):
                nearest = bf16_geometry.best_split(
                    self.kind.records(self.n), self.parts, self.kind, self.k, self.precision
                )
                yield f"split: {self.k} inputs do not fit in shared memory (got {self.split}; nearest: {nearest})"
            else:
                yield f"tokens: as many of {self.k} inputs do not fit in shared memory (got {self.tokens}; nearest: 8)"

    def _rules_of_fields(self) -> Iterator[str]:
        yield from rules.between("n", self.n, 1, 1 << 20)
        unit = bf16_geometry.multiple(self.kind, self.k) if self.weights in FORMATS and self.of_halves else layout.UNIT
        yield from rules.multiple_of("k", self.k, unit, unit, 1 << 17)
        yield from rules.one_of("weights", self.weights, FORMATS)
        yield from rules.one_of("tokens", self.tokens, tuple(SHAPES))
        yield from activation_rules(self)
        yield from rules.one_of("split", self.split, tuple(SPLITS))
        yield from rules.one_of("precision", self.precision, tuple(bf16_layout.DIGITS))
        yield from rules.one_of("norm", self.norm, ("", "rms"))
        yield from rules.between("eps", self.eps, 0.0, 1.0)
        yield from rules.between("norm_offset", self.norm_offset, -16.0, 16.0)
        yield from rules.one_of("share", self.share, (1, 2))
        if self.weights in FORMATS:
            yield from self._rules_of_shares()

    def _rules_of_shares(self) -> Iterator[str]:
        """Of weights that are known."""
        if self.split > self.kind.tiles(self.k):
            yield f"split: must be at most {self.kind.tiles(self.k)}, the units of k (got {self.split}; nearest: 1)"
        elif self.of_halves:
            yield from self._rules_of_split()
        if self.of_halves and self.tokens != layout.TOKENS:
            yield f"tokens: with bf16 digits they are 8 (got {self.tokens}; nearest: 8)"
        if not self.of_halves and self.precision == "fast":
            yield f"precision: digits of bytes are exact (got {self.precision!r}; nearest: exact)"
        if self.packed_out:
            yield from self._rules_of_packing()
        if self.other_kind and not (self.packed_out or self.norm_out):
            yield "other_kind: needs packed_out or norm_out (got other_kind=True; nearest: False)"
        yield from self._rules_of_norms()

    def _rules_of_split(self) -> Iterator[str]:
        """Of CTAs that share k of bf16 digits."""
        most, legal = bf16_geometry.most_spare(self.kind, self.k), bf16_geometry.splits(self.kind, self.k)
        if self.split in SPLITS and self.split not in legal:
            tiles = self.kind.tiles(self.k)
            divided = f"a number from {tiles}, the tiles of k, to {tiles + most}" if most else f"the {tiles} tiles of k"
            nearest = max(split for split in legal if split < self.split)
            yield f"split: must divide {divided} (got {self.split}; nearest: {nearest})"

    def _rules_of_norms(self) -> Iterator[str]:
        """Of norms, and of CTAs that share x: what only bf16 digits have."""
        for name, value, nearest in (("norm", self.norm, ""), ("norm_out", self.norm_out, False)):
            if value and not self.of_halves:
                yield f"{name}: needs bf16 digits (got halves=False; nearest: {name}={nearest!r})"
        if self.share > 1 and not (self.of_halves and self.split == 1):
            yield self._unshared
        if self.norm_out:
            yield from self._rules_of_units()
            if self.n > MOST_NORMED:
                yield f"n: with norm_out at most {MOST_NORMED} (got {self.n}; nearest: {MOST_NORMED})"
            if not self.residual:
                yield "norm_out: needs a residual stream (got residual=False; nearest: residual=True)"

    @property
    def _unshared(self) -> str:
        return f"share: needs bf16 digits, split=1 and an even number of CTAs (got {self.share}; nearest: 1)"

    def _rules_of_packing(self) -> Iterator[str]:
        """Of results that are packed."""
        yield from self._rules_of_units()
        if not self.of_halves:
            yield "packed_out: needs bf16 digits (got halves=False; nearest: packed_out=False)"
        if self.residual:
            yield "residual: a packed result is added to nothing (got packed_out=True; nearest: residual=False)"

    def _rules_of_units(self) -> Iterator[str]:
        """Of results in whole units."""
        unit = bf16_layout.columns(sums=self.packs_sums)
        yield from rules.multiple_of("n", self.n, unit, unit, 1 << 20)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)
        if not runs_on(target):
            yield f"target: must be sm_90 or sm_90a (got {target}; nearest: sm_90)"

    @property
    def runs(self) -> TokenRuns:
        """How the work is shared out."""
        records = self.kind.records(self.n)
        if self.of_halves:
            return bf16_geometry.share_few(records, self.parts, self.kind, self.k, self.precision, self.split)
        return share_runs(records, self.parts, self.kind, self.k, self.tokens, self.split)

    @property
    def error_limit(self) -> float | None:  # type: ignore[override]
        """The limit of every digit by itself; trials and recordings compare by `readings`."""
        return ONE_DIGIT if self.packed_out or self.norm_out else EXACT

    def readings(self, output: str, values: np.ndarray) -> Iterator[Reading]:
        if output == "digits" or self.packed_out:
            yield from bf16_layout.readings(output, values, self.digits, EXACT, sums=self.packs_sums)
        else:
            yield Reading(output, values, EXACT)

    @property
    def of_halves(self) -> bool:
        """Whether digits are bf16 numbers."""
        return self.halves or self.weights in bf16_geometry.FORMATS

    @property
    def sums(self) -> bool:
        """Whether bf16 digits of x have its sums beside them."""
        return self.kind.span > 0

    @property
    def packs_sums(self) -> bool:
        """Whether digits that this product leaves do."""
        return self.sums != self.other_kind

    @property
    def digits(self) -> int:
        """How many."""
        return bf16_layout.DIGITS[self.precision] if self.of_halves else layout.DIGITS

    @classmethod
    def best(cls, rows: int, **fields: Any) -> DigitGemm:
        """A spec with these fields whose `tokens`, `split` and `share` are likely the fastest for so many rows. Raises
        `SpecError` where there is none."""
        kind = weight_format(fields["weights"]).fitted(fields["k"])
        if fields.get("halves") or kind.name in bf16_geometry.FORMATS:
            precision, parts = fields.get("precision", "exact"), 2 if fields.get("gated") else 1
            shape = kind.records(fields["n"]), parts, kind, fields["k"], precision
            split = bf16_geometry.best_split(*shape)
            return cls(**fields, split=split, share=bf16_geometry.best_share(bf16_geometry.share_few(*shape, split)))
        runs = best(kind.records(fields["n"]), 2 if fields.get("gated") else 1, kind, fields["k"], rows)
        return cls(**fields, tokens=runs.tokens, split=runs.split) if runs else cls(**fields)

    def params(self) -> tuple[Param, ...]:
        kind, packed = self.kind, bf16_layout.shape(self.n, self.digits, sums=self.packs_sums)
        out = [buffer("x", u8, *layout.shape(self.k), align=16)]
        if self.of_halves:
            out = [buffer("x", bf16, *bf16_layout.shape(self.k, self.digits, sums=self.sums), align=16)]
        out.append(buffer("weight", u8, self.parts * kind.records(self.n), kind.record_bytes(self.k)))
        if self.bias:
            out.append(buffer("bias", f32, self.n, align=4))
        if self.packed_out:
            out.append(buffer("out", bf16, *packed, access="out", align=16))
        else:
            out.append(buffer("out", f32, "rows", self.n, access="inout" if self.residual else "out", align=4))
        if self.norm:
            out.append(buffer("squares", f32, *bf16_layout.squares_shape(self.k), align=16))
        if self.norm_out:
            out.append(buffer("norm_weight", f32, self.n, align=4))
            out.append(buffer("digits", bf16, *packed, access="out", align=16))
            out.append(buffer("out_squares", f32, *bf16_layout.squares_shape(self.n), access="out", align=16))
        out.append(n_rows_param(self.indirect))
        return tuple(out)

    def launch(self, target: Target) -> Launch:
        at = self.runs
        grid = (at.ctas * at.split, f"ceil_div(rows, {at.tokens})", 1)
        block, cluster = (at.threads, 1, 1), (at.split * self.share, 1, 1)
        return Launch(grid, block, at.shared, cluster, programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        kind: Callable[..., TokenResults] = TokenResults
        if self.packed_out:
            kind = partial(HalfResults, sums=self.packs_sums)
        if self.norm_out:
            kind = partial(NormedResults, sums=self.packs_sums, norm_offset=self.norm_offset)
        self.build_with(b, kind)

    def build_with(
        self, b: Builder, results_of: Callable[..., TokenResults], releases: bool | Callable[[Reg, Reg], None] = True
    ) -> None:
        """The product, and what becomes of its results; `releases`: the next kernel may start while this one runs, at
        once, or behind the wait by what a function finds, told of lanes and rows."""
        at, spec = self.runs, self
        units = Units(b, at, self.share)
        stream = Stream(b, spec, at, self._columns(b, at, units.vector))
        stream.locate("ctaid.x", split=at.split)
        requests = stream.request()
        units.make(stream.lane, stream.warp)
        units.clear(stream.thread, stream.rank)
        release_and_wait(b, self.programmatic, releases is True)
        tokens = self._tokens(b, at)
        units.bring(stream.lane, stream.first_of_rank, tokens.first, tokens.rows, self.kind.tiles(self.k))
        may_release(b, self.programmatic, releases, stream.lane, tokens.rows)
        roots = None
        if self.norm:
            roots = Roots(b, self.k, self.eps, at.warps)
            roots.build(stream.lane, stream.warp, tokens)
        else:
            b.without("read_squares")
        results = results_of(b, spec, at, units.vector)
        slots = results.locate(stream)
        turns = stream.build(requests, None, slots)
        units.poll(stream.tile)
        results.build_results(stream, tokens, roots)
        b.expose(
            geometry=at,
            turns=turns,
            again=stream.more,
            joins=results.joins,
            results_repeat=results.turns > 1,
            shares=self.share > 1,
        )

    def _columns(self, b: Builder, at: TokenRuns, vector: Shared) -> Columns:
        if self.of_halves and self.kind.span:
            return SpanColumns(b, self.kind, self.digits, vector)
        if self.of_halves:
            columns = GroupColumns if self.weights in bf16_geometry.GROUPED else FewColumns
            return columns(b, self.kind, self.digits, vector)
        return TokenColumns(b, self.kind, at.groups, vector)

    def _tokens(self, b: Builder, at: TokenRuns) -> Tokens:
        with b.fragment("rows", "this CTA's first token, and how many there are"):
            cta = b.op("mov.u32", "cta_of_rows", b.special("ctaid.y"))
            first = b.op(
                "mul.lo.u32", "first_row", b.op("min.u32", "row_group", cta, MOST_ROWS // at.tokens), at.tokens
            )
            count = rows_counted(b, self.indirect, "n_rows_given")
            return Tokens(first, b.op("min.s32", count, count, MOST_ROWS))

    # -- example and reference -----------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), "n_rows": (0, sizes["rows"])}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        import numpy as np

        weight = drawn_weight(rng, self.kind, self.n, self.k, self.parts)
        x = rng.standard_normal((sizes["rows"], self.k), np.float32)
        squares = {"squares": bf16_layout.squares(x / rng.uniform(0.5, 2.0, self.k).astype(np.float32))}
        return {
            "x": bf16_layout.pack(x, self.digits, sums=self.sums) if self.of_halves else layout.pack(x),
            "weight": weight,
            "n_rows": n_rows_given(sizes, self.indirect),
            **(squares if self.norm else {}),
        }

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        count, out = rows_of(a), a["out"].copy()
        unpacked = partial(bf16_layout.unpack, digits=self.digits, sums=self.sums) if self.of_halves else layout.unpack
        x = unpacked(a["x"], count, self.k)
        if self.norm:
            total = a["squares"].reshape(-1, self.k // TILE_ROWS)[:count].astype(np.float64).sum(1, keepdims=True)
            x = x / np.sqrt(total / self.k + self.eps)
        y = multiplied(self, x, a)
        if self.residual:
            y = y + a["out"][:count].astype(np.float64)
        if self.packed_out:
            packed = bf16_layout.pack(y.astype(np.float32), self.digits, sums=self.packs_sums)
            out[: len(packed)] = packed
        else:
            out[:count] = y.astype(np.float32)
        return {"out": out, **(self._beside(out[:count], a) if self.norm_out else {})}

    def _beside(self, rows: np.ndarray, a: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """What a product reads that norms the rows."""
        import numpy as np

        gains = a["norm_weight"] + np.float32(self.norm_offset)
        found = {"digits": bf16_layout.pack(rows * gains, self.digits, sums=self.packs_sums)}
        found["out_squares"] = bf16_layout.squares(rows)
        for name, packed in found.items():
            whole = a[name].copy()
            whole[: len(packed)] = packed
            found[name] = whole
        return found
