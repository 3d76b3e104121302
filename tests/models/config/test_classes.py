"""What a configuration leaves unsaid is what transformers' own configuration classes make of it; without torch.

Rotation and attention's output need torch: tests/models/config/test_attention_oracle.py.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ptxgen.errors import SpecError
from ptxgen.models import ModelShape, model_shape
from tests.support.models.config_cases import CASES, Config


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Imported by the process that runs these tests, not by all that collect them."""
    pytest.importorskip("transformers", reason="transformers is not installed; the record of its models stands for it")


def theirs(config: Config) -> Any:
    """The text model's own configuration."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**copy.deepcopy(config)).get_text_config(decoder=True)


def kv_heads(of: Any) -> int:
    """`num_key_value_heads`; falcon says it otherwise, gpt_neox has as many as query heads."""
    if of.model_type == "falcon" and not of.new_decoder_architecture:
        return 1 if of.multi_query else of.num_attention_heads
    return getattr(of, "num_key_value_heads", None) or getattr(of, "num_kv_heads", None) or of.num_attention_heads


def windows(of: Any, max_len: int) -> tuple[int, ...]:
    """By layer; 0 where it hides nothing of a cache."""
    types = getattr(of, "layer_types", None) or ["sliding_attention"] * of.num_hidden_layers
    width = getattr(of, "sliding_window", None) or 0
    if not getattr(of, "use_sliding_window", True):
        width = 0
    return tuple(width if kind == "sliding_attention" and width < max_len else 0 for kind in types)


def thetas(of: Any, shape: ModelShape) -> list[float]:
    """RoPE's base of every kind of layer that rotates."""
    tables = of.rope_parameters
    found = []
    for kind in shape.kinds:
        slides = getattr(of, "layer_types", None) and of.layer_types[kind.layers[0]] == "sliding_attention"
        by_type = tables.get("sliding_attention" if slides else "full_attention", tables)
        found += [float(by_type["rope_theta"])] if kind.rope else []
    return found


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
@pytest.mark.parametrize("name", CASES)
def test_heads_windows_and_bases_are_those_of_the_class(name: str) -> None:
    config, max_len = CASES[name]
    shape, own = model_shape(config, max_len=max_len), theirs(config)
    head_dim = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    assert (shape.n_layers, shape.n_heads, shape.vocab) == (
        own.num_hidden_layers, own.num_attention_heads, own.vocab_size,
    )  # fmt: skip
    assert (shape.n_kv_heads, shape.head_dim) == (kv_heads(own), head_dim)
    assert shape.windows == windows(own, shape.max_len)
    assert [kind.rope.theta for kind in shape.kinds if kind.rope] == pytest.approx(thetas(own, shape))
    assert shape.soft_cap == (getattr(own, "attn_logit_softcapping", None) or 0.0)
    if max_len is None:
        assert shape.max_len == own.max_position_embeddings


BEHIND = ("llama4_text", "llama4", "bare llama4_text")  # what is not covered begins behind some position


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
@pytest.mark.parametrize("name", [name for name, (config, _) in CASES.items() if "rope_scaling" not in str(config)])
def test_the_longest_context_that_is_not_stated_is_that_of_the_class(name: str) -> None:
    config = copy.deepcopy(CASES[name][0])
    for table in (config, config.get("text_config", {})):
        table.pop("max_position_embeddings", None)
    own = theirs(config).max_position_embeddings
    if name in BEHIND:
        with pytest.raises(SpecError, match=f"would work, not {own} positions"):
            model_shape(config)
    else:
        assert model_shape(config).max_len == own
