"""Registers of a product of many tokens: what they hold beside sums, and where they are few. Tables are of what ptxas
gave or spilled."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.dtypes import f32
from ptxgen.products.wgmma.shape import FEW_TOKENS, MOST_ROWS_FIRST, Shape
from ptxgen.weights.e4m3 import BLOCK
from ptxgen.weights.f16 import Half
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

MOST_SUMS = {1: 256, 2: 256, 3: 192, 4: 128}  # of a row, in registers of each of so many warpgroups
MOST_PROMOTED = {1: 384, 2: 384, 3: 192}  # short ones among them
# sums of a row, short ones among them, of each of at most two warpgroups, from which on registers are few
CROWDED = 312
# the same before an activation of sums with scales, by how many warpgroups have two blocks of rows, or one
CROWDED_ACTIVATED = {(2, 2): 200, (3, 1): 128}
CROWDED_STREAM = {(2, 1): 192}  # and where CTAs share k evenly
MOST_AT_ONCE = 104  # tokens of two blocks of rows that an activation turns to 16 bits at once
MOST_BIASED = 128  # sums of three warpgroups beside which an activation with a bias has registers


class Tight(NamedTuple):
    """Sums of a row from which on weights that are converted leave few registers; whether those of 16 bits do, too, and
    whether only where CTAs share k evenly."""

    sums: int
    of_halves: bool = True
    in_streams: bool = False


# by precision and warpgroups; of exact products one chunk is then on its way at a time
TIGHT = {("fast", 2): Tight(192, in_streams=True), ("fast", 3): Tight(64), ("exact", 3): Tight(96, of_halves=False)}
ROOMY = ("e4m3", "e4m3_channel", "e4m3_block", "q6_k")  # of 128 tokens clean with packed results, too
LARGEST_PIECE = 128  # tokens of a product whose sums are short
# registers of the warpgroup that copies and of those that multiply, by how many multiply; first all have 168, 128 or 96
REGISTERS = {2: (40, 232), 3: (32, 160), 4: (32, 112)}
CARRIED_REGISTERS = (48, 224)  # the same where two warps beside the copying one store results
FACTORED_REGISTERS = (24, 240)  # and where factors are in registers, too, or registers are few
FRAGMENTS = 16  # registers that 64 rows by 128 columns in e4m3 take
PROMOTED = {1: 216, 2: 216, 3: 136}  # registers that products and their sums may take, of so many warpgroups
# products of e4m3 by weights with scales of blocks, by `factors.py`: rows and tokens of a CTA; tokens of a product,
# sets of their sums and of fragments of A. The same by `blocks.py`, which has no factors in registers, and of more than
# `MOST_ADDED` tokens whose k CTAs share
FACTORED = {(128, 96): (96, 1, 2), (128, 128): (128, 1, 2), (128, 192): (64, 2, 2), (128, 256): (64, 2, 1)}
UNIFORM, UNIFORM_SHARED = FACTORED | {(128, 192): (96, 2, 1)}, (64, 1, 1)
MOST_ADDED = 192  # tokens with which results that are added to something leave registers for that


def _promotion(spec: PackedProduct, tokens: int, shape: Shape) -> tuple[int, int, int]:
    """Tokens of a product whose sums are short, sets of these sums, and of fragments of A: large products before small
    ones, and two sets where they can take turns, as far as there are registers."""
    places = shape.own_tiles * shape.blocks  # of fragments in a stage
    for count, shorts, sets in product((1, 2, 3, 4), (2, 1), (2, 1)):
        piece = tokens // count
        turns = shorts <= places * count and sets <= places
        if piece > LARGEST_PIECE or piece % 8 or tokens % count or not turns:
            continue
        registers = tokens * shape.blocks // 2 + shorts * piece // 2 + FRAGMENTS * sets
        registers += piece // 8 if spec.by_block else 0  # of factors
        if registers <= PROMOTED[shape.groups]:
            return piece, shorts, sets
    return min(tokens, LARGEST_PIECE), 1, 1


def _alone_with_two(shape: Shape, tokens: int) -> bool:
    """Whether one warpgroup has as many sums of two blocks as of one tile of most tokens."""
    return shape.groups == 1 and shape.blocks > 1 and tokens * shape.blocks > MOST_ADDED


def pipelined(spec: PackedProduct, tokens: int, shape: Shape) -> bool:
    """Whether sums of blocks take turns with products: of CTAs that have whole blocks of rows, all of them there."""
    if not spec.in_blocks or spec.parts > 1 or (shape.rows, tokens) not in FACTORED or spec.kind.tile_k != BLOCK:
        return False
    if spec.residual and tokens > MOST_ADDED:
        return False
    whole = spec.kind.records(spec.n) % (shape.rows // TILE_ROWS * shape.share) == 0
    return whole and shape.groups == 2 and shape.tiles == 1


def pieces(spec: PackedProduct, tokens: int, shape: Shape, pipelined: bool, factored: bool) -> tuple[int, int, int]:
    """Tokens of a product, sets of its sums where these are short, and of fragments of A."""
    promoted = _promotion(spec, tokens, shape) if spec.promotes else (tokens, int(spec.precision == "exact"), 2)
    if pipelined:
        promoted = (FACTORED if factored else UNIFORM)[shape.rows, tokens]
    tall = spec.row_scales and tokens > MOST_ADDED
    shared = spec.in_blocks and (spec.stream or shape.split > 1) and tokens % UNIFORM_SHARED[0] == 0
    if shared and (tall or _alone_with_two(shape, tokens)):
        promoted = UNIFORM_SHARED
    if spec.by_row:
        more = spec.kind.has_mins or min(spec.digits, spec.kind.code_digits) > 1  # sums, or fragments
        more |= spec.digits > 1 and tokens > FEW_TOKENS  # else some texts of two blocks of rows spill
        promoted = tokens * (spec.digits + more), 1, 2
    return promoted


def tight(spec: PackedProduct, tokens: int, shape: Shape) -> bool:
    """Whether registers are too few for sums and weights on their way to products, so that ptxas spilled 4 to 56 bytes:
    of two warpgroups that share k evenly, of three, where 13 warps have 128 each, and of one with exact gate and up of
    int4_g128 whose k CTAs share. Of 128 tokens without `stream` those that spilled are a table: `_spilled`."""
    if not spec.converts:
        return False
    how = (spec.precision, shape.groups)
    if how == ("exact", 1) and spec.gated and shape.split > 1:
        return tokens == MOST_ROWS_FIRST and spec.weights == "int4_g128"
    if how == ("fast", 3) and tokens == MOST_SUMS[4] and not spec.stream:
        return _spilled(spec, shape)
    found = TIGHT.get(how)
    if found is None or tokens * shape.blocks < found.sums:
        return False
    return (found.of_halves or not isinstance(spec.kind, Half)) and (spec.stream or not found.in_streams)


def _spilled(spec: PackedProduct, shape: Shape) -> bool:
    """Whether ptxas spilled of 128 tokens by 192 rows: by format, and by what else the tile has (residual, bias,
    activation)."""
    if spec.activation and spec.packed_out:
        return spec.weights not in ROOMY
    shared = shape.share > 1
    activated = spec.activation and (shared or spec.out_dtype != f32)
    beside = spec.residual or activated or (spec.bias and shared)
    seen = {"q5_k": True, "int4_g32": spec.residual and shared, "q6_k": spec.residual and shape.split > 1}
    return bool(seen.get(spec.weights, spec.kind.has_mins and beside))
