"""Drawn tokens: the same seed the same, alone and in a batch, whatever the chunks; what the settings forbid."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.runtime import Model, Sampling, open_device
from ptxgen.runtime.core.device import Device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import PROMPT, random_weights, small_spec
from tests.tools.record.drawn import MAX_LEN, MODEL, SETTINGS, drawn
from tests.tools.record.drawn import RECORD as RECORD_OF_DRAWS
from tests.tools.record.families import RECORD


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


@pytest.fixture(scope="module")
def model(device: Device) -> Model:
    spec = small_spec("llama")
    return Model(ArrayFile(spec, random_weights(spec)), device, "f32", chunk=8)


@pytest.fixture(scope="module")
def shipped(device: Device) -> Model:
    return Model.load(MODEL, device, "f32", MAX_LEN)


DRAWN = Sampling(temperature=4.0, top_k=20, seed=7)


def test_a_seed_gives_its_tokens_again_and_another_gives_others(model: Model) -> None:
    first = model.generate(PROMPT, 12, sampling=DRAWN)
    assert model.generate(PROMPT, 12, sampling=DRAWN) == first
    assert model.generate(PROMPT, 12, sampling=Sampling(temperature=4.0, top_k=20, seed=8)) != first
    assert model.generate(PROMPT, 12)[len(PROMPT) :] == np.load(RECORD)["llama.tokens"].tolist()[:12]


def test_temperature_zero_and_one_token_of_top_k_are_greedy(model: Model) -> None:
    greedy = model.generate(PROMPT, 12)
    assert model.generate(PROMPT, 12, sampling=Sampling(temperature=0.0)) == greedy
    assert model.generate(PROMPT, 12, sampling=Sampling(temperature=2.0, top_k=1, seed=3)) == greedy


def test_chunks_of_a_prompt_change_no_draw(device: Device, model: Model) -> None:
    other = Model(model.source, device, "f32", chunk=2)
    assert other.generate(PROMPT, 8, sampling=DRAWN) == model.generate(PROMPT, 8, sampling=DRAWN)


def test_a_penalty_keeps_off_what_the_sequence_has(model: Model) -> None:
    """So large a penalty that a token which was there is never the likeliest, by the prompt's or its own tokens."""
    never = Sampling(temperature=0.0, penalty=900.0)
    assert len(set(model.generate(PROMPT, 12))) < len(set(PROMPT)) + 12
    logits = [model.forward(token) for token in PROMPT]
    found = model.generate(PROMPT, 12, sampling=never)[len(PROMPT) :]
    if logits[-1].max() > 0:
        assert found[0] not in PROMPT
    for at in range(1, len(found)):
        assert found[at] not in [*PROMPT, *found[:at]], at


def test_a_penalty_is_for_the_tokens_of_the_prompt_that_was_restored(model: Model) -> None:
    penalised = Sampling(temperature=0.0, penalty=1.8)

    def after(token: int) -> list[int]:
        return [token := model.forward_to_token(token, sampling=penalised) for _ in range(8)]

    model.reset()
    first = model.prefill(PROMPT, sampling=penalised)
    held = model.snapshot()
    expected = after(first)
    model.generate([9] * len(PROMPT), 8, sampling=penalised)
    model.restore(held)
    assert after(first) == expected
    model.restore(dataclasses.replace(held, tokens=None))  # a cache's: nothing is known to be penalised
    assert after(first) != expected


def test_a_batch_draws_what_sequences_draw_alone(model: Model) -> None:
    batch = model.batch(3, sampling=True)
    settings = [DRAWN, None, Sampling(temperature=1.5, top_p=0.9, seed=11)]
    prompts = [list(PROMPT), [4, 9], [17]]
    found = [[batch.join(p, s)[1]] for p, s in zip(prompts, settings, strict=True)]
    for _ in range(6):
        for slot, token in batch.step().items():
            found[slot].append(token)
    for prompt, sampling, tokens in zip(prompts, settings, found, strict=True):
        assert model.generate(prompt, 7, sampling=sampling)[len(prompt) :] == tokens


def test_a_batch_penalises_each_sequence_by_its_own_tokens(model: Model) -> None:
    batch = model.batch(3, penalties=True)
    settings = [Sampling(temperature=0.0, penalty=1.6), None, Sampling(temperature=4.0, top_k=9, seed=5, penalty=1.3)]
    prompts = [list(PROMPT), [4, 9], [17]]
    assert batch.join([30, 31])[0] == 0, "whose tokens count no more when it has left"
    batch.step()
    batch.leave(0)
    found = [[batch.join(p, s)[1]] for p, s in zip(prompts, settings, strict=True)]
    for _ in range(8):
        for slot, token in batch.step().items():
            found[slot].append(token)
    for prompt, sampling, tokens in zip(prompts, settings, found, strict=True):
        assert model.generate(prompt, 9, sampling=sampling)[len(prompt) :] == tokens
    assert model.generate(prompts[0], 9)[len(prompts[0]) :] != found[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_device_draws_the_tokens_that_the_cpu_executor_drew(shipped: Model, name: str) -> None:
    assert drawn(shipped, SETTINGS[name]) == json.loads(RECORD_OF_DRAWS.read_text())[name]


def test_what_settings_cannot_be_is_refused(model: Model) -> None:
    with pytest.raises(SpecError, match=r"Sampling\.temperature: must be"):
        Sampling(temperature=-1.0)
    with pytest.raises(SpecError, match=r"Sampling\.top_p: must be"):
        Sampling(top_p=1.5)
    for wrong in ("1", None, True):
        with pytest.raises(SpecError, match=r"Sampling\.min_p: must be a number"):
            Sampling(min_p=wrong)
    for name, value in (("top_k", 1.5), ("seed", 2.5), ("seed", "1")):
        with pytest.raises(SpecError, match=rf"Sampling\.{name}: must be an integer \(got {value!r}\)"):
            Sampling(**{name: value})
    assert Sampling(np.float32(0.5), np.int64(3)).top_k == 3
    with pytest.raises(SpecError, match="sampling needs a Batch made with sampling=True"):
        model.batch(1).join([1], DRAWN)
