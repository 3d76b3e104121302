"""A cache that grows is a `DynamicCache` to whoever looks: in what it refuses, in gradients, in what it gave before."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest

from ptxgen.transformers import growing_cache
from tests.transformers.models import build, prompts, torch, transformers

caches: Any = importlib.import_module("ptxgen.transformers.cache")


def pair() -> list[Any]:
    config = build("llama").config
    return [transformers.DynamicCache(config=config), growing_cache(config)]


def ones(*shape: int, kind: Any = None, value: float = 1.0) -> Any:
    return torch.full(shape, value, dtype=kind or torch.float32)


@pytest.mark.parametrize("shape", [(1, 1, 1, 16), (1, 2, 1, 1), (3, 2, 1, 16), (2, 1, 16)], ids=str)
@pytest.mark.usefixtures("without_gradients")
def test_refuses_another_shape(shape: tuple[int, ...]) -> None:
    for cache in pair():
        cache.update(ones(1, 2, 5, 16), ones(1, 2, 5, 16), 0)
        with pytest.raises(RuntimeError):
            cache.update(ones(*shape), ones(*shape), 0)


@pytest.mark.usefixtures("without_gradients")
def test_types_are_those_of_a_dynamic_one() -> None:
    for cache in pair():
        found = []
        for count, kind in ((5, torch.float32), (1, torch.float16), (300, torch.float16)):
            keys, _ = cache.update(ones(1, 2, count, 16, kind=kind), ones(1, 2, count, 16, kind=kind), 0)
            found.append(keys.dtype)
        assert found == [torch.float32] * 3
        cache.reset()
        keys, _ = cache.update(ones(1, 4, 3, 32, kind=torch.bfloat16), ones(1, 4, 3, 32, kind=torch.bfloat16), 0)
        assert keys.dtype == torch.bfloat16
        assert keys.shape == (1, 4, 3, 32)


@pytest.mark.parametrize("change", ["crop", "reset", "copy"])
@pytest.mark.usefixtures("without_gradients")
def test_what_was_taken_keeps_its_values(change: str) -> None:
    cache = growing_cache(build("llama").config)
    taken, _ = cache.update(ones(1, 2, 5, 16), ones(1, 2, 5, 16), 0)
    layers = [cache.layers[0]]
    if change == "copy":
        layers = [copy.copy(layers[0]), copy.copy(layers[0])]
        cache.layers[0].crop(-1)
    elif change == "crop":
        layers[0].crop(-2)
    else:
        cache.reset()
    for number, layer in enumerate(layers, 2):
        new = ones(1, 2, 3, 16, value=number)
        layer.update(new, new)
    assert (taken == 1).all()
    for number, layer in enumerate(layers, 2):
        assert (layer.keys[:, :, -3:] == number).all()


def test_gradients_are_those_of_a_dynamic_one() -> None:
    """Of a prefix that is held, though what is appended needs none."""
    torch.manual_seed(0)
    prefix, new = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 1, 16)
    found = []
    for cache in pair():
        leaf = prefix.clone().requires_grad_()
        cache.update(leaf * 1, leaf * 1, 0)
        total = torch.zeros(())
        for _ in range(3):
            keys, _ = cache.update(new, new, 0)
            total = total + (keys * keys).sum()
        total.backward()
        found.append(leaf.grad)
    assert torch.equal(*found)
    assert found[0].abs().sum() > 0


def test_made_in_inference_mode_and_used_outside() -> None:
    cache = growing_cache(build("llama").config)
    with torch.inference_mode():
        cache.update(ones(1, 2, 5, 16), ones(1, 2, 5, 16), 0)
    with torch.no_grad():
        keys, _ = cache.update(ones(1, 2, 1, 16), ones(1, 2, 1, 16), 0)
    assert keys.shape[2] == 6
    assert (keys == 1).all()


@pytest.mark.usefixtures("without_gradients")
def test_beams_leave_no_room_behind() -> None:
    cache = growing_cache(build("llama").config)
    cache.update(ones(4, 2, 5, 16), ones(4, 2, 5, 16), 0)
    assert all(cache.layers[0]._rooms)
    cache.reorder_cache(torch.tensor([0, 0, 1, 2]))
    assert cache.layers[0]._rooms == [None, None]


@pytest.mark.parametrize("implementation", ["ptxgen", "sdpa"])
def test_compiled_whole(implementation: str) -> None:
    model = build("llama")
    model.set_attn_implementation(implementation)
    ids, _ = prompts("cpu", "none")
    found = []
    with torch.no_grad():
        for cache, compiled in zip(pair(), (False, True), strict=True):
            torch._dynamo.reset()
            step = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
            model(ids, past_key_values=cache)
            found.append([step(ids[:, i : i + 1], past_key_values=cache).logits for i in range(3)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
