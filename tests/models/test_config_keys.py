"""No configuration is misread: a key is understood, refused by name, warned of, or known to be without effect."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from ptxgen import SpecError
from ptxgen.cli._main import invoke
from ptxgen.errors import ConfigWarning
from ptxgen.files.jsonfields import Fields
from ptxgen.models import KvScheme, keys, model_shape
from ptxgen.models.families import FAMILIES
from ptxgen.models.rope import SCALINGS
from ptxgen.models.spec import model_spec
from ptxgen.models.survey import Verdict, survey
from tests.support.config_cases import CASES, KV, LLAMA3, LONGROPE, SLIDING, YARN, Config, inside, of

LLAMA = of("llama", KV)
QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
GEMMA = of("gemma3_text", KV, head_dim=32, layer_types=SLIDING)
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def warned(config: Config, max_len: int | None = None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model_shape(config, "here", max_len)
    assert all(one.category is ConfigWarning for one in caught)
    return [str(one.message) for one in caught]


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
        "partial_rotary_factor: must be absent for 0.5, or a number (got None)",
    ),
    "null for a base": (LLAMA | {"rope_theta": None}, "rope_theta: must be absent, or a number above 1 (got None)"),
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
        "sliding_window: must be an integer where layer_types does not list the layers (got None)",
    ),
    "a null window of gemma3": (
        of("gemma3_text", KV, head_dim=32, sliding_window=None),
        "sliding_window: must be an integer where layer_types does not list the layers (got None)",
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
    with pytest.raises(SpecError, match="here: max_position_embeddings: must be an integer from 1 "):
        model_shape(given | {"rope_scaling": scaling}, "here", 4096)


# What is warned of: the configuration, the longest context, and the warning behind the file's name.
WARNED: dict[str, tuple[Config, int | None, str]] = {
    "a key of tomorrow": (LLAMA | {"attention_flavour": 9}, None, "attention_flavour: is not known (got 9)"),
    "a key of another scaling": (
        LLAMA | {"rope_scaling": YARN | {"low_freq_factor": 2.0}}, None,
        "rope_scaling: low_freq_factor: is not read with type yarn (got 2.0)",
    ),
    "outside of the text model": (
        inside("gemma3", of("gemma3_text", KV, head_dim=32)) | {"flavour": 1}, None, "flavour: is not known (got 1)",
    ),
    "causal or not, outside of the text model": (
        inside("gemma3", of("gemma3_text", KV, head_dim=32)) | {"is_causal": False, "use_sliding_window": False}, None,
        "is_causal: is not read outside of text_config (got False)",
    ),
    "another base outside of the text model": (
        inside("mistral3", of("mistral", KV, rope_theta=1e6)) | {"rope_theta": 1e4, "hidden_size": 64}, None,
        "rope_theta: is not read outside of text_config (got 10000.0)",
    ),
    "a third kind of layer": (
        of("gemma3_text", KV, head_dim=32, rope_parameters={
            "full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}, "global_attention": {},
        }), None,
        "rope_parameters: global_attention: is not read beside full_attention (got {})",
    ),
    "two types": (
        LLAMA | {"rope_scaling": YARN | {"type": "linear"}}, None,
        "rope_scaling: type: is not read beside rope_type (got 'linear')",
    ),
    "images": (
        of("qwen2_5_vl", KV, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}), None,
        "rope_scaling: mrope: positions are those of text; those of images have three axes",
    ),
    "a list by length": (
        of("phi3", KV, rope_scaling=LONGROPE, original_max_position_embeddings=512), None,
        "rope_scaling: longrope: long_factor is used at every length; --max-len 512 takes short_factor",
    ),
    "a quantised cache": (
        LLAMA | {"quantization_config": {"kv_cache_scheme": FP8}}, None,
        "kv_cache_scheme: the model's cache is e4m3 with a scale for each tensor; the kernels' is as --kv-dtype says, "
        "bf16 without it, and takes scales with --kv-dtype e4m3, which leaves out split attention and is refused with "
        "--weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_what_is_done_otherwise_is_warned_of_and_strict_refuses_it(case: str) -> None:
    config, max_len, said = WARNED[case]
    assert warned(config, max_len) == [f"here: {said}"]
    with pytest.raises(SpecError) as refused:
        model_shape(config, "here", max_len, strict=True)
    assert str(refused.value) == f"here: {said}"


def test_a_quantised_cache_is_warned_of_where_the_kernels_hold_another() -> None:
    config = LLAMA | {"quantization_config": {"kv_cache_scheme": FP8}}
    assert model_shape(config, strict=True, kv_dtype="e4m3").kv_scheme == KvScheme("e4m3", "tensor")
    with pytest.raises(SpecError, match="kv_cache_scheme: the model's cache is e4m3"):
        model_shape(config, strict=True, kv_dtype="f16")


def test_the_command_warns_in_a_sentence_and_strict_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"attention_flavour": 1, "num_hidden_layers": 1}))
    said = f"{path}: attention_flavour: is not known (got 1)"
    arguments = ["generate", "--config", str(path), "--target", "sm_90", "-o", str(tmp_path / "out"), "--max-len", "64"]
    assert invoke([*arguments, "--strict"]) == 2
    assert capsys.readouterr().err == f"ptxgen: {said}\n"
    assert not (tmp_path / "out").exists()
    assert invoke(arguments) == 0
    assert capsys.readouterr().err.splitlines()[0] == f"ptxgen: warning: {said}"


@pytest.mark.parametrize("name", CASES)
def test_no_case_of_the_oracle_has_a_key_that_is_not_known(name: str) -> None:
    config, max_len = CASES[name]
    assert not [said for said in warned(config, max_len) if "is not known" in said or "is not read" in said]


# What real files of a family hold beside sizes, where that is more than the class itself has.
REAL: dict[str, Config] = {
    "llama": {"rope_interleaved": False, "is_llama_config": True, "pretraining_tp": 1, "use_mrope": False},
    "cohere": {"model_max_length": 131072, "logit_scale": 0.0625, "use_qk_norm": True, "layer_norm_eps": 1e-5},
    "cohere2": {
        "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "head_dim": 16, "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first", "use_parallel_block": True, "cache_implementation": "hybrid",
    },
    "gemma2": {"sliding_window": 64, "sliding_window_size": 64, "hidden_activation": None, "head_dim": 16},
    "exaone4": {"sliding_window": 64, "sliding_window_pattern": "LLLG", "layer_types": SLIDING, "head_dim": 16},
    "phi3": {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "embd_pdrop": 0.0, "mlp_bias": False},
    "falcon": {"apply_residual_connection_post_layernorm": False, "bias": False, "parallel_attn": True},
    "internlm2": {"bias": False, "attn_implementation": "eager", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "minicpm": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    "starcoder2": {"mlp_type": "default", "norm_type": "layer_norm", "norm_epsilon": 1e-5, "use_bias": True},
    "ernie4_5": {"compression_ratio": 1.0, "use_bias": False, "head_dim": 16},
    "olmo3": {"rope_theta": 500000, "rope_scaling": YARN | {"attention_factor": 1.2}, "layer_types": SLIDING},
    "gpt_oss": {"experts_per_token": 4, "initial_context_length": 4096, "swiglu_limit": 7.0, "head_dim": 16},
    "granite": {"embedding_multiplier": 12.0, "logits_scaling": 16.0, "residual_multiplier": 0.22},
    "gpt_neox": {"hidden_size": 128, "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "rotary_pct": 0.25},
    "nemotron": {"head_dim": 32, "rope_percent": 0.5},
    "glm": {"head_dim": 32, "rotary_pct": 0.25, "rope_parameters": QUARTER},
    "qwen2_moe": {"norm_topk_prob": False, "decoder_sparse_step": 1, "shared_expert_intermediate_size": 16},
}  # fmt: skip


@pytest.mark.parametrize("family", REAL)
def test_keys_of_real_files_are_known(family: str) -> None:
    assert warned(of(family, {} if family in ("falcon", "gpt_neox") else KV, REAL[family])) == []


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if not family.nested])
def test_a_part_of_a_head_rotates_only_where_the_class_reads_it(family: str) -> None:
    row = FAMILIES[family]
    config = of(family, {} if family in ("falcon", "gpt_neox") else KV, hidden_size=128, num_kv_shared_layers=0)
    config = {key: config[key] for key in config if key in row.keys | keys.COMMON}
    config |= {"head_dim": 32} if row.own_head_dim else {}
    given = config | {row.names.get("partial_rotary_factor", "partial_rotary_factor"): 0.25}
    if row.rotary is None:
        with pytest.raises(SpecError, match=r"^here: partial_rotary_factor: must be absent or 1\.0"):
            model_shape(given, "here", 512)
    else:
        assert [kind.rope and kind.rope.rotary_dim for kind in model_shape(given, "here", 512).kinds] == [8]


def test_newer_files_call_three_axes_the_default() -> None:
    section = {"mrope_section": [2, 3, 3]}
    older, newer = (of("qwen2_5_vl", KV, rope_scaling=section | {"type": kind}) for kind in ("mrope", "default"))
    assert warned(newer) == warned(older) != []


def test_a_key_stands_in_one_table() -> None:
    tables = (keys.COMMON, keys.CHANGES, keys.STYLES["neox"], keys.MODEL, keys.WHOLE, keys.WITHOUT_EFFECT)
    named = [key for table in tables for key in table]
    assert len(named) == len(set(named))
    assert keys.STYLES["neox"].keys() == keys.STYLES["norm"].keys()


def test_every_key_that_a_family_reads_is_one_that_others_refuse_or_all_ignore() -> None:
    """What means something to one family is never a key that nobody knows to the others."""
    tables = (keys.COMMON, keys.CHANGES, keys.WITHOUT_EFFECT)
    for name, family in FAMILIES.items():
        assert [key for key in family.keys if not any(key in table for table in tables)] == [], name


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
def test_a_family_reads_the_keys_that_it_says_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all cases: nothing is read that a family's row does not name, and what it names is read by some case."""
    seen: set[str] = set()

    class Spied(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            seen.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> Any:
            seen.add(key)
            return super().__getitem__(key)

    def spied(values: Any, source: str, *names: Any) -> Fields:
        return Fields(Spied(values) if names else values, source, *names)

    monkeypatch.setattr("ptxgen.models.Fields", spied)
    read: dict[str, set[str]] = {}
    for config, max_len in CASES.values():
        seen.clear()
        model_shape(config, "here", max_len)
        outer = FAMILIES[config["model_type"]]
        name = outer.inner or config["model_type"]
        names = FAMILIES[name].names
        read.setdefault(name, set()).update(names.get(key, key) for key in seen)
    for name, found in read.items():
        assert found - FAMILIES[name].keys - keys.COMMON == set(), name
        assert FAMILIES[name].keys - found <= {"attn_scale", "_sliding_window_pattern"}, name


def test_families_name_scalings_that_exist() -> None:
    assert {name for family in FAMILIES.values() for name in family.scalings} <= SCALINGS.keys()


def test_a_key_without_effect_is_read_past() -> None:
    plain = model_shape(LLAMA)
    for key in keys.WITHOUT_EFFECT | keys.WHOLE | keys.MODEL.keys():
        assert model_shape(LLAMA | {key: 7}) == plain


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_experts", 8), ("logits_scaling", 8.0), ("residual_multiplier", 0.22), ("use_qk_norm", True),
     ("use_parallel_residual", True), ("layer_norm_eps", 1e-5), ("final_logit_softcapping", 30.0), ("use_bias", True)],
)  # fmt: skip
def test_whole_models_refuse_what_attention_does_not_mind(key: str, value: Any) -> None:
    given = LLAMA | {key: value, "rms_norm_eps": 1e-5}
    model_shape(given)
    with pytest.raises(SpecError, match=f"^here: {key}: must be absent"):
        model_spec(given, "here")


