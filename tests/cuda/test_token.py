"""A token on the way to the driver: which calls it makes, in which context, and what their failures are."""

from __future__ import annotations

import pytest

from ptxgen.errors import CudaError
from ptxgen.runtime import Model
from ptxgen.runtime.cuda.driver import DriverError
from ptxgen.runtime.model import sequenced
from tests.support.fake_cuda import Binding, fake_device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

CALLS = ["cuGraphLaunch", "cuMemcpyDtoHAsync", "cuStreamSynchronize"]


@pytest.fixture(scope="module")
def model() -> Model:
    """Its kernels do nothing: every token is 0."""
    spec = small_spec("llama")
    return Model(ArrayFile(spec, random_weights(spec)), fake_device()[0], "f32", chunk=8)


@pytest.fixture
def binding(model: Model, monkeypatch: pytest.MonkeyPatch) -> Binding:
    """The driver, after a first token; tokens 0 are as any other, whose logits are not looked at."""
    monkeypatch.setattr(sequenced, "NAN_TOKEN", -1)
    model.reset()
    model.forward_to_token(0)
    found: Binding = model.device.driver.api
    found.log.clear()
    return found


def test_a_token_is_a_graph_launch_a_copy_of_4_bytes_and_a_wait(model: Model, binding: Binding) -> None:
    for _ in range(3):
        binding.log.clear()
        model.forward_to_token(0)
        assert binding.log == CALLS


def test_another_context_in_the_thread_is_left_as_it_is(model: Model, binding: Binding) -> None:
    """A call that it makes impossible is made again in the device's own."""
    binding.contexts[:] = [0xDD]
    binding.fail["cuGraphLaunch"] = [400]
    model.forward_to_token(0)
    assert (binding.log, binding.contexts) == (["cuGraphLaunch", *CALLS], [0xDD])
    binding.contexts.clear()
    binding.fail["cuStreamSynchronize"] = [201]
    model.forward_to_token(0)
    assert binding.contexts == [0xC0], "a thread that has none gets it"
    binding.contexts.clear()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_says_which(model: Model, binding: Binding, name: str) -> None:
    binding.fail[name] = [1]
    with pytest.raises(DriverError, match=rf"{name}: CUDA_ERROR_INVALID_VALUE \(1\)"):
        model.forward_to_token(0)
    assert model.forward_to_token(0) == 0, "the next one is as ever"


def test_memory_that_is_gone_is_not_launched_on(model: Model, binding: Binding) -> None:
    spec = small_spec("llama")
    other = Model(ArrayFile(spec, random_weights(spec)), model.device, "f32", chunk=8)
    other.forward_to_token(0)
    other.cache.free()
    with pytest.raises(CudaError, match=r"Graph: cannot be launched: a buffer it uses .* was freed"):
        other.forward_to_token(0)
