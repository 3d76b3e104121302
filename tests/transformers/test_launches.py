"""What calls that share a launch may leave out, and which memory they may share."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from ptxgen.errors import SpecError
from tests.transformers.models import build, prompts, torch

attention: Any = importlib.import_module("ptxgen.transformers.attention")
launches: Any = importlib.import_module("ptxgen.transformers.launches")
operators: Any = importlib.import_module("ptxgen.transformers.operators")

MODULE: Any = SimpleNamespace(is_causal=True)


def called(queries: int, k: Any, v: Any, sinks: Any = None) -> Any:
    torch.manual_seed(1)
    return attention.attention(MODULE, torch.randn(2, 4, queries, 16), k, v, None, s_aux=sinks)[0]


def keys(*shape: int) -> Any:
    return torch.randn(*shape, 16)


BAD: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, str]] = {
    "a batch of one": ((1, 2, 7), (1, 2, 7), 4, "attention\\(key\\): must be \\[2, kv_heads"),
    "fewer values": ((2, 2, 7), (2, 2, 5), 4, "attention\\(value\\)"),
    "values of one head": ((2, 2, 7), (2, 1, 7), 4, "attention\\(value\\)"),
    "three heads": ((2, 3, 7), (2, 3, 7), 4, "a divisor of 4"),
    "three sinks": ((2, 2, 7), (2, 2, 7), 3, "attention\\(sinks\\): must be f32 \\[4\\]"),
}


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("case", BAD)
def test_a_call_like_a_good_one_is_checked(case: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing but addresses would be written: here every call finds a launch."""
    k, v, sinks, why = BAD[case]
    monkeypatch.setattr(operators, "again", lambda *_: ANY)
    called(queries, keys(2, 2, 7), keys(2, 2, 7), torch.randn(4))
    with pytest.raises(SpecError, match=why):
        called(queries, keys(*k), keys(*v), torch.randn(sinks))


