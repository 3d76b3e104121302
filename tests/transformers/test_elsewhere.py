"""What the kernels cannot runs through torch, with the same results and one warning that says why."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from ptxgen.errors import SpecError
from tests.transformers.models import BASE, build, continued, of_config, prompts, torch, transformers

forward: Any = importlib.import_module("ptxgen.transformers.attention")
paged_attention: Any = importlib.import_module("ptxgen.transformers.paged").paged_attention

MODULE: Any = SimpleNamespace(is_causal=True)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_warned", set())


def tensors(dim: int = 16, v_dim: int = 16, kind: Any = None, **more: Any) -> Any:
    torch.manual_seed(0)
    shapes = (2, 4, 5, dim), (2, 2, 9, dim), (2, 2, 9, v_dim)
    return tuple(torch.randn(shape, **more).to(kind or torch.float32) for shape in shapes)


def eager(q: Any, k: Any, v: Any, scale: float, window: int, cap: float, sinks: Any) -> Any:
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = q @ k.transpose(2, 3) * scale
    if cap:
        scores = torch.tanh(scores / cap) * cap
    query, key = torch.arange(4, 9)[:, None], torch.arange(9)
    scores = scores.masked_fill((key > query) | (key <= query - window), float("-inf"))
    scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(2, 4, 5, 1)], -1)
    return (scores.softmax(-1)[..., :-1] @ v).transpose(1, 2)


@pytest.mark.parametrize(("dim", "why"), [(16, ""), (12, "multiple of 8"), (520, "up to 512")])
def test_widths(dim: int, why: str, recwarn: pytest.WarningsRecorder) -> None:
    q, k, v = tensors(dim, dim)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    for _ in range(2):
        found, weights = forward.attention(
            MODULE, q, k, v, None, scaling=0.3, sliding_window=4, softcap=1.5, s_aux=sinks
        )
        assert weights is None
        assert torch.allclose(found, eager(q, k, v, 0.3, 4, 1.5, sinks), atol=1e-5)
    said = [str(w.message) for w in recwarn if "ptxgen attention" in str(w.message)]
    assert len(said) == bool(why)
    assert all(why in text for text in said)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "equally wide": (tensors(16, 8), {}),
    "alike": (tensors(kind=torch.float64), {}),
    "gradients": (tensors(requires_grad=True), {}),
    "no dropout": (tensors(), {"dropout": 1e-9}),
    "above 0": (tensors(), {"scaling": -0.3}),
    "position bias": (tensors(), {"position_bias": torch.zeros(1, 4, 5, 9)}),
}


@pytest.mark.parametrize("why", CASES)
def test_reasons(why: str) -> None:
    (q, k, v), options = CASES[why]
    with pytest.warns(UserWarning, match=why):
        found, _ = forward.attention(MODULE, q, k, v, None, **{"scaling": 0.3, **options})
    q, k, v = (x.detach().double() for x in (q, k, v))
    nothing = torch.full((4,), float("-inf"))
    assert torch.allclose(found.double(), eager(q, k, v, options.get("scaling", 0.3), 99, 0.0, nothing), atol=1e-5)


def test_masks_of_ones_own() -> None:
    """A packed row: two sequences one after the other; and padding in the middle."""
    model = build("llama")
    ids, mask = prompts("cpu", "none")
    positions = torch.cat([torch.arange(9), torch.arange(12)])[None].expand(3, -1)
    mask[1, 4:7] = 0
    with torch.no_grad():
        wanted = model(ids, position_ids=positions, use_cache=False).logits, model(ids, attention_mask=mask).logits
        model.set_attn_implementation("ptxgen")
        with pytest.warns(UserWarning, match="causal with padding on the left"):
            found = model(ids, position_ids=positions, use_cache=False).logits, model(ids, attention_mask=mask).logits
    assert torch.allclose(found[0], wanted[0], atol=1e-5)
    assert torch.allclose(found[1][mask.bool()], wanted[1][mask.bool()], atol=1e-5)


def test_not_causal() -> None:
    """An encoder's layer sees all keys."""
    q, k, v = tensors()
    found, _ = forward.attention(SimpleNamespace(is_causal=False), q, k, v, None)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_paged_without_a_cache() -> None:
    q, k, v = tensors()
    with pytest.raises(SpecError, match="for continuous batching"):
        paged_attention(MODULE, q, k, v)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("keep", [8, 2048])
def test_a_model_that_makes_masks_of_the_mask(keep: int, padding: str, recwarn: pytest.WarningsRecorder) -> None:
    """Doge hides all but the keys that it likes best, of those that the mask shows."""
    importlib.import_module("ptxgen.transformers.mask").attends_itself_by.cache_clear()
    model = of_config(transformers.DogeConfig(**BASE, keep_window_size=keep))
    ids, mask = prompts("cpu", padding)
    tokens, logits = continued(model, "eager", ids, mask)
    ours, our_logits = continued(model, "ptxgen", ids, mask)
    assert ours.tolist() == tokens.tolist()
    assert torch.allclose(our_logits, logits, atol=1e-4)
    assert any("makes other masks of ours; our kernels are not used" in str(each.message) for each in recwarn)


GPT_NEO = dict(hidden_size=64, num_heads=4, num_layers=1, attention_types=[[["global"], 1]], vocab_size=32)


@pytest.mark.parametrize(("kind", "fields"), [("FalconConfig", BASE), ("GPTNeoConfig", GPT_NEO)])
def test_a_model_with_attention_classes_of_its_own_says_so(kind: str, fields: dict[str, Any]) -> None:
    config = getattr(transformers, kind)(**fields)
    of_config(config)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"have no place for attn_implementation='ptxgen': .* own, eager, flash"):
            transformers.AutoModelForCausalLM.from_config(config, attn_implementation="ptxgen")
