"""One token times a matrix of packed weights, with what stands around it in a decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.kernel import kernel_type
from ptxgen.products.compose import build_product
from ptxgen.products.geometry.runs import ON_TENSOR_CORES
from ptxgen.products.mainloop.columns import columns_of
from ptxgen.products.problem.product import KEPT_FOR_SLOTS, Product
from ptxgen.weights.format import OWN

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.targets import Target


@kernel_type
class Gemv(Product):
    """out = weight · x for one token: x f32 `[1, k]`, out f32 `[1, n]`, weight packed `[n, k]` in a weight format.

    Sums are in a fixed order, and as exact as f32: errors are about 3e-7 of the result. On tensor cores x is split into
    digits (bf16, f16 or bytes: `ptxgen.products.tokens.digits`), and an infinity or NaN in x makes all of out NaN.
    Before the product, with `norm="rms"`: x / sqrt(mean(x²) + eps) · (norm_offset + norm_weight), norm_weight f32
    `[k]`. After it, in this order: `bias` f32 `[n]`, `activation`, for `gated` the product with a second matrix,
    `residual`: out is added to.

    `n`: outputs. `k`: inputs. `weights`: the format (`ptxgen.weights`). `norm`: "" or "rms". `eps`: added to the mean
    square. `norm_offset`: added to the norm's weights (1 for Gemma). `activation`: "", silu, gelu_tanh, gelu or relu2.
    `gated`: out = activation(gate · x) · (up · x); `weight` holds the records of gate and up in turn
    (`ptxgen.weights.order.interleave`).
    """

    sizes = {}

    def build(self, b: Builder) -> None:
        build_product(b, self)

    def on_tensor_cores(self, target: Target) -> bool:
        if self.weights not in ON_TENSOR_CORES or not columns_of(self.kind).takes(self.kind):
            return False
        fits = self.staged_bytes(True) <= target.shared_limit - KEPT_FOR_SLOTS
        return self.k % OWN == 0 and fits and target.includes_any(("sm_80",))

    early = ("weight",)
    unreported = {
        r"/n20_k512_weights_q[56]_k barrier .*%x_digit0": "does not matter: keeps halves apart, for registers"
    }
    goldens = (
        dict(n=40, k=72, programmatic=True),
        dict(n=48, k=512, weights="q4_0", norm="rms", residual=True),
        dict(n=16, k=256, weights="bf16", activation="silu", gated=True),
        dict(n=33, k=128, weights="q8_0", bias=True, activation="gelu"),
        dict(n=16, k=2080, weights="f32", norm="rms", norm_offset=1.0, activation="gelu_tanh"),
        dict(n=80000, k=128, weights="q4_0", residual=True),
        dict(n=20, k=200, weights="bf16"),
        dict(n=20, k=131, weights="e4m3"),
        dict(n=3, k=16640, weights="q4_0"),
        dict(n=40, k=160, weights="q5_0"),
        dict(n=24, k=896, weights="q5_1", norm="rms"),
        dict(n=20, k=256, weights="e4m3_channel"),
        dict(n=150, k=256, weights="e4m3_block"),
        dict(n=16, k=256, weights="int4_g32"),
        dict(n=16, k=128, weights="int4_g64"),
        dict(n=16, k=384, weights="int4_g128"),
        dict(n=20, k=192, weights="q8_0"),
        dict(n=20, k=512, weights="q4_k"),
        dict(n=20, k=512, weights="q5_k"),
        dict(n=20, k=512, weights="q6_k"),
    )
    golden_targets = ("sm_75", "sm_90")
    golden_lines = 1250  # the tiles of a run stand out one by one