DIFFERENT: dict[str, Any] = {
    "fewer keys": lambda q, k, v: (q, k[:, :, :5].contiguous(), v[:, :, :5].contiguous()),
    "in larger tensors": lambda q, k, v: (q, *(torch.cat([x, x], 2)[:, :, :7] for x in (k, v))),
    "values elsewhere": lambda q, k, v: (q, k, torch.cat([v, v], 2)[:, :, :7]),
    "heads inside": lambda q, k, v: (q, *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))),
    "queries in larger ones": lambda q, k, v: (torch.cat([q, q], 1)[:, :4], k, v),
    "16 bits": lambda q, k, v: (q.half(), k.half(), v.half()),
    "another type of values": lambda q, k, v: (q, k, v.half()),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_a_repeated_call_shares_names_how_tensors_lie(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_stream", lambda _: 0)
    tensors = torch.randn(2, 4, 1, 16), keys(2, 2, 7), keys(2, 2, 7)
    kind = launches.kind_of(*tensors, 0.25, 0.0, 0)
    assert launches.kind_of(*(x.clone() for x in tensors), 0.25, 0.0, 0) == kind
    assert launches.kind_of(*DIFFERENT[case](*tensors), 0.25, 0.0, 0) != kind
    assert launches.kind_of(*tensors, 0.5, 0.0, 0) != kind
    monkeypatch.setattr(launches, "_stream", lambda _: 1)
    assert launches.kind_of(*tensors, 0.25, 0.0, 0) != kind


@pytest.mark.gpu
@pytest.mark.usefixtures("without_gradients")
def test_calls_in_turns_are_each_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layout in three turns, with other numbers: what is repeated, from the second turn on, is of that layout."""
    torch.manual_seed(0)
    monkeypatch.setattr(launches, "_repeats", {})
    repeats: list[bool] = []  # of each call
    repeated = attention.repeated

    def counted(*given: Any) -> Any:
        found = repeated(*given)
        repeats.append(found is not None)
        return found

    monkeypatch.setattr(attention, "repeated", counted)
    copied = {"values elsewhere", "heads inside", "queries in larger ones", "misaligned"}
    good = {name: of for name, of in DIFFERENT.items() if name != "another type of values"}
    shifted = {"misaligned": lambda q, k, v: (q, k.new_empty(k.numel() + 1)[1:].view(k.shape).copy_(k), v)}
    cases = {"plain": lambda *given: given, **good, **shifted}
    for turn in range(3):
        repeats.clear()
        for make in cases.values():
            given = torch.randn(2, 4, 1, 16), keys(2, 2, 7), keys(2, 2, 7)
            q, k, v = make(*given)
            wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)
            found = attention.attention(MODULE, *make(*(x.cuda() for x in given)), None)[0].cpu()
            assert torch.allclose(found.float(), wanted.float(), atol=2e-3)
        again = {name for name, was in zip(cases, repeats, strict=True) if was}
        assert again >= (cases.keys() - copied if turn else set()), turn
        assert not again & ({"misaligned"} if turn else cases.keys()), turn


@pytest.mark.parametrize("queries", [1, 3])
def test_misaligned_tensors_are_copied(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    k, v, sinks = keys(2, 2, 7), keys(2, 2, 7), torch.randn(4)
    wanted = called(queries, k, v, sinks)
    taken: list[int] = []
    launch = operators._launch

    def launching(spec: Any, tensors: Any, *more: Any) -> Any:
        taken.extend(tensor.data_ptr() % 16 for name, tensor in tensors.items() if tensor.is_floating_point())
        return launch(spec, tensors, *more)

    monkeypatch.setattr(operators, "_launch", launching)
    shifted = [torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x) for x in (k, v, sinks)]
    assert all(x.data_ptr() % 16 for x in shifted)
    assert torch.equal(called(queries, *shifted), wanted)
    assert taken
    assert not any(taken)


def test_what_a_graph_holds_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing, stream = [False], [1]
    full = torch.full
    monkeypatch.setattr(launches, "_is_capturing", lambda _: capturing[0])
    monkeypatch.setattr(launches, "_stream", lambda _: stream[0])
    monkeypatch.setattr(launches, "_ends", {})
    monkeypatch.setattr(torch, "full", lambda *given, device, **more: full(*given, **more))
    device = torch.device("cuda", 0)
    eager = launches.same_ends(device, 3, 22)
    assert launches.same_ends(device, 3, 22) is eager
    assert eager.tolist() == [22, 22, 22]
    stream[0] = 2
    assert launches.same_ends(device, 3, 22) is not eager
    capturing[0], stream[0] = True, 1
    assert launches.same_ends(device, 3, 22) is not eager
    capturing[0] = False
    assert launches.same_ends(device, 3, 22) is eager
    assert launches.same_ends(device, 3, 23).tolist() == [23] * 3


@pytest.mark.parametrize("change", ["data", "in place", "into data"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.usefixtures("without_gradients")
def test_sinks_follow_their_parameter(change: str, kind: str) -> None:
    sinks, k, v = torch.nn.Parameter(torch.ones(4, dtype=getattr(torch, kind))), keys(2, 2, 7), keys(2, 2, 7)
    before = called(1, k, v, sinks)
    if change == "data":
        sinks.data = torch.full_like(sinks, 5.0)
    elif change == "in place":
        sinks.fill_(5.0)
    else:
        sinks.data.copy_(torch.full_like(sinks, 5.0))
    after = called(1, k, v, sinks)
    assert torch.equal(after, called(1, k, v, torch.full((4,), 5.0)))
    assert not torch.equal(after, before)


def test_sinks_alone_that_need_gradients_get_them() -> None:
    sinks = torch.nn.Parameter(torch.ones(4))
    called(1, keys(2, 2, 7), keys(2, 2, 7), sinks).sum().backward()
    assert sinks.grad.abs().min() > 0


def test_sinks_of_a_model_made_in_inference_mode() -> None:
    ids, _ = prompts("cpu", "none")
    with torch.inference_mode():
        model = build("gpt_oss").to(torch.bfloat16)
        model.set_attn_implementation("ptxgen")
        assert model(ids).logits.isfinite().all()
