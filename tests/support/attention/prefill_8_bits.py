"""What tests of prefill over caches of 8 bits have in common: specs, trials, batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxgen.attention.prefill.wgmma.tile import WgmmaTile
from ptxgen.kernels import MultiHeadAttention
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.trial import Trial, trial
from ptxgen.targets import target as parse_target

TARGET = "sm_90a"
E4M3: dict[str, Any] = {"kv_dtype": "e4m3", "head_scales": True}
KINDS: dict[str, dict[str, Any]] = {"e4m3": E4M3, "s8": {"kv_dtype": "s8"}, "fp8": {**E4M3, "fp8": True}}


def spec(**fields: Any) -> MultiHeadAttention:
    return MultiHeadAttention(
        **{"head_dim": 32, "n_heads": 4, "n_kv_heads": 2, "q_dtype": "bf16", "lse": True, **fields}
    )


def attend(mode: str, sizes: dict[str, int], loud: float = 1.0, sign: float = 1.0, **fields: Any) -> Trial:
    """A trial, NaN beyond the lengths, queries `loud` times as large, scales of keys with a sign; all must match."""
    one = spec(**fields)
    assert isinstance(one.tile(parse_target(TARGET)), WgmmaTile)
    given = one.example(np.random.default_rng(1), **sizes)
    given["q"] = (given["q"].astype(np.float32) * loud).astype(given["q"].dtype)
    if "k_scale" in given:
        given["k_scale"] *= np.float32(sign)
    for array, index in one.past(given):
        array[index] = 127 if array.dtype == np.int8 else np.nan
    return trial(one, open_device("cpu", mode=mode), target=TARGET, arguments=given, **sizes).require()


def batch(lengths: list[tuple[int, int]], one: MultiHeadAttention) -> dict[str, Any]:
    """Arguments of a batch of sequences of so many tokens and keys, NaN behind each, and its `sizes`."""
    tokens = sum(max(0, q_len) for q_len, _ in lengths)
    sizes = {"n_tokens": tokens + 3, "batch": len(lengths), "pages": 14 * len(lengths)}
    given = one.example(np.random.default_rng(2), **sizes)
    given["q_starts"] = np.cumsum([0, *(q_len for q_len, _ in lengths)]).astype(np.int32)
    given["kv_lens"] = np.array([kv_len for _, kv_len in lengths], np.int32)
    if one.page_size:
        pages = np.random.default_rng(3).permutation(given["k"].shape[0])
        given["page_table"] = np.resize(pages, given["page_table"].shape).astype(np.int32)
    for array, index in one.past(given):
        array[index] = 127 if array.dtype == np.int8 else np.nan
    return given | {"sizes": sizes}
