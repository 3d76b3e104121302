"""What a step in one launch is told: the fields of PersistentStep, and what follows from them alone."""

from __future__ import annotations

import math
from typing import ClassVar

from ptxgen.attention.attention import Attention
from ptxgen.attention.cache import Cache
from ptxgen.attention.problem import Problem
from ptxgen.attention.variant import Variant
from ptxgen.dtypes import DType, f16, f32
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.idioms.rope.rows import ROPE_FIELDS, STYLE
from ptxgen.kernel import KernelType, Spread, field, kernel_base

HEAD_DIMS = (16, 32, 64, 128, 256)


@kernel_base
class Fields(KernelType):
    """The fields of `PersistentStep`, which says what they mean."""

    n_layers: int = field(draws=(1, 2, 3), doc="layers")
    dim: int = field(draws=(64, 96, 192), doc="width of the residual stream")
    hidden: int = field(draws=(64, 160), doc="width of the feed-forward part")
    n_heads: int = field(draws=(8,), refuses=(0,))
    n_kv_heads: int = field(draws=(1, 2, 4), refuses=(-1,))
    head_dim: int = field(draws=HEAD_DIMS, refuses=(100,))
    max_len: int = field(draws=(1, 17, 64, 300), refuses=(-1,))
    vocab: int = field(draws=(50, 256), doc="logits")
    kv_dtype: DType = f16
    weights: str = field(default="bf16", doc="the format of all matrices")
    eps: float = field(
        default=1e-6, doc="added to the mean square", silent="beside squares about 1 it is less than a comparison tells"
    )
    norm_offset: float = field(default=0.0, draws=(0.0, 1.0), doc="added to the norms' weights")
    activation: str = field(default="silu", doc="of the gate")
    embeds: bool = field(default=False, doc="the token's row of `table` is read here, and not given as x")
    bias: bool = field(default=False, doc="q, k and v have a bias")
    style: str = field(default="neox", like=STYLE)
    rope: ClassVar[Spread] = ROPE_FIELDS
    ctas: int = field(
        default=132, draws=(4, 7), silent="it says who computes, not what", doc="CTAs, all of which must run at once"
    )
    split_rows: int = field(
        default=256, draws=(16, 256), silent="it says who computes, not what", doc="positions that one CTA takes alone"
    )
    group_parts: int = field(
        default=1, draws=(1, 2), refuses=(-1,), silent="it says who computes, not what",
        doc="CTAs that share the query heads of a KV head",
    )  # fmt: skip
    shared_bytes: int = field(
        default=232448,
        draws=(232448,),
        silent="it says who computes, not what",
        doc="of shared memory that a CTA may have",
    )

    @property
    def attention(self) -> Attention:
        """The attention of every layer."""
        dims = (self.head_dim, self.head_dim)
        problem = Problem(self.n_heads, self.n_kv_heads, *dims, f32, self.kv_dtype)
        return Attention(Variant(1 / math.sqrt(self.head_dim)), Cache(problem, self.max_len))

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""
        return rotary.Rotation.of(self)

    def op_params(self, index: int) -> tuple[str, str, str]:
        """Names of an op's weight, norm and bias, "" for none."""
        layer, part = divmod(index, 4)
        if layer == self.n_layers:
            return "head", "norm", ""
        names = (
            (f"qkv_{layer}", f"norm_{layer}", f"bias_{layer}" if self.bias else ""), (f"o_{layer}", "", ""),
            (f"gate_up_{layer}", f"mlp_norm_{layer}", ""), (f"down_{layer}", "", ""),
        )  # fmt: skip
        return names[part]
