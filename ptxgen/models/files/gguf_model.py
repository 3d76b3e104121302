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
from ptxgen.files.jsonfields import is_number
from ptxgen.models.config.layers import FULL, SLIDING
from ptxgen.models.files.gguf_header import GgufFile, GgufTensor, read_gguf
from ptxgen.models.files.modelfile import Held, ModelFile, Source, TensorInfo, assemble, is_vector, plain, sliced
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
_PATTERN, _LOCAL_BASE = "attention.sliding_window_pattern", "rope.freq_base_swa"
_BY_LAYER = {**_SLIDING, "layer_types": _PATTERN}
_SCALING = "rope.scaling."
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
        keys=_BY_LAYER | {"rope_local_base_freq": _LOCAL_BASE},
        fixed={"rope_local_base_freq": 10000.0, "sliding_window_pattern": 6},
        one_added=True,
        wide=62,
    ),
    "phi3": Arch("phi3", keys=_SLIDING),
    "smollm3": Arch("smollm3", "norm", fixed={"no_rope_layer_interval": 4}),
    "olmo2": Arch("olmo2"),
}
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
    if not _equals(parts := file.fields.get("split.count", 0), 0):
        raise FileError(f"{path}: split.count: a model in {brief(parts)} files is not covered; merge them first")
    spec = _spec(file, str(name), arch, max_len)
    return assemble(path, "gguf", spec, _held(file, spec), lambda: _text(file))


def _text(file: GgufFile) -> Text:
    from ptxgen.models.text.gguf import text_of

    return text_of(file.fields, str(file.path))


# -- metadata that must say nothing ------------------------------------------------------------------------------------


def _equals(value: Any, *others: Any) -> bool:
    """Whether a value is one of these; an array equals nothing."""
    return bool(np.isscalar(value)) and any(np.isscalar(other) and value == other for other in others)


def _only(*harmless: Any) -> _Harmless:
    return lambda value, arch, said: _equals(value, *harmless)


def _no_other_windows(value: Any, arch: Arch, said: _Said) -> bool:
    """All layers have the window of the architecture, or none has one where it has none; 0 was never set."""
    slides = "sliding_window" in arch.keys
    flags = value.tolist() if isinstance(value, np.ndarray) else []
    return _equals(value, 0, 0 if slides else 1) or (bool(flags) and all(flag == slides for flag in flags))


def _no_other_base(value: Any, arch: Arch, said: _Said) -> bool:
    """Of layers with a window; where there are such, it is the base of all."""
    return "sliding_window" not in arch.keys or _equals(value, said.get(_KEYS["rope_theta"], 0), 0)


def _no_other_mix(value: Any, arch: Arch, said: _Said) -> bool:
    """How much yarn mixes frequencies: wholly where the type is yarn, else not at all. Below 0 was never set, and
    without scaling there is nothing to mix."""
    kind = _scaling_type(said)
    return type(value) in (int, float) and (value < 0 or kind == "none" or value == (1 if kind == "yarn" else 0))


_Said = Mapping[str, Any]  # the architecture's metadata, without its name before each key
_Harmless = Callable[[Any, Arch, _Said], bool]
# Metadata that can change what is computed, and whether a value does not: another is not covered, but where the
# architecture has a key for it.
_CHANGES: dict[str, _Harmless] = {
    **dict.fromkeys(
        (
            "expert_count", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "logit_scale",
            "residual_scale", "embedding_scale", "attention.sliding_window", *_CAPS,
        ),
        _only(0),
    ),
    **dict.fromkeys(("attention.causal", "rope.scaling.yarn_attn_factor"), _only(1)),
    _PATTERN: _no_other_windows,
    _LOCAL_BASE: _no_other_base,
    "rope.scaling.yarn_ext_factor": _no_other_mix,
}  # fmt: skip


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
    said = {key.removeprefix(f"{name}."): value for key, value in file.fields.items() if key.startswith(f"{name}.")}
    for key, harmless in _CHANGES.items():
        if key in said and key not in arch.keys.values() and not harmless(said[key], arch, said):
            raise FileError(f"{file.path}: {name}.{key}: is not covered in a {name} model (got {brief(said[key])})")
    table = file.tensors.get("token_embd.weight")
    config: dict[str, Any] = {
        "model_type": arch.family, "torch_dtype": "float32", "num_key_value_heads": None,
        "max_position_embeddings": None, **arch.fixed,
    }  # fmt: skip
    for ours, theirs in {**_KEYS, **arch.keys}.items():
        if theirs in said and theirs != _PATTERN:
            config[ours] = _plain(said[theirs])
    if _PATTERN in arch.keys.values() and _PATTERN in said:
        config |= _layer_types(said[_PATTERN], f"{file.path}: {name}.", len(file.tensors), config)
    config["vocab_size"] = table.shape[0] if table else None
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    _defaults(config, f"{file.path}: {name}.", said, arch)
    return config | _rope_scaling(file, name, said)


