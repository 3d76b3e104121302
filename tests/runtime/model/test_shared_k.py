"""Prompts of a model whose products share k by memory, of all tiles or of the last turn's: one counter and one place
for all launches of a product."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ptxgen.generator import clear_cache
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.step import product_inputs
from ptxgen.products.wgmma.cost_model import candidates, choice
from ptxgen.products.wgmma.tiling import shape
from ptxgen.runtime import Model, open_device
from ptxgen.runtime.core.device import Device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

SIZES = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "max_position_embeddings": 160,
}  # fmt: skip
ROUNDED = 3e-2  # of logits, relative, where tokens are rounded to bf16 before each product


# the field, what is set so that small matrices take it, and whose products then have it
WAYS = {
    "by_memory": ({(candidates, "FEWEST_BY_MEMORY"): 2, (choice, "RATHER_OTHERS"): 0.1}, {"qkv", "down_proj"}),
    "last_split": (
        {(candidates, "PROCESSORS"): 3, (shape, "PROCESSORS"): 3, (choice, "RATHER_WHOLE"): 0.1},
        {"down_proj"},
    ),
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for (module, name), value in WAYS[request.param][0].items():
        monkeypatch.setattr(module, name, value)
    product_inputs._fastest.cache_clear()
    clear_cache()
    yield request.param
    product_inputs._fastest.cache_clear()
    clear_cache()


def test_prompts_are_those_of_the_float64_model(device: Device, way: str) -> None:
    """Of some lengths in turn, and the first once more with the same bytes."""
    spec = small_spec("llama", **SIZES)
    file = ArrayFile(spec, random_weights(spec), "bf16")
    model, reference = Model(file, device, "f32", chunk=128, precision="fast"), ReferenceModel(spec, file.values())
    ops = [op for op in model.program("prefill", 128).ops if getattr(op.spec, way, False)]
    assert {op.role for op in ops} == WAYS[way][1]
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
