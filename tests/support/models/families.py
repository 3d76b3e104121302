"""Small models of every family with random weights, made the same everywhere; and llama2.c checkpoints as arrays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.models.spec import ModelSpec, model_spec

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 131,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_GEMMA: dict[str, Any] = {"tie_word_embeddings": True, "query_pre_attn_scalar": 24, "head_dim": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _SMALL | {"model_type": "llama", "rope_scaling": LLAMA3, "attention_bias": True},
    "mistral": _SMALL | {"model_type": "mistral", "sliding_window": 7},
    "qwen2": _SMALL | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": _SMALL | {"model_type": "qwen3", "tie_word_embeddings": True},
    "gemma": _SMALL | {"model_type": "gemma", "tie_word_embeddings": True},
    "gemma2": _SMALL | _GEMMA | {"model_type": "gemma2", "sliding_window": 6},
    "gemma3_text": _SMALL | _GEMMA | {"model_type": "gemma3_text", "sliding_window": 6, "sliding_window_pattern": 2},
    "phi3": _SMALL | {"model_type": "phi3", "partial_rotary_factor": 0.5, "sliding_window": 9},
    "smollm3": _SMALL | {"model_type": "smollm3", "tie_word_embeddings": True, "no_rope_layers": [1, 0, 1]},
    "olmo2": _SMALL | {"model_type": "olmo2"},
}  # fmt: skip

PROMPT = (1, 77, 5, 130, 42, 9, 63, 21, 21, 100, 8, 3)
N_TOKENS = 20  # recorded behind it


def small_spec(family: str, **changes: Any) -> ModelSpec:
    """A small model of a family."""
    return model_spec(CONFIGS[family] | changes, family)


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 weights of a size that keeps activations near 1; logits differ enough for greedy tokens to be stable."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in spec.tensors().items():
        if len(shape) == 2:
            spread = 1.0 if name == "embed_tokens" else 1.5 / np.sqrt(shape[1])
            values = rng.standard_normal(shape) * (spread / spec.embedding_scale if name == "embed_tokens" else spread)
        elif name.endswith(".bias"):
            values = rng.standard_normal(shape) * 0.2
        else:
            values = 1 - spec.block.norm_offset + 0.2 * rng.standard_normal(shape)
        found[name] = values.astype(np.float32)
    return found


def llama2c(path: Path, rope_theta: float = 10000.0) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    """A llama2.c checkpoint of the legacy format as a model and its weights."""
    dim, hidden, n_layers, n_heads, n_kv, vocab, max_len = (int(n) for n in np.fromfile(path, np.int32, 7))
    config = {
        "model_type": "llama", "hidden_size": dim, "intermediate_size": hidden, "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads, "num_key_value_heads": n_kv, "vocab_size": abs(vocab),
        "max_position_embeddings": max_len, "rms_norm_eps": 1e-5, "rope_theta": rope_theta,
        "tie_word_embeddings": vocab > 0,
    }  # fmt: skip
    spec = dataclasses.replace(model_spec(config, str(path)), rope_style="norm")
    flat, at = np.fromfile(path, np.float32, offset=28), 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        at += int(np.prod(shape))
        return flat[at - int(np.prod(shape)) : at].reshape(shape)

    kv = dim // n_heads * n_kv
    weights = {"embed_tokens": take(abs(vocab), dim)}
    for name, shape in (
        ("input_layernorm", (dim,)), ("q_proj", (dim, dim)), ("k_proj", (kv, dim)), ("v_proj", (kv, dim)),
        ("o_proj", (dim, dim)), ("post_attention_layernorm", (dim,)), ("gate_proj", (hidden, dim)),
        ("down_proj", (dim, hidden)), ("up_proj", (hidden, dim)),
    ):  # fmt: skip
        stacked = take(n_layers, *shape)
        weights |= {f"layers.{layer}.{name}": stacked[layer] for layer in range(n_layers)}
    weights["norm"] = take(dim)
    return spec, weights


def expected_tokens(path: Path) -> list[int]:
    """Greedy tokens of a record beside a checkpoint."""
    return list(json.loads(path.read_text())["tokens"])


_PARTS = {**dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "q_norm", "k_norm"), "self_attn."),
          **dict.fromkeys(("gate_proj", "up_proj", "down_proj", "gate_up_proj"), "mlp.")}  # fmt: skip


def torch_name(name: str) -> str:
    """The name in a state dictionary of one of our names."""
    bias = name.endswith(".bias")
    stem = name.removesuffix(".bias")
    if stem == "lm_head":
        return "lm_head.bias" if bias else "lm_head.weight"
    *at, last = stem.split(".")
    return ".".join(["model", *at, _PARTS.get(last, "") + last, "bias" if bias else "weight"])
