"""What is warned of a `config.json`: keys that are not known, and what a kernel does otherwise than the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import brief, nearest
from ptxgen.files.jsonfields import MOST, Fields, is_number
from ptxgen.models.config import keys
from ptxgen.models.config.families import FAMILIES, Family
from ptxgen.models.config.fields import ALIKE, SHARED, config_fields, text_values
from ptxgen.models.config.layers import FULL, SLIDING
from ptxgen.models.config.rope import by_layer_type, rope_table, rotated_part, scaling_keys, scaling_type
from ptxgen.models.config.shape import ModelShape

MOST_NEAREST = 8  # keys for which the nearest is looked for: a file may have thousands that are not known


def config_warnings(
    config: object, shape: ModelShape, source: str = "config", kv_dtype: str | None = None
) -> Iterator[str]:
    """What is not known of a config that makes this shape, and what kernels with a cache of `kv_dtype` do otherwise
    than the model: a sentence each, with the key."""
    read, family = config_fields(config, source)
    outer = FAMILIES[str(read.values["model_type"])]
    assert isinstance(config, dict)
    known = family.keys | ({outer.nested} - {""})
    said = text_values(config, outer, source)
    for count, name in enumerate(keys.unknown(said | config, known)):
        near = nearest(name, keys.every(known), ALIKE) if count < MOST_NEAREST else ""
        yield f"{source}: {name}: is not known (got {brief(config.get(name, read.values.get(name)))}{near})"
    yield from _outer_warnings(config, read, outer, family, shape, source)
    yield from _rope_warnings(read, family, shape)
    yield from _context_warnings(read, family, shape, said.get("max_position_embeddings"))
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


def _context_warnings(read: Fields, family: Family, shape: ModelShape, own: object) -> Iterator[str]:
    """A context that was asked for and is longer than the model's `own`, also where scaling of RoPE stretches that."""
    if type(own) is not int or own < 1:
        return  # the file does not say it, or it was not read: the context was given
    if max(own, _scaled_context(read, family, own)) < shape.max_len <= MOST:  # beyond that a kernel refuses it
        yield (
            f"{read.source}: max_position_embeddings: the model's own positions end at {own}, what it makes of later "
            f"ones may be of no use (got max_len {shape.max_len})"
        )


def _scaled_context(read: Fields, family: Family, own: int) -> int:
    """How far scaling of RoPE reaches: its factor times the context that it was made for."""
    table = rope_table(read, family)
    table = table[FULL] if isinstance(table.get(FULL), dict) else table
    factor, key = table.get("factor"), "original_max_position_embeddings"
    original = next((one[key] for one in (read.values, table) if type(one.get(key)) is int), own)
    return int(original * factor) if is_number(factor) else own


def twins(read: Fields, family: Family) -> dict[str, Any]:
    """What keys have that others may repeat."""
    return {**read.values, "partial_rotary_factor": rotated_part(read, family)}
