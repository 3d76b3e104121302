"""config.json → attention shape: facts of known models, the families' rules, refusals that name file, key, value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptxgen import SpecError
from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.models import LayerKind, load_config, model_shape

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def config(**changes: Any) -> dict[str, Any]:
    return LLAMA | changes


# name: heads, KV heads, head_dim, vocabulary, longest context, [(kind, number of layers, window, theta)]
KNOWN = {
    "llama-2-7b": (32, 32, 128, 32000, 4096, [("all", 32, 0, 1e4)]),
    "llama-3.1-8b": (32, 8, 128, 128256, 131072, [("all", 32, 0, 5e5)]),
    "llama-3.2-1b": (32, 8, 64, 128256, 131072, [("all", 16, 0, 5e5)]),
    "tinyllama-1.1b": (32, 4, 64, 32000, 2048, [("all", 22, 0, 1e4)]),
    "qwen2.5-1.5b": (12, 2, 128, 151936, 131072, [("all", 28, 0, 1e6)]),
    "qwen2.5-7b": (28, 4, 128, 152064, 131072, [("all", 28, 0, 1e6)]),
    "qwen3-8b": (32, 8, 128, 151936, 40960, [("all", 36, 0, 1e6)]),
    "mistral-7b-v0.1": (32, 8, 128, 32000, 32768, [("all", 32, 4096, 1e4)]),
    "mistral-nemo": (32, 8, 128, 131072, 131072, [("all", 40, 0, 1e6)]),
    "gemma-2b": (8, 1, 256, 256000, 8192, [("all", 18, 0, 1e4)]),
    "gemma-2-9b": (16, 8, 256, 256000, 8192, [("sliding", 21, 4096, 1e4), ("full", 21, 0, 1e4)]),
    "gemma-2-27b": (32, 16, 128, 256000, 8192, [("sliding", 23, 4096, 1e4), ("full", 23, 0, 1e4)]),
    "gemma-3-1b": (4, 1, 256, 262144, 32768, [("sliding", 22, 512, 1e4), ("full", 4, 0, 1e6)]),
    "gemma-3-4b": (8, 4, 256, 262208, 131072, [("sliding", 29, 1024, 1e4), ("full", 5, 0, 1e6)]),
    "phi-2": (32, 32, 80, 51200, 2048, [("all", 32, 0, 1e4)]),
    "phi-3-mini-4k": (32, 32, 96, 32064, 4096, [("all", 32, 2047, 1e4)]),
    "phi-4": (40, 10, 128, 100352, 16384, [("all", 40, 0, 2.5e5)]),
    "smollm3-3b": (16, 4, 128, 128256, 65536, [("full", 27, 0, 5e6)]),  # and 9 layers without RoPE
    "olmo-2-7b": (32, 32, 128, 100352, 4096, [("all", 32, 0, 5e5)]),
}


def test_every_committed_config_has_its_facts_here() -> None:
    assert {p.stem for p in CONFIGS.glob("*.json")} == KNOWN.keys()


@pytest.mark.parametrize("name", KNOWN)
def test_shape_of_a_known_model(name: str) -> None:
    shape = load_config(CONFIGS / f"{name}.json")
    kinds = [(k.name, len(k.layers), k.window, k.rope.theta) for k in shape.kinds if k.rope]
    found = (shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.vocab, shape.max_len, kinds)
    assert found == KNOWN[name]
    assert sorted(layer for kind in shape.kinds for layer in kind.layers) == list(range(shape.n_layers))


def test_llama3_scaling_is_read() -> None:
    assert load_config(CONFIGS / "llama-3.1-8b.json").kinds[0].rope == RopeSettings(
        500000.0, 128, "llama3", 8.0, 1.0, 4.0, 8192
    )


def test_linear_scaling_is_for_the_global_layers_of_gemma3_only() -> None:
    sliding, full = load_config(CONFIGS / "gemma-3-4b.json").kinds
    assert sliding.rope == RopeSettings(10000.0, 256)
    assert full.rope == RopeSettings(1000000.0, 256, "linear", 8.0)
    assert full.layers == (5, 11, 17, 23, 29)


def test_partial_rotary_factor_of_phi() -> None:
    assert load_config(CONFIGS / "phi-2.json").kinds[0].rope == RopeSettings(10000.0, 32)
    # 0.5 is the default of the class
    assert model_shape(config(model_type="phi")).kinds[0].rope == RopeSettings(10000.0, 32)


def test_gemma2_caps_and_scales_its_logits() -> None:
    nine, larger = (load_config(CONFIGS / f"gemma-2-{size}.json") for size in ("9b", "27b"))
    assert (nine.soft_cap, nine.scale) == (50.0, None)  # 256^-0.5 is 1/sqrt(head_dim)
    assert larger.soft_cap == 50.0
    assert larger.scale == pytest.approx(1 / 12)  # 144^-0.5, where head_dim is 128


def test_newer_files_keep_rope_in_rope_parameters() -> None:
    parameters = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    assert model_shape(config(rope_parameters=parameters)).kinds[0].rope == RopeSettings(
        5e5, 64, "llama3", 8.0, 1.0, 4.0, 8192
    )


def test_newer_gemma3_keeps_rope_by_layer_type() -> None:
    old = json.loads((CONFIGS / "gemma-3-1b.json").read_text())
    new = {k: v for k, v in old.items() if not k.startswith(("rope", "sliding_window_pattern"))}
    new["rope_parameters"] = {
        "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    new["layer_types"] = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(26)]
    assert model_shape(new) == model_shape(old)


def test_an_empty_table_of_gpt_oss_is_no_scaling() -> None:
    """Without one it is its class's yarn."""
    given = config(model_type="gpt_oss")
    tables: tuple[dict[str, object] | None, ...] = ({}, None)
    empty, null = (model_shape(given | {"rope_parameters": table}) for table in tables)
    absent = model_shape(given)
    assert all(kind.rope and not kind.rope.freq_factors for kind in empty.kinds)
    assert all(kind.rope and kind.rope.freq_factors for kind in absent.kinds)
    assert null == absent


