"""Whole models of the families that norm heads, or what they add to the residual stream, and of widths that are no
power of two, beside the float64 model: one sequence, batches in each form of rows, a prompt that crosses a chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.models.reference import ReferenceModel
from ptxgen.runtime import Model, open_device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

FORMS = (3, 9, 33)  # sequences whose rows are digits, in units of their own, and packed
CHUNK, PROMPT = 64, 70
CACHES = {"exact": "f32", "fast": "f16"}  # 16-bit queries go with the latter
CLOSE = {"exact": 2e-6, "fast": 2e-2}  # ‖logits − want‖ / ‖want‖
WIDE = {"hidden_size": 576, "intermediate_size": 1536, "head_dim": 64, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "heads normed": ("qwen3", WIDE | {"head_dim": 128}, "bf16"),
    "all rows of q and k normed": ("olmo2", WIDE, "q8_0"),
    "heads normed, and added": ("gemma3_text", WIDE | {"hidden_size": 640}, "q8_0"),
    "norms divided out": ("llama", WIDE | {"hidden_size": 960, "attention_bias": False}, "q8_0"),
}


def off(got: np.ndarray, want: np.ndarray) -> float:
    """The distance of logits from those wanted, relative to these."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("on", [pytest.param("cuda", marks=pytest.mark.gpu)])
def test_logits(on: str, name: str, precision: str) -> None:
    family, changes, format = MODELS[name]
    spec = small_spec(family, **changes, max_position_embeddings=PROMPT + 10)
    file = ArrayFile(spec, random_weights(spec), format)
    model = Model(file, open_device(on), CACHES[precision], chunk=CHUNK, precision=precision)
    reference = ReferenceModel(file.spec, file.values(), CACHES[precision])
    tokens = np.random.default_rng(1).integers(0, spec.shape.vocab, PROMPT + 3).tolist()
    model.prefill(tokens[:PROMPT])
    errors = {"prompt": off(model.steps.logits.numpy()[0], reference.forward(tokens[:PROMPT])[-1])}
    model.prefill(tokens[PROMPT:])
    errors["few more"] = off(model.steps.logits.numpy()[0], reference.forward(tokens[PROMPT:])[-1])
    errors["token"] = off(model.forward(5), reference.forward([5])[-1])
    prompts = [tokens[i : 2 + 3 * i] for i in range(4)]
    wants: dict[tuple[int, ...], np.ndarray] = {}
    for slots in FORMS:
        batch, found = model.batch(slots), []
        joined = [(prompts[i % 4], *batch.join(prompts[i % 4])) for i in range(slots)]
        batch.step()
        for prompt, slot, token in joined:
            sequence = (*prompt, token)
            if sequence not in wants:
                reference.rollback(0)
                wants[sequence] = reference.forward(sequence)[-1]
            found.append(off(batch.logits()[slot], wants[sequence]))
        errors[f"{slots} sequences"] = max(found)
    assert max(errors.values()) < CLOSE[precision], errors
