"""The model in `examples/models` is what its card says, and what `examples/train/export.py` makes of weights."""

from __future__ import annotations

import itertools
import json
import runpy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ptxgen.models.files import open_model
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.spec import model_spec
from ptxgen.weights import weight_format
from tests.support.models.families import random_weights, torch_name

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS, TRAIN = EXAMPLES / "models", EXAMPLES / "train"
CONFIG = json.loads((TRAIN / "config.json").read_text())
RECORD = json.loads((TRAIN / "train.json").read_text())
# Of a chapter that was held out, and neither trained on nor used to choose the weights.
HELD_OUT = (
    "Genesis 28\n"
    "And Isaac called Jacob, and blessed him, and charged him, and said unto him, "
    "Thou shalt not take a wife of the daughters of Canaan.\n"
    "Arise, go to Padanaram, to the house of Bethuel thy mother's father; "
    "and take thee a wife from thence of the daughters of Laban thy mother's brother.\n"
)
HELD_OUT_LOSS = 1.8906  # nats a token: it repeats what the chapters before it say more than most do


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_the_files_are_what_the_card_says(kind: str) -> None:
    path = MODELS / f"kjv-{kind}.gguf"
    model = open_model(path)
    card = (MODELS / "README.md").read_text()
    assert path.stat().st_size <= 4_000_000
    assert f"`{path.name}` | {path.stat().st_size:,} |" in card
    numbers = sum(info.rows * info.cols for info in model.tensors.values())
    assert numbers == RECORD["parameters"]
    assert f"{numbers:,} parameters" in card
    assert f"| {RECORD['test_loss']:.3f} |" in card
    assert f"| {RECORD['validation_loss']:.3f} |" in card
    assert {info.format for info in model.tensors.values()} == {kind, "f32"}


def test_its_shape_is_the_configuration_it_was_trained_with() -> None:
    spec, trained = open_model(MODELS / "kjv-f16.gguf").spec, model_spec(CONFIG)
    assert spec.shape == trained.shape
    assert (spec.dim, spec.hidden, spec.tied, spec.rope_style) == (trained.dim, trained.hidden, True, "norm")


def loss(logits: np.ndarray, tokens: Sequence[int]) -> float:
    """Nats of a token after the first."""
    before = logits[: len(tokens) - 1]
    largest = before.max(1, keepdims=True)
    log_sums = np.log(np.exp(before - largest).sum(1)) + largest[:, 0]
    return float(np.mean(log_sums - before[np.arange(len(before)), tokens[1:]]))


def test_a_held_out_text_costs_it_what_it_did() -> None:
    losses = {}
    for kind in ("f16", "q8_0"):
        model = open_model(MODELS / f"kjv-{kind}.gguf")
        tokens = model.text().encode(HELD_OUT)
        logits = ReferenceModel(model.spec, {n: model.values(n) for n in model.tensors}).forward(tokens[:-1])
        losses[kind] = loss(logits, tokens)
    assert losses["f16"] == pytest.approx(HELD_OUT_LOSS, abs=1e-3)
    assert losses["q8_0"] == pytest.approx(HELD_OUT_LOSS, abs=0.02)


def test_export_keeps_the_weights(tmp_path: Path) -> None:
    spec = model_spec(CONFIG)
    weights = random_weights(spec)
    np.savez(tmp_path / "weights.npz", **{torch_name(name): values for name, values in weights.items()})
    runpy.run_path(str(TRAIN / "export.py"))["main"](MODELS, tmp_path / "weights.npz", tmp_path / "out")
    model = open_model(tmp_path / "out" / "kjv-f16.gguf")
    rounded = {name: values if values.ndim == 1 else values.astype(np.float16) for name, values in weights.items()}
    want = ReferenceModel(spec, {name: values.astype(np.float32) for name, values in rounded.items()})
    found = ReferenceModel(model.spec, {name: model.values(name) for name in model.tensors})
    tokens = model.text().encode("In the beginning")
    np.testing.assert_allclose(found.forward(tokens), want.forward(tokens), rtol=0, atol=1e-4)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (MODELS / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(("kind", "group"), [("e4m3", 0), ("e4m3_channel", 0), ("e4m3_block", 128)])
def test_what_rounding_to_e4m3_does_to_logits(kind: str, group: int) -> None:
    """As docs/runtime.md states it: the inputs' rounding no more than the weights'."""
    model, format = open_model(MODELS / "kjv-f16.gguf"), weight_format(kind)
    tokens = model.text().encode(HELD_OUT)
    exact = {name: model.values(name) for name in model.tensors}
    inside = [f"layers.{i}.{name}" for i in range(model.spec.shape.n_layers) for name in model.spec.products()]
    rounded = exact | {name: format.dequantise(format.quantise(exact[name]), *exact[name].shape) for name in inside}
    variants: tuple[tuple[dict[str, np.ndarray], dict[str, int]], ...] = (
        (exact, {}), (rounded, {}), (rounded, dict.fromkeys(inside, group)),
    )  # fmt: skip
    logits = [ReferenceModel(model.spec, weights, e4m3=groups).forward(tokens) for weights, groups in variants]
    by_weights, by_inputs = (np.linalg.norm(b - a) / np.linalg.norm(a) for a, b in itertools.pairwise(logits))
    assert 0.015 < by_inputs < by_weights < 0.02
    assert abs(loss(logits[2], tokens) - loss(logits[1], tokens)) < 0.02
