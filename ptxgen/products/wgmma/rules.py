"""Rules of PackedGemm's fields: what each may be, what goes together, and whether there is room for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ptxgen import rules
from ptxgen.dtypes import bf16, f16, f32
from ptxgen.products.problem.weighted import activation_rules
from ptxgen.products.wgmma.epilogue.norms import product_norm_rules
from ptxgen.products.wgmma.tiling import refusals
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.registers import MOST_AT_ONCE, MOST_BIASED, MOST_BY_THREE
from ptxgen.products.wgmma.tiling.shape import FEW_TOKENS, MOST_BY_MEMORY, MOST_ROWS_FIRST, SLICES
from ptxgen.products.wgmma.tokens import layout
from ptxgen.weights import weight_formats
from ptxgen.weights.e4m3 import E4m3

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

FORMATS = tuple(name for name in weight_formats() if name != "f32")
BY_ROW = tuple(name for name, kind in weight_formats().items() if kind.code_digits)
MOST_CLUSTER = 8  # CTAs of a cluster on any GPU


def field_rules(spec: PackedProduct) -> Iterator[str]:
    """Rules of each field, and of fields beside each other."""
    yield from rules.between("n", spec.n, 1, 1 << 20)
    yield from rules.between("k", spec.k, 1, 1 << 17)
    known = list(rules.one_of("weights", spec.weights, FORMATS))
    yield from known
    if not known and spec.k % spec.kind.block_cols:
        step = spec.kind.block_cols
        yield from rules.multiple_of("k", spec.k, step, step, 1 << 17)
    elif not known and spec.kind.tile_k < spec.columns:
        yield from rules.multiple_of("k", spec.k, spec.columns, spec.columns, 1 << 17)
    yield from rules.one_of("tokens", spec.tokens, layout.TOKENS)
    if not known and spec.promotes and spec.tokens in layout.BETWEEN:
        nearest = min(set(layout.TOKENS) - set(layout.BETWEEN), key=lambda count: abs(count - spec.tokens))
        yield f"tokens: with short sums other counts are tried (got {spec.tokens}; nearest: {nearest})"
    yield from rules.one_of("x_dtype", spec.x_dtype.name, ("bf16", "f16", "e4m3"))
    yield from rules.one_of("precision", spec.precision, tuple(layout.DIGITS))
    yield from _rules_of_scales(spec) if spec.scaled else _rules_without_scales(spec)
    yield from activation_rules(spec)
    if spec.packed_out and spec.n % layout.PADDED:
        yield from rules.multiple_of("n", spec.n, layout.PADDED, layout.PADDED, 1 << 20)
    if spec.packed_out and spec.residual:
        yield "residual: a packed result is added to nothing (got packed_out=True; nearest: residual=False)"
    yield from rules.one_of("out_dtype", spec.out_dtype.name, ("f32", "bf16", "f16"))
    if spec.out_dtype != f32 and (spec.residual or spec.packed_out):
        which = "residual" if spec.residual else "packed_out"
        yield f"out_dtype: with {which} it is f32 (got {spec.out_dtype.name}, {which}=True; nearest: f32)"
    yield from rules.one_of("tile_rows", spec.tile_rows, (0, 64, 128, 192, 256))
    if spec.by_memory:
        yield from _rules_by_memory(spec)
    else:
        yield from rules.one_of("split", spec.split, (0, 1, 2, 3, 4, 8))
    yield from rules.one_of("share", spec.share, (0, 1, 2, 4))
    if spec.stream and spec.split > 1:
        yield f"stream: shares k out anyway (got stream=True, split={spec.split}; nearest: split=1)"
    if spec.stream and spec.tokens > MOST_ROWS_FIRST:
        yield f"stream: is for at most {MOST_ROWS_FIRST} tokens (got tokens={spec.tokens}; nearest: stream=False)"
    if spec.share * spec.split > MOST_CLUSTER:
        nearest = MOST_CLUSTER // spec.split
        yield (
            f"share: with split at most {MOST_CLUSTER} CTAs "
            f"(got share={spec.share}, split={spec.split}; nearest: {nearest})"
        )
    yield from rules.one_of("slices", spec.slices, (1, SLICES))
    yield from rules.between("last_tiles", spec.last_tiles, 0, 1 << 14)
    yield from rules.one_of("last_split", spec.last_split, (0, *range(2, MOST_BY_MEMORY + 1)))
    yield from _rules_by_row(spec) if spec.by_row else ()
    yield from product_norm_rules(spec)
    if spec.precision == "exact" and spec.x_dtype != bf16 and not spec.by_row:
        yield f"x_dtype: exact digits are bf16 (got {spec.x_dtype.name}; nearest: bf16)"


def _rules_by_memory(spec: PackedProduct) -> Iterator[str]:
    """Of CTAs that share k and are no cluster."""
    if not 2 <= spec.split <= MOST_BY_MEMORY:
        nearest = min(max(2, spec.split), MOST_BY_MEMORY)
        yield f"split: with by_memory 2 to {MOST_BY_MEMORY} CTAs share k (got split={spec.split}; nearest: {nearest})"
    if spec.share > 1:
        yield f"by_memory: is for CTAs that share no tokens (got by_memory=True, share={spec.share}; nearest: share=1)"


def fit_rules(spec: PackedProduct) -> Iterator[str]:
    """Accumulators in registers, the ring in shared memory, k among the CTAs."""
    mixed = spec.by_row and spec.tokens <= FEW_TOKENS and spec.out_dtype == f32  # gate and up in one block
    if spec.gated and spec.tile_rows in (64, 192) and not mixed:
        yield f"tile_rows: a gated product has 128 or 256 (got {spec.tile_rows}; nearest: 128)"
    elif spec.split > spec.kind.tiles(spec.k):
        yield f"split: must be at most {spec.kind.tiles(spec.k)}, the tiles of k (got {spec.split}; nearest: 1)"
    elif spec.last_split > spec.kind.tiles(spec.k):
        most = spec.kind.tiles(spec.k)
        yield f"last_split: must be at most {most}, the tiles of k (got {spec.last_split}; nearest: 0)"
    elif spec.slices > 1 and (wrong := refusals.of_slices(spec)):
        yield wrong
    else:
        yield from _register_rules(spec, Geometry.of(spec))


def _rules_of_scales(spec: PackedProduct) -> Iterator[str]:
    """Rules of scales where products are of bytes."""
    if not isinstance(weight_formats().get(spec.weights), E4m3):
        yield f"x_dtype: e4m3 goes with weights in e4m3 (got weights={spec.weights!r}; nearest: x_dtype=bf16)"
    elif spec.in_blocks and spec.promoted:
        yield "promoted: sums of blocks with scales always are (got promoted=True; nearest: False)"
    if spec.row_scales and not spec.in_blocks:
        yield f"row_scales: is for weights with scales of blocks (got weights={spec.weights!r}; nearest: False)"
    if spec.packed_out:
        yield "packed_out: e4m3 needs the scale of a whole row (got packed_out=True, x_dtype=e4m3; nearest: False)"


def _rules_by_row(spec: PackedProduct) -> Iterator[str]:
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


def _rules_without_scales(spec: PackedProduct) -> Iterator[str]:
    """Where they are not of bytes."""
    if spec.row_scales:
        yield f"row_scales: is a choice of e4m3 (got row_scales=True, x_dtype={spec.x_dtype}; nearest: False)"
    if spec.promoted:
        yield f"promoted: is a choice of e4m3 (got promoted=True, x_dtype={spec.x_dtype}; nearest: promoted=False)"


def _register_rules(spec: PackedProduct, at: Geometry) -> Iterator[str]:
    if not at.fits:
        most = max((t for t in layout.TOKENS if Geometry.of(spec, t).fits), default=layout.TOKENS[0])
        yield (
            f"tokens: must be at most {most} beside these weights, precision, tile_rows and split "
            f"(got {spec.tokens}; nearest: {most})"
        )
    elif (most := _most_activated(spec, at)) < spec.tokens:
        yield (
            f"tokens: an activation has registers for {most} beside {at.rows} rows (got {spec.tokens}; nearest: {most})"
        )
    elif spec.carried and not at.carried:
        yield refusals.of_carried(spec, spec.tokens, at.shape)
    else:
        yield from filter(None, (
            refusals.of_last_tiles(spec, at.shape) if spec.last_tiles else "",
            refusals.of_last_split(spec, at.shape) if spec.last_split else "",
        ))  # fmt: skip


def _most_activated(spec: PackedProduct, at: Geometry) -> int:
    """Tokens for which an activation has registers, if fewer than there are. Of sums with scales: where 112 of two
    blocks of rows become 16 bits at once, as they are no multiple of two buffers' tokens (some texts of them spill),
    and beside a bias where three warpgroups have many sums. Of weights as they lie, rounded: where three warpgroups
    have many sums that become 16 bits (with 160 and 192 tokens 4 to 52 bytes were spilled)."""
    plain = spec.straight and not spec.scaled and at.shorts == 0 and spec.parts == 1
    if plain and spec.activation and at.halves and at.shape.groups == 3:
        return min(at.tokens, MOST_BY_THREE)
    together = at.halves and at.shape.blocks > 1 and at.result_tokens > MOST_AT_ONCE
    many = spec.bias and at.shorts == 0 and at.shape.groups == 3 and at.sums > MOST_BIASED
    return MOST_AT_ONCE if at.activated and together else MOST_BIASED if at.activated and many else at.tokens
