"""What of a variant a tile on wgmma brings into the exponent, as all its rows are of one KV head."""

from __future__ import annotations

from dataclasses import replace

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.wgmma.tile import WgmmaTile
from ptxgen.attention.variant import Variant
from ptxgen.dtypes import DType, f16

LIMITED_DIM = 192  # elements of a row up to which consumers of batches have registers to limit probabilities


def plain(variant: Variant) -> bool:
    """Whether a score is q·k times a factor, that of an item's KV head where heads have scales."""
    return replace(variant, head_scales=False).plain


def has_first_maximum(spec: Prefill, tile: WgmmaTile, dtype: DType) -> bool:
    """Whether every row sees a key of its item's first tile, which holds the position of the item's first row, and a
    score is one of `plain`. A window must reach from the last row of an item to the first."""
    if tile.turned:  # e5m2 ends too early
        return False
    if spec.split_keys:  # what a part leaves is merged at once, so it must be right at once
        return False
    variant, group = spec.attention.variant, spec.attention.problem.group
    if is_limited(dtype) and spec.dim > LIMITED_DIM and spec.attention.cache.batched:
        return False
    tokens_behind = (tile.rows + group - 2) // group  # from the first row's to the last row's
    return plain(variant) and (not variant.window or variant.window > tokens_behind)


def is_limited(dtype: DType) -> bool:
    """Whether probabilities relative to the maximum of the first tile may be beyond the type's range."""
    return dtype == f16


def folds_scales(variant: Variant) -> bool:
    """Whether the scale of K is part of that factor."""
    return variant.head_scales and plain(variant)