def _plain(value: Any) -> Any:
    """A value for each layer that is the same in all of them is one value."""
    if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
        return value[0].item()
    return value


def _layer_types(pattern: Any, at: str, n_tensors: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers have the window: a flag for each, or one number, whose multiples have none (0: all have one)."""
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or layers < 1:
        return {}  # `model_spec` names the value
    if layers > n_tensors:
        raise FileError(f"{at}block_count: must be at most the file's {n_tensors} tensors (got {layers})")
    flags = pattern.tolist() if isinstance(pattern, np.ndarray) else None
    if type(pattern) is int and pattern >= 0:
        flags = [pattern == 0 or layer % pattern != 0 for layer in range(1, layers + 1)]
    if flags is None or len(flags) != layers or any(type(flag) is float or flag not in (0, 1) for flag in flags):
        rule = f"must be a number, or true or false for each of {layers} layers"
        raise FileError(f"{at}{_PATTERN}: {rule} (got {brief(pattern)})")
    return {"layer_types": [SLIDING if slides else FULL for slides in flags]}


def _defaults(config: dict[str, Any], at: str, said: _Said, arch: Arch) -> None:
    """What follows from other values: the head's size, the rotated part of it, the scale of gemma's logits."""
    dim, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(dim) is not int or type(heads) is not int or heads < 1:
        return  # `model_spec` names the value
    head_dim = config.setdefault("head_dim", dim // heads)
    if type(head_dim) is not int:
        return
    value_dim = _plain(said.get("attention.value_length", head_dim))
    if not _equals(value_dim, head_dim):
        raise FileError(f"{at}attention.value_length: must be the keys' {head_dim} (got {brief(value_dim)})")
    rotated = said.get("rope.dimension_count", head_dim)
    if type(rotated) is int and 0 < rotated < head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    elif not _equals(rotated, head_dim):
        raise FileError(f"{at}rope.dimension_count: must be 1 to {head_dim} (got {brief(rotated)})")
    if arch.wide:
        wide = _equals(config.get("num_hidden_layers"), arch.wide)
        config["query_pre_attn_scalar"] = dim // heads if wide else head_dim


def _scaling_factor(said: _Said) -> Any:
    """By its key, or by the one of older files; None without one."""
    return said.get(f"{_SCALING}factor", said.get("rope.scale_linear"))


def _scaling_type(said: _Said) -> Any:
    """The way of scaling; a factor alone is of linear scaling, and 0 of none."""
    factor = _scaling_factor(said)
    return said.get(f"{_SCALING}type", "none" if factor is None or _equals(factor, 0) else "linear")


def _rope_scaling(file: GgufFile, name: str, said: _Said) -> dict[str, Any]:
    """`rope_scaling` of the metadata and of the tensors with factors of the frequencies."""
    original = said.get(f"{_SCALING}original_context_length")
    attention = said.get(f"{_SCALING}attn_factor", 1.0)
    kind, factor = _scaling_type(said), _scaling_factor(said)
    at = f"{file.path}: {name}.{_SCALING}"
    if not isinstance(kind, str):
        raise FileError(f"{at}type: must be a string (got {brief(kind)})")
    if not is_number(attention):
        raise FileError(f"{at}attn_factor: must be a positive number (got {brief(attention)})")
    if "rope_factors_long.weight" in file.tensors:
        factors = {f"{key}_factor": _vector(file, f"rope_factors_{key}.weight") for key in ("long", "short")}
        return {
            "rope_scaling": {"rope_type": "longrope", "attention_factor": attention, **factors},
            "original_max_position_embeddings": original,
        }
    if kind not in ("yarn", "longrope") and attention != 1.0:
        raise FileError(f"{at}attn_factor: must be 1 without yarn or longrope (got {brief(attention)})")
    if kind == "none":
        return {}
    found = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    if kind == "yarn":
        turns = {key: said.get(f"{_SCALING}yarn_{key}") for key in ("beta_fast", "beta_slow")}
        found |= {key: value for key, value in turns.items() if value is not None}
        found |= _yarn_attention(attention, factor, at)
    return {"rope_scaling": found}


def _yarn_attention(attention: float, factor: Any, at: str) -> dict[str, float]:
    """The factor of rotated elements, which multiplies what follows from yarn's factor."""
    if attention == 1.0:
        return {}
    if not is_number(factor):
        raise FileError(f"{at}factor: must be a positive number beside attn_factor (got {brief(factor)})")
    return {"attention_factor": attention * (0.1 * math.log(max(factor, 1.0)) + 1)}


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
