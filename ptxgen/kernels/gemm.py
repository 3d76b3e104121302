"""A few tokens times a matrix of packed weights, with what stands around it in a decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import bf16
from ptxgen.kernel import field, kernel_type
from ptxgen.launch import Extent, Launch, Param
from ptxgen.products.bytes.geometry import SPLITS
from ptxgen.products.compose import build_product
from ptxgen.products.example import multiplied
from ptxgen.products.few.build import build_few
from ptxgen.products.few.geometry import DIGITS, FORMATS, FewRuns, best_split, share_few
from ptxgen.products.mma import TOKENS
from ptxgen.products.product import Product, Tokens
from ptxgen.products.rows_given import n_rows_given, n_rows_param, rows_counted, rows_of
from ptxgen.weights import weight_format

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.products.geometry import Geometry, Runs
    from ptxgen.targets import Target


MOST_ROWS = 1 << 30


@kernel_type
class Gemm(Product):
    """out = x · weightᵀ for the first n_rows tokens of x f32 `[rows, k]`, out f32 `[rows, n]`; otherwise as Gemv.

    Right for any number of tokens and made for 2 to 64. n_rows is a scalar, or `[1]` in device memory when `indirect`;
    rows from there on are neither read nor written. With `split` made for up to 8 tokens: x is brought to shared memory
    once, as bf16 digits, and every weight straight to the tensor cores; a token's result depends on no other.

    `n`: outputs. `k`: inputs. `weights`: the format. `norm`: "" or "rms". `eps`: added to the mean square.
    `norm_offset`: added to the norm's weights. `activation`: "", silu, gelu_tanh, gelu or relu2. `gated`: out =
    activation(gate · x) · (up · x). `precision`, with `split`: "exact" as f32 is, "fast": x, times the norm's weights,
    is rounded to bf16 (relative error 2-norm below 4e-3).
    """

    indirect: bool = field(default=False, doc="n_rows is read from device memory")
    split: int = field(
        default=0, draws=(0, 1, 2), later=True,
        doc="for up to eight tokens: CTAs that share k and add up their sums; 0: for any number of tokens",
    )  # fmt: skip
    precision: str = field(default="exact", later=True)

    sizes = {"rows": 7, "n_rows": -1}  # -1: all
    goldens = (
        dict(n=40, k=72),
        dict(n=16, k=64, weights="bf16", activation="silu", gated=True, residual=True, indirect=True),
        dict(n=33, k=2080, weights="q8_0", bias=True),
        dict(n=20, k=64, weights="f16", norm="rms"),
        dict(n=20, k=256, weights="q4_k"),
        dict(n=20, k=256, weights="q6_k", residual=True),
        dict(n=36, k=2624, weights="bf16", norm="rms", split=1, programmatic=True),
        dict(
            n=16, k=256, weights="bf16", activation="silu", gated=True, residual=True, indirect=True, split=2,
            precision="fast",
        ),
        dict(n=36, k=1536, weights="bf16", norm="rms", norm_offset=1.0, bias=True, split=2),
    )  # fmt: skip

    golden_targets = ("sm_75", "sm_90")
    golden_lines = 1350  # a tile of 256 columns for several tokens
    most_tokens = 4
    tensor_tokens = TOKENS
    group_axis = "ctaid.y"

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        yield from rules.one_of("split", self.split, (0, *SPLITS))
        yield from rules.one_of("precision", self.precision, tuple(DIGITS))
        if not self.split:
            if self.precision != "exact":
                yield f"precision: is a choice with split (got {self.precision!r}, split=0; nearest: exact)"
            return
        if self.weights not in FORMATS:
            yield f"split: is for weights in {', '.join(FORMATS)} (got {self.weights!r}; nearest: split=0)"
        elif self.k % (self.split * self.kind.tile_k):
            step = self.split * self.kind.tile_k
            yield from rules.multiple_of("k", self.k, step, step, 1 << 17)
        elif not self.runs.fits:
            yield f"k: eight tokens do not fit in shared memory by split={self.split} (got {self.k}; nearest: split=0)"

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from super().target_rules(target)
        if self.split and not target.includes_any(("sm_90",)):
            yield f"split: needs sm_90 or later (got {target}; nearest: 0)"

    @property
    def runs(self) -> FewRuns:
        """How the work is shared out where there are few tokens."""
        return share_few(self.kind.records(self.n), self.parts, self.kind, self.k, self.precision, self.split)

    @classmethod
    def few(cls, **fields: Any) -> Gemm:
        """A spec with these fields for up to eight tokens, whose `split` is likely the fastest. Raises `SpecError`
        where x does not fit in shared memory (`ptxgen.products.few.geometry.takes`)."""
        kind, parts = weight_format(fields["weights"]).fitted(fields["k"]), 2 if fields.get("gated") else 1
        split = best_split(kind.records(fields["n"]), parts, kind, fields["k"], fields["precision"])
        return cls(**fields, split=split)

    def bundle_name(self, role: str) -> str:
        return f"{super().bundle_name(role)}_rows"

    def row_extent(self) -> Extent:
        return "rows"

    def on_tensor_cores(self, target: Target) -> bool:
        return self.weights != "f32" and target.includes_any(("sm_80",))

    def grid(self, at: Geometry | Runs) -> tuple[Extent, Extent, Extent]:
        """CTAs of the same weights are neighbours."""
        return (f"ceil_div(rows, {at.tokens})", at.ctas, 1)

    def params(self) -> tuple[Param, ...]:
        return (*super().params(), n_rows_param(self.indirect))

    def geometry(self, target: Target) -> Geometry | Runs:
        return self.runs if self.split else super().geometry(target)

    def launch(self, target: Target) -> Launch:
        if not self.split:
            return super().launch(target)
        at = self.runs
        grid = (at.ctas * at.split, f"ceil_div(rows, {at.tokens})", 1)
        return Launch(grid, (at.threads, 1, 1), at.shared, (at.split, 1, 1), programmatic=self.programmatic)

    def template(self, target: Target) -> str:
        return "few" if self.split else super().template(target)

    def build(self, b: Builder) -> None:
        if self.split:
            build_few(b, self, self.runs)
        else:
            build_product(b, self)

    def tokens_of(self, b: Builder, at: Geometry) -> Tokens:
        with b.fragment("rows", "this CTA's first row of x, and how many rows there are"):
            cta = b.op("mov.u32", "cta_of_rows", b.special("ctaid.x"))
            group = b.op("min.u32", "row_group", cta, MOST_ROWS // at.tokens)
            first = b.op("mul.lo.u32", "first_row", group, at.tokens)
            return Tokens(first, rows_counted(b, self.indirect, "n_rows_given"))

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {**super().given(rng, sizes), "n_rows": n_rows_given(sizes, self.indirect)}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        count = rows_of({"n_rows": a.pop("n_rows")})
        out = a["out"].copy()
        inside = {name: value[:count] if name in ("x", "out") else value for name, value in a.items()}
        if self.precision == "fast":
            out[:count] = self._rounded(inside)
        else:
            out[:count] = super().reference(**inside)["out"]
        return {"out": out}

    def _rounded(self, a: Mapping[str, Any]) -> np.ndarray:
        """The same of x that is rounded to bf16 behind the norm's weights and before its root."""
        import numpy as np

        x = a["x"]
        root = np.ones((len(x), 1))
        if self.norm:
            root = np.sqrt(np.mean(x.astype(np.float64) ** 2, 1, keepdims=True) + self.eps)
            x = x * (a["norm_weight"] + np.float32(self.norm_offset))
        y = multiplied(self, x.astype(bf16.numpy).astype(np.float64) / root, a)
        return y + a["out"].astype(np.float64) if self.residual else y