def test_qwen_windows_need_the_switch_and_start_at_a_layer() -> None:
    given = config(model_type="qwen2", sliding_window=1024, max_window_layers=1)
    assert [k.window for k in model_shape(given).kinds] == [0]
    full, sliding = model_shape(given | {"use_sliding_window": True}).kinds
    assert (full.layers, sliding.layers, sliding.window) == ((0,), (1, 2, 3), 1024)


def test_a_window_as_long_as_the_cache_is_none() -> None:
    path = CONFIGS / "mistral-7b-v0.1.json"
    assert load_config(path, max_len=4096).kinds[0].window == 0
    assert load_config(path, max_len=4097).kinds[0].window == 4096
    assert len(load_config(CONFIGS / "gemma-2-9b.json", max_len=2048).kinds) == 1
    assert [k.name for k in load_config(CONFIGS / "gemma-3-1b.json", max_len=256).kinds] == ["sliding", "full"]


def test_absent_and_null_values_take_the_class_defaults() -> None:
    minimal = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    shape = model_shape(minimal | {"head_dim": None, "attention_bias": None})
    assert (shape.n_kv_heads, shape.head_dim, shape.dtype) == (32, 64, "bf16")
    assert shape.kinds == (LayerKind("all", (0, 1, 2, 3), 0, RopeSettings(10000.0, 64)),)


def test_dtype_by_either_name() -> None:
    assert model_shape(config(torch_dtype="float16")).dtype == "f16"
    assert model_shape(config(dtype="float32")).dtype == "f32"


def test_a_null_factor_of_yarn_is_what_the_contexts_say() -> None:
    """As in transformers, which asks for the key alone."""
    table = {"type": "yarn", "factor": None, "original_max_position_embeddings": 1024}
    stated = config(max_position_embeddings=4096, rope_scaling=table | {"factor": 4.0})
    assert model_shape(config(max_position_embeddings=4096, rope_scaling=table)).kinds == model_shape(stated).kinds
    del table["factor"]
    with pytest.raises(
        SpecError, match=r"factor: must be a number, or null for max_position_embeddings / orig.* \(it is absent\)"
    ):
        model_shape(config(rope_scaling=table))


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    """Qwen2.5's recipe, by hand: of 64 pairs the first 24 stay, from pair 40 on all are divided by 4."""
    given = json.loads((CONFIGS / "qwen2.5-7b.json").read_text())
    given |= {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}}
    rope = model_shape(given).kinds[0].rope
    assert rope is not None
    assert len(rope.freq_factors) == 64
    assert set(rope.freq_factors[:24]) == {1.0}
    assert set(rope.freq_factors[40:]) == {4.0}
    assert rope.freq_factors[32] == pytest.approx(1 / (1 - 9 / 17 + 9 / 17 / 4))
    assert rope.attention_factor == pytest.approx(1.1386294361119891)


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ConfigWarning")
def test_longrope_takes_the_list_of_the_cache_that_is_asked_for() -> None:
    short, long = [1.0 + i / 100 for i in range(48)], [2.0 + i for i in range(48)]
    given = json.loads((CONFIGS / "phi-3-mini-4k.json").read_text())
    given |= {"max_position_embeddings": 131072, "sliding_window": 262144}
    given |= {"rope_scaling": {"type": "longrope", "short_factor": short, "long_factor": long}}
    (whole,), (small,) = (model_shape(given, max_len=n).kinds for n in (None, 4096))
    assert (whole.window, small.window) == (0, 0)
    assert whole.rope == RopeSettings(1e4, 96, freq_factors=tuple(long), attention_factor=pytest.approx(1.190238))
    assert small.rope == RopeSettings(1e4, 96, freq_factors=tuple(short), attention_factor=pytest.approx(1.190238))


