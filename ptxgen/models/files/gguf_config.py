"""The metadata of a GGUF file as the keys of a `config.json`. Owns no key's name and no tensor but those of RoPE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptxgen.errors import FileError, brief
from ptxgen.files.jsonfields import got, is_number
from ptxgen.models.config.layers import FULL, SLIDING
from ptxgen.models.files.gguf_header import GgufFile
from ptxgen.models.files.gguf_keys import (
    CHANGES,
    DEFAULTS,
    KEYS,
    PATTERN,
    SCALING,
    TABLE,
    Arch,
    Said,
    equals,
    lacking,
    scaling_factor,
    scaling_type,
)
from ptxgen.models.files.modelfile import plain


def config_of(file: GgufFile, name: str, arch: Arch, said: Said) -> dict[str, Any]:
    """The configuration of a model of the architecture `name`, of which the file has `said`. Raises `FileError`, also
    for metadata and tensors without which there is none, and for what is not covered."""
    needed = [*lacking(said, name, arch), *([] if TABLE in file.tensors else [TABLE])]
    if needed:
        raise FileError(f"{file.path}: lacks {', '.join(needed)}, which a {name} model needs")
    for key, harmless in CHANGES.items():
        if key in said and key not in arch.keys.values() and not harmless(said[key], arch, said):
            raise FileError(f"{file.path}: {name}.{key}: is not covered in a {name} model (got {brief(said[key])})")
    config: dict[str, Any] = {"model_type": arch.family, "torch_dtype": "float32", **DEFAULTS, **arch.fixed}
    for ours, theirs in {**KEYS, **arch.keys}.items():
        if theirs in said and theirs != PATTERN:
            config[ours] = _plain(said[theirs])
    if PATTERN in arch.keys.values() and PATTERN in said:
        config |= _layer_types(said[PATTERN], f"{file.path}: {name}.", len(file.tensors), config)
    config["vocab_size"] = file.tensors[TABLE].shape[0]
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
        raise FileError(f"{at}{PATTERN}: {rule} (got {brief(pattern)})")
    return {"layer_types": [SLIDING if slides else FULL for slides in flags]}


def _defaults(config: dict[str, Any], at: str, said: Said, arch: Arch) -> None:
    """What follows from other values: the head's size, the rotated part of it, the scale of gemma's logits."""
    dim, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(dim) is not int or type(heads) is not int or heads < 1:
        return  # `model_spec` names the value
    head_dim = config.setdefault("head_dim", dim // heads)
    if type(head_dim) is not int:
        return
    value_dim = _plain(said.get("attention.value_length", head_dim))
    if not equals(value_dim, head_dim):
        raise FileError(f"{at}attention.value_length: must be the keys' {head_dim} (got {brief(value_dim)})")
    rotated = said.get("rope.dimension_count", head_dim)
    if type(rotated) is int and 0 < rotated < head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    elif not equals(rotated, head_dim):
        raise FileError(f"{at}rope.dimension_count: must be 1 to {head_dim} (got {brief(rotated)})")
    if arch.wide:
        wide = equals(config.get("num_hidden_layers"), arch.wide)
        config["query_pre_attn_scalar"] = dim // heads if wide else head_dim


def _rope_scaling(file: GgufFile, name: str, said: Said) -> dict[str, Any]:
    """`rope_scaling` of the metadata and of the tensors with factors of the frequencies."""
    original = said.get(f"{SCALING}original_context_length")
    attention = said.get(f"{SCALING}attn_factor", 1.0)
    kind, factor = scaling_type(said), scaling_factor(said)
    at = f"{file.path}: {name}.{SCALING}"
    if not isinstance(kind, str):
        raise FileError(f"{at}type: must be a string (got {brief(kind)})")
    if not is_number(attention):
        raise FileError(f"{at}attn_factor: must be a positive number (got {brief(attention)})")
    if "rope_factors_long.weight" in file.tensors:
        factors = {f"{key}_factor": vector(file, f"rope_factors_{key}.weight") for key in ("long", "short")}
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
        turns = {key: said.get(f"{SCALING}yarn_{key}") for key in ("beta_fast", "beta_slow")}
        found |= {key: value for key, value in turns.items() if value is not None}
        found |= _yarn_attention(attention, factor, at, said)
    return {"rope_scaling": found}


def _yarn_attention(attention: float, factor: Any, at: str, said: Said) -> dict[str, float]:
    """The factor of rotated elements, which multiplies what follows from yarn's factor."""
    if attention == 1.0:
        return {}
    if not is_number(factor):
        key = f"{SCALING}factor"
        raise FileError(f"{at}factor: must be a positive number beside attn_factor ({got(said, key)})")
    return {"attention_factor": attention * (0.1 * math.log(max(factor, 1.0)) + 1)}


def vector(file: GgufFile, name: str) -> list[float] | None:
    """The values of a small float tensor, None where the file lacks it."""
    tensor = file.tensors.get(name)
    if tensor is None:
        return None
    if tensor.type not in ("F32", "F16") or len(tensor.shape) != 1 or tensor.shape[0] > 1 << 12:
        raise FileError(f"{file.path}: {name}: must be a short vector of F32 or F16 (got {tensor.type} {tensor.shape})")
    values = plain(file.bytes_of(tensor), tensor.type.lower(), tensor.shape)["weight"]
    if not (np.isfinite(values) & (values > 0)).all():
        raise FileError(f"{file.path}: {name}: must be positive numbers")
    return [float(value) for value in values]
