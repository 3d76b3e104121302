"""Rules of products whose tokens have scales: of bytes in e4m3, of a block or a row, or of f16 in units of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ptxgen.dtypes import f16
from ptxgen.products.wgmma.shape import FEW_TOKENS, MOST_ROWS_FIRST
from ptxgen.weights import weight_formats
from ptxgen.weights.e4m3 import E4m3

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

BY_ROW = tuple(name for name, kind in weight_formats().items() if kind.code_digits)


def rules_of_scales(spec: PackedProduct) -> Iterator[str]:
    """Rules of scales where products are of bytes."""
    if not isinstance(weight_formats().get(spec.weights), E4m3):
        yield f"x_dtype: e4m3 goes with weights in e4m3 (got weights={spec.weights!r}; nearest: x_dtype=bf16)"
    elif spec.in_blocks and spec.promoted:
        yield "promoted: sums of blocks with scales always are (got promoted=True; nearest: False)"
    if spec.row_scales and not spec.in_blocks:
        yield f"row_scales: is for weights with scales of blocks (got weights={spec.weights!r}; nearest: False)"
    if spec.packed_out:
        yield "packed_out: e4m3 needs the scale of a whole row (got packed_out=True, x_dtype=e4m3; nearest: False)"


def rules_by_row(spec: PackedProduct) -> Iterator[str]:
    """Of products of f16 in units of rows."""
    known = weight_formats().get(spec.weights)
    if known is None or not known.code_digits:
        yield f"by_row: is for {', '.join(BY_ROW)} (got weights={spec.weights!r}; nearest: by_row=False)"
    if spec.x_dtype != f16:
        yield f"by_row: is for f16 (got x_dtype={spec.x_dtype.name}; nearest: x_dtype=f16)"
    if spec.tokens > MOST_ROWS_FIRST:
        yield f"by_row: is for at most {MOST_ROWS_FIRST} tokens (got tokens={spec.tokens}; nearest: by_row=False)"
    if spec.tile_rows == 192 and spec.tokens > FEW_TOKENS:
        most = FEW_TOKENS
        yield f"tile_rows: 192 with by_row is for at most {most} tokens (got {spec.tokens}; nearest: tokens={most})"
    if spec.packed_out:
        yield "packed_out: needs the unit of a whole row (got packed_out=True, by_row=True; nearest: False)"


def rules_without_scales(spec: PackedProduct) -> Iterator[str]:
    """Where they are not of bytes."""
    if spec.row_scales:
        yield f"row_scales: is a choice of e4m3 (got row_scales=True, x_dtype={spec.x_dtype}; nearest: False)"
    if spec.promoted:
        yield f"promoted: is a choice of e4m3 (got promoted=True, x_dtype={spec.x_dtype}; nearest: promoted=False)"
