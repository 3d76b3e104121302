"""What is warned of a `config.json`: keys that are not known, and what a kernel does otherwise than the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import brief
from ptxgen.files.jsonfields import Fields
from ptxgen.models.config import keys
from ptxgen.models.config.families import FAMILIES, Family
from ptxgen.models.config.fields import SHARED, config_fields, text_values
from ptxgen.models.config.layers import FULL, SLIDING
from ptxgen.models.config.rope import by_layer_type, rope_table, rotated_part, scaling_keys, scaling_type
from ptxgen.models.config.shape import ModelShape


def config_warnings(
    config: object, shape: ModelShape, source: str = "config", kv_dtype: str | None = None
) -> Iterator[str]:
    """What is not known of a config that makes this shape, and what kernels with a cache of `kv_dtype` do otherwise
    than the model: a sentence each, with the key."""
    read, family = config_fields(config, source)
    outer = FAMILIES[str(read.values["model_type"])]
    assert isinstance(config, dict)
    known = family.keys | ({outer.nested} - {""})
    for name in keys.unknown(text_values(config, outer, source) | config, known):
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
    for name in config.keys() & (changes.keys() | family.keys | keys.COMMON) - {"model_type", *SHARED}:
        value = config[name]
        without = name in changes and changes[name].allows(value, shape, twins(read, family))
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


def twins(read: Fields, family: Family) -> dict[str, Any]:
    """What keys have that others may repeat."""
    return {**read.values, "partial_rotary_factor": rotated_part(read, family)}
