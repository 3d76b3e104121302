"""Whole models whose families norm heads or what they add to the residual stream, have biases, windows and soft caps,
or whose widths are no powers of two, beside the float64 model: one sequence, batches, a prompt that crosses a chunk."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest

from ptxgen.models.reference import ReferenceModel
from ptxgen.runtime import Model, open_device
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

SLOTS = (3, 9, 33)  # sequences: in which form their rows are follows from the format and the precision, too
CHUNK, MORE = 64, 7  # a prompt is a chunk and 6 positions; all shorter steps have 8 rows, as each size is compiled
CACHES = {"exact": "f32", "fast": "f16"}  # 16-bit queries go with the latter
CLOSE = {"exact": 5e-6, "fast": 2e-2}  # ‖logits − want‖ / ‖want‖; exact ones are off by up to 2.7e-6 (soft caps)
WIDE = {"hidden_size": 576, "intermediate_size": 1536, "head_dim": 64, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "heads normed": ("qwen3", WIDE | {"head_dim": 128}, "bf16"),
    "all rows of q and k normed": ("olmo2", WIDE, "q8_0"),
    "heads normed, and added": ("gemma3_text", WIDE | {"hidden_size": 640}, "q8_0"),
    "soft caps, and added": ("gemma2", WIDE | {"hidden_size": 512}, "q4_k"),
    "biases": ("qwen2", WIDE, "int4_g64"),
    "norms divided out": ("llama", WIDE | {"hidden_size": 960, "attention_bias": False}, "q8_0"),
}


def off(got: np.ndarray, want: np.ndarray) -> float:
    """The distance of logits from those wanted, relative to these."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def errors_of(model: Model, reference: ReferenceModel, prompt: int, sizes: tuple[int, ...]) -> dict[str, float]:
    """How far a model's logits are off: behind a prompt, a few tokens more and one, and of batches of such sizes."""
    tokens = np.random.default_rng(1).integers(0, model.shape.vocab, prompt + MORE).tolist()
    model.prefill(tokens[:prompt])
    errors = {"prompt": off(model.steps.logits.numpy()[0], reference.forward(tokens[:prompt])[-1])}
    model.prefill(tokens[prompt:])
    errors["few more"] = off(model.steps.logits.numpy()[0], reference.forward(tokens[prompt:])[-1])
    errors["token"] = off(model.forward(5), reference.forward([5])[-1])
    prompts = [tokens[i : i + MORE + i % 2] for i in range(4)]
    wants: dict[tuple[int, ...], np.ndarray] = {}
    for slots in sizes:
        batch = model.batch(slots)
        joined = [(each, *batch.join(each)) for each in islice(cycle(prompts), slots)]
        batch.step()
        logits = batch.logits()
        for at, (each, slot, token) in enumerate(joined):
            sequence = (*each, token)
            if sequence not in wants:
                reference.rollback(0)
                wants[sequence] = reference.forward(sequence)[-1]
            errors[f"{at} of {slots}"] = off(logits[slot], wants[sequence])
    return errors


def are_close(
    device: Device, name: str, precision: str, sizes: tuple[int, ...] = SLOTS, chunk: int = CHUNK, **changes: Any
) -> None:
    """Asserts that all logits of such a model are close; one that is NaN is not."""
    family, wide, format = MODELS[name]
    spec = small_spec(family, **wide | changes, max_position_embeddings=chunk + 16)
    file = ArrayFile(spec, random_weights(spec), format)
    model = Model(file, device, CACHES[precision], chunk=chunk, precision=precision)
    reference = ReferenceModel(file.spec, file.values(), CACHES[precision])
    errors = errors_of(model, reference, chunk + MORE - 1, sizes)
    assert all(error < CLOSE[precision] for error in errors.values()), errors


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, precision: str) -> None:
    are_close(open_device("cuda"), name, precision)


def test_logits_of_a_small_model() -> None:
    """The same on the CPU."""
    small = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    are_close(CpuDevice(), "heads normed, and added", "exact", sizes=(3,), chunk=8, **small)
