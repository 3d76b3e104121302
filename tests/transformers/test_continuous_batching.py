"""Tokens of transformers' continuous batching are those of its eager attention over the same cache."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from tests.transformers.models import FAMILIES, VOCABULARY, build, torch, transformers

paging: Any = importlib.import_module("transformers.generation.continuous_batching.cache")
manager: Any = importlib.import_module("transformers.generation.continuous_batching.continuous_api")
OWN_ONLY = "is not supported for continuous batching" in inspect.getsource(manager)  # from 5.19 on


def batched(model: Any, implementation: str, requests: list[list[int]], block_size: int) -> list[list[int]]:
    model.set_attn_implementation(implementation)
    out = model.generate_batch(
        requests, progress_bar=False,
        generation_config=transformers.GenerationConfig(max_new_tokens=12, do_sample=False, pad_token_id=0),
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            num_blocks=32, block_size=block_size, max_batch_tokens=48
        ),
    )  # fmt: skip
    return [out[name].generated_tokens for name in sorted(out)]


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("block_size", [16, 20])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gemma2"])  # eager has no soft caps there
def test_as_eager(family: str, block_size: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "cpu":  # which it takes to have no memory
        monkeypatch.setattr(paging.PagedAttentionMemoryHandler, "_check_footprint", lambda _, *sizes: sizes)
    model = build(family, where)
    numbers = torch.Generator().manual_seed(1)
    requests = [torch.randint(2, VOCABULARY, (n,), generator=numbers).tolist() for n in (21, 5, 40, 33)]
    wanted = batched(model, "paged|eager", requests, block_size)
    assert [len(tokens) for tokens in wanted] == [12] * 4
    if OWN_ONLY:  # transformers refuses every implementation but its own, by name
        with pytest.raises(ValueError, match="Implementation ptxgen is not supported for continuous batching"):
            batched(model, "paged|ptxgen", requests, block_size)
        return
    assert batched(model, "paged|ptxgen", requests, block_size) == wanted
