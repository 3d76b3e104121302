"""A model's attention shape, read from its Hugging Face `config.json`; what would change attention is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from ptxgen import rules
from ptxgen.errors import ConfigWarning, SpecError, brief
from ptxgen.files.jsonfields import Fields
from ptxgen.idioms.rope.settings import RopeSettings
from ptxgen.models.config import keys
from ptxgen.models.config.families import Family
from ptxgen.models.config.fields import config_fields, config_file, read_config
from ptxgen.models.config.kv_scheme import kv_scheme
from ptxgen.models.config.layers import FULL, SLIDING
from ptxgen.models.config.rope import rope_settings
from ptxgen.models.config.shape import LayerKind, ModelShape
from ptxgen.models.config.warned import config_warnings, twins

_LONGEST = 1 << 20  # positions that a file gets without being asked: a cache has room for all of them
_MOST_LAYERS = 10_000
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def load_config(
    path: str | Path, max_len: int | None = None, *, strict: bool = False, kv_dtype: str | None = None
) -> ModelShape:
    """The shape of the model whose `config.json` lies at `path`, or in that folder; `max_len` replaces its longest
    context. `kv_dtype`: what its caches are to hold, where that is known.

    Raises `SpecError` naming the file, the key and the value; `strict`: for what is only warned of, too.
    """
    file = config_file(path)
    return model_shape(read_config(file), str(file), max_len, strict=strict, kv_dtype=kv_dtype)


def model_shape(
    config: object,
    source: str = "config",
    max_len: int | None = None,
    *,
    strict: bool = False,
    kv_dtype: str | None = None,
    warn: Callable[[str], None] | None = None,
) -> ModelShape:
    """The shape that a parsed `config.json` describes; `source` names it in errors.

    Issues a `ConfigWarning` for each key that is not known, for what a kernel does otherwise than the model (of a
    quantised cache, where `kv_dtype` is not its type), and for a `max_len` behind the model's own positions; with
    `strict` these are errors. `warn`: what takes these sentences instead.
    """
    read, family = config_fields(config, source)
    shape = _shape(read, str(read.values["model_type"]), family, max_len)
    for said in config_warnings(config, shape, source, kv_dtype):
        if strict:
            raise SpecError(said)
        if warn is None:
            warnings.warn(said, ConfigWarning, stacklevel=2)
        else:
            warn(said)
    return shape


def _shape(read: Fields, name: str, family: Family, max_len: int | None) -> ModelShape:
    if max_len is not None and (type(max_len) is not int or max_len < 1):
        raise SpecError(f"max_len: must be an integer of at least 1 (got {brief(max_len)})")
    if max_len is None:
        max_len = read.count("max_position_embeddings")
        if max_len > _LONGEST:
            raise read.error("max_position_embeddings", f"above {_LONGEST} max_len must say how many positions to keep")
    n_layers = read.count("num_hidden_layers", most=_MOST_LAYERS)
    n_heads = read.count("num_attention_heads")
    n_kv_heads = family.kv_heads.of(read, n_heads)
    if n_heads % n_kv_heads:
        raise read.error(family.kv_heads.keys[0], f"must divide num_attention_heads={n_heads}")
    head_dim = _head_dim(read, n_heads, family)
    for key, value in family.fixed.items():
        if read.values.get(key) not in (None, value):
            raise read.error(key, f"must be {value} in models of type {name} here")
    windows = family.windows.of(read, n_layers)
    rotates = family.rotates.of(read, n_layers)
    settings = {slides: rope_settings(read, family, head_dim, max_len, slides) for slides in {w > 0 for w in windows}}
    scale = family.scale.of(read)
    shape = ModelShape(
        family=name,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab=read.count("vocab_size"),
        max_len=max_len,
        dtype=_dtype(read),
        scale=None if scale == head_dim**-0.5 else scale,
        soft_cap=read.number("attn_logit_softcapping", 0.0) if family.capped else 0.0,
        kinds=_kinds(windows, rotates, max_len, settings.__getitem__),
        rope_style=family.rope_style,
        sinks=family.sinks,
        kv_scheme=kv_scheme(read),
    )
    _refuse(read, family, shape, windows)
    return shape


def _refuse(read: Fields, family: Family, shape: ModelShape, windows: list[int]) -> None:
    """Raise `SpecError` for what would change attention and is not covered."""
    table = {**keys.CHANGES, **keys.STYLES[family.rope_style]}
    values = {name: value for name, value in read.values.items() if name not in read.names}
    keys.check(values, keys.COMMON | family.keys, table, read.source, shape, twins(read, family))
    types = read.values.get("layer_types")
    if types is not None and "layer_types" not in family.keys:
        expected = [SLIDING if window else FULL for window in windows]
        if types != expected:
            raise read.error(
                "layer_types", f"must be {shape.n_layers} times {expected[0]} in models of type {shape.family}"
            )
    limits = [(most, limit) for limit in family.limits if (most := limit.of(read)) is not None]
    if limits:
        most, limit = min(limits, key=lambda pair: pair[0])
        if shape.max_len > most:
            raise read.error(limit.key, f"{limit.why}; --max-len {most} would work, not {shape.max_len} positions")


def _kinds(
    windows: list[int], rotates: list[bool], max_len: int, rope: Callable[[bool], RopeSettings]
) -> tuple[LayerKind, ...]:
    """Layers by window and RoPE; a window that holds the whole cache is none."""
    kinds: dict[tuple[int, RopeSettings | None], list[int]] = {}
    for layer, (window, turns) in enumerate(zip(windows, rotates, strict=True)):
        key = (window if window < max_len else 0, rope(window > 0) if turns else None)
        kinds.setdefault(key, []).append(layer)

    def name(layers: list[int]) -> str:
        if len(kinds) == 1:
            return "all"
        return ("sliding" if windows[layers[0]] else "full") + ("" if rotates[layers[0]] else "_unrotated")

    return tuple(LayerKind(name(layers), tuple(layers), *key) for key, layers in kinds.items())


def _head_dim(read: Fields, n_heads: int, family: Family) -> int:
    given = read.count("head_dim", 0) if family.own_head_dim else 0
    hidden = read.count("hidden_size", 0 if given else None)
    if not given and hidden % n_heads:
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
