"""Small models of transformers with random weights, and the tokens that they choose."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from ptxgen.transformers import install  # noqa: E402

VOCABULARY = 96
BASE = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=None,
)  # fmt: skip
MIXED = dict(head_dim=16, sliding_window=16, layer_types=["sliding_attention", "full_attention"])
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", dict(head_dim=32)),
    "mistral": ("MistralConfig", dict(sliding_window=16)),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        dict(sliding_window=16, use_sliding_window=True, max_window_layers=2, num_experts=4, num_experts_per_tok=2),
    ),
    "gemma2": ("Gemma2Config", MIXED | dict(attn_logit_softcapping=2.0)),
    "gemma3": ("Gemma3TextConfig", MIXED),
    "gpt_oss": ("GptOssConfig", MIXED | dict(num_local_experts=4, num_experts_per_tok=2)),
}


def build(family: str, where: str = "cpu", **fields: Any) -> Any:
    """The model of a family, with these fields of its configuration besides."""
    kind, more = FAMILIES[family]
    return of_config(getattr(transformers, kind)(**BASE | more | fields), where)


def of_config(config: Any, where: str = "cpu") -> Any:
    """A model in f32, attending eagerly; scores are large enough for windows, caps and sinks to matter."""
    install()
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(where).eval()
    for name, parameter in model.named_parameters():
        if "sinks" in name or parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "sinks" in name else 0.15)
    return model


def prompts(where: str, padding: str) -> tuple[Any, Any]:
    """Ids `[3, 21]` and their mask, on the left of which lie 0, 5 and 13 pads."""
    ids = torch.randint(2, VOCABULARY, (3, 21), generator=torch.Generator().manual_seed(1))
    first = torch.tensor([[0], [5], [13]]) if padding == "left" else torch.zeros(3, 1)
    mask = (torch.arange(21)[None] >= first).long()
    return (ids * mask).to(where), mask.to(where)


def continued(model: Any, implementation: str, ids: Any, mask: Any, **options: Any) -> tuple[Any, Any]:
    """Greedy tokens behind a prompt, and their logits."""
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=24, return_dict_in_generate=True,
            output_logits=True, disable_compile=True, **options,
        )  # fmt: skip
    return out.sequences, torch.stack(out.logits)
