"""Small model files, written by `gguf` and `safetensors` themselves from `tests.support.models.families`' models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy
from gguf.quants import quantize

from ptxgen.models.spec import ModelSpec, model_spec
from tests.support.models.families import CONFIGS, random_weights, small_spec, torch_name

# GGUF's architecture of a family, and what its metadata cannot say otherwise.
ARCHS: dict[str, tuple[gguf.MODEL_ARCH, dict[str, Any]]] = {
    "llama": (gguf.MODEL_ARCH.LLAMA, {"rope_scaling": None, "mlp_bias": False}),
    "qwen2": (gguf.MODEL_ARCH.QWEN2, {"use_sliding_window": False}),
    "qwen3": (gguf.MODEL_ARCH.QWEN3, {}),
    "gemma": (gguf.MODEL_ARCH.GEMMA, {}),
    "gemma2": (gguf.MODEL_ARCH.GEMMA2, {"query_pre_attn_scalar": 24}),
    "gemma3_text": (gguf.MODEL_ARCH.GEMMA3, {"sliding_window_pattern": 6, "num_hidden_layers": 6}),
    "phi3": (gguf.MODEL_ARCH.PHI3, {}),
    "smollm3": (gguf.MODEL_ARCH.SMOLLM3, {"no_rope_layers": None, "num_hidden_layers": 4}),
    "olmo2": (gguf.MODEL_ARCH.OLMO2, {}),
}
WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
Convert = Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType | None]]


def as_f32(name: str, values: np.ndarray) -> tuple[np.ndarray, None]:
    return values, None


def as_type(kind: gguf.GGMLQuantizationType) -> Convert:
    """Matrices in a type, vectors in f32."""
    return lambda name, values: (quantize(values, kind), kind) if values.ndim == 2 else (values, None)


def gguf_model(family: str, **changes: Any) -> tuple[ModelSpec, dict[str, np.ndarray], dict[str, Any]]:
    """The small model of a family as GGUF can say it: spec, weights by our names, config."""
    config = CONFIGS[family] | ARCHS[family][1] | changes
    spec = model_spec(config, family)
    return spec, random_weights(spec), config


def write_gguf(path: Path, family: str, convert: Convert = as_f32, extra: Any = None, **changes: Any) -> Path:
    """A small model as `convert_hf_to_gguf.py` would write it. `extra`: further metadata: strings, float32, uint32,
    booleans, lists."""
    arch = ARCHS[family][0]
    spec, weights, config = gguf_model(family, **changes)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _settings(writer, config)
    for key, value in (extra or {}).items():
        adders: dict[type, Any] = {
            str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, bool: writer.add_bool,
            list: writer.add_array,
        }  # fmt: skip
        adders[type(value)](key, value)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, values in weights.items():
        theirs = names.get_name(torch_name(name), try_suffixes=(".weight", ".bias"))
        assert theirs, name
        writer.add_tensor(theirs, *_converted(name, for_gguf(family, spec, name, values), convert))
    _close(writer)
    return path


def _converted(name: str, values: np.ndarray, convert: Convert) -> tuple[Any, ...]:
    array, kind = convert(name, np.ascontiguousarray(values))
    return (array,) if kind is None else (array, None, kind)


def for_gguf(family: str, spec: ModelSpec, name: str, values: np.ndarray) -> np.ndarray:
    """A weight as files of a family hold it: q and k for adjacent pairs, gemma's norms with one added."""
    last = name.removesuffix(".bias").rsplit(".", 1)[-1]
    heads = {"q_proj": spec.shape.n_heads, "k_proj": spec.shape.n_kv_heads}.get(last)
    if heads and family in ("llama", "smollm3"):
        return values.reshape(heads, 2, len(values) // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)
    return values + 1 if family.startswith("gemma") and name.endswith("norm") else values


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> Path:
    """A file with its bytes changed."""
    path.write_bytes(change(path.read_bytes()))
    return path


def _settings(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * config.get("partial_rotary_factor", 1)))
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)


def add_vocabulary(writer: gguf.GGUFWriter, pieces: Mapping[str, float]) -> None:
    """A SentencePiece vocabulary: specials, bytes, then pieces with their scores."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*WORDS, *pieces])
    writer.add_token_scores([*([0.0] * len(WORDS)), *pieces.values()])
    kinds = [2, 3, 3, *([6] * 256), *([1] * len(pieces))]
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_checkpoint(folder: Path, family: str, shards: int = 1, dtype: Any = np.float32, **changes: Any) -> Path:
    """A small model as a Hugging Face folder."""
    spec = small_spec(family, **changes)
    arrays = {torch_name(name): values.astype(dtype) for name, values in random_weights(spec).items()}
    return write_folder(folder, CONFIGS[family] | changes, arrays, shards)


def write_folder(folder: Path, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray], shards: int = 1) -> Path:
    """config.json and the arrays, in one file or in several with their index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        safetensors.numpy.save_file(dict(arrays), folder / "model.safetensors")
        return folder
    files: dict[str, str] = {}
    for number in range(shards):
        part = dict(list(arrays.items())[number::shards])
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        safetensors.numpy.save_file(part, folder / name)
        files |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder
