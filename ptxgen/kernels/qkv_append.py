"""Queries, keys and values of a token in one launch: the products, the rotation, and the append to the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths, rules
from ptxgen.attention.cache import CAPACITY, KV_HEADS, RING_ROWS
from ptxgen.dtypes import DType, f32
from ptxgen.idioms import kv_cache
from ptxgen.idioms import rope as rotary
from ptxgen.idioms.rotating_rows import PRECISE, ROPE_FIELDS
from ptxgen.kernel import KernelType, Spread, kernel_type
from ptxgen.kernels.gemv import Gemv
from ptxgen.launch import Launch, Param, buffer
from ptxgen.products.heads import HeadsEpilogue
from ptxgen.products.product import input_rules
from ptxgen.spec.fields import field
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.products.geometry import Geometry
    from ptxgen.targets import Target
    from ptxgen.weights.format import WeightFormat


@kernel_type
class QkvAppend(KernelType):
    """q = rotated, and the rotated k, and v, appended to every KV head's cache: heads of weight · x, for one token.

    x f32 `[1, k]`; weight packed `[(n_heads + 2 n_kv_heads) · head_dim, k]`: rows of q, then of k, then of v; q f32
    `[1, n_heads, head_dim]`; caches `[n_kv_heads, max_len or ring, head_dim]`; position s32 `[1]`. The norm before it
    and the bias are `Gemv`'s, and so is its exactness. The first `rotary_dim` elements of a head of q and k rotate in
    pairs of neighbours; the rotation is `Rope`'s of style "norm". A position outside the cache writes nothing.

    `k`: inputs. `weights`: the format (`ptxgen.weights`). `norm`: "" or "rms". `eps`: added to the mean square.
    `norm_offset`: added to the norm's weights (1 for Gemma).
    """

    max_len: int = field(like=CAPACITY)
    head_dim: int
    n_heads: int
    n_kv_heads: int = field(like=KV_HEADS)
    k: int
    weights: str = "f16"
    kv_dtype: DType = f32
    norm: str = ""
    eps: float = field(default=1e-6, silent="beside squares about 1 it is less than a comparison tells")
    norm_offset: float = 0.0
    bias: bool = field(default=False, doc="a vector is added to every row")
    rope: ClassVar[Spread] = ROPE_FIELDS
    precise: bool = field(default=False, like=PRECISE)
    programmatic: bool = False
    ring: int = field(default=0, like=RING_ROWS)

    sizes = {"position": -1}  # -1: one at random
    goldens = (
        dict(max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=64, norm="rms", programmatic=True),
        dict(
            max_len=64, head_dim=48, n_heads=2, n_kv_heads=1, k=256, weights="q4_k", kv_dtype="f16", rotary_dim=16,
            bias=True, precise=True, ring=32,
        ),
    )  # fmt: skip
    golden_targets = ("sm_75", "sm_90")

    # what a cache's idioms, a rotation and the template ask of a spec
    batched, indirect, page_size, page_layout = False, True, 0, "hnd"
    style, gated = "norm", False

    def rules(self) -> Iterator[str]:
        yield from kv_cache.cache_rules(self)
        if self.kv_dtype.name == "s8":
            yield "kv_dtype: must be one of f32, f16, bf16, e4m3 (got s8)"
        yield from rules.multiple_of("head_dim", self.head_dim, TILE_ROWS, TILE_ROWS, 512)
        yield from rules.between("n_heads", self.n_heads, 1, 1024)
        yield from rules.divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        yield from self.rotation.rules()
        yield from input_rules(self.k, self.weights, self.norm, self.eps, self.norm_offset)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from self.product.target_rules(target)

    @property
    def product(self) -> Gemv:
        """The product alone."""
        return Gemv(
            n=self.n, k=self.k, weights=self.weights, norm=self.norm, eps=self.eps, norm_offset=self.norm_offset,
            bias=self.bias, programmatic=self.programmatic,
        )  # fmt: skip

    @property
    def n(self) -> int:
        """Rows of the weights."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim

    @property
    def kind(self) -> WeightFormat:
        """The format of the weights."""
        return self.product.kind

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""
        return rotary.Rotation.of(self)

    def geometry(self, target: Target) -> Geometry:
        """How the work is shared out."""
        return self.product.geometry(target)

    def params(self) -> tuple[Param, ...]:
        given = [param for param in self.product.params() if param.name != "out"]
        q = buffer("q", f32, 1, self.n_heads, self.head_dim, access="out", align=4)
        return (*given, q, *kv_cache.cache_params(self), kv_cache.position_param(False, True))

    def launch(self, target: Target) -> Launch:
        return self.product.launch(target)

    def template(self, target: Target) -> str:
        return "product"

    def build(self, b: Builder) -> None:
        self.product.build_with(b, partial(HeadsEpilogue, heads=self))

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), **lengths.written_rows(self.max_len, False, {**sizes, "rows": 1}, self.ring)}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {**self.product.given(rng, sizes), **kv_cache.given(self, rng, {**sizes, "rows": 1})}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out = {name: a[name].copy() for name in ("k_cache", "v_cache")} | {"q": a["q"].copy()}
        position = int(np.ravel(a["position"])[0])
        if not 0 <= position < self.max_len:
            return out
        given = {name: a[name] for name in ("x", "weight", "norm_weight", "bias") if name in a}
        heads = self.product.reference(out=np.zeros((1, self.n), np.float32), **given)["out"]
        q, k, v = np.split(heads.reshape(1, -1, self.head_dim), np.cumsum((self.n_heads, self.n_kv_heads)), 1)
        positions = np.array([position])
        k = rotary.rotate_rows(self.rotation, k, positions)
        kv_cache.append_rows(self, out, {"k": k, "v": v}, positions, a)
        return {**out, "q": rotary.rotate_rows(self.rotation, q, positions).astype(np.float32)}
