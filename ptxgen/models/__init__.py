"""A model's attention shape, read from its Hugging Face `config.json`. Owns no kernels: `plan.py` chooses them.

Families are rows of a table: how they name their layers' windows, what scales their logits, how much of a head rotates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptxgen import rules
from ptxgen.errors import SpecError, brief
from ptxgen.idioms.rope_settings import RopeSettings
from ptxgen.jsonfields import Fields
from ptxgen.models.rope import rope_settings

__all__ = ["LayerKind", "ModelShape", "config_fields", "load_config", "model_shape", "read_config"]

_MOST_LAYERS = 10_000
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class LayerKind:
    """Layers that share kernels. `window` is the number of latest positions a query sees; 0 is all. `rope` None:
    queries and keys do not rotate."""

    name: str
    layers: tuple[int, ...]
    window: int
    rope: RopeSettings | None


@dataclass(frozen=True)
class ModelShape:
    """What decides a model's attention and KV-cache kernels. `scale` None is 1/√head_dim; `soft_cap` 0 is none."""

    family: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    max_len: int
    dtype: str
    scale: float | None
    soft_cap: float
    kinds: tuple[LayerKind, ...]


def load_config(path: str | Path, max_len: int | None = None) -> ModelShape:
    """The shape of the model whose `config.json` lies at `path`; `max_len` replaces its longest context.

    Raises `SpecError` naming the file, the key and the value.
    """
    return model_shape(read_config(path), str(path), max_len)


def read_config(path: str | Path) -> object:
    """The JSON of a `config.json`. Raises `SpecError` naming the file and the place."""
    try:
        config: object = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise SpecError(f"{path}: must be a text file with JSON (got bytes that are not UTF-8)") from None
    except json.JSONDecodeError as wrong:
        raise SpecError(f"{path}: must be JSON (line {wrong.lineno}, column {wrong.colno}: {wrong.msg})") from None
    except (RecursionError, ValueError) as wrong:  # nested too deeply; an integer of too many digits
        raise SpecError(f"{path}: must be JSON of a sane size ({str(wrong).splitlines()[0]})") from None
    return config


def model_shape(config: object, source: str = "config", max_len: int | None = None) -> ModelShape:
    """The shape that a parsed `config.json` describes; `source` names it in errors."""
    read, family = config_fields(config, source)
    return _shape(read, str(read.values["model_type"]), family, max_len)


def config_fields(config: object, source: str) -> tuple[Fields, Family]:
    """The values of a parsed `config.json` with its family's defaults, the text model's where it holds several; and the
    family. `model_type` is the outer one."""
    if not isinstance(config, dict):
        raise SpecError(f"{source}: must be a JSON object (got {type(config).__name__})")
    name = config.get("model_type")
    family = _FAMILIES.get(str(name))
    if family is None:
        raise SpecError(f"{source}: model_type: must be one of {', '.join(_FAMILIES)} (got {brief(name)})")
    if family.nested:
        inner = config.get(family.nested)
        if not isinstance(inner, dict):
            raise SpecError(f"{source}: {family.nested}: must be a JSON object (got {brief(inner)})")
        config = {"torch_dtype": config.get("torch_dtype"), "dtype": config.get("dtype")} | inner
    return Fields({**family.defaults, **config, "model_type": name}, source), family


def _shape(read: Fields, name: str, family: Family, max_len: int | None) -> ModelShape:
    max_len = max_len or read.count("max_position_embeddings")
    n_layers = read.count("num_hidden_layers", most=_MOST_LAYERS)
    n_heads = read.count("num_attention_heads")
    n_kv_heads = read.count("num_key_value_heads", n_heads)
    if n_heads % n_kv_heads:
        raise read.error("num_key_value_heads", f"must divide num_attention_heads={n_heads}")
    head_dim = _head_dim(read, n_heads)

    def rope(slides: bool) -> RopeSettings:
        local = "rope_local_base_freq" if slides and family.local_theta else ""
        return rope_settings(read, head_dim, family.rotary, max_len, slides, local)

    query_scalar = read.number("query_pre_attn_scalar", 0.0) if family.query_scalar else 0.0
    return ModelShape(
        family=name,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab=read.count("vocab_size"),
        max_len=max_len,
        dtype=_dtype(read),
        scale=query_scalar**-0.5 if query_scalar not in (0.0, float(head_dim)) else None,
        soft_cap=read.number("attn_logit_softcapping", 0.0) if family.query_scalar else 0.0,
        kinds=_kinds(family.windows(read, n_layers), family.rotates(read, n_layers), max_len, rope),
    )


def _kinds(
    windows: list[int], rotates: list[bool], max_len: int, rope: Callable[[bool], RopeSettings]
) -> tuple[LayerKind, ...]:
    """Layers by window and RoPE; a window that holds the whole cache is none."""
    settings = {slides: rope(slides) for slides in {window > 0 for window in windows}}
    kinds: dict[tuple[int, RopeSettings | None], list[int]] = {}
    for layer, (window, turns) in enumerate(zip(windows, rotates, strict=True)):
        key = (window if window < max_len else 0, settings[window > 0] if turns else None)
        kinds.setdefault(key, []).append(layer)

    def name(layers: list[int]) -> str:
        if len(kinds) == 1:
            return "all"
        return ("sliding" if windows[layers[0]] else "full") + ("" if rotates[layers[0]] else "_unrotated")

    return tuple(LayerKind(name(layers), tuple(layers), *key) for key, layers in kinds.items())


