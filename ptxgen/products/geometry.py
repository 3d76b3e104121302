"""How a product is shared out: warps along k and along rows of weights, tokens of a CTA, CTAs. Choices are a table."""

from __future__ import annotations

from dataclasses import dataclass

WARPS = 8
MOST_CTAS = 264  # two for each multiprocessor of the largest GPUs; a CTA with more rows keeps x in shared memory
# From so many records of 16 rows on, so many warps share the columns of a record: the fewer records, the more warps.
K_WARPS = ((2048, 1), (1024, 2), (512, 4), (0, 8))
# Formats whose product with one token is for tensor cores, where there are any.
ON_TENSOR_CORES = frozenset((
    "f16", "bf16", "e4m3", "e4m3_channel", "e4m3_block", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k", "int4_g32", "int4_g64",
    "int4_g128",
))  # fmt: skip
SHARED_FOR_TOKENS = 96 * 1024  # of x, where there is a choice of tokens


@dataclass(frozen=True)
class Geometry:
    """`k_warps` · `row_warps` warps a CTA; `tokens` rows of x a CTA; `ctas` of `groups` groups of records."""

    k_warps: int
    row_warps: int
    tokens: int
    groups: int
    ctas: int

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.k_warps * self.row_warps

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps


def choose(records: int, tiles: int, tokens: int, token_bytes: int, shared_limit: int) -> Geometry:
    """The geometry for a matrix of so many records by tiles; at most `tokens` rows of x, `token_bytes` each."""
    wanted = next(warps for least, warps in K_WARPS if records >= least)
    k_warps = min(wanted, _power_below(tiles))
    while k_warps < min(_power_below(tiles), WARPS) and tokens > 2 * k_warps:
        k_warps *= 2
    room = min(SHARED_FOR_TOKENS, shared_limit // 2)
    tokens = max(1, min(tokens, 2 * k_warps, room // token_bytes))
    row_warps = min(WARPS // k_warps, _power_below(records))
    groups = -(-records // row_warps)
    return Geometry(k_warps, row_warps, tokens, groups, min(groups, MOST_CTAS))


def choose_for_tensor_cores(records: int, tiles: int, tokens: int) -> Geometry:
    """The same where x is not in shared memory, for exactly so many rows of x a CTA."""
    k_warps = min(next(warps for least, warps in K_WARPS if records >= least), _power_below(tiles))
    row_warps = min(WARPS // k_warps, _power_below(records))
    groups = -(-records // row_warps)
    return Geometry(k_warps, row_warps, tokens, groups, min(groups, MOST_CTAS))


def _power_below(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)
