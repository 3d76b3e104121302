"""Whether K and V of 8 bits become 16-bit rows in memory before the products: where that is less work than converting
them on the way for every tile of rows. A rule fitted to measurements; owns no code.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill

# Microseconds of an H200: what conversions on the way add to a TFLOP of products, by the type of keys and values and the
# largest head_dim; and what a widened launch adds, as such and for every MB of keys and values.
ON_THE_WAY = {("e4m3", 64): 210.0, ("e4m3", 256): 380.0, ("s8", 64): 400.0, ("s8", 256): 700.0}
BEGIN, MEGABYTE = 5.0, 0.75


def is_worth_it(prefill: Prefill, tokens: int, keys: int) -> bool:
    """Whether `tokens` queries of every head, the last of so many `keys`, are sooner done over widened rows."""
    problem, variant = prefill.attention.problem, prefill.attention.variant
    seen = min(keys, variant.window + tokens - 1) if variant.window else keys
    pairs = float(tokens) * min(keys, variant.window or keys)
    if variant.causal and not variant.window:
        pairs -= tokens * (tokens - 1) / 2
    kind = problem.kv_dtype.name
    added = next(us for (name, dim), us in ON_THE_WAY.items() if name == kind and prefill.dim <= dim)
    on_the_way = added * 4e-12 * problem.n_heads * prefill.dim * pairs
    widened = BEGIN + MEGABYTE * 2e-6 * problem.n_kv_heads * prefill.dim * seen
    return on_the_way > widened