def _head_dim(read: Fields, n_heads: int) -> int:
    given = read.count("head_dim", 0)
    hidden = 0 if given else read.count("hidden_size")
    if hidden % n_heads:
        raise read.error("hidden_size", f"must be a multiple of num_attention_heads={n_heads} where head_dim is absent")
    head_dim = given or hidden // n_heads
    for reason in rules.multiple_of("head_dim", head_dim, 8, 8, 512):  # of every attention and cache kernel
        raise SpecError(f"{read.source}: {reason}")
    return head_dim


def _dtype(read: Fields) -> str:
    """Our name of `torch_dtype` (`dtype` in newer files); bf16 where it is absent."""
    key = "dtype" if read.values.get("dtype") is not None else "torch_dtype"
    name = str(read.values.get(key) or "bfloat16")
    if name not in _DTYPES:
        raise read.error(key, f"must be one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


# -- windows by layer: one function per way of saying it -------------------------------------------------------------

Windows = Callable[["Fields", int], "list[int]"]


def _no_window(read: Fields, n_layers: int) -> list[int]:
    return [0] * n_layers


def _one_window(read: Fields, n_layers: int) -> list[int]:
    return [read.count("sliding_window", 0)] * n_layers


def _qwen_window(read: Fields, n_layers: int) -> list[int]:
    """Only with `use_sliding_window`, and from layer `max_window_layers` on."""
    if not read.flag("use_sliding_window"):
        return [0] * n_layers
    return _typed(read, n_layers, lambda layer: layer >= read.count("max_window_layers", n_layers, least=0))


def _smollm3_window(read: Fields, n_layers: int) -> list[int]:
    """Only with `use_sliding_window`, and in layers that do not rotate."""
    if not read.flag("use_sliding_window"):
        return [0] * n_layers
    rotates = _smollm3_rotates(read, n_layers)
    return _typed(read, n_layers, lambda layer: not rotates[layer])


def _gemma2_window(read: Fields, n_layers: int) -> list[int]:
    """Every other layer, from the first."""
    return _typed(read, n_layers, lambda layer: layer % 2 == 0)


def _gemma3_window(read: Fields, n_layers: int) -> list[int]:
    """All but every sixth layer."""
    pattern = read.count("sliding_window_pattern", read.count("_sliding_window_pattern", 6))
    return _typed(read, n_layers, lambda layer: (layer + 1) % pattern != 0)


def _typed(read: Fields, n_layers: int, slides: Callable[[int], bool]) -> list[int]:
    """`layer_types` where the config lists them, else the family's rule."""
    window = read.count("sliding_window")
    types = read.values.get("layer_types")
    if types is None:
        return [window if slides(layer) else 0 for layer in range(n_layers)]
    if not isinstance(types, list) or len(types) != n_layers or set(types) - {"full_attention", "sliding_attention"}:
        raise read.error("layer_types", f"must list full_attention or sliding_attention for {n_layers} layers")
    return [window if one == "sliding_attention" else 0 for one in types]


# -- layers that rotate ----------------------------------------------------------------------------------------------

Rotates = Callable[["Fields", int], "list[bool]"]


def _every_layer(read: Fields, n_layers: int) -> list[bool]:
    return [True] * n_layers


def _smollm3_rotates(read: Fields, n_layers: int) -> list[bool]:
    """`no_rope_layers` holds 1 for a layer that rotates; without it every fourth layer does not."""
    listed = read.values.get("no_rope_layers")
    if listed is None:
        interval = read.count("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(n_layers)]
    if not isinstance(listed, list) or len(listed) != n_layers or any(one not in (0, 1) for one in listed):
        raise read.error("no_rope_layers", f"must list 0 or 1 for {n_layers} layers")
    return [one == 1 for one in listed]


# -- the families ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """`rotary`: the default part of a head that rotates; `query_scalar`: logits scale by query_pre_attn_scalar^-0.5
    and may be capped; `local_theta`: sliding layers have a RoPE base of their own; `nested`: where a multimodal config
    keeps the text model, whose `defaults` it leaves out; `rotates`: which layers have RoPE."""

    windows: Windows = _no_window
    rotates: Rotates = _every_layer
    rotary: float = 1.0
    query_scalar: bool = False
    local_theta: bool = False
    nested: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)


_GEMMA3 = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "query_pre_attn_scalar": 256, "head_dim": 256}
_GEMMA3_TEXT = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "vocab_size": 262208,
    "sliding_window": 4096,
}
_FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "qwen2": Family(_qwen_window),
    "qwen3": Family(_qwen_window, defaults={"head_dim": 128}),
    "mistral": Family(_one_window),
    "gemma": Family(defaults={"head_dim": 256}),
    "gemma2": Family(
        _gemma2_window,
        query_scalar=True,
        defaults={"head_dim": 256, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0},
    ),
    "gemma3_text": Family(_gemma3_window, query_scalar=True, local_theta=True, defaults=_GEMMA3),
    "gemma3": Family(
        _gemma3_window, query_scalar=True, local_theta=True, nested="text_config", defaults=_GEMMA3 | _GEMMA3_TEXT
    ),
    "phi": Family(rotary=0.5),
    "phi3": Family(_one_window),
    "smollm3": Family(_smollm3_window, _smollm3_rotates),
    "olmo2": Family(),
}
FAMILIES: tuple[str, ...] = tuple(_FAMILIES)
