"""Queries, keys and values of a few tokens in one launch: the products, the rotation, and the append to the caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ptxgen import lengths, rules
from ptxgen.dtypes import DType, f32
from ptxgen.idioms.programmatic import release_if_short
from ptxgen.idioms.rope.rows import PRECISE, ROPE_FIELDS
from ptxgen.kernel import Spread, kernel_type
from ptxgen.kernels.digit_gemm import DigitGemm
from ptxgen.launch import Param, buffer
from ptxgen.products.digits_bf16 import geometry as bf16_geometry
from ptxgen.products.digits_bf16.heads import TokenHeads
from ptxgen.products.problem.heads import HEADS
from ptxgen.products.problem.qkv_append import AppendedProduct
from ptxgen.spec.cache_fields import CAPACITY, PAGE_LAYOUT, PAGE_SIZE, RING_ROWS
from ptxgen.spec.fields import field

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg


@kernel_type
class DigitQkvAppend(AppendedProduct):
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
    holds: int = field(
        default=0, draws=(0, 1, 40), silent="it changes when the next kernel starts, not what this one computes",
        doc="the next kernel starts when this one has ended if a sequence is at this position or beyond; 0: in no case",
    )  # fmt: skip

    sizes = {"rows": 3, "n_rows": -1, "pages": 8, "position": -1}  # -1: all, and one at random
    lowest_target = "sm_90"
    golden_targets = ("sm_90",)
    golden_lines = 1350  # the tiles of a run stand out one by one
    early = ("weight",)
    unreported = {
        r"_heads_v barrier .*bar.sync 0; mov.u32 %cta_of_rows": "found in random order",
    }
    goldens = (
        dict(max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=256, norm="rms", programmatic=True),
        dict(
            max_len=100, head_dim=48, n_heads=2, n_kv_heads=1, k=512, kv_dtype="f16", rotary_dim=16, bias=True,
            split=2, page_size=16, precision="fast", programmatic=True, holds=40,
        ),
        dict(max_len=64, head_dim=16, n_heads=4, n_kv_heads=2, k=256, weights="q5_k", heads="v", bias=True),
    )  # fmt: skip

    product_type, results, q_align = DigitGemm, TokenHeads, 4

    def product_fields(self) -> dict[str, Any]:
        names = ("k", "weights", "norm", "eps", "bias", "split", "precision", "programmatic", "share")
        return {"halves": self.weights not in bf16_geometry.FORMATS, **{name: getattr(self, name) for name in names}}

    def releases(self, b: Builder) -> Any:
        return partial(self._release, b) if self.holds else True

    def _release(self, b: Builder, lane: Reg, rows: Reg) -> None:
        release_if_short(b, b.ld_param("positions", "positions_told"), rows, self.holds, lane)

    def rules(self) -> Iterator[str]:
        yield from super().rules()
        yield from rules.between("holds", self.holds, 0, lengths.MOST)

    def params(self) -> tuple[Param, ...]:
        bias = buffer("bias", f32, self.n, align=4)  # of all, whichever these are
        return tuple(bias if param.name == "bias" else param for param in super().params())

    def product_inputs(self, a: Mapping[str, Any]) -> dict[str, Any]:
        given = super().product_inputs(a)
        return {**given, "bias": a["bias"][self.rows_of.start : self.rows_of.stop]} if self.bias else given
