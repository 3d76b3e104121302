"""A model whose matrices are quantised as it is loaded decodes as the float64 model with the quantised values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import SpecError
from ptxgen.models.files import open_model, quantised
from ptxgen.models.reference import ReferenceModel
from ptxgen.runtime import Device, Model, open_device
from ptxgen.weights import weight_format
from tests.support.models.families import PROMPT
from tests.support.models.model_files import write_checkpoint

CLOSE = 1e-5  # of the largest logit
SIZES = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=2, head_dim=64)


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])  # a head of its own, a tied one; matrices in one
@pytest.mark.parametrize(("quantise", "quantise_head"), [("q4_k", "q6_k"), ("e4m3_block", None), (None, "int4_g128")])
def test_a_model_quantised_on_load(
    quantise: str | None, quantise_head: str | None, family: str, device: Device, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path / "m", family, **SIZES)
    file = open_model(path)
    weights = {name: file.values(name) for name in file.tensors}
    for name, values in weights.items():
        format = quantise_head if name in ("embed_tokens", "lm_head") else quantise
        if values.ndim == 2 and format is not None:
            kind = weight_format(format)
            weights[name] = kind.dequantise(kind.quantise(values), *values.shape)
    model = Model.load(path, device, "f32", chunk=8, quantise=quantise, quantise_head=quantise_head)
    reference = ReferenceModel(file.spec, weights)
    expected = reference.forward(PROMPT)
    found = [model.forward(token) for token in PROMPT]
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE * np.abs(expected).max())
    reference.rollback(0)
    assert model.generate(PROMPT, 8)[len(PROMPT) :] == reference.generate(PROMPT, 8)


def test_a_snapshot_is_of_its_formats_and_quantises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path / "m", "llama", **SIZES)
    device = open_device("cpu")
    first, same, other = (
        Model.load(path, device, quantise="q4_k", quantise_head=head) for head in ("q8_0", "q8_0", "q5_0")
    )

    def refused(*arguments: Any) -> None:
        raise AssertionError("a matrix was quantised")

    monkeypatch.setattr("ptxgen.models.files.quantise._piece", refused)
    first.prefill(PROMPT)
    held = first.snapshot()
    same.restore(held)
    assert same.length == len(PROMPT)
    with pytest.raises(SpecError, match="must be a snapshot of this model"):
        other.restore(held)


def test_weights_of_another_format_are_refused(tmp_path: Path) -> None:
    """Also where they have as many bytes."""
    path = write_checkpoint(tmp_path / "m", "llama", **SIZES)
    device = open_device("cpu")
    first, same, other = (quantised(open_model(path), name) for name in ("q4_0", "q4_0", "q4_k"))
    weights = Model(first, device).weights
    Model(same, device, weights=weights)
    with pytest.raises(SpecError, match=r"Model\.weights: must hold .* in q4_k \(got it in q4_0\)"):
        Model(other, device, weights=weights)


def test_an_option_that_is_spelt_otherwise_is_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m", "llama", **SIZES)
    with pytest.raises(SpecError, match=r"quantise, quantise_head.* \(got quantize; nearest: quantise\)"):
        Model.load(path, "cpu", quantize="q4_0")


def test_what_a_format_cannot_have_is_refused_by_its_option(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m", "llama")
    with pytest.raises(SpecError, match=r"^quantise_head: .*q6_k: cols: must be a multiple of 256"):
        Model.load(path, "cpu", quantise="q8_0", quantise_head="q6_k")
    assert quantised(open_model(path), "q8_0").tensors["layers.0.q_proj"].format == "q8_0"
