"""Hugging Face folders: every family against transformers' logits, every covered type."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from ptxgen.errors import ConfigWarning, FileError, SpecError
from ptxgen.models.files import ModelFile, checkpoint, open_model
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.spec import BLOCKS
from tests.support.models.families import CONFIGS, PROMPT, random_weights, small_spec, torch_name
from tests.support.models.model_files import write_checkpoint, write_folder
from tests.support.models.raw_files import packed_codes
from tests.tools.record.families import RECORD

RECORDED = dict(np.load(RECORD))
TIE = 3e-5


def reference(model: ModelFile) -> ReferenceModel:
    return ReferenceModel(model.spec, {name: model.values(name) for name in model.tensors})


@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_read_from_its_folder_has_transformers_logits(family: str, tmp_path: Path) -> None:
    model = open_model(write_checkpoint(tmp_path / family, family, shards=3))
    logits = reference(model).forward(PROMPT)
    np.testing.assert_allclose(logits, RECORDED[f"{family}.logits"], rtol=0, atol=TIE)


@pytest.mark.parametrize(("dtype", "format"), [(np.float16, "f16"), (ml_dtypes.bfloat16, "bf16")])
def test_halves_are_the_files_own(dtype: type, format: str, tmp_path: Path) -> None:
    model = open_model(write_checkpoint(tmp_path, "gemma3_text", dtype=dtype))
    for name, values in random_weights(small_spec("gemma3_text")).items():
        assert model.tensors[name].format == format
        assert np.array_equal(model.values(name), values.astype(dtype).astype(np.float32)), name


def test_one_file_with_its_config_beside_it(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama")
    assert open_model(folder / "model.safetensors").spec == open_model(folder).spec


def test_other_weights_beside_the_models_own_are_not_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "mistral")
    expected = open_model(folder).tensors
    safetensors.numpy.save_file({"layers.0.attention.wk.weight": np.zeros((2, 2))}, folder / "consolidated.safetensors")
    assert open_model(folder).tensors == expected


def test_a_multimodal_models_text_is_read_without_its_eyes(tmp_path: Path) -> None:
    inner = CONFIGS["gemma3_text"]
    arrays = {torch_name(n): v for n, v in random_weights(small_spec("gemma3_text")).items()}
    outer = {f"language_model.{name}": values for name, values in arrays.items()}
    outer["vision_tower.encoder.weight"] = np.zeros((2, 2), np.float32)
    model = open_model(write_folder(tmp_path, {"model_type": "gemma3", "text_config": inner}, outer))
    np.testing.assert_allclose(reference(model).forward(PROMPT), RECORDED["gemma3_text.logits"], rtol=0, atol=TIE)


def test_another_head_that_a_tied_model_holds_is_used_with_a_warning(tmp_path: Path) -> None:
    arrays = {torch_name(n): v for n, v in random_weights(small_spec("qwen3")).items()}
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].copy()
    arrays["lm_head.weight"][-1, -1] += 1
    folder = write_folder(tmp_path, CONFIGS["qwen3"], arrays)
    with pytest.warns(ConfigWarning, match=r"config\.json: tie_word_embeddings: says that lm_head\.weight is the emb"):
        model = open_model(folder)
    assert not model.spec.tied
    assert (model.values("lm_head") == arrays["lm_head.weight"]).all()


def test_a_head_in_another_type_is_said_to_be_that(tmp_path: Path) -> None:
    arrays = {torch_name(n): v for n, v in random_weights(small_spec("qwen3")).items()}
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].astype(np.float16)
    with pytest.warns(ConfigWarning, match=r"is stored as F16 \[131, \d+\], not as F32 \[131, \d+\]: logits are"):
        model = open_model(write_folder(tmp_path, CONFIGS["qwen3"], arrays))
    assert (model.values("lm_head") == arrays["lm_head.weight"]).all()


def test_two_heads_under_two_prefixes_are_refused_as_that(tmp_path: Path) -> None:
    arrays = {torch_name(n): v for n, v in random_weights(small_spec("qwen3")).items()}
    for prefix in ("", "language_model."):
        arrays[f"{prefix}lm_head.weight"] = arrays["model.embed_tokens.weight"].copy()
    said = r"(language_model\.)?lm_head\.weight: stands there as (language_model\.)?lm_head\.weight, too"
    with pytest.raises(FileError, match=said):
        open_model(write_folder(tmp_path, CONFIGS["qwen3"], arrays))


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_a_head_that_is_the_embedding_once_more_is_not_kept_twice(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_COMPARED", 1000)  # so that there are several parts
    arrays = {prefix + torch_name(n): v for n, v in random_weights(small_spec("gemma3_text")).items()}
    arrays[f"{prefix}lm_head.weight"] = arrays[f"{prefix}model.embed_tokens.weight"].copy()
    config = {"model_type": "gemma3", "text_config": CONFIGS["gemma3_text"]} if prefix else CONFIGS["gemma3_text"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = open_model(write_folder(tmp_path, config, arrays))
    assert model.spec.tied
    assert "lm_head" not in model.tensors
    np.testing.assert_allclose(reference(model).forward(PROMPT), RECORDED["gemma3_text.logits"], rtol=0, atol=TIE)


def test_a_bias_of_the_logits_is_part_of_the_model(tmp_path: Path) -> None:
    arrays = {torch_name(n): v for n, v in random_weights(small_spec("qwen3")).items()}
    arrays["lm_head.bias"] = np.arange(131, dtype=np.float32)
    model = open_model(write_folder(tmp_path, CONFIGS["qwen3"], arrays))
    assert model.spec.tied
    assert model.spec.head_bias
    moved = reference(model).forward(PROMPT) - np.arange(131)
    np.testing.assert_allclose(moved, RECORDED["qwen3.logits"], rtol=0, atol=TIE)


# -- quantised checkpoints -------------------------------------------------------------------------------------------


def changed(
    tmp_path: Path, parts: dict[str, np.ndarray], quantization: dict[str, object], **config: object
) -> ModelFile:
    """A llama whose layer 1 has `parts` in place of its gate_proj."""
    spec = small_spec("llama", mlp_bias=False, **config)
    arrays = {torch_name(n): v for n, v in random_weights(spec).items()}
    del arrays["model.layers.1.mlp.gate_proj.weight"]
    arrays |= {f"model.layers.1.mlp.gate_proj.{name}": part for name, part in parts.items()}
    settings = CONFIGS["llama"] | config | {"mlp_bias": False, "quantization_config": quantization}
    return open_model(write_folder(tmp_path, settings, arrays))


@pytest.mark.parametrize(
    ("scale", "name", "format"),
    [
        (np.array(0.5, np.float32), "weight_scale", "e4m3"),
        (np.linspace(0.1, 2, 160, dtype=np.float32).reshape(160, 1), "weight_scale", "e4m3_channel"),
        (np.arange(1, 5, dtype=np.float32).reshape(2, 2), "weight_scale_inv", "e4m3_block"),
    ],
)
def test_fp8_weights_are_multiplied_by_their_scales(scale, name: str, format: str, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((160, 192)).astype(ml_dtypes.float8_e4m3fn)
    model = changed(
        tmp_path, {"weight": weight, name: scale}, {"quant_method": "fp8"}, hidden_size=192, intermediate_size=160
    )
    assert model.tensors["layers.1.gate_proj"].format == format
    spread = scale
    if format == "e4m3_block":
        spread = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:160, :192]
    assert np.array_equal(model.values("layers.1.gate_proj"), weight.astype(np.float32) * spread)


@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("method", ["awq", "gptq", "gptq_v2"])
def test_int4_weights_are_code_less_zero_times_scale(method: str, size: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(size)
    cols, rows = 256, 96
    codes, zeros = rng.integers(0, 16, (cols, rows)), rng.integers(0, 15, (cols // size, rows))
    scales = rng.random((cols // size, rows)).astype(np.float16)
    order = (0, 2, 4, 6, 1, 3, 5, 7) if method == "awq" else tuple(range(8))
    stored = zeros if method != "gptq" else (zeros - 1) & 15
    parts = {
        "qweight": packed_codes(codes, 1 if method == "awq" else 0, order),
        "qzeros": packed_codes(stored, 1, order),
        "scales": scales,
    }
    if method != "awq":
        parts["g_idx"] = (np.arange(cols) // size).astype(np.int32)
    settings = {"quant_method": method[:4].rstrip("_"), "bits": 4, "checkpoint_format": method}
    model = changed(tmp_path, parts, settings, hidden_size=cols)
    want = (codes - np.repeat(zeros, size, 0)).astype(np.float32) * np.repeat(scales.astype(np.float32), size, 0)
    assert model.tensors["layers.1.gate_proj"].format == f"int4_g{size}"
    assert np.array_equal(model.values("layers.1.gate_proj"), want.T)


def test_biases_of_zeros_that_a_quantised_file_has_for_every_matrix_are_left_out(tmp_path: Path) -> None:
    parts = {"weight": np.zeros((96, 64), np.float32), "bias": np.zeros(96, np.float16)}
    model = changed(tmp_path / "zeros", parts, {})
    assert model.spec.biases == ("q_proj", "k_proj", "v_proj", "o_proj")
    with pytest.raises(FileError, match=r"gate_proj.bias \(f16\), for which a llama model has no use"):
        changed(tmp_path / "ones", parts | {"bias": np.ones(96, np.float16)}, {})


def test_a_tensor_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """With and without its prefix in one file, or in two of a folder without an index."""
    arrays = {torch_name(n): v for n, v in random_weights(small_spec("llama")).items()}
    norm = arrays["model.norm.weight"]
    with pytest.raises(FileError, match=r"norm.weight: stands there as .*norm.weight, too"):
        open_model(write_folder(tmp_path / "one", CONFIGS["llama"], arrays | {"norm.weight": norm}))
    folder = write_folder(tmp_path / "two", CONFIGS["llama"], arrays)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    assert open_model(folder).spec.shape.family == "llama"
    safetensors.numpy.save_file({"model.norm.weight": norm}, folder / "b.safetensors")
    with pytest.raises(FileError, match=r"b.safetensors: model.norm.weight: stands in another file of the folder, too"):
        open_model(folder)


def test_fused_products_of_a_quantised_file_are_taken_apart(tmp_path: Path) -> None:
    spec = small_spec("phi3", hidden_size=128, intermediate_size=128)
    arrays = {torch_name(n): v for n, v in random_weights(spec).items()}
    weight = np.random.default_rng(0).standard_normal((256, 128)).astype(ml_dtypes.float8_e4m3fn)
    scale = np.array([[2.0], [3.0]], np.float32)
    at = "model.layers.0.mlp.gate_up_proj."
    arrays |= {f"{at}weight": weight, f"{at}weight_scale_inv": scale}
    config = CONFIGS["phi3"] | {"hidden_size": 128, "intermediate_size": 128}
    model = open_model(write_folder(tmp_path, config, arrays))
    assert np.array_equal(model.values("layers.0.gate_proj"), weight[:128].astype(np.float32) * 2)
    assert np.array_equal(model.values("layers.0.up_proj"), weight[128:].astype(np.float32) * 3)


def test_fused_products_that_share_a_block_of_scales_are_refused(tmp_path: Path) -> None:
    spec = small_spec("phi3", hidden_size=128, intermediate_size=200)
    arrays = {torch_name(n): v for n, v in random_weights(spec).items()}
    at = "model.layers.0.mlp.gate_up_proj."
    arrays[f"{at}weight"] = arrays[f"{at}weight"].astype(ml_dtypes.float8_e4m3fn)
    arrays[f"{at}weight_scale_inv"] = np.ones((4, 1), np.float32)
    config = CONFIGS["phi3"] | {"hidden_size": 128, "intermediate_size": 200}
    with pytest.raises(FileError, match=r"gate_up_proj.weight \(e4m3_block\): up_proj must begin at a block of 128"):
        open_model(write_folder(tmp_path, config, arrays))


BAD_PARTS: dict[str, Any] = {
    "another type": ({"weight": np.zeros((96, 64), np.int8)}, {}, r"gate_proj.weight: I8 is not covered; F32, F16"),
    "fp8 without a scale": (
        {"weight": np.zeros((96, 64), ml_dtypes.float8_e4m3fn)}, {}, r"gate_proj.weight: F8_E4M3 needs weight_scale",
    ),
    "scales of another shape": (
        {"weight": np.zeros((96, 64), ml_dtypes.float8_e4m3fn), "weight_scale": np.ones(5, np.float32)}, {},
        r"gate_proj.weight: scales must be one, one a row, or one of 128 x 128 \(got shape \[5\]\)",
    ),
    "a part of another method": ({"weight_packed": np.zeros((4, 4), np.int32)}, {}, r"weight_packed \(I32\): is not"),
    "int4 without its method": (
        {"qweight": np.zeros((64, 12), np.int32)}, {}, r"qweight: quantization_config: must be awq \(gemm\) or gptq",
    ),
    "8 bits": (
        {"qweight": np.zeros((16, 96), np.int32)}, {"quant_method": "gptq", "bits": 8}, r"of 4 bits \(got 'gptq', 8\)",
    ),
    "int4 without scales": (
        {"qweight": np.zeros((64, 12), np.int32)}, {"quant_method": "awq"}, r"stands without qzeros, scales",
    ),
    "groups of 16": (
        {"qweight": np.zeros((64, 12), np.int32), "qzeros": np.zeros((4, 12), np.int32),
         "scales": np.ones((4, 96), np.float16)}, {"quant_method": "awq"},
        r"groups must have 32, 64, 128 columns \(got 4 of 64\)",
    ),
    "columns out of order": (
        {"qweight": np.zeros((8, 96), np.int32), "qzeros": np.zeros((2, 12), np.int32),
         "scales": np.ones((2, 96), np.float16), "g_idx": np.arange(64, dtype=np.int32)[::-1] // 32},
        {"quant_method": "gptq"}, r"columns out of order \(desc_act\) are not covered",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_PARTS)
def test_what_is_not_covered_is_named(what: str, tmp_path: Path) -> None:
    parts, quantization, text = BAD_PARTS[what]
    with pytest.raises(FileError, match=text):
        changed(tmp_path, {n: np.ascontiguousarray(p) for n, p in parts.items()}, quantization)


# -- folders ---------------------------------------------------------------------------------------------------------


def test_folders_that_lack_something_say_what(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"config.json: cannot be read"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    with pytest.raises(FileError, match=r"holds no .safetensors file"):
        open_model(tmp_path)
    safetensors.numpy.save_file({"model.norm.weight": np.ones(64, np.float32)}, tmp_path / "a.safetensors")
    with pytest.raises(FileError, match=r"lacks model.embed_tokens.weight, .* and \d+ more, which this llama model n"):
        open_model(tmp_path)


def test_an_index_names_files_of_its_folder_only(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", "llama")
    index = folder / "model.safetensors.index.json"
    for name in ("../model.safetensors", "/etc/passwd", 7):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
        with pytest.raises(FileError, match=r"weight_map: must "):
            open_model(folder)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "a" * 1000}}))  # a name that no file can have
    with pytest.raises(FileError, match=r"weight_map: must name files of the same folder") as said:
        open_model(folder)
    assert len(str(said.value)) < 200 + len(str(index))
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "absent.safetensors"}}))
    with pytest.raises(FileError, match=r"names absent.safetensors, which is not in the folder \(for 'model.no"):
        open_model(folder)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("lama", r"to decode \(got 'lama'; nearest: llama\)"),
        ("mixtral", r"to decode \(got 'mixtral'; of it there are kernels of attention alone\)"),
        (None, r"to decode \(got null\)"),
    ],
)
def test_a_family_that_does_not_decode_is_told_with_those_that_do(name: object, end: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", "llama")
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama"] | {"model_type": name}))
    with pytest.raises(SpecError, match=f"config.json: model_type: must be one of {', '.join(BLOCKS)} {end}"):
        open_model(folder)


def test_no_path_is_no_folder() -> None:
    with pytest.raises(SpecError, match=r"model: must be the path of a file or a folder \(got ''\)"):
        open_model("")


def test_a_missing_tensor_has_the_name_that_the_folder_would_give_it(tmp_path: Path) -> None:
    """Also where a family's files hold several as one, or begin their names otherwise."""
    for family, prefix, gone in (
        ("llama", "model.", "layers.1.self_attn.q_proj.weight"),
        ("llama", "language_model.model.", "layers.1.mlp.down_proj.weight"),
        ("llama", "", "layers.1.input_layernorm.weight"),
        ("qwen2", "model.", "layers.1.self_attn.k_proj.bias"),
        ("phi3", "model.", "layers.1.mlp.gate_up_proj.weight"),
    ):
        folder = write_checkpoint(tmp_path / "m", family)
        path = folder / "model.safetensors"
        arrays = {
            name.replace("model.", prefix, 1): values for name, values in safetensors.numpy.load_file(path).items()
        }
        del arrays[prefix + gone]
        safetensors.numpy.save_file(arrays, path)
        with pytest.raises(FileError, match=rf": lacks {prefix}{gone}, which this {family} model needs"):
            open_model(folder)


def test_a_shard_that_is_cut_says_where_and_how_many_bytes_are_due(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", "llama")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    last = max(json.loads(data[8:header]).items(), key=lambda one: one[1]["data_offsets"])[0]
    for changed, said in (
        (data[:-1], f"'{last}': ends behind the end of the file: {len(data)} bytes are due (got {len(data) - 1})"),
        (data + b"x", f"holds more than its tensors: {len(data)} bytes are due (got {len(data) + 1})"),
        (data[:100], f"ends within its header: {header} bytes are due (got 100)"),
        (data[:7], "is no safetensors file (8 bytes are due at least, got 7)"),
    ):
        path.write_bytes(changed)
        with pytest.raises(FileError) as found:
            open_model(folder)
        assert str(found.value) == f"{path}: {said}"


def test_a_pointer_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", "llama")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4665a5ea\nsize 132\n"
    for path, opened in ((folder / "model.safetensors", folder), (tmp_path / "m.gguf", tmp_path / "m.gguf")):
        path.write_text(pointer)
        with pytest.raises(FileError, match=rf"{path.name}: is a pointer of Git LFS, not the file; `git lfs pull`"):
            open_model(opened)
