"""Prompts on shapes that no table was made with: heads of models, and their matrices, by number of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

Case = dict[str, Any]

# Query heads, KV heads and head_dim: Qwen2.5, Falcon, Phi, Gemma, SmolLM2, vision encoders and others.
HEADS = (
    (12, 2, 128), (14, 2, 64), (16, 16, 64), (8, 1, 256), (8, 4, 256), (32, 32, 96), (32, 32, 80), (40, 40, 128),
    (64, 8, 128), (15, 5, 64), (24, 8, 128), (20, 20, 64), (16, 8, 192), (9, 3, 64), (4, 1, 256), (28, 4, 128),
    (71, 1, 64), (32, 8, 160), (32, 8, 72), (48, 8, 112), (12, 12, 32),
)  # fmt: skip
# Tokens of causal prompts, a line for each of the heads in turn: two that are multiples of all tiles, two others.
LENGTHS = ((512, 2048, 300, 4100), (512, 2048, 777, 8192), (512, 2048, 128, 1024))
NOT_CAUSAL = ((1024, 4096), (300, 2048), (777, 8192))
BATCHES = (
    (200, 1000, 513, 777), (640,) * 8, (257, 300, 412, 999, 850, 233, 515, 641, 700, 222, 888, 360),
)  # fmt: skip
CHUNK, BEFORE = 512, (4096, 16384)  # tokens, and the keys before them

# Outputs and inputs of matrices.
MATRICES = (
    (5120, 5120), (27648, 5120), (5120, 13824), (3584, 18944), (37888, 3584), (4608, 3584), (2560, 9728),
    (19456, 2560), (6144, 2560), (3072, 8192), (16384, 3072), (9216, 3072), (1152, 6912), (13824, 1152), (2304, 9216),
    (18432, 2304), (8192, 8192), (10240, 8192), (57344, 8192), (8192, 28672), (49152, 960), (1024, 4096), (896, 4864),
    (9728, 896),
)  # fmt: skip
TOKENS = ((512, 2048, 300, 1024, 192), (512, 2048, 128, 777, 1500), (512, 2048, 100, 1024, 4096))


def attention() -> Iterator[Case]:
    """Causal prompts in bf16, then some in f16, without a mask, batches, and chunks behind a cached prefix."""
    for heads, lengths in zip(HEADS, itertools.cycle(LENGTHS)):
        yield from (_of(heads, n) for n in lengths)
    for heads, both in zip(HEADS[::2], itertools.cycle(NOT_CAUSAL)):
        yield from (_of(heads, n, causal=False) for n in both)
    for heads, batch in zip(HEADS[1::3], itertools.cycle(BATCHES)):
        yield _of(heads, sum(batch), lengths=list(batch))
    for heads, keys in itertools.product(HEADS[::5], BEFORE):
        yield _of(heads, CHUNK, keys=keys + CHUNK)
    for heads, tokens in itertools.product(HEADS[::4], (512, 4096)):
        yield _of(heads, tokens, dtype="f16")


def _of(heads: tuple[int, int, int], tokens: int, **more: Any) -> Case:
    given = dict(zip(("n_heads", "n_kv_heads", "head_dim"), heads, strict=True))
    return {**given, "tokens": tokens, "dtype": "bf16", **more}


def products() -> Iterator[Case]:
    """bf16, all tokens of a matrix one after the other."""
    for (n, k), counts in zip(MATRICES, itertools.cycle(TOKENS)):
        yield from ({"m": m, "n": n, "k": k, "weights": "bf16"} for m in counts)
