"""Options, prompts and tokens that a Model does not take: named as they were given, and nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen import CapacityError, SpecError
from ptxgen.runtime import Model
from ptxgen.runtime.cpu.device import CpuDevice
from tests.runtime.model.test_model import PROMPT, RECORDED, file_of, model_of


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "faster"}, r"Model.precision: must be one of exact, fast, e4m3 \(got 'faster'\)"),
        ({"kv_dtype": "s4"}, r"Model.kv_dtype: must be one of f32, f16, bf16, e4m3, s8 \(got 's4'\)"),
        ({"kv_dtype": "u8"}, r"Model.kv_dtype: must be one of f32, f16, bf16, e4m3, s8 \(got 'u8'\)"),
        ({"rings": "no"}, r"Model.rings: must be a bool \(got 'no'\)"),
        ({"timed": 1}, r"Model.timed: must be a bool \(got 1\)"),
    ],
)
def test_options_are_named_as_they_were_given(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        Model(file_of("llama"), CpuDevice(), **options)


def test_options_that_there_are_not() -> None:
    with pytest.raises(SpecError, match=r"Model.load: takes quantise, .*, timed \(got temperature\)"):
        Model.load("no such file", "cpu", temperature=1.0)
    model = model_of(CpuDevice())
    with pytest.raises(SpecError, match=r"Model.batch: takes invariant, .*, n_pages \(got slotz\)"):
        model.batch(2, slotz=1)
    with pytest.raises(SpecError, match=r"Batch.invariant: must be a bool \(got 'no'\)"):
        model.batch(2, invariant="no")
    with pytest.raises(SpecError, match=r"a prompt must be a list of integers, one at least \(got \[True, 2\]\)"):
        model.prefill([True, 2])
    with pytest.raises(SpecError, match=r"must be tokens, as source.text\(\).encode makes them \(got 'In the'\)"):
        model.prefill("In the")
    with pytest.raises(SpecError, match=r"tokens must be within 0 … 130 \(got 131\)"):
        model.prefill([5, 131, 7])
    with pytest.raises(SpecError, match=r"stop_ids: must be an integer or integers \(got True\)"):
        list(model.tokens(PROMPT, 1, stop_ids=True))
    with pytest.raises(SpecError, match=r"step_program: rows must be .* \(got True for batch\)"):
        model.program("batch", True)


def test_weights_of_another_model() -> None:
    """Those of the same source are shared."""
    model = model_of(CpuDevice())
    other = model_of(model.device, weights=model.weights)
    assert other.generate(PROMPT, 3) == model.generate(PROMPT, 3)
    others = model_of(model.device, "mistral").weights  # without biases
    short = {**model.weights, "embed_tokens": model.weights["norm"]}
    for weights, got in (({}, "None"), (others, "None"), (short, "256 bytes"), ("weights", "None")):
        with pytest.raises(SpecError, match=rf"^Model.weights: must hold [\d,]+ bytes of .* \(got {got}\)$"):
            model_of(model.device, weights=weights)


def test_a_prompt_that_does_not_fit_changes_nothing() -> None:
    model = model_of(CpuDevice())
    model.prefill(PROMPT)
    long = [1] * (model.shape.max_len + 1)
    batch = model.batch(2)
    for call in (model.prefill, lambda prompt: model.generate(prompt, 1), batch.join):
        with pytest.raises(CapacityError, match="nothing was changed"):
            call(long)
        with pytest.raises(SpecError, match="tokens must be within"):
            call([model.shape.vocab])
        assert model.length == len(PROMPT)
    assert model.forward_to_token(RECORDED["llama.tokens"][0]) == RECORDED["llama.tokens"][1]
