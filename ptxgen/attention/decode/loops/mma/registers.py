"""How many registers of a thread the mma main loop has for loads in flight: an account, kept on the safe side."""

from __future__ import annotations

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.loops.mma.layout import TileLayout, tile_layout
from ptxgen.attention.decode.loops.mma.query import query_words
from ptxgen.targets import Target

_FILE = 65536  # registers of an SM
_PARTITIONS = 4  # of an SM, with a part of its registers and of a CTA's warps each
_MOST = 255  # of a thread
_SPARE = 2
_SPARE_120 = 24  # more on sm_120 and its kin, where nvJitLink 13.5 moves loads ahead until it spills what the loop does
_MOST_OUTPUTS = 64  # not use: of rows in vectors of several lengths, and beyond so many accumulators
_FIXED = 26  # tile numbers, lengths, lane numbers, addresses
_SOFTMAX = 22  # of an 8-head tile: scores twice, tops, weights, maxima, limits, sums
_FRAGMENT = 6  # an A fragment in the making
_BYTE_CONVERSION = 18  # more of them, and a block's rows widened
_MOST_QUERY = 16  # more are read from shared memory at every tile


def layout_of(attention: Attention) -> TileLayout:
    """How the attention's rows lie in registers."""
    problem = attention.problem
    return tile_layout(problem.qk_dim, problem.v_dim, problem.kv_dtype.bytes, attention.cache.quantised)


def stages_query(attention: Attention, heads: int) -> bool:
    """Whether the query of so many heads is kept in shared memory rather than in registers."""
    return query_words(layout_of(attention)) * -(-heads // 8) > _MOST_QUERY


def left_for_loads(attention: Attention, heads: int, warps: int) -> int:
    """Registers that are left for K and V in flight, for a CTA of `warps` warps with `heads` heads."""
    layout, tiles = layout_of(attention), -(-heads // 8)
    places = -(-warps // _PARTITIONS)  # of warps, in the partition that has most
    most = min(_MOST, _FILE // (32 * _PARTITIONS * places) // 8 * 8) - _SPARE
    used = _FIXED + _pointers(attention, layout) + 4 * layout.output_tiles * tiles + _SOFTMAX * tiles
    used += 4 * tiles if stages_query(attention, heads) else query_words(layout) * tiles
    used += _BYTE_CONVERSION if attention.problem.kv_dtype.bytes == 1 else _FRAGMENT
    used += (8 + 4 * tiles) * len(attention.variant.per_head)
    return most - used


def budget_for_loads(attention: Attention, heads: int, warps: int, target: Target) -> int:
    """`left_for_loads`, less what the assembler of a target wastes."""
    layout, left = layout_of(attention), left_for_loads(attention, heads, warps)
    wasteful = _kinds(layout) > 2 or 4 * layout.output_tiles * -(-heads // 8) > _MOST_OUTPUTS
    return left - _SPARE_120 if wasteful and target.includes_any(("sm_120",)) else left


def _kinds(layout: TileLayout) -> int:
    """Kinds of block, of K and of V: 2 where all vectors are of one length."""
    return len({(block.kind, block.width, block.repeats) for block in (*layout.k_blocks, *layout.v_blocks)})


def _pointers(attention: Attention, layout: TileLayout) -> int:
    """64-bit addresses: one a kind of block, again for its scales, again for where a lane starts in any page; and what
    vectors of different lengths leave unused between them."""
    kinds = _kinds(layout)
    unused = 2 * (kinds - 2)
    kinds *= 2 if attention.cache.quantised else 1
    if attention.cache.page_size or attention.cache.ring:
        return 4 * kinds + 4 + unused
    return 2 * kinds + (4 if attention.cache.quantised else 2) + unused
