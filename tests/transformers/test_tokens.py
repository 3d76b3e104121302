"""Greedy tokens of transformers' models are those of its eager attention, whatever the cache and the padding."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest

from ptxgen.transformers import growing_cache
from tests.transformers.models import (
    BASE,
    FAMILIES,
    VOCABULARY,
    build,
    continued,
    of_config,
    prompts,
    torch,
    transformers,
)

operators: Any = importlib.import_module("ptxgen.transformers.operators")
caches: Any = importlib.import_module("ptxgen.transformers.cache")
launches: Any = importlib.import_module("ptxgen.transformers.launches")
masks: Any = importlib.import_module("ptxgen.transformers.mask")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def launched(where: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were launched; on a GPU also those of calls that only wrote addresses."""
    names: list[str] = []
    if where == "cpu":
        real = operators._launch

        def launch(spec: Any, *given: Any, **more: Any) -> Any:
            names.append(spec.kernel_name)
            return real(spec, *given, **more)

        monkeypatch.setattr(operators, "_launch", launch)
        return names
    kind = importlib.import_module("ptxgen.torch")._Prepared
    native = kind.launch_uncaptured

    def launch_uncaptured(prepared: Any, *given: Any) -> None:
        names.append(prepared.bound.name)
        native(prepared, *given)

    monkeypatch.setattr(kind, "launch_uncaptured", launch_uncaptured)
    return names


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_as_eager(family: str, padding: str, where: str, launched: list[str]) -> None:
    model = build(family, where)
    ids, mask = prompts(where, padding)
    wanted, logits = continued(model, "eager", ids, mask)
    for cache in (None, "static"):
        launched.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing may run elsewhere
            tokens, found = continued(model, "ptxgen", ids, mask, cache_implementation=cache)
        assert torch.equal(tokens, wanted), cache
        assert torch.allclose(found, logits, atol=1e-4), cache
        assert launched.count("multi_head_attention") == 2
        assert launched.count("incremental_attention") == 2 * 23


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize(
    "fields", [{}, {"num_key_value_heads": 1}, {"family": "gemma3"}], ids=["", "a head", "windows"]
)
def test_a_cache_that_grows_in_place(
    fields: dict[str, Any], padding: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As eager attention over transformers' own; it moves only when its room is full, and so often only."""
    monkeypatch.setattr(caches, "LEAST_ROOM", 8)
    model = build(fields.get("family", "llama"), where, **{k: v for k, v in fields.items() if k != "family"})
    ids, mask = prompts(where, padding)
    wanted, logits = continued(model, "eager", ids, mask)
    for name in ("eager", "ptxgen"):
        cache = growing_cache(model.config)
        tokens, found = continued(model, name, ids, mask, past_key_values=cache)
        assert torch.equal(tokens, wanted), name
        assert torch.allclose(found, logits, atol=1e-4), name
    grown = [layer for layer in cache.layers if isinstance(layer, caches.GrowingLayer)]
    assert grown
    for layer in grown:
        assert layer.keys.shape[2] == 21 + 23
        assert layer.keys.data_ptr() == layer._rooms[0].tensor.data_ptr()
        assert layer._rooms[0].tensor.shape[2] == 39 + 8  # the third: before of 21 + 8, of 30 + 8 positions


@pytest.mark.parametrize("family", ["mistral", "qwen2_moe", "gemma3"])
@pytest.mark.parametrize("made", ["its own", "in place"])
def test_a_window_counts_over_a_cache_that_keeps_all(family: str, made: str, where: str) -> None:
    """A cache made without a config has no layers of windows: nothing but the mask tells some models of theirs."""
    model = build(family, where)
    ids, mask = prompts(where, "none")
    wanted, logits = continued(model, "eager", ids, mask)
    cache = transformers.DynamicCache() if made == "its own" else growing_cache(None)
    tokens, found = continued(model, "ptxgen", ids, mask, past_key_values=cache)
    assert torch.equal(tokens, wanted)
    assert torch.allclose(found, logits, atol=1e-4)
    assert cache.layers[0].keys.shape[2] == 21 + 23


@pytest.mark.parametrize("family", ["mistral", "qwen2_moe"])
def test_a_window_counts_where_torch_computes(family: str) -> None:
    """One query over a cache that keeps all positions, with gradients, which our kernels do not have."""
    model = build(family)
    ids, _ = prompts("cpu", "none")
    found = []
    for name in ("eager", "ptxgen"):
        model.set_attn_implementation(name)
        cache = transformers.DynamicCache()
        with torch.no_grad():
            model(ids, past_key_values=cache)
        with torch.enable_grad():
            found.append(model(ids[:, :1], past_key_values=cache).logits.detach())
    assert torch.allclose(*found, atol=1e-4)


def test_queries_that_lie_head_by_head(where: str) -> None:
    """One sequence, a static cache, and rotated queries that a model has put together anew."""
    kind = transformers.GPTNeoXConfig(**{name: n for name, n in BASE.items() if name != "num_key_value_heads"})
    model = of_config(kind, where)
    ids, mask = (x[:1] for x in prompts(where, "none"))
    wanted, _ = continued(model, "eager", ids, mask)
    tokens, _ = continued(model, "ptxgen", ids, mask, cache_implementation="static")
    assert torch.equal(tokens, wanted)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("family", ["bloom", "gpt_neox_japanese"])
def test_a_model_that_attends_by_itself_is_as_it_was(family: str, padding: str) -> None:
    sizes = dict(vocab_size=VOCABULARY, hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    kind = {
        "bloom": lambda: transformers.BloomConfig(**sizes),
        "gpt_neox_japanese": lambda: transformers.GPTNeoXJapaneseConfig(**sizes),
    }[family]()
    kind.bos_token_id, kind.eos_token_id, kind.pad_token_id = 1, None, 0
    model = of_config(kind)
    ids, mask = prompts("cpu", padding)
    wanted, logits = continued(model, "eager", ids, mask)
    model.config._attn_implementation = "ptxgen"  # as from_pretrained puts it, whatever the model
    masks.attends_itself_by.cache_clear()
    with pytest.warns(UserWarning, match="attends by itself; our kernels are not used"):
        tokens, found = continued(model, "ptxgen", ids, mask)
    assert torch.equal(tokens, wanted)
    assert torch.equal(found, logits)


def test_a_cache_that_grows_reads_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    launch = operators._launch

    def launching(spec: Any, tensors: Any, *more: Any) -> Any:
        taken.append(tensors["k_cache" if "k_cache" in tensors else "k"].data_ptr())
        return launch(spec, tensors, *more)

    monkeypatch.setattr(operators, "_launch", launching)
    model = build("llama")
    cache = growing_cache(model.config)
    continued(model, "ptxgen", *prompts("cpu", "none"), past_key_values=cache)
    assert set(taken) == {layer.keys.data_ptr() for layer in cache.layers}


@pytest.mark.parametrize("cache", ["its own", "in place", "static"])
def test_a_call_that_is_like_another_names_all_that_it_takes(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of two kinds may be one launch: what one of them left out would be the other's."""
    named: list[list[int]] = []
    steps: list[Any] = []
    launch = operators._launch

    def again(site: Any, tensors: Any, scalars: Any) -> None:
        named.append([tensor.data_ptr() for tensor in tensors])

    def launching(spec: Any, tensors: Any, *more: Any) -> Any:
        if type(spec).__name__ == "IncrementalAttention":
            assert named.pop() == [tensor.data_ptr() for tensor in tensors.values()]
            steps.append(spec)
        return launch(spec, tensors, *more)

    monkeypatch.setattr(operators, "again", again)
    monkeypatch.setattr(operators, "_launch", launching)
    model = build("llama")
    given: dict[str, Any] = {"static": dict(cache_implementation="static"), "its own": {}}.get(
        cache, dict(past_key_values=growing_cache(model.config))
    )
    continued(model, "ptxgen", *prompts("cpu", "none"), **given)
    assert len(steps) == 2 * 23


@pytest.mark.usefixtures("without_gradients")
def test_a_cache_that_grows_is_changed_as_a_dynamic_one() -> None:
    """Cropped, reordered, repeated, and appended to again."""
    torch.manual_seed(0)
    config = build("llama").config
    pair = [transformers.DynamicCache(config=config), growing_cache(config)]

    def both(change: Any) -> None:
        for cache in pair:
            change(cache)
        for one, other in zip(pair[0].layers, pair[1].layers, strict=True):
            assert torch.equal(one.keys, other.keys)
            assert torch.equal(one.values, other.values)

    def append(batch: int, count: int) -> None:
        new = torch.randn(2, 2, batch, 2, count, 16)
        both(lambda cache: [cache.update(*new[layer], layer) for layer in range(2)])

    append(2, 5)
    append(2, 1)
    both(lambda cache: cache.crop(-3))
    append(2, 2)
    both(lambda cache: cache.batch_repeat_interleave(2))
    append(4, 1)
    both(lambda cache: cache.reorder_cache(torch.tensor([3, 0, 0, 2])))
    append(4, 300)
    both(lambda cache: cache.batch_select_indices(torch.tensor([1, 2])))
    append(2, 1)
    assert pair[1].get_seq_length() == 307
    filled = caches.GrowingCache([(layer.keys, layer.values) for layer in pair[0].layers])
    assert torch.equal(filled.layers[1].keys, pair[0].layers[1].keys)


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_chunks_of_a_prompt(family: str, where: str) -> None:
    """Several tokens behind some that are cached already."""
    model = build(family, where)
    ids, _ = prompts(where, "none")
    with torch.no_grad():
        wanted = model(ids).logits
        model.set_attn_implementation("ptxgen")
        for cache in (
            transformers.DynamicCache(config=model.config),
            transformers.StaticCache(config=model.config, max_cache_len=40),
            growing_cache(model.config),
        ):
            parts = [model(part, past_key_values=cache).logits for part in ids.split(8, 1)]
            assert torch.allclose(torch.cat(parts, 1), wanted, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_prompts_are_read_and_written_in_place(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy of a model's queries, keys and values, nor of the output that goes back to it."""
    asked: list[list[int]] = []
    taken: list[list[int]] = []
    attend, launch = operators.attend_now, operators._launch

    def asking(query: Any, key: Any, value: Any, *more: Any) -> Any:
        out = attend(query, key, value, *more)
        asked.append([tensor.data_ptr() for tensor in (query, key, value, out)])
        return out

    def launching(spec: Any, tensors: Any, *more: Any) -> Any:
        taken.append([tensors[name].data_ptr() for name in ("q", "k", "v", "out")])
        return launch(spec, tensors, *more)

    monkeypatch.setattr(importlib.import_module("ptxgen.transformers.attention"), "attend_now", asking)
    monkeypatch.setattr(operators, "_launch", launching)
    model = build(family)
    model.set_attn_implementation("ptxgen")
    with torch.no_grad():
        model(prompts("cpu", "none")[0], use_cache=True)
    assert len(taken) == 2
    assert taken == asked


def test_more_heads_than_a_launch_has(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MOST_HEADS", 8)
    model = build("llama", where)
    ids, mask = prompts(where, "none")
    assert torch.equal(continued(model, "ptxgen", ids, mask)[0], continued(model, "eager", ids, mask)[0])


@pytest.mark.gpu
def test_the_shape_of_a_model_of_1b() -> None:
    """Llama 3.2 1B's, in f32."""
    sizes = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32)
    with torch.device("cuda"):
        model = build("llama", "cuda", **sizes, num_key_value_heads=8, head_dim=64, vocab_size=128256)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.0 if "embed" in name or "lm_head" in name else 0.2)
    ids, mask = prompts("cuda", "left")
    wanted, _ = continued(model, "eager", ids, mask)
    assert len(set(wanted[:, ids.shape[1] :].flatten().tolist())) > 20
    for cache in (None, "static"):
        assert torch.equal(continued(model, "ptxgen", ids, mask, cache_implementation=cache)[0], wanted), cache


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision(kind: str, where: str) -> None:
    """As near to f32 as torch's own attention is, but for a factor."""
    model = build("llama", where)
    ids, _ = prompts(where, "none")
    with torch.no_grad():
        exact = model(ids).logits
        model.to(getattr(torch, kind))
        errors = {}
        for implementation in ("sdpa", "ptxgen"):
            model.set_attn_implementation(implementation)
            errors[implementation] = (model(ids).logits.float() - exact).abs().mean().item()
    assert 0 < errors["ptxgen"] < 1.5 * errors["sdpa"]


def test_compiled(where: str) -> None:
    """One graph for a step over a static cache, the position in device memory."""
    model = build("gpt_oss", where)
    ids, _ = prompts(where, "none")
    model.set_attn_implementation("ptxgen")

    def steps(forward: Any) -> Any:
        cache = transformers.StaticCache(config=model.config, max_cache_len=40)
        token, out = ids, []
        for step in range(4):
            logits = (forward if step else model)(token, past_key_values=cache).logits[:, -1:]
            token = logits.argmax(-1)
            out.append(logits)
        return torch.cat(out, 1)

    with torch.no_grad():
        torch._dynamo.reset()
        found = steps(torch.compile(model, fullgraph=True, backend="aot_eager"))
        assert torch.allclose(found, steps(model), atol=1e-5)


@pytest.mark.gpu
def test_captured() -> None:
    """A step in a CUDA graph: the same graph serves every position."""
    model = build("llama", "cuda")
    model.set_attn_implementation("ptxgen")
    ids, _ = prompts("cuda", "none")
    token = ids[:, :1].clone()
    with torch.no_grad():
        cache = transformers.StaticCache(config=model.config, max_cache_len=40)
        model(ids, past_key_values=cache)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(token, past_key_values=cache)
        torch.cuda.current_stream().wait_stream(side)
        wanted = [model(token, past_key_values=cache).logits.clone() for _ in range(3)]
        rewind(cache, 22)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = model(token, past_key_values=cache).logits
        rewind(cache, 22)
        for step in wanted:
            graph.replay()
            assert torch.equal(logits, step)


def rewind(cache: Any, position: int) -> None:
    for layer in cache.layers:
        layer.cumulative_length.fill_(position)
