"""What of a variant a tile on wgmma brings into the exponent, as all its rows are of one KV head."""

from __future__ import annotations

from dataclasses import replace

from ptxgen.attention.variant import Variant


def plain(variant: Variant) -> bool:
    """Whether a score is q·k times a factor, that of an item's KV head where heads have scales."""
    return replace(variant, head_scales=False).plain


def folds_scales(variant: Variant) -> bool:
    """Whether the scale of K is part of that factor."""
    return variant.head_scales and plain(variant)
