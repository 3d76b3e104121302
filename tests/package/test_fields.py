"""What is known of fields: a kernel type's own rules decide over what names share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptxgen import kernel
from ptxgen.kernel import KernelType
from ptxgen.kernels import IncrementalAttention, KvCacheGather, Rope
from ptxgen.spec.fields import SHARED, domain

OTHERS = Path(__file__).parents[1] / "data" / "own_kernel_types" / "mix_heads.py"


@pytest.fixture
def mix_heads(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[KernelType]]:
    """A kernel type with names of ours, other meanings and other bounds."""
    about = importlib.util.spec_from_file_location("other_mix_heads", OTHERS)
    assert about
    assert about.loader
    module = importlib.util.module_from_spec(about)
    monkeypatch.setitem(sys.modules, about.name, module)
    try:
        about.loader.exec_module(module)
        yield module.MixHeads
    finally:
        kernel._REGISTRY.pop("mix_heads", None)


def test_rules_that_say_otherwise_decide(mix_heads: type[KernelType]) -> None:
    head_dim, n_heads = domain(mix_heads, "head_dim"), domain(mix_heads, "n_heads")
    assert {1, 3, 1023, 1024} <= set(head_dim.values({}))
    assert head_dim.refuses == (0,)
    assert head_dim.doc == SHARED["head_dim"]["doc"]
    assert tuple(n_heads.values({})) == (1, 2, 3)


def test_names_of_few_kernel_types_mean_nothing_in_others(mix_heads: type[KernelType]) -> None:
    window, factor, bias = (domain(mix_heads, name) for name in ("window", "factor", "bias"))
    assert (tuple(window.values({})), window.refuses) == ((0, 1, 2, 3), (-1,))
    assert (factor.values({}), factor.refuses) == ((0.0, 1.0), (-1.0,))
    assert (bias.values({}), bias.doc) == ((-1e6, 1e6), "")


def test_where_rules_agree_shared_values_hold() -> None:
    known = domain(KvCacheGather, "head_dim")
    assert (known.refuses, known.every, tuple(known.values({}))) == ((100,), True, tuple(range(8, 513, 8)))
    assert domain(KvCacheGather, "max_len").local


def test_what_stands_once_for_several_kernel_types_comes_with_the_field() -> None:
    window = domain(IncrementalAttention, "window")
    assert list(window.values({"max_len": 64})) == [0, 1, 64, 64]
    assert (domain(Rope, "rotary_dim").refuses, domain(Rope, "factor").values({})) == ((4,), (1.0, 8.0))
