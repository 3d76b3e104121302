"""What a product of packed tokens is told: the fields of PackedGemm, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ptxgen.dtypes import DType, bf16, e4m3, f32
from ptxgen.kernel import Reading, field, kernel_base
from ptxgen.parity import LIMITS, limit_of
from ptxgen.products.problem.readings import EXACT, digit_readings
from ptxgen.products.problem.weighted import Weighted
from ptxgen.products.wgmma.tokens import layout
from ptxgen.weights.e4m3 import BLOCK, E4m3
from ptxgen.weights.f16 import Half

if TYPE_CHECKING:
    import numpy as np

MANY = {"exact": 2 * EXACT, "fast": 4e-3}  # limits of results in f32, twice what is said of them, and as much
SQUARED = 1.5  # how much larger the latter is behind a squared relu, which doubles relative errors


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
        draws=lambda drawn: (False, drawn["n"] % layout.PADDED == 0),
        doc="out is packed as x is, for the next product",
    )
    out_dtype: DType = field(default=f32, draws=("f32", "bf16"), doc="element type of out where it is rows")
    tile_rows: int = field(
        default=0, draws=(0, 64, 192, 256), doc="rows of weights of a CTA, gate and up; 0: by a table"
    )
    split: int = field(default=0, draws=(0, 1, 2), doc="CTAs that share k and add up their sums; 0: by a table")
    by_memory: bool = field(
        default=False,
        later=True,
        draws=lambda drawn: (False, drawn.get("split", 0) > 1 and drawn.get("share", 0) < 2),
        doc="CTAs that share k are no cluster, and give each other sums in global memory",
    )
    share: int = field(
        default=0, draws=(0, 1, 2), doc="CTAs of neighbouring rows that copy tokens for each other; 0: by a table"
    )
    stream: bool = field(
        default=False,
        later=True,
        draws=lambda drawn: (False, 0 < drawn.get("tokens", 0) <= layout.COLUMNS),
        doc="up to 64 tokens, CTAs share k of tiles evenly: a result then depends on how many tokens there are",
    )
    evict_first: bool = field(
        default=False,
        later=True,
        silent="the executor has no L2",
        doc="weights are the first to be evicted from the L2",
    )
    carried: bool = field(
        default=False,
        later=True,
        doc="additional warps store results while the next tile is multiplied",
    )
    slices: int = field(
        default=1,
        later=True,
        draws=lambda drawn: (1, 1 + (drawn.get("tokens", 0) % (2 * layout.GROUP) == 0)),
        doc="warpgroups of a CTA that have the same 64 rows and share each stage's k",
    )
    last_tiles: int = field(
        default=0,
        later=True,
        draws=lambda drawn: (0, int(drawn.get("tokens", 0) > layout.COLUMNS)),
        silent="it says who computes, not what",
        doc="last tiles of rows that are small, of one warpgroup",
    )
    last_split: int = field(
        default=0,
        later=True,
        draws=lambda drawn: (0, 3 * (drawn.get("tokens", 0) > layout.COLUMNS and drawn.get("share", 0) < 2)),
        doc="CTAs that share k of a tile of the last turn, where that turn leaves room for them; 0: none do",
    )
    indirect: bool = field(default=False, doc="n_rows is read from device memory")
    programmatic: bool = False
    by_row: bool = field(
        default=False,
        later=True,
        draws=lambda drawn: (False, drawn.get("weights") in ("q4_k", "q5_k", "q6_k", "q8_0", "int4_g128", "e4m3")),
        doc="f16: x is in units of its rows, products are those of codes",
    )
    promoted: bool = field(
        default=False,
        later=True,
        silent="the executor adds exactly",
        doc="e4m3: f32 adds the sums of every 128 columns",
    )
    row_scales: bool = field(
        default=False,
        later=True,
        doc="e4m3 by weights with scales of blocks: x has a scale a row, not one for every 128 columns",
    )
    norm: str = field(default="", later=True, doc="of x, by its squares, divided out of the product")
    eps: float = field(default=1e-6, later=True, silent="beside squares about 1 it is less than a comparison tells")
    norm_out: bool = field(default=False, later=True, doc="also writes the inputs of a product with a norm")
    norm_offset: float = field(default=0.0, later=True, doc="added to the norm's weights, with norm_out")

    @property
    def digits(self) -> int:
        """Numbers of x_dtype that add up to an element of x."""
        return (layout.DIGITS_BY_ROW if self.by_row else layout.DIGITS)[self.precision]

    def readings(self, output: str, values: np.ndarray) -> Iterator[Reading]:
        squared = SQUARED if self.activation == "relu2" and self.precision == "fast" else 1
        limit = min(MANY[self.precision] * squared, limit_of(self))
        if self.by_row and self.precision == "exact":  # 1.1e-6 behind silu, on an H200
            limit = LIMITS["f32"]
        packed_out = self.packed_out if output == "out" else output == "digits"
        if packed_out and self.digits > 1:
            yield from digit_readings(output, values, 2, limit, self.x_dtype)
        else:
            rounded = packed_out or self.out_dtype != f32
            yield Reading(output, values, None if rounded else limit)

    @property
    def scaled(self) -> bool:
        """Whether x and weights are multiplied in e4m3, and their scales applied to the sums."""
        return self.x_dtype == e4m3

    @property
    def in_blocks(self) -> bool:
        """Whether the weights have a scale for every block of 128 columns."""
        return self.scaled and isinstance(self.kind, E4m3) and self.kind.per == "block"

    @property
    def by_block(self) -> bool:
        """Whether x has, too."""
        return self.in_blocks and not self.row_scales

    @property
    def straight(self) -> bool:
        """Whether weights are multiplied as they lie in memory."""
        return self.scaled or (isinstance(self.kind, Half) and self.kind.dtype == self.x_dtype)

    @property
    def converts(self) -> bool:
        """Whether weights become numbers of x's type on their way to products."""
        return not (self.straight or self.by_row)

    @property
    def less_zeros(self) -> bool:
        """Whether codes are less their zero points: where rows have a mean, sums of codes and of mins cancel."""
        return self.by_row and self.precision == "exact" and self.kind.has_mins

    @property
    def promotes(self) -> bool:
        """Whether f32 adds up what tensor cores have of 128 columns each: they keep some 14 bits of a sum in e4m3."""
        return self.in_blocks or (self.scaled and self.promoted)

    @property
    def beside(self) -> str:
        """The parameter with what of x lies beside it, for each tile of weights, "" for nothing."""
        if self.by_row and self.kind.has_mins:
            return "x_sums"
        return "x_scales" if self.by_block else ""

    @property
    def beside_bytes(self) -> int:
        """Bytes of it for a token."""
        return {"x_sums": layout.SUMS_BYTES, "x_scales": layout.SCALE_BYTES, "": 0}[self.beside]

    @property
    def x_group(self) -> int:
        """Columns that share a scale of x; 0: all."""
        return BLOCK if self.by_block else 0

    @property
    def columns(self) -> int:
        """Columns of a block of x."""
        return layout.columns(self.x_dtype)

    @property
    def chunks(self) -> int:
        """Chunks of a tile of weights: as many columns as a product takes, 32 bytes of x."""
        return self.kind.tile_k * self.x_dtype.bytes // layout.CHUNK_BYTES
