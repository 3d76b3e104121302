"""What configurations are refused for: every key that would change attention, by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ptxgen import SpecError
from ptxgen.cli._main import invoke
from ptxgen.models import model_shape
from tests.support.models.config_cases import (
    FP8,
    GEMMA,
    KV,
    LLAMA,
    LLAMA3,
    LONGROPE,
    QUARTER,
    SLIDING,
    YARN,
    Config,
    inside,
    of,
)

# What is refused: the configuration, and what is said of it behind the file's name.
REFUSED: dict[str, tuple[Config, str]] = {
    "embeddings of gemma": (
        of("gemma3_text", use_bidirectional_attention=True, num_hidden_layers=2),
        "use_bidirectional_attention: must be absent or false: attention here is causal (got True)",
    ),
    "embeddings of qwen": (
        LLAMA | {"model_type": "qwen2", "is_causal": False},
        "is_causal: must be absent or true: attention here is causal (got False)",
    ),
    "null for causal": (
        LLAMA | {"is_causal": None}, "is_causal: must be absent or true: attention here is causal (got None)",
    ),
    "another pattern of gemma3n": (
        of("gemma3n_text", KV, head_dim=32, num_kv_shared_layers=0, sliding_window_pattern=3),
        "sliding_window_pattern: must be 5 in models of type gemma3n_text here (got 3)",
    ),
    "another pattern of olmo3": (
        of("olmo3", KV, sliding_window_pattern=2), "sliding_window_pattern: must be 4 in models of type olmo3 here (",
    ),
    "slopes": (of("falcon", alibi=True), "alibi: must be absent or false: slopes by position have no prefill"),
    "neighbours in llama": (LLAMA | {"rope_interleaved": True}, "rope_interleaved: must be absent or false: this "),
    "halves in glm": (
        of("glm", KV, head_dim=32, rope_interleaved=False), "rope_interleaved: must be absent or true: this family",
    ),
    "unrotated layers of llama": (LLAMA | {"no_rope_layers": [1, 1, 0, 1]}, "no_rope_layers: must be absent or 0 or"),
    "a scale of llama": (LLAMA | {"attention_multiplier": 0.1}, "attention_multiplier: must be absent: this family"),
    "a cap of llama": (LLAMA | {"attn_logit_softcapping": 3.0}, "attn_logit_softcapping: must be absent: this family"),
    "a cap of gemma3": (  # which transformers reads and leaves out
        of("gemma3_text", KV, head_dim=32, attn_logit_softcapping=50.0),
        "attn_logit_softcapping: must be absent: this family does not cap scores (got 50.0)",
    ),
    "a window of llama": (LLAMA | {"sliding_window": 64}, "sliding_window: must be absent: this family has no sliding"),
    "a switch for windows": (LLAMA | {"use_sliding_window": True}, "use_sliding_window: must be absent or false"),
    "sliding layers of llama": (
        LLAMA | {"layer_types": ["sliding_attention"] * 4}, "layer_types: must be 4 times full_attention in models",
    ),
    "full layers of mistral": (
        of("mistral", KV, sliding_window=64, layer_types=["full_attention"] * 4),
        "layer_types: must be 4 times sliding_attention in models of type mistral (got ['full_attention'",
    ),
    "dual chunks": (
        LLAMA | {"model_type": "qwen2", "dual_chunk_attention_config": {"chunk_size": 64, "local_size": 16}},
        "dual_chunk_attention_config: chunked attention has no kernels here; --max-len 48 would work, not 4096 pos",
    ),
    "dual chunks of llama": (
        LLAMA | {"dual_chunk_attention_config": {"chunk_size": 64}},
        "dual_chunk_attention_config: must be absent or false: chunked attention has no kernels here (got {",
    ),
    "chunks of llama4": (
        inside("llama4", of("llama4_text", KV, head_dim=32, max_position_embeddings=1 << 20)),
        "attn_temperature_tuning: queries that grow with their position have no kernels here; --max-len 8191 would "
        "work, not 1048576 positions (got True)",
    ),
    "latent attention": (
        LLAMA | {"model_type": "deepseek_v3", "kv_lora_rank": 512},
        "kv_lora_rank: must be absent: latent attention has no kernels here (got 512), in a model of type",
    ),
    "a family that is not known": (
        LLAMA | {"model_type": "gptj", "rotary_dim": 8, "sliding_window": 7}, "model_type: must be one of llama, mis",
    ),
    "another part of a head in nemotron": (
        of("nemotron", KV, head_dim=32, partial_rotary_factor=0.5, rope_percent=0.25),
        "rope_percent: must be absent or 0.5: this family states otherwise which part",
    ),
    "another part of a head than the table's": (
        of("nemotron", KV, head_dim=32, rope_percent=0.5, rope_parameters=QUARTER),
        "rope_percent: must be absent or 0.25:",
    ),
    "values of another width": (LLAMA | {"v_head_dim": 32}, "v_head_dim: must be absent or 16: values of another"),
    "a head's size in falcon": (of("falcon", head_dim=32), "head_dim: must be absent or 16: this family states the si"),
    "caches of other layers": (
        of("gemma3n_text", KV, head_dim=32), "num_kv_shared_layers: must be 0 in models of type gemma3n_text here (",
    ),
    "another name for theta": (of("gpt_neox", rope_theta=5e5), "rope_theta: must be absent: this family states"),
    "part of a head in gpt_neox": (
        of("gpt_neox", hidden_size=128, rotary_pct=0.3), "rotary_pct=0.3 of head_dim=32: rotary_dim: must be a mul",
    ),
    "part of a head in llama": (
        LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor: must be absent or 1.0 or 1: this family rotat",
    ),
    "part of a head in llama's table": (
        LLAMA | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "rope_parameters: partial_rotary_factor: must be absent or 1: this family rotates whole heads (got 0.5)",
    ),
    "null for a part of a head": (
        of("glm", KV, head_dim=32, partial_rotary_factor=None),
        "partial_rotary_factor: must be absent for 0.5, or a number (got null)",
    ),
    "null for a base": (LLAMA | {"rope_theta": None}, "rope_theta: must be absent, or a number above 1 (got null)"),
    "null for a base under another name": (
        of("gpt_neox", hidden_size=128, rotary_emb_base=None), "rotary_emb_base: must be absent, or a number above 1 (",
    ),
    "theta by layer of olmo3": (of("olmo3", KV, rope_theta=1e4), "rope_theta: must be 500000 in models of"),
    "a window that is text": (of("mistral", KV, sliding_window="4096"), "sliding_window: must be an integer from 1"),
    "a word for a layer": (
        of("gemma2", KV, layer_types=["full_attention"] * 3 + ["linear_attention"]),
        "layer_types: must list full_attention or sliding_attention for 4 layers",
    ),
    "sliding layers without windows": (
        of("qwen2", KV, sliding_window=3, use_sliding_window=False, layer_types=SLIDING),
        "layer_types: must be 4 times full_attention without use_sliding_window and a sliding_window (got [",
    ),
    "sliding layers of a null window": (
        of("gemma2", KV, sliding_window=None, layer_types=SLIDING),
        "layer_types: must be 4 times full_attention without a sliding_window (got [",
    ),
    "too few layers where no window is in use": (
        of("qwen2", KV, use_sliding_window=False, layer_types=["full_attention"] * 3),
        "layer_types: must list full_attention or sliding_attention for 4 layers (got [",
    ),
    "which layers of cohere2 rotate": (
        of("cohere2", KV, sliding_window=None),
        "sliding_window: must be an integer where layer_types does not list the layers (got null)",
    ),
    "a null window of gemma3": (
        of("gemma3_text", KV, head_dim=32, sliding_window=None),
        "sliding_window: must be an integer where layer_types does not list the layers (got null)",
    ),
    "a list for a kind of layer": (
        of("gemma3_text", KV, head_dim=32, layer_types=SLIDING,
           rope_parameters={"full_attention": [1], "sliding_attention": {}}),
        "rope_parameters: must be one table for all layers, or for gemma3, gemma3n, olmo3 two (got {",
    ),
    # transformers leaves out, of families with a table for each type of layer:
    "one table under the newer name": (
        GEMMA | {"rope_parameters": YARN}, "rope_parameters: must have a table for full_attention here; one table is",
    ),
    "two tables under the older name": (
        of("olmo3", KV, rope_scaling={"full_attention": YARN}), "rope_scaling: must be one table here; tables by lay",
    ),
    "the older name of a type": (
        GEMMA | {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling: must call its type rope_type here",
    ),
    "a range that is not cut off": (
        GEMMA | {"rope_scaling": YARN | {"truncate": False}}, "rope_scaling: truncate must not be false here (got {",
    ),
    "the same in one of two tables": (
        GEMMA | {"rope_parameters": {"full_attention": YARN | {"truncate": False}, "sliding_attention": {}}},
        "rope_parameters: truncate must not be false here (got {",
    ),
    "a context beside the table": (
        GEMMA | {"rope_scaling": YARN, "original_max_position_embeddings": 128},
        "original_max_position_embeddings: must be absent here, or stand in the table (got 128)",
    ),
    "KV heads that the older falcon does not have": (
        of("falcon", num_kv_heads=2, multi_query=False),
        "num_kv_heads: must be 4 without new_decoder_architecture and multi_query (got 2)",
    ),
    "KV heads of falcon": (
        of("falcon", num_kv_heads=3, new_decoder_architecture=True),
        "num_kv_heads: must divide num_attention_heads=4 (got 3)",
    ),
    "which layers of smollm3 rotate": (of("smollm3", KV, no_rope_layers=0), "no_rope_layers: must list 0 or 1 for 4 l"),
    "a width that is text": (LLAMA | {"head_dim": 16, "hidden_size": "64"}, "hidden_size: must be an integer from 1"),
    "a type that is empty": (
        LLAMA | {"rope_scaling": {"rope_type": "", "factor": 4.0}}, "rope_scaling: rope_type: must be one of default,",
    ),
    "a type that is false": (
        LLAMA | {"rope_scaling": {"rope_type": False, "factor": 4.0}}, "rope_scaling: rope_type: must be one of defau",
    ),
    "ends of llama3 that meet": (
        LLAMA | {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}},
        "rope_scaling: high_freq_factor: must be above low_freq_factor=4 (got 4.0)",
    ),
    "the list that is not used": (
        of("phi3", KV, rope_scaling=LONGROPE | {"short_factor": [1.0] * 7}, original_max_position_embeddings=512),
        "rope_scaling: short_factor: must be a list of 8 numbers, one a pair",
    ),
    "long phimoe": (
        of("phimoe", KV, rope_scaling=LONGROPE | {"original_max_position_embeddings": 512}),
        "rope_scaling: implementations of this family differ in the frequencies of a longer context; --max-len 512 w",
    ),
    "yarn of phi3": (of("phi3", KV, rope_scaling=YARN), "rope_scaling: rope_type: must be one of default, longrop"),
    "axes of llama": (
        LLAMA | {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, "rope_scaling: type: must be one of",
    ),
    "two tables that differ": (
        LLAMA | {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}},
        "rope_scaling: must be absent where rope_parameters says otherwise (got {",
    ),
    "a table by layer of llama": (
        LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters: must be one table for",
    ),
    "queries that grow": (
        LLAMA | {"rope_scaling": YARN | {"llama_4_scaling_beta": 0.1}},
        "rope_scaling: llama_4_scaling_beta: queries that grow with their position have no kernels here (got 0.1)",
    ),
    "truncate that is text": (LLAMA | {"rope_scaling": YARN | {"truncate": "no"}}, "rope_scaling: truncate: must be"),
    "another text model": (
        inside("mistral3", of("ministral3", KV)), "text_config: model_type: must be mistral (got 'ministral3')",
    ),
    "integers in the cache": (
        LLAMA | {"quantization_config": {"kv_cache_scheme": FP8 | {"type": "int"}}},
        "quantization_config: kv_cache_scheme: type: must be float of 8 bits (got 'int' of 8)",
    ),
    "scales of the moment": (
        LLAMA | {"quantization_config": {"kv_cache_scheme": FP8 | {"dynamic": True}}},
        "quantization_config: kv_cache_scheme: dynamic: must be false: scales here are those of the file (got True)",
    ),
    "scales by channel": (
        LLAMA | {"quantization_config": {"kv_cache_scheme": FP8 | {"strategy": "channel"}}},
        "quantization_config: kv_cache_scheme: strategy: must be one of tensor, attn_head (got 'channel')",
    ),
    "a list for a strategy": (
        LLAMA | {"quantization_config": {"kv_cache_scheme": FP8 | {"strategy": ["tensor"]}}},
        "quantization_config: kv_cache_scheme: strategy: must be one of tensor, attn_head (got ['tensor'])",
    ),
    "zero points": (
        LLAMA | {"quantization_config": {"kv_cache_scheme": FP8 | {"symmetric": False}}},
        "quantization_config: kv_cache_scheme: symmetric: must be true: caches here have no zero points (got False)",
    ),
    "a scheme of another tool": (
        LLAMA | {"quantization_config": {"kv_cache_quant_config": {"dtype": "fp8_e4m3"}}},
        "quantization_config: kv_cache_quant_config: must be null: a cache's scheme is read from kv_cache_scheme or "
        "kv_cache_quant_algo (got {'dtype': 'fp8_e4m3'})",
    ),
    "an algorithm of four bits": (
        LLAMA | {"quantization_config": {"kv_cache_quant_algo": "NVFP4"}},
        "quantization_config: kv_cache_quant_algo: must be FP8 or null (got 'NVFP4')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_change_attention_is_refused_by_name(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, said = REFUSED[case]
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ["--config", str(tmp_path / "config.json"), "--target", "sm_90", "-o", str(tmp_path / "out")]
    assert invoke(["generate", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"ptxgen: {tmp_path / 'config.json'}: {said}")
    assert len(printed.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_two_chunks_are_plain_attention_within_the_first() -> None:
    qwen = LLAMA | {"model_type": "qwen2"}
    chunks = {"dual_chunk_attention_config": {"chunk_size": 64, "local_size": 16}}
    assert model_shape(qwen | chunks, max_len=48) == model_shape(qwen, max_len=48)


def test_dynamic_rope_is_plain_up_to_its_context_and_refused_behind_it() -> None:
    given = LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    assert model_shape(given).kinds == model_shape(LLAMA).kinds
    with pytest.raises(
        SpecError, match=r"^here: rope_scaling: type: dynamic .*; --max-len 4096 would work \(got 4097 "
    ):
        model_shape(given, "here", 4097)


@pytest.mark.parametrize("scaling", [{"type": "dynamic", "factor": 2.0}, {"type": "yarn", "factor": 4.0}])
def test_the_longest_context_of_a_cache_is_not_that_of_the_model(scaling: Config) -> None:
    """Of a scaling that asks for it."""
    given = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    assert model_shape(given, max_len=4096).kinds == model_shape(LLAMA).kinds
    assert (
        model_shape(given | {"rope_scaling": YARN}, max_len=4096).kinds
        == model_shape(LLAMA | {"rope_scaling": YARN}).kinds
    )
    own = model_shape(given | {"rope_scaling": scaling, "max_position_embeddings": 2048}, max_len=2048)
    assert model_shape(given | {"rope_scaling": scaling}, "here") == own
    with pytest.raises(SpecError, match="here: max_position_embeddings: must be an integer from 1 "):
        model_shape(given | {"rope_scaling": scaling, "max_position_embeddings": None}, "here", 4096)
