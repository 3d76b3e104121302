"""Prompts of a model whose products share k by memory: one counter and one place for all launches of a product."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ptxgen.models.reference import ReferenceModel
from ptxgen.models.step import product_inputs
from ptxgen.products.wgmma.cost_model import choice
from ptxgen.runtime import Model, open_device
from ptxgen.runtime.core.device import Device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

SIZES = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "max_position_embeddings": 160,
}  # fmt: skip
ROUNDED = 3e-2  # of logits, relative, where tokens are rounded to bf16 before each product


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Where small matrices take them, too."""
    monkeypatch.setattr(choice, "FEWEST_BY_MEMORY", 2)
    monkeypatch.setattr(choice, "RATHER_OTHERS", 0.1)
    product_inputs._fastest.cache_clear()
    yield open_device(request.param)
    product_inputs._fastest.cache_clear()


def test_prompts_are_those_of_the_float64_model(device: Device) -> None:
    """Of some lengths in turn, and the first once more with the same bytes."""
    spec = small_spec("llama", **SIZES)
    file = ArrayFile(spec, random_weights(spec), "bf16")
    model, reference = Model(file, device, "f32", chunk=128, precision="fast"), ReferenceModel(spec, file.values())
    ops = [op for op in model.program("prefill", 128).ops if getattr(op.spec, "by_memory", False)]
    assert {op.role for op in ops} == {"qkv", "down_proj"}
    first = b""
    for length in (128, 100, 66, 128):
        prompt = np.random.default_rng(length).integers(0, model.shape.vocab, length).tolist()
        model.prefill(prompt, 0)
        reference.rollback(0)
        got, want = model.steps.logits.numpy()[0], reference.forward(prompt)[-1]
        assert np.linalg.norm(got - want) < ROUNDED * np.linalg.norm(want)
        if length == 128:
            first = first or got.tobytes()
            assert got.tobytes() == first
