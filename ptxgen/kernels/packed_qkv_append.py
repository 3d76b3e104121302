"""Queries, keys and values of a batch in one launch on wgmma: the products, the rotation, the append to the caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths, rules
from ptxgen.dtypes import DType, bf16, f32
from ptxgen.idioms import kv_cache
from ptxgen.idioms import rope as rotary
from ptxgen.idioms.rotating_rows import PRECISE, ROPE_FIELDS
from ptxgen.kernel import KernelType, Reading, Spread, kernel_type
from ptxgen.kernels.packed_gemm import PackedGemm
from ptxgen.launch import Launch, Param, buffer
from ptxgen.parity import LIMITS
from ptxgen.products.heads import HEADS, head_rules
from ptxgen.products.wgmma.heads import HeadResults
from ptxgen.spec.cache_fields import CAPACITY, PAGE_LAYOUT, PAGE_SIZE, RING_ROWS
from ptxgen.spec.fields import field
from ptxgen.spec.legality import draft

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

# fields of the product that mean here what they mean there
OF_PRODUCT = (
    "k", "weights", "tokens", "x_dtype", "precision", "bias", "norm", "eps", "programmatic", "by_row", "promoted",
    "row_scales", "tile_rows", "split", "share", "stream", "slices", "evict_first",
)  # fmt: skip


@kernel_type
class PackedQkvAppend(KernelType):
    """Compute weight · x, rotate q and k, and append k and v to every KV head's caches, for many tokens, each of a
    sequence of its own.

    x is packed as PackedGemm reads it; weight is packed `[(n_heads + 2 n_kv_heads) · head_dim, k]`: rows
    of q, then of k, then of v, or only those of `heads`, as bias. q f32 `[rows, n_heads, head_dim]`; caches, positions
    `[rows]` and pages as in `KvCacheScatter`. The first `rotary_dim` elements of a head of q and k rotate in pairs of
    neighbours, as in `Rope` with style "norm". A token whose position is outside the cache appends nothing, but its q
    is written. Caches in int8 are refused.

    `k`, `weights`, `tokens`, `x_dtype`, `precision`, `by_row`, `promoted`, `row_scales`, `norm`, `eps`:
    the product, as in PackedGemm. `tile_rows`, `split`, `share`, `stream`, `slices`, `evict_first`: its tiles.
    `heads`: "qkv", "qk" or "v".
    """

    max_len: int = field(like=CAPACITY)
    head_dim: int = field(draws=(16, 48, 64, 128))
    n_heads: int
    n_kv_heads: int
    k: int = field(draws=(256, 512))
    kv_dtype: DType = f32
    weights: str = field(default="bf16", draws=("bf16", "q4_k", "q6_k", "int4_g128", "e4m3_channel"))
    tokens: int = field(default=32, draws=(8, 16, 64))
    x_dtype: DType = bf16
    precision: str = "exact"
    norm: str = field(default="", later=True)
    eps: float = field(default=1e-6, silent="beside squares about 1 it is less than a comparison tells")
    bias: bool = field(default=False, doc="a vector is added to every row")
    rope: ClassVar[Spread] = ROPE_FIELDS
    precise: bool = field(default=False, like=PRECISE)
    programmatic: bool = False
    page_size: int = field(default=0, like=PAGE_SIZE)
    page_layout: str = field(default="hnd", like=PAGE_LAYOUT)
    ring: int = field(default=0, like=RING_ROWS)
    heads: str = field(default="qkv", draws=tuple(HEADS), doc="whose rows these are")
    tile_rows: int = field(default=0, draws=(0, 64, 128))
    split: int = field(default=0, draws=(0, 1, 2))
    share: int = field(default=0, draws=(0, 1, 2))
    stream: bool = field(default=False, later=True)
    slices: int = field(default=1, later=True)
    evict_first: bool = field(default=False, later=True, silent="the executor has no L2")
    by_row: bool = field(default=False, later=True)
    promoted: bool = field(default=False, later=True, silent="the executor adds exactly")
    row_scales: bool = field(default=False, later=True)
    holds: bool = field(
        default=False, silent="it changes when the next kernel starts, not what this one computes",
        doc="the next kernel starts when this one has ended, programmatic or not",
    )  # fmt: skip

    sizes = {"rows": 7, "n_rows": -1, "pages": 8, "position": -1}  # -1: all, and one at random
    trials = ({}, {"rows": 17, "n_rows": 3})  # and tiles without a token
    lowest_target = "sm_90a"
    golden_targets = ("sm_90a",)
    golden_lines = 1150
    unreported = {
        r" wait .*griddepcontrol": "no launch of the trial writes the tokens",
        r" arrival .*%released_bell": "does not matter: nothing waits for the stage again",
        r" arrival .*%full_bell": "does not matter: k ends before the ring's first wait",
        r" wait .*%is_empty": "does not matter: k ends before the ring turns",
        r"_e4m3_channel_.* wait .*wgmma.wait_group": "does not matter: no product is open before, or the wait behind "
        "the last stage follows",
        r"_by_row wait .*wgmma.wait_group": "does not matter: a tile's last part has waited for all products",
        r" barrier .*before the next tile": "does not matter: no CTA of a golden has a second tile",
        r" (barrier .*roots_free_end|arrival .*bar.arrive 6,)": "does not matter: no CTA of a golden has a second tile",
    }
    goldens = (
        dict(
            max_len=100, head_dim=16, n_heads=2, n_kv_heads=1, k=256, tokens=8, weights="e4m3_channel", x_dtype="e4m3",
            precision="fast", ring=64,
        ),
        dict(
            max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=256, tokens=8, precision="fast", norm="rms",
            programmatic=True,
        ),
        dict(
            max_len=100, head_dim=48, n_heads=2, n_kv_heads=1, k=512, tokens=16, kv_dtype="f16", rotary_dim=16,
            bias=True, split=1, page_size=16, precision="fast", programmatic=True, holds=True,
        ),
        dict(
            max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=512, tokens=8, weights="int4_g128", x_dtype="f16",
            by_row=True, heads="v", kv_dtype="e4m3", bias=True, split=1,
        ),
    )  # fmt: skip

    # what a cache's idioms and a rotation ask of a spec
    batched, indirect, style = True, False, "norm"

    def rules(self) -> Iterator[str]:
        yield from head_rules(self)
        yield from rules.one_of("heads", self.heads, tuple(HEADS))
        product: type[KernelType] = PackedGemm
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
        return {"n": len(self.rows_of), **{name: getattr(self, name) for name in OF_PRODUCT}}

    @property
    def product(self) -> PackedGemm:
        """The product alone."""
        return PackedGemm(**self._product_fields())

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""
        return rotary.Rotation.of(self)

    def readings(self, output: str, values: np.ndarray) -> Iterator[Reading]:
        """As exact as the product, the hardware's sine, and in a cache its elements."""
        (of_product,) = self.product.readings("out", values)
        limits = (of_product.limit or 0.0, LIMITS["f32"], LIMITS["f32" if output == "q" else self.kv_dtype.name])
        yield Reading(output, values, max(limits))

    def params(self) -> tuple[Param, ...]:
        q = buffer("q", f32, "rows", self.n_heads, self.head_dim, access="out", align=16)
        given = [param for param in self.product.params() if param.name != "out"]
        queries = [] if self.heads == "v" else [q]
        return (*given, *queries, *kv_cache.cache_params(self), kv_cache.position_param(True, False))

    def launch(self, target: Target) -> Launch:
        return self.product.launch(target)

    def template(self, target: Target) -> str:
        return self.product.template(target)

    def build(self, b: Builder) -> None:
        product = self.product
        b.expose(spec=product)
        product.build_with(b, partial(HeadResults, heads=self, first=self.rows_of.start), releases=not self.holds)

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
        rows, count = len(a["positions"]), int(np.ravel(a["n_rows"])[0])
        given = {param.name: a[param.name] for param in self.product.params() if param.name in a}
        made = np.zeros((rows, self.n), np.float32)
        made[:, own] = self.product.reference(out=made[:, own], **given)["out"]
        q, k, v = np.split(made.reshape(rows, -1, self.head_dim), np.cumsum((self.n_heads, self.n_kv_heads)), 1)
        there = np.arange(rows) < count
        positions = np.where(there, a["positions"], -1).astype(np.int64)
        appended = {"k": rotary.rotate_rows(self.rotation, k, positions), "v": v}
        appended = {name: each for name, each in appended.items() if name in self.heads}
        kv_cache.append_rows(self, out, appended, positions, a)
        if self.heads == "v":
            return out
        rotated = rotary.rotate_rows(self.rotation, q, np.asarray(a["positions"], np.int64)).astype(np.float32)
        return {**out, "q": np.where(there[:, None, None], rotated, a["q"])}
