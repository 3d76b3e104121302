"""How much memory sequences take, and how many fit. Allocates nothing."""

from __future__ import annotations

import logging

from ptxgen.dtypes import s8
from ptxgen.kernel import KernelType
from ptxgen.runtime.kv.layers import cache_dtype, from_zero, positive
from ptxgen.scales import scale_groups

log = logging.getLogger("ptxgen.runtime")
_ALIGNMENT = 512  # what the driver's pool rounds an allocation up to


def bytes_per_sequence(n_layers: int, n_kv_heads: int, head_dim: int, max_len: int, dtype: object = "f32") -> int:
    """Device memory of one sequence's cache, scales included."""
    positive("KvCache", n_layers=n_layers, n_kv_heads=n_kv_heads, head_dim=head_dim, max_len=max_len)
    kind = cache_dtype("KvCache.dtype", dtype)
    scales = 2 * scale_groups(head_dim) if kind == s8 else 0
    return 2 * n_layers * n_kv_heads * max_len * (head_dim * kind.bytes + scales)


def overhead(batch: int, n_layers: int, attention: KernelType | None) -> int:
    """What a batch needs beside its caches: positions, lengths, pointers per layer, and all that `attention` is bound
    to but the caches (queries, outputs, workspaces)."""
    total = 2 * 4 * batch + 2 * n_layers * 8 * batch
    if attention is not None:
        for param in attention.params():
            if param.kind == "buffer" and not param.name.endswith(("_cache", "_scales")):
                total += param.nbytes({"batch": batch, "rows": batch})
    return -(-total // _ALIGNMENT) * _ALIGNMENT


def max_batch(
    free_bytes: int,
    n_layers: int,
    n_kv_heads: int,
    head_dim: int,
    max_len: int,
    dtype: object = "f32",
    *,
    attention: KernelType | None = None,
    reserve: int = 0,
) -> int:
    """How many sequences fit into `free_bytes`: their caches, lengths and pointers, and what `attention` needs.

    `attention` is the batched spec that will read the caches; `reserve` is what the caller keeps for other things.
    Warns, and returns 0, when not even one fits.
    """
    per_sequence = bytes_per_sequence(n_layers, n_kv_heads, head_dim, max_len, dtype)
    free_bytes = from_zero("KvCache.max_batch: free_bytes", free_bytes)
    reserve = from_zero("KvCache.max_batch: reserve", reserve)

    def needed(batch: int) -> int:
        return batch * per_sequence + overhead(batch, n_layers, attention) + reserve

    low, high = 0, max(free_bytes // per_sequence, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= free_bytes else (low, middle - 1)
    if low == 0:
        said = f"needs {needed(1):,} bytes with {reserve:,} in reserve, and {free_bytes:,} are free"
        log.warning("KvCache.max_batch: none fits: one sequence of %d positions %s", max_len, said)
    return low
