"""The float64 model: transformers' own logits and greedy tokens for every family, a trained checkpoint's tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.spec import BLOCKS, model_spec
from tests.support.models.families import (
    CONFIGS,
    N_TOKENS,
    PROMPT,
    expected_tokens,
    llama2c,
    random_weights,
    small_spec,
)
from tests.tools.record.families import RECORD, logits_of, model_of

RECORDED = dict(np.load(RECORD))
CHECKPOINT = Path(__file__).parents[3] / "shared" / "models" / "aidreams260K.bin"
TIE = 3e-5  # of logits around 10: transformers compute norms and angles in float32 even in a float64 model


def reference(family: str, kv_dtype: str | None = None) -> ReferenceModel:
    spec = small_spec(family)
    return ReferenceModel(spec, random_weights(spec), kv_dtype)


@pytest.mark.parametrize("family", CONFIGS)
def test_logits_are_those_of_transformers(family: str) -> None:
    np.testing.assert_allclose(reference(family).forward(PROMPT), RECORDED[f"{family}.logits"], rtol=0, atol=TIE)


@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(family: str) -> None:
    assert reference(family).generate(PROMPT, N_TOKENS) == RECORDED[f"{family}.tokens"].tolist()


@pytest.mark.parametrize("family", CONFIGS)
def test_installed_transformers_agree(family: str) -> None:
    pytest.importorskip("torch", reason="needs torch and transformers; the record stands for them")
    pytest.importorskip("transformers", reason="needs transformers; the record stands for it")
    theirs = logits_of(model_of(family, seed=1), list(PROMPT))
    spec = small_spec(family)
    ours = ReferenceModel(spec, random_weights(spec, seed=1)).forward(PROMPT)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TIE)


def test_every_family_is_recorded_but_the_nested_one() -> None:
    assert BLOCKS.keys() - CONFIGS.keys() == {"gemma3"}  # gemma3_text inside a multimodal config


def test_a_chunk_gives_what_single_tokens_give() -> None:
    whole, single = reference("gemma2"), reference("gemma2")
    rows = [single.forward([token])[0] for token in PROMPT]
    np.testing.assert_allclose(whole.forward(PROMPT), rows, rtol=1e-12, atol=1e-12)
    single.rollback(4)
    np.testing.assert_allclose(single.forward(PROMPT[4:]), rows[4:], rtol=1e-12, atol=1e-12)


def test_the_cache_rounds_keys_and_values() -> None:
    exact, rounded = reference("llama").forward(PROMPT), reference("llama", "f16").forward(PROMPT)
    assert 1e-6 < np.abs(exact - rounded).max() < 1e-2


def test_a_trained_checkpoint_gives_its_tokens() -> None:
    if not CHECKPOINT.exists():
        pytest.skip(f"needs {CHECKPOINT.name}, which is not part of the project")
    spec, weights = llama2c(CHECKPOINT)
    found = ReferenceModel(spec, weights).generate([1], 127)
    assert found == expected_tokens(CHECKPOINT.with_suffix(".expected.json"))


def test_a_weight_of_another_shape_is_refused() -> None:
    spec = small_spec("llama")
    weights = random_weights(spec) | {"norm": np.zeros(3, np.float32)}
    with pytest.raises(SpecError, match=r"norm must have shape \(64,\) \(got \(3,\)\)"):
        ReferenceModel(spec, weights)


def test_a_family_without_a_block_is_named() -> None:
    with pytest.raises(SpecError, match=r"model_type: must be one of llama, .* to decode \(got 'phi'; of it there"):
        model_spec(CONFIGS["llama"] | {"model_type": "phi"})
