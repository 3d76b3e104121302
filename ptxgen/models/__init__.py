"""A model's attention shape, read from its Hugging Face `config.json`. Owns no kernels: `plan.py` chooses them.

`families.py` says what a family's config means, `keys.py` what keys there are, `layers.py` and `rope.py` read windows
and rotation.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxgen import rules
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import ConfigWarning, SpecError, brief
from ptxgen.files.jsonfields import Fields
from ptxgen.idioms.rope_settings import RopeSettings
from ptxgen.models import keys
from ptxgen.models.families import CONTEXTS, FAMILIES, Family
from ptxgen.models.kv_scheme import KvScheme, kv_scheme
from ptxgen.models.layers import FULL, SLIDING
from ptxgen.models.rope import by_layer_type, rope_settings, rope_table, rotated_part, scaling_keys, scaling_type

__all__ = [
    "KvScheme",
    "LayerKind",
    "ModelShape",
    "config_fields",
    "config_warnings",
    "load_config",
    "model_shape",
    "read_config",
]

_LONGEST = 1 << 20  # positions that a file gets without being asked: a cache has room for all of them
_MOST_LAYERS = 10_000
_SHARED = ("torch_dtype", "dtype", "quantization_config", "compression_config")  # by all parts of a model
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
    """What decides a model's attention and KV-cache kernels. `scale` None is 1/√head_dim; `soft_cap` 0 is none.

    `rope_style`: "neox" rotates halves of a head, "norm" neighbours. `sinks`: every head has a logit that takes weight
    and gives no value. `kv_scheme`: how the model's own cache is quantised, None where the config does not say.
    """

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
    rope_style: str = "neox"
    sinks: bool = False
    kv_scheme: KvScheme | None = None

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of every layer; 0: none."""
        found = {layer: kind.window for kind in self.kinds for layer in kind.layers}
        return tuple(found[layer] for layer in range(self.n_layers))


def load_config(
    path: str | Path, max_len: int | None = None, *, strict: bool = False, kv_dtype: str | None = None
) -> ModelShape:
    """The shape of the model whose `config.json` lies at `path`; `max_len` replaces its longest context. `kv_dtype`:
    what its caches are to hold, where that is known.

    Raises `SpecError` naming the file, the key and the value; `strict`: for what is only warned of, too.
    """
    return model_shape(read_config(path), str(path), max_len, strict=strict, kv_dtype=kv_dtype)


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


def model_shape(
    config: object,
    source: str = "config",
    max_len: int | None = None,
    *,
    strict: bool = False,
    kv_dtype: str | None = None,
) -> ModelShape:
    """The shape that a parsed `config.json` describes; `source` names it in errors.

    Issues a `ConfigWarning` for each key that is not known, and for what a kernel does otherwise than the model (of a
    quantised cache, where `kv_dtype` is not its type); with `strict` these are errors.
    """
    read, family = config_fields(config, source)
    shape = _shape(read, str(read.values["model_type"]), family, max_len)
    for said in config_warnings(config, shape, source, kv_dtype):
        if strict:
            raise SpecError(said)
        warnings.warn(said, ConfigWarning, stacklevel=2)
    return shape


def config_fields(config: object, source: str) -> tuple[Fields, Family]:
    """The values of a parsed `config.json` with its family's defaults, the text model's where it holds several; and the
    family that reads them. `model_type` is the outer one."""
    if not isinstance(config, dict):
        raise SpecError(f"{source}: must be a JSON object (got {type(config).__name__})")
    outer = _family(config, source)
    family = FAMILIES[outer.inner] if outer.inner else outer
    values = _text_values(config, outer, source)
    stray = {name: values[name] for name in family.names if name in values}
    keys.check(stray, family.keys, keys.CHANGES, source, None, values)
    said = {name: value for name, value in values.items() if name not in family.names}
    said |= {name: values[theirs] for name, theirs in family.names.items() if theirs in values}
    context = {"max_position_embeddings": CONTEXTS[outer.inner or config["model_type"]]}
    merged = {**context, **family.defaults, **outer.defaults, **said, "model_type": config["model_type"]}
    return Fields(merged, source, family.names), family


