"""A few tokens times a matrix of packed weights, with what stands around it in a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxgen.kernel import field, kernel_type
from ptxgen.launch import Extent, Param
from ptxgen.products.compose import build_product
from ptxgen.products.mainloop.mma import TOKENS
from ptxgen.products.problem.product import Product, Tokens
from ptxgen.products.problem.rows_given import n_rows_given, n_rows_param, rows_counted, rows_of

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.products.geometry.groups import Geometry
    from ptxgen.products.geometry.runs import Runs
    from ptxgen.targets import Target


MOST_ROWS = 1 << 30


@kernel_type
class Gemm(Product):
    """out = x · weightᵀ for the first n_rows tokens of x f32 `[rows, k]`, out f32 `[rows, n]`; otherwise as Gemv.

    Right for any number of tokens and made for 2 to 64. n_rows is a scalar, or `[1]` in device memory when `indirect`;
    rows from there on are neither read nor written.

    `n`: outputs. `k`: inputs. `weights`: the format. `norm`: "" or "rms". `eps`: added to the mean square.
    `norm_offset`: added to the norm's weights. `activation`: "", silu, gelu_tanh, gelu or relu2. `gated`: out =
    activation(gate · x) · (up · x).
    """

    indirect: bool = field(default=False, doc="n_rows is read from device memory")

    sizes = {"rows": 7, "n_rows": -1}  # -1: all
    early = ("weight",)
    goldens = (
        dict(n=40, k=72),
        dict(n=16, k=64, weights="bf16", activation="silu", gated=True, residual=True, indirect=True),
        dict(n=33, k=2080, weights="q8_0", bias=True),
        dict(n=20, k=64, weights="f16", norm="rms"),
        dict(n=20, k=256, weights="q4_k"),
        dict(n=20, k=256, weights="q6_k", residual=True),
    )

    golden_targets = ("sm_75", "sm_90")
    golden_lines = 1350  # a tile of 256 columns for several tokens
    most_tokens = 4
    tensor_tokens = TOKENS
    group_axis = "ctaid.y"

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

    def build(self, b: Builder) -> None:
        build_product(b, self)

    def tokens_of(self, b: Builder, at: Geometry) -> Tokens:
        with b.fragment("rows", "this CTA's first row of x, and how many rows there are"):
            cta = b.op("mov.u32", "cta_of_rows", b.special("ctaid.x"))
            group = b.op("min.u32", "row_group", cta, MOST_ROWS // at.tokens)
            first = b.op("mul.lo.u32", "first_row", group, at.tokens)
            return Tokens(first, rows_counted(b, self.indirect, "n_rows_given"))

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), "n_rows": (0, sizes["rows"])}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {**super().given(rng, sizes), "n_rows": n_rows_given(sizes, self.indirect)}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        count = rows_of({"n_rows": a.pop("n_rows")})
        out = a["out"].copy()
        inside = {name: value[:count] if name in ("x", "out") else value for name, value in a.items()}
        out[:count] = super().reference(**inside)["out"]
        return {"out": out}
