"""A GGUF file as a `ModelFile`: metadata and tensor names by tables. Owns neither the header nor the packing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import FileError, brief
from ptxgen.models.files.gguf_header import GgufFile, GgufTensor, read_gguf
from ptxgen.models.files.modelfile import Held, ModelFile, Source, TensorInfo, assemble, is_vector, plain, sliced
from ptxgen.models.layers import FULL, SLIDING
from ptxgen.models.spec import QKV, ModelSpec, model_spec

if TYPE_CHECKING:
    from ptxgen.models.text import Text

# Our weight formats by GGUF's types.
FORMATS = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8_0", "Q4_0": "q4_0", "Q4_1": "q4_1", "Q5_0": "q5_0",
    "Q5_1": "q5_1", "Q4_K": "q4_k", "Q5_K": "q5_k", "Q6_K": "q6_k",
}  # fmt: skip
_PLAIN = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Arch:
    """A GGUF architecture: the family whose configuration it fills and which pairs of a head rotate ("norm": adjacent,
    its q and k rows are reordered for it).

    `keys`: further metadata keys by the configuration's. `fixed`: what llama.cpp knows without metadata. `one_added`:
    its norm weights hold 1 + weight. `wide`: so many layers mean logits scaled by embedding / heads in place of the
    head's size.
    """

    family: str
    rope_style: str = "neox"
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    one_added: bool = False
    wide: int = 0


_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_SLIDING = {"sliding_window": "attention.sliding_window"}
_BY_LAYER = {**_SLIDING, "layer_types": "attention.sliding_window_pattern"}
_CAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
ARCHS: dict[str, Arch] = {
    "llama": Arch("llama", "norm"),
    "qwen2": Arch("qwen2"),
    "qwen3": Arch("qwen3"),
    "gemma": Arch("gemma", one_added=True),
    "gemma2": Arch(
        "gemma2",
        keys=_BY_LAYER | _CAPS,
        one_added=True,
        wide=46,
    ),
    "gemma3": Arch(
        "gemma3_text",
        keys=_BY_LAYER | {"rope_local_base_freq": "rope.freq_base_swa"},
        fixed={"rope_local_base_freq": 10000.0, "sliding_window_pattern": 6},
        one_added=True,
        wide=62,
    ),
    "phi3": Arch("phi3", keys=_SLIDING),
    "smollm3": Arch("smollm3", "norm", fixed={"no_rope_layer_interval": 4}),
    "olmo2": Arch("olmo2"),
}
# Metadata that changes what is computed, and its value that does not: another is not covered, but where the
# architecture has a key for it.
_CHANGES: dict[str, Any] = {
    **dict.fromkeys(
        (
            "expert_count", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "logit_scale",
            "residual_scale", "embedding_scale", *_BY_LAYER.values(), *_CAPS, "rope.freq_base_swa",
        ),
        0,
    ),
    **dict.fromkeys(("attention.causal", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"), 1),
}  # fmt: skip

# Tensors of a layer by ours; the norms stand by their part in the block, see `_names`.
_PRODUCTS = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
    "up_proj": "ffn_up", "down_proj": "ffn_down", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
}  # fmt: skip
_FUSED = {"attn_qkv": QKV, "ffn_up": ("gate_proj", "up_proj")}
_WHOLE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_HEAD_BIAS = "output.bias"
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def open_gguf(path: Path, max_len: int | None = None) -> ModelFile:
    """The model of a GGUF file. Raises `FileError`, or `SpecError` for a value of its metadata."""
    file = read_gguf(path)
    name = file.fields.get("general.architecture")
    arch = ARCHS.get(name) if isinstance(name, str) else None
    if arch is None:
        raise FileError(f"{path}: general.architecture: must be one of {', '.join(ARCHS)} (got {brief(name)})")
    if parts := file.fields.get("split.count"):
        raise FileError(f"{path}: split.count: a model in {brief(parts)} files is not covered; merge them first")
    spec = _spec(file, str(name), arch, max_len)
    return assemble(path, "gguf", spec, _held(file, spec), lambda: _text(file))


def _text(file: GgufFile) -> Text:
    from ptxgen.models.text.gguf import text_of

    return text_of(file.fields, str(file.path))


# -- the architecture ------------------------------------------------------------------------------------------------


def _spec(file: GgufFile, name: str, arch: Arch, max_len: int | None) -> ModelSpec:
    """The metadata as the keys of a `config.json`, and what those cannot say."""
    spec = model_spec(_config(file, name, arch), str(file.path), max_len)
    biases = tuple(product for product in spec.products() if f"blk.0.{_PRODUCTS[product]}.bias" in file.tensors)
    block = replace(spec.block, norm_offset=0.0) if arch.one_added else spec.block
    head_bias = _HEAD_BIAS in file.tensors
    spec = replace(spec, biases=biases, block=block, rope_style=arch.rope_style, head_bias=head_bias)
    factors = _vector(file, "rope_freqs.weight")
    if factors is None:
        return spec
    for kind in spec.shape.kinds:
        if kind.rope is not None and len(factors) != kind.rope.rotary_dim // 2:
            raise FileError(
                f"{file.path}: rope_freqs.weight: must have {kind.rope.rotary_dim // 2} values (got {len(factors)})"
            )
    kinds = tuple(
        replace(kind, rope=kind.rope and replace(kind.rope, freq_factors=tuple(factors))) for kind in spec.shape.kinds
    )
    return replace(spec, shape=replace(spec.shape, kinds=kinds))


def _config(file: GgufFile, name: str, arch: Arch) -> dict[str, Any]:
    fields = file.fields
    for key, harmless in _CHANGES.items():
        value = fields.get(f"{name}.{key}", harmless)
        if key not in arch.keys.values() and not (np.isscalar(value) and value == harmless):
            raise FileError(f"{file.path}: {name}.{key}: is not covered in a {name} model (got {brief(value)})")
    table = file.tensors.get("token_embd.weight")
    config: dict[str, Any] = {
        "model_type": arch.family, "torch_dtype": "float32", "num_key_value_heads": None,
        "max_position_embeddings": None, **arch.fixed,
    }  # fmt: skip
    for ours, theirs in {**_KEYS, **arch.keys}.items():
        if (value := fields.get(f"{name}.{theirs}")) is not None:
            config[ours] = _plain(value)
    if "layer_types" in config:
        config["layer_types"] = _layer_types(fields[f"{name}.attention.sliding_window_pattern"], file, config)
    config["vocab_size"] = table.shape[0] if table else None
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    _defaults(config, file, name, arch)
    return config | _rope_scaling(file, name)


def _plain(value: Any) -> Any:
    """A value for each layer that is the same in all of them is one value."""
    if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
        return value[0].item()
    return value


def _layer_types(pattern: Any, file: GgufFile, config: Mapping[str, Any]) -> Any:
    """Which layers have the window: a flag for each, or one number, whose multiples have none (0: all have one)."""
    layers = config.get("num_hidden_layers")
    if type(pattern) is int and pattern >= 0 and type(layers) is int and layers <= len(file.tensors):
        pattern = [pattern == 0 or layer % pattern != 0 for layer in range(1, layers + 1)]
    # anything else is for `model_spec` to name
    return [SLIDING if slides else FULL for slides in pattern] if isinstance(pattern, (list, np.ndarray)) else pattern


def _defaults(config: dict[str, Any], file: GgufFile, name: str, arch: Arch) -> None:
    """What follows from other values: the head's size, the rotated part of it, the scale of gemma's logits."""
    dim, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(dim) is not int or type(heads) is not int or heads < 1:
        return  # `model_spec` names the value
    head_dim = config.setdefault("head_dim", dim // heads)
    value_dim = file.fields.get(f"{name}.attention.value_length", head_dim)
    if value_dim != head_dim:
        raise FileError(
            f"{file.path}: {name}.attention.value_length: must be the keys' {head_dim} (got {brief(value_dim)})"
        )
    rotated = file.fields.get(f"{name}.rope.dimension_count", head_dim)
    if type(head_dim) is int and type(rotated) is int and 0 < rotated < head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        raise FileError(
            f"{file.path}: {name}.rope.dimension_count: must be 1 to {brief(head_dim)} (got {brief(rotated)})"
        )
    if arch.wide:
        wide = config.get("num_hidden_layers") == arch.wide
        config["query_pre_attn_scalar"] = dim // heads if wide else head_dim


def _rope_scaling(file: GgufFile, name: str) -> dict[str, Any]:
    """`rope_scaling` of the metadata and of the tensors with factors of the frequencies."""
    at = f"{name}.rope.scaling."
    scaling = {key.removeprefix(at): value for key, value in file.fields.items() if key.startswith(at)}
    original = scaling.get("original_context_length")
    attention = scaling.get("attn_factor", 1.0)
    kind = scaling.get("type", "none")
    if "rope_factors_long.weight" in file.tensors:
        factors = {f"{key}_factor": _vector(file, f"rope_factors_{key}.weight") for key in ("long", "short")}
        return {
            "rope_scaling": {"rope_type": "longrope", "attention_factor": attention, **factors},
            "original_max_position_embeddings": original,
        }
    if kind != "yarn" and attention != 1.0:
        raise FileError(f"{file.path}: {at}attn_factor: must be 1 without yarn or longrope (got {brief(attention)})")
    if kind == "none":
        return {}
    factor = scaling.get("factor", scaling.get("scale_linear"))
    found = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    if kind == "yarn":
        found |= {key: scaling[f"yarn_{key}"] for key in ("beta_fast", "beta_slow") if f"yarn_{key}" in scaling}
    if kind == "yarn" and attention != 1.0 and type(factor) is float and factor > 1:
        found["attention_factor"] = attention * (0.1 * math.log(factor) + 1)
    return {"rope_scaling": found}


def _vector(file: GgufFile, name: str) -> list[float] | None:
    """The values of a small float tensor, None where the file lacks it."""
    tensor = file.tensors.get(name)
    if tensor is None:
        return None
    if tensor.type not in ("F32", "F16") or len(tensor.shape) != 1 or tensor.shape[0] > 1 << 12:
        raise FileError(f"{file.path}: {name}: must be a short vector of F32 or F16 (got {tensor.type} {tensor.shape})")
    values = plain(file.bytes_of(tensor), FORMATS[tensor.type], tensor.shape)["weight"]
    if not (np.isfinite(values) & (values > 0)).all():
        raise FileError(f"{file.path}: {name}: must be positive numbers")
    return [float(value) for value in values]


# -- tensors ---------------------------------------------------------------------------------------------------------


def _held(file: GgufFile, spec: ModelSpec) -> dict[str, Held]:
    """Every tensor by our name; one that the family has no name for keeps its own, for `assemble` to name it."""
    held: dict[str, Held] = {}
    names = _names(spec)
    for tensor in file.tensors.values():
        if tensor.name in _ROPE_TENSORS:
            continue
        ours = names.get(tensor.name, (tensor.name,))
        read, info = _reader(file, tensor, ours[0])
        if len(ours) == 1:
            held[ours[0]] = Held(info, read, tensor.name)
            continue
        start = 0
        for part in ours:
            rows = spec.products()[part.rsplit(".", 1)[-1]][0]
            reads = sliced(read, info.rows, start, start + rows)
            held[part] = Held(TensorInfo(info.format, rows, info.cols), reads, tensor.name)
            start += rows
        if start != info.rows:
            raise FileError(f"{file.path}: {tensor.name}: must have {start} rows, {' + '.join(ours)} (got {info.rows})")
    return held


def _names(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    """Our names by the file's; several where the file holds them as one."""
    block = spec.block
    norms = {
        block.attention_norm: "attn_norm", block.attention_post_norm: "post_attention_norm",
        block.mlp_norm: "ffn_norm", block.mlp_post_norm: "post_ffw_norm",
    }  # fmt: skip
    layer: dict[str, tuple[str, ...]] = {
        f"{theirs}.weight": (ours,) for ours, theirs in {**_PRODUCTS, **norms}.items() if ours
    }
    layer |= {f"{_PRODUCTS[name]}.bias": (f"{name}.bias",) for name in spec.biases}
    if block.fused:
        layer |= {f"{theirs}.weight": ours for theirs, ours in _FUSED.items()}
    names: dict[str, tuple[str, ...]] = {f"{theirs}.weight": (ours,) for ours, theirs in _WHOLE.items()}
    names[_HEAD_BIAS] = ("lm_head.bias",)
    for index in range(spec.shape.n_layers):
        for theirs, ours in layer.items():
            names[f"blk.{index}.{theirs}"] = tuple(f"layers.{index}.{one}" for one in ours)
    return names


def _reader(file: GgufFile, tensor: GgufTensor, ours: str) -> tuple[Callable[[], Source], TensorInfo]:
    """How a tensor's arrays are had, and what it is. A type that is not covered ends here."""
    if tensor.type not in FORMATS:
        raise FileError(f"{file.path}: {tensor.name}: {tensor.type} is not covered; {', '.join(FORMATS)} are")
    if len(tensor.shape) > 2:
        raise FileError(f"{file.path}: {tensor.name}: must have at most 2 dimensions (got {list(tensor.shape)})")
    format = FORMATS[tensor.type]
    rows, cols = (1, *tensor.shape)[-2:]
    shape = (cols,) if is_vector(ours) else (rows, cols)
    return partial(_read, file, tensor, format, shape), TensorInfo(format, rows, cols)


def _read(file: GgufFile, tensor: GgufTensor, format: str, shape: tuple[int, ...]) -> Source:
    raw = file.bytes_of(tensor)
    return plain(raw, format, shape) if format in _PLAIN else {"blocks": raw.reshape(shape[0], -1)}
