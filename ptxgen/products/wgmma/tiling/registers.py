"""Registers of a product of many tokens: how many sums a thread can keep, and where other uses leave too few.

A warpgroup multiplies 64 rows by the tile's tokens. For each of its blocks of rows a thread has half as many sums as
there are tokens; "sums of a row" below counts a whole row's, twice a thread's. Exact and promoted products also have
short sums: those of a few chunks, which are added to the totals in f32. The limits are those at which ptxas spilled.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.products.wgmma.tiling.shape import FEW_TOKENS, MOST_ROWS_FIRST, Shape, stores_halves
from ptxgen.weights.e4m3 import BLOCK
from ptxgen.weights.f16 import Half
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

# by the number of warpgroups of a CTA: sums of a row that fit in registers
MOST_SUMS = {1: 256, 2: 256, 3: 192, 4: 128}
# of two warpgroups that multiply 16-bit weights as they lie, one matrix, without an activation
MOST_PLAIN_SUMS = 352
MOST_SHARED_SUMS = 320  # the same if CTAs share k by memory: with 352 most tiles spilled, up to 68 bytes
# the same of promoted products, short sums included
MOST_PROMOTED = {1: 384, 2: 384, 3: 192}
# A tile is crowded from so many sums of a row on, short ones included: what it needs once, it computes again where it
# is needed instead of keeping it. This is for one or two warpgroups with promoted products.
CROWDED = 312
# The same for sums with scales and an activation behind them, by (warpgroups, blocks of rows).
CROWDED_ACTIVATED = {(2, 2): 200, (3, 1): 128}
MOST_AT_ONCE = 104  # tokens of two blocks of rows whose results an activation converts to 16 bits together
MOST_BY_THREE = 144  # tokens of three warpgroups whose sums an activation converts to 16 bits, of weights as they lie
MOST_BIASED = 128  # sums of a row with which three warpgroups have registers for an activation and a bias


class Tight(NamedTuple):
    """Where weights that are converted to the tokens' type leave too few registers: from `sums` of a row on."""

    sums: int
    of_halves: bool = True  # also for weights in f16 or bf16


# by precision and warpgroups; exact products then convert one chunk at a time
TIGHT = {("fast", 3): Tight(64), ("exact", 3): Tight(96, of_halves=False)}
TIGHT_ACTIVATED = 192  # sums of a row of two warpgroups, from which on those of `_activated` are tight
# Formats of two warpgroups with an activation of one matrix: with two blocks of rows they spilled 4 to 60 bytes behind
# gelu_tanh where results have 16 bits; with one block and fewer than 256 tokens 8 bytes behind silu, a bias and packed
# results. With 256 tokens all formats spilled 8 to 48 bytes behind either with packed results and no bias.
SCARCE_TALL = ("e4m3_channel", "e4m3_block", "int4_g32", "q4_1", "q5_0")
SCARCE_BIASED = ("int4_g64", "q4_0")
COSTLY = ("silu", "gelu_tanh")  # activations that take more registers than the others
LARGEST_PIECE = 128  # tokens of one product with short sums
# Registers of a thread that copies and of one that multiplies, after the copying warpgroup has given up some of its
# own; by the number of warpgroups that multiply. At the start all threads have 168, 128 or 96.
REGISTERS = {2: (40, 232), 3: (32, 160), 4: (32, 112)}
# The same, if two warps beside the copying one store results. On an H200 (64, 216) took 0 to 0.6 % less time than
# (48, 224) in six products; (72, 216) was not timed. It spills nothing, where these spilled 4 and 16 bytes of some.
CARRIED_REGISTERS = (72, 216)
FACTORED_REGISTERS = (24, 240)  # the same, if factors are in registers or the tile is crowded
# The same, if CTAs share k by memory and a row has more sums than WIDE, by warpgroups: what a tile needs once, it then
# finds anew. With CROWDED sums and more that is FACTORED_REGISTERS. So no legal tile of two to eight CTAs spills, with
# five kinds of results; with REGISTERS many spilled 4 to 132 bytes. Six products of two warpgroups take as long as
# with REGISTERS, one of 256 rows by 160 tokens 6 % less.
SHARED_REGISTERS = {2: (72, 216), 3: (48, 144)}
# By warpgroups: with more sums of a row, those that multiply need more registers than a CTA of that size has for each.
WIDE = {2: 128, 3: 128, 4: 96}
FRAGMENTS = 16  # registers of a thread for 64 rows by 128 columns of weights in e4m3
PROMOTED = {1: 216, 2: 216, 3: 136}  # by warpgroups: registers that promoted products and all sums may take
# Products of tokens in e4m3 by weights with scales of blocks: (rows, tokens) of a CTA -> (tokens of one product, sets
# of short sums, sets of fragments of A). FACTORED: where tokens have scales of blocks, too. UNIFORM: where they have
# scales of rows, and no factors are kept in registers. UNIFORM_SHARED: if CTAs share k and there are more than
# MOST_ADDED tokens.
FACTORED = {(128, 96): (96, 1, 2), (128, 128): (128, 1, 2), (128, 192): (64, 2, 2), (128, 256): (64, 2, 1)}
UNIFORM, UNIFORM_SHARED = FACTORED | {(128, 192): (96, 2, 1)}, (64, 1, 1)
MOST_ADDED = 192  # tokens with which a CTA alone has registers for what its results are added to


def most_sums(spec: PackedProduct, shape: Shape) -> int:
    """Sums of a row that fit in registers."""
    if spec.promotes:
        return MOST_PROMOTED[shape.groups]
    alone = isinstance(spec.kind, Half) and spec.straight and spec.precision == "fast" and spec.parts == 1
    if alone and not spec.activation and shape.groups == 2:
        return MOST_SHARED_SUMS if shape.by_memory else MOST_PLAIN_SUMS
    return MOST_SUMS[shape.groups]


def _promotion(spec: PackedProduct, tokens: int, shape: Shape) -> tuple[int, int, int]:
    """Of products with short sums: tokens of one product, sets of short sums, sets of fragments of A. The first choice
    that fits in registers is taken: large products before small ones, two sets that take turns before one."""
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
    """Whether one warpgroup has two blocks of rows, and with them more sums than one block of MOST_ADDED tokens has."""
    return shape.groups == 1 and shape.blocks > 1 and tokens * shape.blocks > MOST_ADDED


def pipelined(spec: PackedProduct, tokens: int, shape: Shape) -> bool:
    """Whether `mainloop/pipelined.py` builds the product: it adds a block's sums to the totals while the next block's
    products run. Weights have scales of blocks, and the rows of every CTA are whole blocks."""
    if not spec.in_blocks or spec.parts > 1 or (shape.rows, tokens) not in FACTORED or spec.kind.tile_k != BLOCK:
        return False
    if spec.residual and tokens > MOST_ADDED and shape.split == 1:
        return False
    whole = spec.kind.records(spec.n) % (shape.rows // TILE_ROWS * shape.share) == 0
    return whole and shape.groups == 2 and shape.tiles == 1


def pieces(spec: PackedProduct, tokens: int, shape: Shape, pipelined: bool, factored: bool) -> tuple[int, int, int]:
    """Tokens of one product, sets of short sums (0: there are none), sets of fragments of A."""
    promoted = _promotion(spec, tokens, shape) if spec.promotes else (tokens, int(spec.precision == "exact"), 2)
    if pipelined:
        promoted = (FACTORED if factored else UNIFORM)[shape.rows, tokens]
    tall = spec.row_scales and tokens > MOST_ADDED
    shared = spec.in_blocks and shape.split > 1 and tokens % UNIFORM_SHARED[0] == 0
    if shared and (tall or _alone_with_two(shape, tokens)):
        promoted = UNIFORM_SHARED
    if spec.by_row:
        more = spec.kind.has_mins or min(spec.digits, spec.kind.code_digits) > 1  # sums, or fragments
        more |= spec.digits > 1 and tokens > FEW_TOKENS  # else some texts of two blocks of rows spill
        promoted = tokens * (spec.digits + more), 1, 2
    return promoted


def scarce(spec: PackedProduct, tokens: int, shape: Shape) -> bool:
    """Whether registers are too few for 256 sums of a row of two warpgroups and an activation whose results have 16
    bits: of weights in 16 bits, one matrix, and of gate and up in e4m3. ptxas spilled 4 to 60 bytes of some. Finding
    anew what a tile needs was timed in eight products on an H200. Of those that spilled, silu in bf16 (28 bytes) takes
    1.3 % more, gelu_tanh and gate and up with scales of rows 0.1 % less; of those that did not, gelu and relu2 in bf16
    and three of gate and up take 1.7 % less to 0.7 % more. Also whether they are too few for sums that go through
    memory: see SHARED_REGISTERS."""
    if shape.by_memory and isinstance(spec.kind, Half) and spec.straight and spec.precision == "fast":
        return shape.groups > 1 and tokens * shape.blocks > WIDE[shape.groups]
    if not (shape.split == 1 and spec.activation and stores_halves(spec)):
        return False
    if shape.groups != 2 or tokens * shape.blocks != MOST_SUMS[2]:
        return False
    if isinstance(spec.kind, Half):
        return spec.straight and spec.parts == 1 and spec.precision == "fast"
    return spec.scaled and not spec.promotes and spec.gated


def tight(spec: PackedProduct, tokens: int, shape: Shape) -> bool:
    """Whether registers are too few for sums and for weights that are being converted. Without this rule ptxas spilled
    4 to 60 bytes in these cases: three warpgroups, whose threads have 128 registers each; two with an activation of one
    matrix, as `_activated` lists; one with exact gate and up in int4_g128 and a split k. What does not spill of three
    is taken along. On an H200 that was timed of 512 tokens by 6144 × 4096 in tiles of 192 rows by 128 tokens, `fast`,
    with results in f32: plain q4_k takes 3 % longer, seven other formats 2 % less to 1 % more; with share=2 q8_0 and
    int4_g128 1 % less; with a residual q8_0 15 and int4_g128 5 % less. What spilled takes 1 to 2 % longer (q5_k; q4_k
    with share=2), q4_k with a residual 7 % less. Activations, biases, packed results and `exact` were not timed."""
    if not spec.converts:
        return False
    how = (spec.precision, shape.groups)
    if how == ("exact", 1) and spec.gated and shape.split > 1:
        return tokens == MOST_ROWS_FIRST and spec.weights == "int4_g128"
    if how == ("fast", 2) and not spec.gated and tokens * shape.blocks >= TIGHT_ACTIVATED:
        return _activated(spec, tokens, shape)
    found = TIGHT.get(how)
    if found is None or tokens * shape.blocks < found.sums:
        return False
    return found.of_halves or not isinstance(spec.kind, Half)


def _activated(spec: PackedProduct, tokens: int, shape: Shape) -> bool:
    """Whether ptxas spilled of two warpgroups with an activation of one matrix. Of what did not spill, silu in tiles of
    256 rows by 128 tokens was timed with few registers: q4_k took 9 % and int4_g128 6 % longer, q8_0 7 % less. So q8_0
    would gain by the rule; one product was timed, 512 tokens by 14336 × 4096."""
    if shape.blocks > 1:
        return spec.activation == "gelu_tanh" and stores_halves(spec) and spec.weights in SCARCE_TALL
    if tokens == MOST_SUMS[2]:
        return spec.activation in COSTLY and spec.packed_out and not spec.bias
    return spec.activation == "silu" and spec.packed_out and spec.bias and spec.weights in SCARCE_BIASED
