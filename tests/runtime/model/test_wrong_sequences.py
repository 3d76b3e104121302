"""What would go on with wrong tokens is refused: another model's snapshot, a sequence that another call has changed,
logits that are NaN."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ptxgen import LogitsError, SpecError
from ptxgen.runtime import Model, Sampling, Snapshot, open_device
from ptxgen.runtime.core.device import Device
from tests.runtime.model.test_model import PROMPT, model_of
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def test_a_snapshot_is_of_one_model(device: Device, tmp_path: Path) -> None:
    model = model_of(device, kv_dtype="f16")
    model.prefill(PROMPT)
    held = model.snapshot()
    spec = small_spec("llama")
    other = Model(ArrayFile(spec, random_weights(spec, seed=1)), device, "f16", chunk=8)
    with pytest.raises(SpecError, match=r"Model.restore: must be a snapshot of this model, [0-9a-f]{16} \(got one of"):
        other.restore(held)
    assert other.length == 0
    other.restore(dataclasses.replace(held, model=""))  # a cache's, and files of earlier versions
    assert other.length == len(PROMPT)
    for max_len in (16, 256):
        longer = dataclasses.replace(spec, shape=dataclasses.replace(spec.shape, max_len=max_len))
        same = Model(ArrayFile(longer, random_weights(spec)), device, "f16", chunk=8)
        same.restore(held)
        assert same.length == len(PROMPT)
    assert held.tokens is not None
    with pytest.raises(SpecError, match=r"Model.restore: must have tokens from 0 to 130 \(got 131\)"):
        model.restore(dataclasses.replace(held, tokens=np.full_like(held.tokens, 131)))
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(SpecError, match=r"must be a snapshot file \(it has no head, but a\)"):
        Snapshot.load(tmp_path / "other.npz")


@pytest.mark.parametrize("change", ["other", "reset", "join"])
def test_tokens_notice_that_the_sequence_was_changed(device: Device, change: str) -> None:
    model = model_of(device)
    first = model.tokens(PROMPT, 4)
    next(first)
    model.profile(1, position=2, repeats=1)  # leaves it as it is, as these do
    model.rollback(model.length)
    with pytest.raises(SpecError):
        model.restore("no snapshot")
    next(first)
    if change == "reset":
        model.reset()
    elif change == "join":
        model.batch(2).join(PROMPT)
    else:
        assert len(list(model.tokens(PROMPT[::-1], 2))) == 2
    with pytest.raises(SpecError, match="the sequence was changed by another call after 2 tokens; a model has one"):
        next(first)


def test_logits_that_are_nan_are_refused(device: Device) -> None:
    """A value beyond f16's range: with keys and values in bf16 the model is right, in f16 its logits are NaN."""
    spec = small_spec("llama")
    weights = random_weights(spec)
    large = {name: values * 2.0**30 if name.endswith("v_proj") else values for name, values in weights.items()}
    file = ArrayFile(spec, large)
    assert Model(file, device, "bf16", chunk=8).prefill(PROMPT) >= 0
    for options in ({}, {"deterministic": True}):
        model = Model(file, device, "f16", chunk=8, **options)
        with pytest.raises(LogitsError, match=r"logits at position 11 are NaN: .* fit kv_dtype=f16: try bf16"):
            model.prefill(PROMPT)
        assert model.length == 0
        with pytest.raises(LogitsError, match="logits at position 0 are NaN"):
            model.forward_to_token(1)
        assert model.length == 0
    with pytest.raises(LogitsError, match="position 11"):
        list(Model(file, device, "f16", chunk=8).tokens(PROMPT, 3, sampling=Sampling(temperature=0.8)))


def test_a_batch_names_the_slot_whose_logits_are_nan(device: Device) -> None:
    model = model_of(device)
    batch = model.batch(2)
    batch.join(PROMPT)
    slot, _ = batch.join(PROMPT[::-1])
    keys = batch.cache.buffers(0)["v_cache"]
    keys[slot : slot + 1].copy_from(np.full((1, *keys.shape[1:]), np.nan, np.float32))
    with pytest.raises(LogitsError, match=f"logits of slot {slot}, which may leave, are NaN: weights may hold"):
        batch.step()
    batch.leave(slot)
    assert len(batch.step()) == 1