def config_warnings(
    config: object, shape: ModelShape, source: str = "config", kv_dtype: str | None = None
) -> Iterator[str]:
    """What is not known of a config that makes this shape, and what kernels with a cache of `kv_dtype` do otherwise
    than the model: a sentence each, with the key."""
    read, family = config_fields(config, source)
    outer = FAMILIES[str(read.values["model_type"])]
    assert isinstance(config, dict)
    known = family.keys | ({outer.nested} - {""})
    for name in keys.unknown(_text_values(config, outer, source) | config, known):
        yield f"{source}: {name}: is not known (got {brief(config.get(name, read.values.get(name)))})"
    yield from _outer_warnings(config, read, outer, family, shape, source)
    yield from _rope_warnings(read, family, shape)
    if shape.kv_scheme is not None and (kv_dtype is None or to_dtype(kv_dtype).name != shape.kv_scheme.dtype):
        yield (
            f"{source}: kv_cache_scheme: the model's cache is {shape.kv_scheme.dtype} with a scale for each "
            f"{shape.kv_scheme.per}; the kernels' is as --kv-dtype says, {shape.dtype} without it, and takes scales "
            f"with --kv-dtype {shape.kv_scheme.dtype}, which leaves out split attention and is refused with --weights"
        )


def _outer_warnings(
    config: dict[str, Any], read: Fields, outer: Family, family: Family, shape: ModelShape, source: str
) -> Iterator[str]:
    """Keys beside a text model that would mean something within it."""
    if outer.nested not in config:
        return
    changes = {**keys.CHANGES, **keys.STYLES[family.rope_style]}
    for name in config.keys() & (changes.keys() | family.keys | keys.COMMON) - {"model_type", *_SHARED}:
        value = config[name]
        without = name in changes and changes[name].allows(value, shape, _twins(read, family))
        if value is not None and value != read.values.get(name) and not without:
            yield f"{source}: {name}: is not read outside of {outer.nested} (got {brief(value)})"


def _rope_warnings(read: Fields, family: Family, shape: ModelShape) -> Iterator[str]:
    given = rope_table(read, family)
    name = "rope_scaling" if read.table("rope_scaling") else "rope_parameters"
    tables = [given]
    if by_layer_type(given):
        tables = [given[kind] for kind in (FULL, SLIDING) if isinstance(given.get(kind), dict)]
        for key in sorted(given.keys() - {FULL, SLIDING}):
            yield f"{read.source}: {name}: {key}: is not read beside {FULL} (got {brief(given[key])})"
    for table in filter(None, tables):
        kind = scaling_type(Fields(table, f"{read.source}: {name}"), family)
        if table.get("rope_type") is not None and table.get("type") not in (None, table["rope_type"]):
            yield f"{read.source}: {name}: type: is not read beside rope_type (got {brief(table['type'])})"
        for key in sorted(key for key in table.keys() - scaling_keys(kind) if table[key] is not None):
            yield f"{read.source}: {name}: {key}: is not read with type {kind} (got {brief(table[key])})"
        if kind == "mrope":
            yield f"{read.source}: {name}: mrope: positions are those of text; those of images have three axes"
        original = table.get("original_max_position_embeddings") or 0
        original = read.count("original_max_position_embeddings", original, least=0)
        if kind in ("longrope", "su") and original and shape.max_len > original:
            yield (
                f"{read.source}: {name}: {kind}: long_factor is used at every length; --max-len {original} takes "
                "short_factor"
            )


def _family(config: dict[str, object], source: str) -> Family:
    name = config.get("model_type")
    if str(name) in FAMILIES:
        return FAMILIES[str(name)]
    read_somewhere = frozenset(key for family in FAMILIES.values() for key in family.keys)
    said = f"{source}: model_type: must be one of {', '.join(FAMILIES)} (got {brief(name)})"
    for reason in keys.refusals(config, read_somewhere, keys.ANYWHERE, None, config):
        raise SpecError(f"{source}: {reason}, in a model of type {brief(name)}")
    raise SpecError(said)


def _text_values(config: dict[str, object], family: Family, source: str) -> dict[str, object]:
    """The text model's own values, with what a multimodal config says once for all its parts."""
    if not family.nested or (family.flat and family.nested not in config):
        return config
    inner = config.get(family.nested)
    if not isinstance(inner, dict):
        raise SpecError(f"{source}: {family.nested}: must be a JSON object (got {brief(inner)})")
    kind = inner.get("model_type", family.inner)
    if kind != family.inner:
        raise SpecError(f"{source}: {family.nested}: model_type: must be {family.inner} (got {brief(kind)})")
    return {name: config[name] for name in _SHARED if name in config} | inner


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


def _twins(read: Fields, family: Family) -> dict[str, Any]:
    """What keys have that others may repeat."""
    return {**read.values, "partial_rotary_factor": rotated_part(read, family)}


def _refuse(read: Fields, family: Family, shape: ModelShape, windows: list[int]) -> None:
    """Raise `SpecError` for what would change attention and is not covered."""
    table = {**keys.CHANGES, **keys.STYLES[family.rope_style]}
    values = {name: value for name, value in read.values.items() if name not in read.names}
    keys.check(values, keys.COMMON | family.keys, table, read.source, shape, _twins(read, family))
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
