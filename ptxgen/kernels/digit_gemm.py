"""A few tokens, packed by PackDigits, times a matrix of packed weights, on tensor cores of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import f32, u8
from ptxgen.idioms import activation as activations
from ptxgen.idioms.programmatic import programmatic_rules, release_and_wait
from ptxgen.kernel import field, kernel_type
from ptxgen.launch import Launch, Param, buffer
from ptxgen.products.bytes import layout
from ptxgen.products.bytes.columns import TokenColumns
from ptxgen.products.bytes.geometry import SHAPES, SPLITS, TokenRuns, best, runs_on, share_runs
from ptxgen.products.bytes.results import TokenResults
from ptxgen.products.bytes.units import Units
from ptxgen.products.example import drawn_weight, multiplied
from ptxgen.products.product import Tokens
from ptxgen.products.rows_given import n_rows_given, n_rows_param, rows_counted, rows_of
from ptxgen.products.stream import Stream
from ptxgen.products.weighted import Weighted
from ptxgen.weights import weight_format, weight_formats

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

FORMATS = tuple(name for name in weight_formats() if TokenColumns.takes(weight_format(name)))
MOST_ROWS = 1 << 22


@kernel_type
class DigitGemm(Weighted):
    """out = x · weightᵀ for the first n_rows tokens, out f32 `[rows, n]`; x as PackDigits leaves it.

    x `[ceil(rows / 8), units, bytes of a unit]` (`ptxgen.products.bytes.layout`); weight as Gemm has it. n_rows is a
    scalar, or `[1]` in device memory when `indirect`; rows from there on are not written. Products of a scale's columns
    are exact integers; of the whole the error is about 3e-7. A token's result depends neither on the number of tokens
    nor on their order. sm_90.

    `n`: outputs. `k`: inputs. `weights`: the format. `tokens`: of a CTA. `split`: CTAs of a cluster that share k
    (`DigitGemm.best` has both). `activation`: "", silu, gelu_tanh, gelu or relu2. `gated`: out = activation(gate · x)
    · (up · x).
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

    norm, eps = "", 0.0  # x is normed when it is packed

    sizes = {"rows": 7, "n_rows": -1}  # -1: all
    lowest_target = "sm_90"
    golden_targets = ("sm_90",)
    unreported = {r"/n20_k256_.* barrier .*bar.sync 0; griddepcontrol.wait": "found in random order"}
    golden_lines = 1350  # the tiles of a run stand out one by one
    goldens = (
        dict(n=40, k=512),
        dict(n=20, k=256, weights="q6_k", residual=True, indirect=True, programmatic=True),
        dict(n=36, k=512, weights="q6_k", split=2, tokens=16),
        dict(n=16, k=256, activation="silu", gated=True),
    )

    def rules(self) -> Iterator[str]:
        found = list(self._rules_of_fields())
        yield from found
        if not found and not self.runs.fits:
            yield f"tokens: as many of {self.k} inputs do not fit in shared memory (got {self.tokens}; nearest: 8)"

    def _rules_of_fields(self) -> Iterator[str]:
        yield from rules.between("n", self.n, 1, 1 << 20)
        yield from rules.multiple_of("k", self.k, layout.UNIT, layout.UNIT, 1 << 17)
        yield from rules.one_of("weights", self.weights, FORMATS)
        yield from rules.one_of("tokens", self.tokens, tuple(SHAPES))
        yield from rules.one_of("activation", self.activation, ("", *activations.KINDS))
        if self.gated and not self.activation:
            yield "gated: needs an activation (got gated=True, activation=''; nearest: activation='silu')"
        if self.gated and self.bias:
            yield "bias: a gated product has none (got bias=True, gated=True; nearest: bias=False)"
        yield from rules.one_of("split", self.split, tuple(SPLITS))
        if self.split > self.k // layout.UNIT:
            yield f"split: must be at most {self.k // layout.UNIT}, the units of k (got {self.split}; nearest: 1)"

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)
        if not runs_on(target):
            yield f"target: must be sm_90 or sm_90a (got {target}; nearest: sm_90)"

    @property
    def runs(self) -> TokenRuns:
        """How the work is shared out."""
        return share_runs(self.kind.records(self.n), self.parts, self.kind, self.k, self.tokens, self.split)

    @classmethod
    def best(cls, rows: int, **fields: Any) -> DigitGemm:
        """A spec with these fields whose `tokens` and `split` are likely the fastest for so many rows. Raises
        `SpecError` where there is none."""
        kind = weight_format(fields["weights"]).fitted(fields["k"])
        runs = best(kind.records(fields["n"]), 2 if fields.get("gated") else 1, kind, fields["k"], rows)
        return cls(**fields, tokens=runs.tokens, split=runs.split) if runs else cls(**fields)

    def params(self) -> tuple[Param, ...]:
        kind = self.kind
        out = [buffer("x", u8, *layout.shape(self.k), align=16)]
        out.append(buffer("weight", u8, self.parts * kind.records(self.n), kind.record_bytes(self.k)))
        if self.bias:
            out.append(buffer("bias", f32, self.n, align=4))
        out.append(buffer("out", f32, "rows", self.n, access="inout" if self.residual else "out", align=4))
        out.append(n_rows_param(self.indirect))
        return tuple(out)

    def launch(self, target: Target) -> Launch:
        at = self.runs
        grid = (at.ctas * at.split, f"ceil_div(rows, {at.tokens})", 1)
        block, cluster = (at.threads, 1, 1), (at.split, 1, 1)
        return Launch(grid, block, at.shared, cluster, programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        at, spec = self.runs, self
        units = Units(b, at)
        stream = Stream(b, spec, at, TokenColumns(b, self.kind, at.groups, units.vector))
        stream.locate("ctaid.x", split=at.split)
        requests = stream.request()
        units.make(stream.lane, stream.warp)
        units.clear(stream.thread, stream.rank)
        release_and_wait(b, self.programmatic)
        tokens = self._tokens(b, at)
        units.bring(stream.lane, stream.first_of_rank, tokens.first, tokens.rows, self.k // layout.UNIT)
        results = TokenResults(b, spec, at, units.vector)
        slots = results.locate(stream)
        turns = stream.build(requests, None, slots)
        units.poll(stream.tile)
        results.build_results(stream, tokens)
        b.expose(geometry=at, turns=turns, again=stream.more, joins=results.joins, results_repeat=results.turns > 1)

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
        return {
            "x": layout.pack(rng.standard_normal((sizes["rows"], self.k), np.float32)),
            "weight": weight,
            "n_rows": n_rows_given(sizes, self.indirect),
        }

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        count, out = rows_of(a), a["out"].copy()
        y = multiplied(self, layout.unpack(a["x"], count, self.k), a)
        if self.residual:
            y = y + a["out"][:count].astype(np.float64)
        out[:count] = y.astype(np.float32)
        return {"out": out}
