"""No configuration is misread: a key is understood, refused by name, warned of, or known to be without effect."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from ptxgen import SpecError
from ptxgen.cli._main import invoke
from ptxgen.errors import ConfigWarning
from ptxgen.files.jsonfields import Fields
from ptxgen.models import KvScheme, model_shape
from ptxgen.models.config import keys
from ptxgen.models.config.families import FAMILIES
from ptxgen.models.config.rope import SCALINGS
from ptxgen.models.spec import model_spec
from ptxgen.models.survey import Verdict, survey
from tests.support.models.config_cases import (
    CASES,
    FP8,
    KV,
    LLAMA,
    LONGROPE,
    QUARTER,
    SLIDING,
    YARN,
    Config,
    inside,
    of,
)


def warned(config: Config, max_len: int | None = None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model_shape(config, "here", max_len)
    assert all(one.category is ConfigWarning for one in caught)
    return [str(one.message) for one in caught]


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


def test_an_unknown_key_is_told_with_the_one_that_it_is_near() -> None:
    said = warned(LLAMA | {"hiden_size": 7})
    assert said == ["here: hiden_size: is not known (got 7; nearest: hidden_size)"]


STRETCH = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}


@pytest.mark.parametrize(
    ("changes", "within"),
    [
        ({}, 256),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 512),
        ({"rope_scaling": STRETCH}, 400),
        ({"rope_parameters": STRETCH}, 400),
    ],
)
def test_a_context_behind_the_models_own_is_warned_of(changes: Config, within: int) -> None:
    """Also where scaling of RoPE stretches it."""
    given = LLAMA | {"max_position_embeddings": 256} | changes
    assert warned(given, within) == []
    said = f"here: max_position_embeddings: the model's own positions end at 256, .* (got max_len {within + 1})"
    assert [re.sub("256, .* [(]", "256, .* (", one) for one in warned(given, within + 1)] == [said]


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

    monkeypatch.setattr("ptxgen.models.config.fields.Fields", spied)
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


WIDE = {"intermediate_size": 64}


def test_a_folder_of_models_gets_a_verdict_each(tmp_path: Path) -> None:
    for name, config in {
        "a/config.json": LLAMA | WIDE, "b.json": LLAMA | WIDE | {"flavour": 1}, "c.json": LLAMA | {"alibi": True},
        "d.json": LLAMA | {"head_dim": 12}, "e.json": of("mixtral", KV),
        "tokenizer.json": {"version": "1.0"}, "list.json": [1],
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(config))
    (tmp_path / "broken.json").write_text("{")
    found = {one.model: one for one in survey(tmp_path)}
    assert found["a/config.json"] == Verdict("a/config.json", "served", (), decodes=True)
    assert found["b.json"] == Verdict("b.json", "warned", ("flavour: is not known (got 1)",), decodes=True)
    assert found["e.json"] == Verdict("e.json", "served", (), decodes=False)
    assert found["c.json"].verdict == found["d.json"].verdict == "refused"
    assert found["c.json"].reasons[0].startswith("alibi: must be absent or false")
    assert len(found) == 5


def test_doctor_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for config, decodes in ((LLAMA | WIDE, "yes"), (of("mixtral", KV), "no")):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert invoke(["doctor", "--config", str(tmp_path)]) == 0
        head, row = capsys.readouterr().out.splitlines()
        assert head.split() == ["model", "attention", "decodes", "why"]
        assert row.split() == ["config.json", "served", decodes]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"alibi": True}))
    assert invoke(["doctor", "--config", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "refused"
    (tmp_path / "config.json").unlink()
    assert invoke(["doctor", "--config", str(tmp_path)]) == 2
    assert "config.json or a folder with some" in capsys.readouterr().err
