"""Whether K and V of 8 bits should become 16-bit rows in memory once (of one sequence under the products, of a batch
before them), or on the way, for every tile of rows anew: an estimate of both times, fitted to measurements of an H200.
Owns no code.
"""

from __future__ import annotations

from dataclasses import replace

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.wgmma.tile import CHIP_SMS, FEWEST, ROWS, adapts, tile_of

# By the largest head_dim: TFLOP/s of a multiprocessor over 16-bit rows, and the share of it that is left where e4m3 and
# int8 are converted on the way.
RATES = ((96, 4.85, {"e4m3": 0.89, "s8": 0.80}), (256, 6.17, {"e4m3": 0.78, "s8": 0.69}))
# Microseconds that widening takes by itself, and for a MB of keys and values: of one sequence, under the products; of a
# batch, before them.
BEGIN, MEGABYTE = {False: 3.6, True: 4.2}, {False: 0.28, True: 0.86}
# Where what is not widened goes through mma.sync: TFLOP/s of a multiprocessor there; elements that a row takes as long
# as, at least, either way; and microseconds of a merge of keys that CTAs have shared, and for each element.
ON_MMA_SYNC, SHORTEST, MERGING = {"e4m3": 1.85, "s8": 1.75}, 64, (4.0, 0.05)


def tile_rows(prefill: Prefill, rows: int) -> int:
    """Rows of a tile, where a head has so many in all."""
    fewest = FEWEST * ROWS
    few = prefill.attention.problem.n_kv_heads * -(-rows // fewest) <= CHIP_SMS
    return fewest if adapts(prefill) and few else tile_of(prefill).rows


def is_worth_it(
    prefill: Prefill, tokens: int, keys: int, sequences: int = 1, shared: int = 1, mma_rows: int = 0
) -> bool:
    """Whether `tokens` queries in all, the last of so many `keys` of each sequence, are sooner done over widened rows.
    On the way is possible, too, where `shared` CTAs share the keys of a tile of rows. `mma_rows`: rows of a tile where
    that goes through mma.sync."""
    problem, variant = prefill.attention.problem, prefill.attention.variant
    rate, shares = next((rate, shares) for dim, rate, shares in RATES if prefill.dim <= dim)
    dim = max(prefill.dim, SHORTEST) if mma_rows else prefill.dim
    each = tokens / sequences
    widened = seen = keys
    if variant.window:
        seen, widened = min(keys, variant.window), min(keys, variant.window + round(each))
    elif variant.causal:
        seen = max(1, keys - round(each) // 2)
    rows = tokens * problem.group

    def us(of: int, rate: float) -> float:
        """The products of the CTA that has most of the tiles of so many rows."""
        items = problem.n_kv_heads * -(-rows // of)
        return max(1.0, items / CHIP_SMS) * of * seen * dim * 4e-6 / rate

    if mma_rows:
        merging = MERGING[0] + MERGING[1] * dim if shared > 1 else 0.0
        narrow = us(mma_rows, ON_MMA_SYNC[problem.kv_dtype.name]) / shared + merging
    else:
        of = tile_rows(replace(prefill, widened=False), rows)
        narrow = us(of, rate * shares[problem.kv_dtype.name]) / shared
    megabytes = 2e-6 * sequences * problem.n_kv_heads * prefill.dim * widened
    batch = prefill.attention.cache.batched
    return narrow > us(tile_rows(prefill, rows), rate) + BEGIN[batch] + MEGABYTE[batch] * megabytes
