"""Launches of decode attention for tests: small specs, each way to share a unit's work, memory not to be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import Trial, trial

SMALL: dict[str, Any] = {
    "max_len": 100, "head_dim": 16, "n_heads": 4, "n_kv_heads": 2, "q_dtype": "f16", "kv_dtype": "f16",
}  # fmt: skip
# One spec for each way in which a unit's work is shared out and merged; more than 1024 positions make warps share.
GEOMETRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "one CTA": ("sm_90", {"max_len": 60}),
    "a cluster": ("sm_90", {"max_len": 200}),
    "splits": ("sm_80", {"max_len": 600}),
    "splits of clusters": ("sm_90", {"max_len": 1500, "n_kv_heads": 1}),
    "a batch": ("sm_90", {"max_len": 600, "batched": True}),
}


def spec(**fields: Any) -> IncrementalAttention:
    """`SMALL`, but for these fields."""
    return IncrementalAttention(**{**SMALL, **fields})


def attend(device: Device, target: str, length: object = None, **fields: Any) -> Trial:
    """A trial whose caches hold NaN (int8: the largest bytes, NaN scales) wherever nothing is visible."""
    one = spec(**fields)
    given = one.example(np.random.default_rng(1))
    if length is not None:
        given["seq_lens" if one.batched else "seq_len"] = _lengths(one, length)
    poison(one, given)
    return trial(one, device, target=target, arguments=given).require()


def _lengths(one: IncrementalAttention, length: object) -> Any:
    if one.batched or one.indirect:
        return np.array(length, np.int32).reshape(-1)
    return np.int32(length)


def poison(one: IncrementalAttention, given: dict[str, Any]) -> None:
    """Put NaN (int8: the largest bytes, NaN scales) into the caches wherever nothing is visible."""
    lengths = np.clip(np.ravel(given["seq_lens" if one.batched else "seq_len"]), 0, one.max_len)
    for name in [name for name in given if name.endswith(("_cache", "_scales"))]:
        rows = given[name]
        hidden = np.ones((rows.shape[0], rows.shape[2]) if rows.ndim == 4 else (1, rows.shape[1]), bool)
        for sequence, length in enumerate(map(int, lengths)):
            seen = np.arange(max(0, length - one.window) if one.window else 0, length)
            if one.page_size:
                hidden[given["page_table"][sequence, seen // one.page_size], seen % one.page_size] = False
            else:
                hidden[0 if one.one_cache else sequence, seen % (one.ring or one.max_len)] = False
        spoiled = np.broadcast_to(hidden[:, None, :, None], rows.shape if rows.ndim == 4 else (1, *rows.shape))
        rows[spoiled.reshape(rows.shape)] = 127 if rows.dtype.kind == "i" else np.nan
