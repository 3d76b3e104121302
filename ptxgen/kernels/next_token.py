"""The end of a decode step in one launch: logits, the likeliest token, and the next position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.dtypes import s32, u32, u64
from ptxgen.kernel import KernelType, kernel_type
from ptxgen.kernels.gemv import Gemv
from ptxgen.launch import Launch, Param, buffer, workspace
from ptxgen.products.compose import build_product
from ptxgen.products.epilogue.likeliest import LikeliestEpilogue
from ptxgen.products.problem.product import input_rules
from ptxgen.spec.fields import field

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target


@kernel_type
class NextToken(KernelType):
    """logits = weight · x, and token = the index of the largest of them, the lowest among equals; a NaN counts as
    largest.

    x f32 `[1, k]`, weight packed `[n, k]`, logits f32 `[1, n]`, token s32 `[1]`. The norm before the product is
    `Gemv`'s, and so is its exactness. With `max_len` also position += 1 and length += 1 where 0 ≤ position < max_len;
    both s32 `[1]`. CTAs leave their best in `best` by an atomic maximum; the last to arrive writes the token and leaves
    both workspaces zero.

    `n`: tokens of the vocabulary. `k`: inputs. `weights`: the format (`ptxgen.weights`). `norm`: "" or "rms". `eps`:
    added to the mean square. `norm_offset`: added to the norm's weights (1 for Gemma).
    """

    n: int
    k: int
    weights: str = "f16"
    norm: str = ""
    eps: float = field(default=1e-6, silent="beside squares about 1 it is less than a comparison tells")
    norm_offset: float = 0.0
    max_len: int = field(default=0, doc="positions of the sequence; 0: none is counted")
    programmatic: bool = False

    sizes = {}
    early = ("weight",)
    unreported = {r" fence .*atom.acq_rel": "found by the reductions that come late: a wrong result"}
    goldens = (
        dict(n=40, k=40, max_len=64, programmatic=True),
        dict(n=150, k=40, weights="bf16", norm="rms"),
    )  # fmt: skip
    golden_targets = ("sm_75", "sm_90")

    def rules(self) -> Iterator[str]:
        yield from rules.between("n", self.n, 1, 1 << 20)
        yield from input_rules(self.k, self.weights, self.norm, self.eps, self.norm_offset)
        yield from rules.between("max_len", self.max_len, 0, 1 << 24)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from self.product.target_rules(target)

    @property
    def product(self) -> Gemv:
        """The product of the head, as a kernel of its own."""
        return Gemv(
            n=self.n, k=self.k, weights=self.weights, norm=self.norm, eps=self.eps, norm_offset=self.norm_offset,
            programmatic=self.programmatic,
        )  # fmt: skip

    def params(self) -> tuple[Param, ...]:
        token = buffer("token", s32, 1, access="out", align=4)
        counters = [buffer(name, s32, 1, access="inout", align=4) for name in ("position", "length")]
        met = [workspace("best", u64, 1, align=8, zeroed=True), workspace("arrivals", u32, 1, align=4, zeroed=True)]
        return (*self.product.params(), token, *(counters if self.max_len else ()), *met)

    def launch(self, target: Target) -> Launch:
        return self.product.launch(target)

    def template(self, target: Target) -> str:
        return self.product.template(target)

    def build(self, b: Builder) -> None:
        b.expose(spec=self.product)
        build_product(b, self.product, partial(LikeliestEpilogue, max_len=self.max_len))

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), "position": (0, max(0, self.max_len - 1))}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        import numpy as np

        position = rng.integers(0, max(1, self.max_len), 1, np.int32)
        counters = {"position": position, "length": position + np.int32(1)} if self.max_len else {}
        return {**self.product.given(rng, sizes), **counters}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out = self.product.reference(**a)
        out["token"] = np.argmax(out["out"], axis=1).astype(np.int32)
        if self.max_len:
            step = np.int32(0 <= int(a["position"][0]) < self.max_len)
            out |= {name: a[name] + step for name in ("position", "length")}
        return out
