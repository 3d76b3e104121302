"""Small configurations of every family, as files write them: what transformers' classes and ours are compared on.

A case is a configuration and the longest context that is asked for. "bare" leaves out what has a default.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
SIZES: Config = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 32,
    "max_position_embeddings": 4096,
}  # fmt: skip
# Of parts other than attention, so that a model takes no memory.
THIN: Config = {"intermediate_size": 16}
EXPERTS: Config = THIN | {"num_local_experts": 2, "num_experts_per_tok": 1}
_QWEN_EXPERTS = THIN | {
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16
}  # fmt: skip
_GEMMA3N = THIN | {
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 32, "laurel_rank": 4, "num_kv_shared_layers": 0
}  # fmt: skip
_LLAMA4 = THIN | {"intermediate_size_mlp": 16, "num_local_experts": 2, "num_experts_per_tok": 1}
KV = {"num_key_value_heads": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 256}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SHORT, LONG = [1.0 + i / 8 for i in range(8)], [2.0 + i for i in range(8)]
LONGROPE = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}
SLIDING = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]


def of(model_type: str, *parts: Config, **keys: Any) -> Config:
    """A configuration of these parts."""
    found: Config = {"model_type": model_type, **SIZES, **THIN}
    for part in (*parts, keys):
        found |= part
    return found


def inside(outer: str, config: Config) -> Config:
    """A multimodal model with that text model."""
    return {"model_type": outer, "text_config": config}


def _small() -> dict[str, Config]:
    """Each family with everything said that it has."""
    window = {"sliding_window": 3}
    return {
        "llama": of("llama", KV, rope_theta=5e5),
        "mistral": of("mistral", KV, window, head_dim=32),
        "mistral3": inside("mistral3", of("mistral", KV, sliding_window=None, head_dim=32, rope_theta=1e8)),
        "mixtral": of("mixtral", KV, window, EXPERTS),
        "qwen2": of("qwen2", KV, window, use_sliding_window=True, max_window_layers=2),
        "qwen2 off": of("qwen2", KV, window, use_sliding_window=False, max_window_layers=2),
        "qwen2_moe": of("qwen2_moe", KV, window, _QWEN_EXPERTS, use_sliding_window=True, max_window_layers=3),
        "qwen2_5_vl": of("qwen2_5_vl", KV, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}),
        "qwen2_5_vl inside": inside(
            "qwen2_5_vl", of("qwen2_5_vl_text", KV, window, use_sliding_window=True, max_window_layers=1,
                             rope_parameters={"rope_type": "default", "rope_theta": 1e5, "mrope_section": [2, 3, 3]}),
        ),
        "qwen3": of("qwen3", KV, window, head_dim=32, use_sliding_window=True, max_window_layers=1),
        "qwen3_moe": of("qwen3_moe", KV, window, _QWEN_EXPERTS, head_dim=32, use_sliding_window=True),
        "gemma": of("gemma", KV, head_dim=32),
        "gemma2": of("gemma2", KV, window, head_dim=32, query_pre_attn_scalar=24, attn_logit_softcapping=2.0),
        "gemma2 uncapped": of("gemma2", KV, window, head_dim=32, attn_logit_softcapping=None),
        "gemma3": inside(
            "gemma3", of("gemma3_text", KV, window, head_dim=32, query_pre_attn_scalar=48, sliding_window_pattern=2,
                         rope_scaling={"rope_type": "linear", "factor": 8.0}),
        ),
        "gemma3_text": of("gemma3_text", KV, window, head_dim=32, layer_types=SLIDING, rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }),
        "gemma3n_text": of("gemma3n_text", KV, window, _GEMMA3N, head_dim=32, layer_types=SLIDING),
        "gemma3n": inside("gemma3n", of("gemma3n_text", KV, _GEMMA3N, head_dim=32, rope_theta=5e5)),
        "phi": of("phi", KV, hidden_size=128, partial_rotary_factor=0.25, rope_theta=2e4),
        "phi3": of("phi3", KV, window, hidden_size=128, partial_rotary_factor=0.5, pad_token_id=0),
        "phimoe": of("phimoe", KV, window, EXPERTS),
        "smollm3": of("smollm3", KV, window, no_rope_layers=[1, 0, 1, 0], use_sliding_window=True, pad_token_id=0),
        "smollm3 interval": of("smollm3", KV, no_rope_layer_interval=3, pad_token_id=0),
        "olmo2": of("olmo2", KV, rope_theta=5e5),
        "olmo3": of("olmo3", KV, window, rope_theta=500000, rope_scaling=YARN, layer_types=SLIDING),
        "granite": of("granite", KV, attention_multiplier=0.125, rope_theta=1e6),
        "granitemoe": of("granitemoe", KV, EXPERTS, attention_multiplier=0.05),
        "starcoder2": of("starcoder2", KV, window),
        "cohere": of("cohere", KV, use_qk_norm=True, rope_theta=8e6),
        "cohere2": of("cohere2", KV, window, sliding_window_pattern=2, rope_theta=5e4),
        "cohere2 listed": of("cohere2", KV, window, layer_types=SLIDING),
        "glm": of("glm", KV, head_dim=32, partial_rotary_factor=0.5, pad_token_id=0),
        "glm4": of("glm4", KV, head_dim=32, partial_rotary_factor=0.5, pad_token_id=0),
        "ernie4_5": of("ernie4_5", KV, head_dim=32),
        "gpt_oss": of("gpt_oss", KV, window, EXPERTS, head_dim=32,
                      rope_scaling=YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}),
        "exaone4": of("exaone4", KV, window, sliding_window_pattern=2),
        "exaone4 full": of("exaone4", KV, sliding_window=None, layer_types=["full_attention"] * 4),
        "llama4_text": of("llama4_text", KV, _LLAMA4, head_dim=32, attention_chunk_size=4096, floor_scale=4097,
                          no_rope_layers=[1, 1, 0, 1]),
        "llama4": inside("llama4", of("llama4_text", KV, _LLAMA4, head_dim=32, attn_temperature_tuning=False)),
        "nemotron": of("nemotron", KV, hidden_size=128, partial_rotary_factor=0.25),
        "falcon": of("falcon", multi_query=True, num_kv_heads=4, new_decoder_architecture=False, alibi=False),
        "falcon heads": of("falcon", multi_query=False),
        "falcon new": of("falcon", num_kv_heads=2, new_decoder_architecture=True),
        "stablelm": of("stablelm", KV, hidden_size=128, partial_rotary_factor=0.5, use_qkv_bias=True),
        "gpt_neox": of("gpt_neox", hidden_size=128, rotary_pct=0.5, rotary_emb_base=20000),
    }  # fmt: skip


def _bare() -> dict[str, Config]:
    """Each family with its sizes alone; as many heads as its default of KV heads asks for."""
    eight = {"num_attention_heads": 8}
    thirty_two = {"num_attention_heads": 32, "hidden_size": 256}
    return {
        "llama": of("llama"),
        "mistral": of("mistral", eight),
        "mixtral": of("mixtral", eight, EXPERTS),
        "qwen2": of("qwen2", thirty_two),
        "qwen2 windows": of("qwen2", thirty_two, use_sliding_window=True, num_hidden_layers=30),
        "qwen2_moe": of("qwen2_moe", _QWEN_EXPERTS, num_attention_heads=16, hidden_size=128),
        "qwen2_5_vl": of("qwen2_5_vl", eight, hidden_size=1024),
        "qwen3": of("qwen3", thirty_two),
        "qwen3_moe": of("qwen3_moe", _QWEN_EXPERTS),
        "gemma": of("gemma", num_attention_heads=16),
        "gemma2": of("gemma2"),
        "gemma3_text": of("gemma3_text", num_hidden_layers=7),
        "gemma3n_text": of("gemma3n_text", _GEMMA3N, num_hidden_layers=6),
        "phi": of("phi", num_key_value_heads=None),
        "phi3": of("phi3", pad_token_id=0),
        "phimoe": of("phimoe", eight, EXPERTS),
        "smollm3": of("smollm3", pad_token_id=0),
        "olmo2": of("olmo2"),
        "olmo3": of("olmo3"),
        "granite": of("granite"),
        "granitemoe": of("granitemoe", EXPERTS),
        "starcoder2": of("starcoder2"),
        "cohere": of("cohere"),
        "cohere2": of("cohere2"),
        "glm": of("glm", pad_token_id=0),
        "glm4": of("glm4", pad_token_id=0),
        "ernie4_5": of("ernie4_5"),
        "gpt_oss": of("gpt_oss", eight, EXPERTS),
        "exaone4": of("exaone4", thirty_two),
        "llama4_text": of("llama4_text", eight, _LLAMA4),
        "nemotron": of("nemotron", num_key_value_heads=4),
        "falcon": of("falcon"),
        "stablelm": of("stablelm", thirty_two, hidden_size=1024),
        "gpt_neox": of("gpt_neox", hidden_size=128),
        "mistral null": of("mistral", KV, sliding_window=None, head_dim=None),
    }


def _ropes() -> dict[str, tuple[Config, int]]:
    """Every way of scaling, below and above the original context, and every place where settings stand."""
    llama = of("llama", KV)
    found = {
        "linear": llama | {"rope_scaling": {"type": "linear", "factor": 4.0}},
        "llama3": llama | {"rope_scaling": LLAMA3, "rope_theta": 5e5},
        "llama3 original outside": llama | {"rope_scaling": LLAMA3, "original_max_position_embeddings": 1024},
        "theta inside": llama | {"rope_scaling": LLAMA3 | {"rope_theta": 5e5}},
        "theta twice": llama | {"rope_scaling": LLAMA3 | {"rope_theta": 5e5}, "rope_theta": 1e4},
        "new names": llama | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        "part inside": llama | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
                                                    "original_max_position_embeddings": 512}},
        "yarn": llama | {"rope_scaling": YARN},
        "yarn whole": llama | {"rope_scaling": YARN | {"truncate": True}},
        "yarn null truncate": llama | {"rope_scaling": YARN | {"truncate": None}},
        "yarn untruncated": llama | {"rope_scaling": YARN | {"truncate": False}},
        "yarn betas": llama | {"rope_scaling": YARN | {"beta_fast": 16, "beta_slow": 2}},
        "yarn mscale": llama | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
        "yarn half an mscale": llama | {"rope_scaling": YARN | {"mscale": 1.0}},
        "yarn factor of its own": llama | {"rope_scaling": YARN | {"attention_factor": 1.25}},
        "yarn without original": llama | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        "partial yarn": of("stablelm", KV, hidden_size=128, partial_rotary_factor=0.5, rope_scaling=YARN),
        "gpt_oss null": of("gpt_oss", KV, EXPERTS, head_dim=32, rope_scaling=None),
        "neighbours yarn": of("ernie4_5", KV, head_dim=32, rope_scaling=YARN | {"truncate": False}),
    }  # fmt: skip
    phi3 = of("phi3", KV, pad_token_id=0, rope_scaling=LONGROPE, original_max_position_embeddings=1024)
    long = {"original_max_position_embeddings": 512}
    moe = of("phimoe", KV, EXPERTS, rope_scaling=LONGROPE | {
        "short_mscale": 1.25, "long_mscale": 1.5, "original_max_position_embeddings": 2048
    })  # fmt: skip
    return {name: (config, 4096) for name, config in found.items()} | {
        "dynamic below": (llama | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 4096),
        "longrope below": (phi3, 1024),
        "longrope above": (phi3 | long, 4096),
        "longrope factor": (phi3 | long | {"rope_scaling": LONGROPE | {"factor": 16.0}}, 4096),
        "longrope of llama": (llama | long | {"rope_scaling": LONGROPE}, 4096),
        "longrope su": (phi3 | long | {"rope_scaling": LONGROPE | {"type": "su"} | long}, 4096),
        "longrope of phimoe": (moe, 2048),
    }


CASES: dict[str, tuple[Config, int]] = {
    **{name: (config, 4096) for name, config in _small().items()},
    **{f"bare {name}": (config | {"max_position_embeddings": 8192}, 8191) for name, config in _bare().items()},
    **{f"rope {name}": case for name, case in _ropes().items()},
}
# No class of transformers reads these; they are as llama.
LIKE_LLAMA = ("internlm2", "minicpm")


LLAMA = of("llama", KV)
GEMMA = of("gemma3_text", KV, head_dim=32, layer_types=SLIDING)
QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}  # of a head rotates
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}  # of caches
