"""Queries, keys and values of a batch in one launch on wgmma: the products, the rotation, the append to the caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen.dtypes import DType, bf16, f32
from ptxgen.idioms.rope.rows import PRECISE, ROPE_FIELDS
from ptxgen.kernel import Reading, Spread, kernel_type
from ptxgen.kernels.packed_gemm import PackedGemm
from ptxgen.parity import LIMITS
from ptxgen.products.problem.heads import HEADS
from ptxgen.products.problem.qkv_append import AppendedProduct
from ptxgen.products.wgmma.epilogue.qkv_append import HeadResults
from ptxgen.spec.cache_fields import CAPACITY, PAGE_LAYOUT, PAGE_SIZE, RING_ROWS
from ptxgen.spec.fields import field

if TYPE_CHECKING:
    import numpy as np


# fields of the product that mean here what they mean there
OF_PRODUCT = (
    "k", "weights", "tokens", "x_dtype", "precision", "bias", "norm", "eps", "programmatic", "by_row", "promoted",
    "row_scales", "tile_rows", "split", "share", "stream", "slices", "evict_first",
)  # fmt: skip


@kernel_type
class PackedQkvAppend(AppendedProduct):
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
    early = ("weight",)
    unreported = {
        r"(_k(256|512)_.* arrival .*| arrival .*@%arrives .*)%released_bell": "does not matter: nothing waits for the "
        "stage again",
        r"_k(256|512)_.* arrival .*%full_bell": "does not matter: k ends before the ring's first wait",
        r"_k(256|512)_.* wait .*%is_empty": "does not matter: k ends before the ring turns",
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
            max_len=100, head_dim=48, n_heads=2, n_kv_heads=1, k=1536, tokens=16, kv_dtype="f16", rotary_dim=16,
            bias=True, split=1, page_size=16, precision="fast", programmatic=True, holds=True,
        ),
        dict(
            max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=512, tokens=8, weights="int4_g128", x_dtype="f16",
            by_row=True, heads="v", kv_dtype="e4m3", bias=True, split=1,
        ),
    )  # fmt: skip

    product_type, results, q_align = PackedGemm, HeadResults, 16

    def product_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OF_PRODUCT}

    def readings(self, output: str, values: np.ndarray) -> Iterator[Reading]:
        """As exact as the product, the hardware's sine, and in a cache its elements."""
        (of_product,) = self.product.readings("out", values)
        limits = (of_product.limit or 0.0, LIMITS["f32"], LIMITS["f32" if output == "q" else self.kv_dtype.name])
        yield Reading(output, values, max(limits))
