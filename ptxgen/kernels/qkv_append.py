"""Queries, keys and values of a token in one launch: the products, the rotation, and the append to the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths
from ptxgen.dtypes import DType, f32
from ptxgen.idioms import kv_cache
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.idioms.rope.rows import PRECISE, ROPE_FIELDS
from ptxgen.idioms.threads import ceil_div
from ptxgen.kernel import KernelType, Spread, kernel_type
from ptxgen.kernels.gemv import Gemv
from ptxgen.launch import Launch, Param, buffer
from ptxgen.products.compose import build_product
from ptxgen.products.epilogue.heads import HeadsEpilogue
from ptxgen.products.geometry.groups import Geometry
from ptxgen.products.geometry.runs import Runs, side_by_side
from ptxgen.products.problem.heads import head_rules
from ptxgen.products.problem.product import input_rules
from ptxgen.spec.cache_fields import CAPACITY, RING_ROWS
from ptxgen.spec.fields import field

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target


@kernel_type
class QkvAppend(KernelType):
    """Compute weight · x, rotate q and k, and append k and v to every KV head's cache, for one token.

    x f32 `[1, k]`; weight packed `[(n_heads + 2 n_kv_heads) · head_dim, k]`: rows of q, then of k, then of v; q f32
    `[1, n_heads, head_dim]`; caches `[n_kv_heads, max_len or ring, head_dim]`; position s32 `[1]`. The norm before the
    product, the bias and the precision are `Gemv`'s. The first `rotary_dim` elements of a head of q and k rotate in
    pairs of neighbours, as in `Rope` with style "norm". A position outside the cache means that there is no token:
    nothing is written, not even q.

    With `v_weights` the rows of v are a separate matrix, v_weight; each CTA computes rows of one of the two.

    `k`: inputs. `weights`: the format (`ptxgen.weights`). `norm`: "" or "rms". `eps`: added to the mean square.
    `norm_offset`: added to the norm's weights (1 for Gemma).
    """

    max_len: int = field(like=CAPACITY)
    head_dim: int
    n_heads: int
    n_kv_heads: int
    k: int
    weights: str = "f16"
    kv_dtype: DType = f32
    v_weights: str = field(default="", doc="the format of the rows of v, where it is another one")
    norm: str = ""
    eps: float = field(default=1e-6, silent="beside squares about 1 it is less than a comparison tells")
    norm_offset: float = 0.0
    bias: bool = field(default=False, doc="a vector is added to every row")
    rope: ClassVar[Spread] = ROPE_FIELDS
    precise: bool = field(default=False, like=PRECISE)
    programmatic: bool = False
    ring: int = field(default=0, like=RING_ROWS)

    sizes = {"position": -1}  # -1: one at random
    early = ("weight", "v_weight")
    goldens = (
        dict(max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=64, norm="rms", programmatic=True),
        dict(
            max_len=100, head_dim=48, n_heads=2, n_kv_heads=1, k=64, weights="bf16", kv_dtype="f16", rotary_dim=16,
            bias=True, ring=64,
        ),
        dict(max_len=64, head_dim=16, n_heads=2, n_kv_heads=1, k=40, v_weights="bf16", norm="rms"),
    )  # fmt: skip
    golden_targets = ("sm_75", "sm_90")

    # what a cache's idioms and a rotation ask of a spec
    batched, indirect, page_size, page_layout, style = False, True, 0, "hnd", "norm"

    def rules(self) -> Iterator[str]:
        yield from head_rules(self)
        yield from input_rules(self.k, self.weights, self.norm, self.eps, self.norm_offset)
        if self.v_weights:
            yield from input_rules(self.k, self.v_weights, self.norm, self.eps, self.norm_offset, "v_weights")

    def target_rules(self, target: Target) -> Iterator[str]:
        for product in self.products:
            yield from product.target_rules(target)

    @property
    def n(self) -> int:
        """Rows of all weights."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim

    @property
    def v_first(self) -> int:
        """The first row of v."""
        return (self.n_heads + self.n_kv_heads) * self.head_dim

    @property
    def products(self) -> tuple[Gemv, ...]:
        """The products alone: of all rows, or of q and k, and of v."""
        if not self.v_weights:
            return (self._product(self.n, self.weights),)
        return self._product(self.v_first, self.weights), self._product(self.n - self.v_first, self.v_weights)

    def _product(self, n: int, weights: str) -> Gemv:
        return Gemv(
            n=n, k=self.k, weights=weights, norm=self.norm, eps=self.eps, norm_offset=self.norm_offset,
            bias=self.bias, programmatic=self.programmatic,
        )  # fmt: skip

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""
        return rotary.Rotation.of(self)

    def geometries(self, target: Target) -> tuple[Geometry | Runs, ...]:
        """How the work of each product is shared out: those of two formats have CTAs of the same shape."""
        own = [product.geometry(target, shares_k=not self.v_weights) for product in self.products]
        runs = [at for at in own if isinstance(at, Runs)]
        if len(own) == 1:
            return tuple(own)
        if len(runs) == len(own):
            kinds = [product.kind for product in self.products]
            units = [at.units for at in runs]
            return side_by_side(
                units, kinds, self.k, since_sm_90=target.includes_any(("sm_90",)), programmatic=self.programmatic
            )
        groups = [at for at in own if isinstance(at, Geometry)]
        if runs:  # the other has no tensor cores
            return tuple(replace(at, warps=groups[0].warps) if isinstance(at, Runs) else at for at in own)
        k_warps, row_warps = (min(getattr(at, name) for at in groups) for name in ("k_warps", "row_warps"))
        counts = [ceil_div(product.kind.records(product.n), row_warps) for product in self.products]
        return tuple(
            replace(at, k_warps=k_warps, row_warps=row_warps, groups=count, ctas=count)
            for at, count in zip(groups, counts, strict=True)
        )

    def params(self) -> tuple[Param, ...]:
        first, *rest = self.products
        given = {param.name: param for param in first.params() if param.name != "out"}
        for product in rest:
            of_v = next(param for param in product.params() if param.name == "weight")
            given["v_weight"] = replace(of_v, name="v_weight")
        if self.bias:
            given["bias"] = buffer("bias", f32, self.n, align=4)
        q = buffer("q", f32, 1, self.n_heads, self.head_dim, access="out", align=4)
        return (*given.values(), q, *kv_cache.cache_params(self), kv_cache.position_param(False, True))

    def launch(self, target: Target) -> Launch:
        parts = list(zip(self.products, self.geometries(target), strict=True))
        shared = max(product.shared(target, at) for product, at in parts)
        ctas, at = sum(at.launched for _, at in parts), parts[0][1]
        return Launch((ctas, 1, 1), (at.threads, 1, 1), shared, (at.split, 1, 1), programmatic=self.programmatic)

    def template(self, target: Target) -> str:
        return "qkv_append" if self.v_weights else self.products[0].template(target)

    def build(self, b: Builder) -> None:
        heads = partial(HeadsEpilogue, heads=self)
        if not self.v_weights:
            b.expose(spec=self.products[0])
            build_product(b, self.products[0], heads)
            return
        geometries = self.geometries(b.target)
        first_of_v = geometries[0].ctas
        with b.fragment("which", "the first CTAs take q and k"):
            cta = b.op("mov.u32", "cta", b.special("ctaid.x"))
            b.op("setp.ge.u32", "takes_v", cta, first_of_v)
        b.expose(skeletons={name: f"{product.template(b.target)}.ptx.j2"
                            for name, product in zip(("qk", "v"), self.products, strict=True)})  # fmt: skip
        for name, product, at in zip(("qk", "v"), self.products, geometries, strict=True):
            of_v = name == "v"
            with b.body(name):
                b.expose(spec=product)
                build_product(
                    b, product, partial(heads, first=self.v_first if of_v else 0), at, first_of_v if of_v else 0,
                    weight="v_weight" if of_v else "weight",
                )  # fmt: skip

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        return {**super().ranges(sizes), **lengths.written_rows(self.max_len, False, {**sizes, "rows": 1}, self.ring)}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        first, *rest = self.products
        of_v = dict.fromkeys(("v_weight",), rest[0].given(rng, sizes)["weight"]) if rest else {}
        return {**first.given(rng, sizes), **of_v, **kv_cache.given(self, rng, {**sizes, "rows": 1})}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out = {name: a[name].copy() for name in ("q", "k_cache", "v_cache")}
        position = int(np.ravel(a["position"])[0])
        if not 0 <= position < self.max_len:
            return out
        first, found = 0, []
        for product, weight in zip(self.products, ("weight", "v_weight"), strict=False):
            given = {name: a[name] for name in ("x", "norm_weight") if name in a} | {"weight": a[weight]}
            if self.bias:
                given["bias"] = a["bias"][first : first + product.n]
            found.append(product.reference(out=np.zeros((1, product.n), np.float32), **given)["out"])
            first += product.n
        heads = np.concatenate(found, 1).reshape(1, -1, self.head_dim)
        q, k, v = np.split(heads, np.cumsum((self.n_heads, self.n_kv_heads)), 1)
        positions = np.array([position])
        k = rotary.rotate_rows(self.rotation, k, positions)
        kv_cache.append_rows(self, out, {"k": k, "v": v}, positions, a)
        return {**out, "q": rotary.rotate_rows(self.rotation, q, positions).astype(np.float32)}
