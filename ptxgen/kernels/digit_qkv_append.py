"""Queries, keys and values of a few tokens in one launch: the products, the rotation, and the append to the caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths, rules
from ptxgen.dtypes import DType, f32
from ptxgen.idioms import kv_cache
from ptxgen.idioms import rope as rotary
from ptxgen.idioms.rotating_rows import PRECISE, ROPE_FIELDS
from ptxgen.kernel import KernelType, Spread, kernel_type
from ptxgen.kernels.digit_gemm import DigitGemm
from ptxgen.launch import Launch, Param, buffer
from ptxgen.products.few import geometry as few
from ptxgen.products.few.heads import TokenHeads
from ptxgen.products.heads import HEADS, head_rules
from ptxgen.spec.cache_fields import CAPACITY, PAGE_LAYOUT, PAGE_SIZE, RING_ROWS
from ptxgen.spec.fields import field
from ptxgen.spec.legality import draft

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target


@kernel_type
class DigitQkvAppend(KernelType):
    """Compute weight · x, rotate q and k, and append k and v to every KV head's caches, for a few tokens, each of a
    sequence of its own.

    x is bf16 digits as in DigitGemm; weight is packed `[(n_heads + 2 n_kv_heads) · head_dim, k]`: rows of q, then of k,
    then of v, or only those of `heads`. Norm, bias (of q, k and v), `split`, `share` and precision are DigitGemm's. q
    f32 `[rows, n_heads, head_dim]`; caches, positions `[rows]` and pages as in `KvCacheScatter`. The first
    `rotary_dim` elements of a head of q and k rotate in pairs of neighbours, as in `Rope` with style "norm".
    A token whose position is outside the cache appends nothing, but its q is written.

    `k`: inputs. `weights`: a format of DigitGemm. `heads`: "qkv", "qk" or "v". `norm`: "" or "rms", whose division is
    applied to the results. `eps`: added to the mean square. `precision`: exact or fast, three digits of a number or
    one.
    """

    max_len: int = field(like=CAPACITY)
    head_dim: int = field(draws=(16, 48, 64, 128))
    n_heads: int
    n_kv_heads: int
    k: int = field(draws=(256, 512))
    kv_dtype: DType = f32
    norm: str = field(default="", draws=("", "rms"))
    eps: float = field(default=1e-6, silent="beside squares about 1 it is less than a comparison tells")
    bias: bool = field(default=False, doc="a vector is added to every row")
    rope: ClassVar[Spread] = ROPE_FIELDS
    precise: bool = field(default=False, like=PRECISE)
    split: int = field(default=1, draws=(1, 2), doc="CTAs that share k and add up their sums")
    precision: str = field(default="exact", draws=("exact", "fast"))
    programmatic: bool = False
    page_size: int = field(default=0, like=PAGE_SIZE)
    page_layout: str = field(default="hnd", like=PAGE_LAYOUT)
    ring: int = field(default=0, like=RING_ROWS)
    share: int = field(default=1, draws=(1, 2), doc="CTAs of a cluster that copy x for each other")
    weights: str = field(
        default="bf16", later=True, draws=("bf16", "q4_k", "q5_k", "q6_k", "int4_g128", "e4m3_channel")
    )
    heads: str = field(default="qkv", later=True, draws=tuple(HEADS), doc="whose rows these are")
    holds: bool = field(
        default=False, silent="it changes when the next kernel starts, not what this one computes",
        doc="the next kernel starts when this one has ended, programmatic or not",
    )  # fmt: skip

    sizes = {"rows": 3, "n_rows": -1, "pages": 8, "position": -1}  # -1: all, and one at random
    lowest_target = "sm_90"
    golden_targets = ("sm_90",)
    golden_lines = 1350  # the tiles of a run stand out one by one
    unreported = {
        r"_heads_v barrier .*bar.sync 0; mov.u32 %cta_of_rows": "found in random order",
    }
    goldens = (
        dict(max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=256, norm="rms", programmatic=True),
        dict(
            max_len=100, head_dim=48, n_heads=2, n_kv_heads=1, k=512, kv_dtype="f16", rotary_dim=16, bias=True,
            split=2, page_size=16, precision="fast", programmatic=True, holds=True,
        ),
        dict(max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=256, weights="q5_k", heads="v", bias=True),
    )  # fmt: skip

    # what a cache's idioms and a rotation ask of a spec
    batched, indirect, style = True, False, "norm"

    def rules(self) -> Iterator[str]:
        yield from head_rules(self)
        yield from rules.one_of("heads", self.heads, tuple(HEADS))
        product: type[KernelType] = DigitGemm
        for reason in draft(product, self._product_fields())[1]:
            known = reason.partition(":")[0] in self.__dataclass_fields__
            yield reason if known else f"k: the product's {reason}"

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from self.product.target_rules(target)

    @property
    def n(self) -> int:
        """Rows of q, k and v."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim

    @property
    def rows_of(self) -> range:
        """Which of them these are."""
        ends = [0, (self.n_heads + self.n_kv_heads) * self.head_dim, self.n]
        first, last = HEADS.get(self.heads, HEADS["qkv"])
        return range(ends[first], ends[last])

    def _product_fields(self) -> dict[str, Any]:
        names = ("k", "weights", "norm", "eps", "bias", "split", "precision", "programmatic", "share")
        given = {name: getattr(self, name) for name in names}
        return {"n": len(self.rows_of), "halves": self.weights not in few.FORMATS, **given}

    @property
    def product(self) -> DigitGemm:
        """The product alone."""
        return DigitGemm(**self._product_fields())

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""
        return rotary.Rotation.of(self)

    def params(self) -> tuple[Param, ...]:
        q = buffer("q", f32, "rows", self.n_heads, self.head_dim, access="out", align=4)
        bias = buffer("bias", f32, self.n, align=4)  # of all, whichever these are
        product = [param for param in self.product.params() if param.name != "out"]
        given = [bias if param.name == "bias" else param for param in product]
        queries = [] if self.heads == "v" else [q]
        return (*given, *queries, *kv_cache.cache_params(self), kv_cache.position_param(True, False))

    def launch(self, target: Target) -> Launch:
        return self.product.launch(target)

    def template(self, target: Target) -> str:
        return self.product.template(target)

    def build(self, b: Builder) -> None:
        product = self.product
        b.expose(spec=product)
        product.build_with(b, partial(TokenHeads, heads=self, first=self.rows_of.start), releases=not self.holds)

    # -- example and reference -----------------------------------------------------------------------------------------

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        written = lengths.written_rows(self.max_len, True, sizes, self.ring)
        return {**super().ranges(sizes), **written, "n_rows": (0, sizes["rows"])}

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {**self.product.given(rng, sizes), **kv_cache.given(self, rng, sizes)}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        out: dict[str, np.ndarray] = {name: a[name].copy() for name in ("q", "k_cache", "v_cache") if name in a}
        own = slice(self.rows_of.start, self.rows_of.stop)
        given: dict[str, Any] = {name: a[name] for name in ("x", "weight", "squares", "n_rows") if name in a}
        if self.bias:
            given["bias"] = a["bias"][own]
        made = np.zeros((len(a["positions"]), self.n), np.float32)
        made[:, own] = self.product.reference(out=made[:, own], **given)["out"]
        q, k, v = np.split(made.reshape(len(made), -1, self.head_dim), np.cumsum((self.n_heads, self.n_kv_heads)), 1)
        positions = np.where(np.arange(len(made)) < int(np.ravel(a["n_rows"])[0]), a["positions"], -1).astype(np.int64)
        rows = {"k": rotary.rotate_rows(self.rotation, k, positions), "v": v}
        rows = {name: each for name, each in rows.items() if name in self.heads}
        kv_cache.append_rows(self, out, rows, positions, a)
        if self.heads == "v":
            return out
        there = (np.arange(len(made)) < int(np.ravel(a["n_rows"])[0]))[:, None, None]
        rotated = rotary.rotate_rows(self.rotation, q, np.asarray(a["positions"], np.int64)).astype(np.float32)
        return {**out, "q": np.where(there, rotated, a["q"])}
