"""Which models of the installed transformers are told, by their source, to make masks of the mask. Needs no torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ptxgen.transformers.sources import reads_masks

PLAIN = ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma2", "gemma3", "gpt_oss", "phi3", "olmo2")


def source_of(family: str) -> str:
    found = importlib.util.find_spec("transformers")  # does not import it
    if found is None or found.origin is None:
        pytest.skip("transformers is not installed")
    path = Path(found.origin).parent / "models" / family / f"modeling_{family}.py"
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("family", ["doge", "deepseek_v32"])
def test_models_that_make_masks_of_the_mask_are_found(family: str) -> None:
    assert reads_masks(source_of(family))


@pytest.mark.parametrize("family", PLAIN)
def test_models_that_hand_it_to_attention_are_not(family: str) -> None:
    assert not reads_masks(source_of(family))