REFUSED = {
    "foreign": (config(model_type="bert"), "model_type: must be one of llama, mistral, .* (got 'bert')"),
    "no model_type": ({}, "model_type: must be one of .* (it is absent)"),
    "a list": ([1], "must be a JSON object (got list)"),
    "text for a number": (config(num_attention_heads="32"), "num_attention_heads: must be an integer .* (got '32')"),
    "zero layers": (config(num_hidden_layers=0), "num_hidden_layers: must be an integer from 1 to 10000 (got 0)"),
    "true for a number": (config(num_hidden_layers=True), "num_hidden_layers: must be an integer .* (got True)"),
    "missing": ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocab_size: must be .* (it is absent)"),
    "uneven groups": (config(num_key_value_heads=5), "num_key_value_heads: must divide num_attention_heads=32 (got 5)"),
    "uneven heads": (config(hidden_size=2049), "hidden_size: must be a multiple of num_attention_heads=32"),
    "dtype": (config(torch_dtype="int4"), "torch_dtype: must be one of bfloat16, float16, float32 (got 'int4')"),
    "ntk": (config(rope_scaling={"type": "ntk", "factor": 4.0}), "rope_scaling: type: .* (got 'ntk')"),
    "longrope": (
        config(model_type="phi3", rope_scaling={"type": "longrope", "short_factor": [1.0]}),
        "rope_scaling: short_factor: must be a list of 32 numbers, one a pair",
    ),
    "half a scaling": (config(rope_scaling={"rope_type": "llama3", "factor": 8.0}), "rope_scaling: low_freq_factor:"),
    "a scaling that is text": (config(rope_scaling="llama3"), "rope_scaling: must be a JSON object (got 'llama3')"),
    "infinite theta": (config(rope_theta=float("inf")), "rope_theta: must be a number above 1, at most .* (got inf)"),
    "layer types": (
        config(model_type="gemma2", sliding_window=64, layer_types=["full_attention"]),
        "layer_types: must list full_attention or sliding_attention for 4 layers",
    ),
    "a billion layers": (config(num_hidden_layers=10**9), "num_hidden_layers: must be an integer from 1 to 10000"),
    "head_dim no kernel has": (
        config(head_dim=100),
        "head_dim: must be a multiple of 8 from 8 to 512 (got 100; nearest: 96 or 104)",
    ),
    "yarn without a base": (
        config(rope_theta=1.0, rope_scaling={"type": "yarn", "factor": 4.0}),
        "rope_theta: must be a number above 1,",
    ),
    "yarn of a huge beta": (
        config(rope_scaling={"type": "yarn", "factor": 4.0, "beta_fast": 1e308}),
        "rope_scaling: beta_fast: must be ",
    ),
    "longrope from one position": (
        config(original_max_position_embeddings=1, rope_scaling={"type": "longrope"}),
        "original_max_position_embeddings: must be an integer from 2 ",
    ),
    "infinite factors": (
        config(rope_scaling={"type": "longrope", "short_factor": [10**400] * 32}),
        "rope_scaling: short_factor: must be",
    ),
    "more than a head rotates": (
        config(model_type="phi", partial_rotary_factor=1e17),
        "partial_rotary_factor: must be a number of .*, at most 1 ",
    ),
    "nothing rotates": (
        config(model_type="phi", partial_rotary_factor=1e-9),
        "partial_rotary_factor=1e-09 of head_dim=64: rotary_dim: must be a multiple of 8",
    ),
    "no text model": ({"model_type": "gemma3"}, "text_config: must be a JSON object (got None)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_source_key_and_value(case: str) -> None:
    given, said = REFUSED[case]
    pattern = said.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(SpecError, match=rf"^somewhere: {pattern}"):
        model_shape(given, "somewhere")


@pytest.mark.parametrize("content", ["[" * 100_000, '{"vocab_size": ' + "9" * 5000 + "}"])
def test_a_file_that_json_cannot_hold_is_a_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SpecError, match=r"^[^\n]*config\.json: must be JSON of a sane size \([^\n]*\)$"):
        load_config(tmp_path / "config.json")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(config()).encode())
    assert load_config(tmp_path / "config.json") == model_shape(config())


def test_a_file_that_is_not_json_is_named_with_the_place(tmp_path: Path) -> None:
    broken = tmp_path / "config.json"
    broken.write_text('{"model_type": "llama",\n oops}')
    with pytest.raises(SpecError, match=r"config\.json: must be JSON \(line 2, column 2: "):
        load_config(broken)
    broken.write_bytes(b"\x80\x03}q\x00")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_config(broken)
