"""What a product of packed tokens is told: the fields of PackedGemm, and what follows from them."""

from __future__ import annotations

from ptxgen.dtypes import DType, bf16, f32
from ptxgen.kernel import field, kernel_base
from ptxgen.products.weighted import Weighted
from ptxgen.products.wgmma import tokens as packed


@kernel_base
class PackedProduct(Weighted):
    """out = x · weightᵀ of packed tokens; see PackedGemm."""

    n: int
    k: int
    weights: str = "bf16"
    tokens: int = field(default=32, draws=(8, 16, 64, 128))
    x_dtype: DType = bf16
    precision: str = "exact"
    bias: bool = field(default=False, doc="a vector is added to every row")
    activation: str = ""
    gated: bool = False
    residual: bool = field(default=False, doc="the residual stream is added")
    packed_out: bool = field(
        default=False,
        draws=lambda drawn: (False, drawn["n"] % packed.PADDED == 0),
        doc="out is packed as x is, for the next product",
    )
    out_dtype: DType = field(default=f32, draws=("f32", "bf16"), doc="element type of out where it is rows")
    tile_rows: int = field(
        default=0, draws=(0, 64, 192, 256), doc="rows of weights of a CTA, gate and up; 0: by a table"
    )
    split: int = field(default=0, draws=(0, 1, 2), doc="CTAs that share k and add up their sums; 0: by a table")
    share: int = field(
        default=0, draws=(0, 1, 2), doc="CTAs of neighbouring rows that bring each other tokens; 0: by a table"
    )
    indirect: bool = field(default=False, doc="n_rows is read from device memory")
    programmatic: bool = False

    @property
    def digits(self) -> int:
        """16-bit numbers that add up to an element of x."""
        return packed.DIGITS[self.precision]