@pytest.mark.parametrize(
    ("said", "scheme"),
    [
        ({"kv_cache_scheme": FP8}, KvScheme("e4m3", "tensor")),
        ({"kv_cache_scheme": FP8 | {"strategy": "attn_head"}}, KvScheme("e4m3", "head")),
        ({"kv_cache_quant_algo": "FP8"}, KvScheme("e4m3", "tensor")),
        ({"kv_cache_scheme": None, "quant_method": "fp8"}, None),
    ],
)
@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
def test_the_scheme_of_the_cache_is_read_where_it_stands(said: Config, scheme: KvScheme | None) -> None:
    assert model_shape(LLAMA | {"quantization_config": said}).kv_scheme == scheme
    assert model_shape(LLAMA | {"compression_config": said}).kv_scheme == scheme
    outer = inside("mistral3", of("mistral", KV)) | {"quantization_config": said}
    assert model_shape(outer).kv_scheme == scheme


# -- the table of a folder ---------------------------------------------------------------------------------------------


def test_a_folder_of_models_gets_a_verdict_each(tmp_path: Path) -> None:
    for name, config in {
        "a/config.json": LLAMA, "b.json": LLAMA | {"flavour": 1}, "c.json": LLAMA | {"alibi": True},
        "d.json": LLAMA | {"head_dim": 12}, "tokenizer.json": {"version": "1.0"}, "list.json": [1],
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(config))
    (tmp_path / "broken.json").write_text("{")
    found = {one.model: one for one in survey(tmp_path)}
    assert found["a/config.json"] == Verdict("a/config.json", "served")
    assert found["b.json"] == Verdict("b.json", "warned", ("flavour: is not known (got 1)",))
    assert found["c.json"].verdict == found["d.json"].verdict == "refused"
    assert found["c.json"].reasons[0].startswith("alibi: must be absent or false")
    assert len(found) == 4


def test_doctor_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert invoke(["doctor", "--config", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["config.json", "served"]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"alibi": True}))
    assert invoke(["doctor", "--config", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "refused"
    (tmp_path / "config.json").unlink()
    assert invoke(["doctor", "--config", str(tmp_path)]) == 2
    assert "config.json or a folder with some" in capsys.readouterr().err
