"""How a product is shared out whose warps take records in groups: warps along k and along rows, tokens of a CTA, CTAs.
Choices are a table."""

from __future__ import annotations

from dataclasses import dataclass

WARPS = 8
FEW_WORDS = 22  # words that a lane reads of a tile; with more, registers are short
CROWDED_WARPS = 4  # warps of a CTA if threads have so many registers that two CTAs of eight warps do not fit
MOST_WARPS = 2112  # 16 for each multiprocessor of the largest GPUs; a CTA with more rows keeps x in shared memory
# Least number of records of 16 rows, and warps that share the columns of a record: the fewer records, the more warps.
K_WARPS = ((2048, 1), (1024, 2), (512, 4), (0, 8))
SHARED_FOR_TOKENS = 96 * 1024  # bytes of x in shared memory, if the number of tokens of a CTA is free


@dataclass(frozen=True)
class Geometry:
    """`k_warps` · `row_warps` warps a CTA; `tokens` rows of x a CTA; `ctas` of `groups` groups of records."""

    k_warps: int
    row_warps: int
    tokens: int
    groups: int
    ctas: int
    split = 1  # CTAs that share k

    @property
    def launched(self) -> int:
        """CTAs of the launch."""
        return self.ctas

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
    return _shared_out(records, k_warps, WARPS, tokens)


def choose_for_tensor_cores(records: int, tiles: int, tokens: int, words: int) -> Geometry:
    """The same for tensor cores, for exactly so many rows of x a CTA; a lane reads so many words of a tile."""
    warps = CROWDED_WARPS if words > FEW_WORDS else WARPS
    wanted = next(each for least, each in K_WARPS if records >= least)
    return _shared_out(records, min(wanted, _power_below(tiles), warps), warps, tokens)


def _shared_out(records: int, k_warps: int, warps: int, tokens: int) -> Geometry:
    row_warps = min(warps // k_warps, _power_below(records))
    groups = -(-records // row_warps)
    return Geometry(k_warps, row_warps, tokens, groups, min(groups, MOST_WARPS // (k_warps * row_warps)))


def _power_below(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)
