"""Models that keep layers with a window in rings decode as those that keep all positions."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen import CapacityError, SpecError
from ptxgen.runtime import Model, open_device
from ptxgen.runtime.core.device import Device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

CLOSE = 3e-5  # of logits around 10


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def test_layers_with_a_window_in_rings(device: Device) -> None:
    """Tokens are those of a cache of all positions, past a ring's end too; it takes less, and goes back only so far."""
    spec = small_spec("gemma2", sliding_window=9, max_position_embeddings=192)
    file = ArrayFile(spec, random_weights(spec))
    whole, rings = (Model(file, device, "f32", chunk=8, rings=each) for each in (False, True))
    assert sorted(set(rings.cache.rings.sizes)) == [0, 64]
    assert rings.cache.nbytes < whole.cache.nbytes
    prompt = np.random.default_rng(3).integers(0, spec.shape.vocab, 90).tolist()
    assert rings.generate(prompt, 50) == whole.generate(prompt, 50)
    length = rings.length
    for model in (rings, whole):
        model.rollback(length - 30)
    np.testing.assert_allclose(rings.forward(5), whole.forward(5), rtol=0, atol=CLOSE)
    kept = rings.snapshot()
    for early in (lambda: rings.rollback(20), lambda: rings.forward(5, 20), lambda: rings.prefill([5], 20)):
        with pytest.raises(CapacityError, match="holds 64 positions"):
            early()
    assert rings.length == length - 29
    np.testing.assert_allclose(rings.forward(6), whole.forward(6), rtol=0, atol=CLOSE)
    rings.restore(kept)
    whole.rollback(rings.length)
    np.testing.assert_allclose(rings.forward(7), whole.forward(7), rtol=0, atol=CLOSE)
    assert rings.generate(prompt[:20], 5) == whole.generate(prompt[:20], 5)


def test_batches_of_rings(device: Device) -> None:
    spec = small_spec("gemma2", sliding_window=9, max_position_embeddings=192)
    file = ArrayFile(spec, random_weights(spec))
    found = []
    for model in (Model(file, device, "f32", chunk=8, rings=each) for each in (False, True)):
        batch = model.batch(2)
        slots = [batch.join([3, 1, 4, 1, 5] * n) for n in (2, 15)]
        found.append([slots, *(batch.step() for _ in range(20))])
    assert found[0] == found[1]
    with pytest.raises(SpecError, match=r"page_size: needs a Model without rings \(got page_size=16\)"):
        model.batch(2, page_size=16)
