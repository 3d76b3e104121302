"""The values of a `config.json`: its JSON, and its keys with the defaults of its family. Owns no key's meaning."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from ptxgen.errors import SpecError, brief, nearest
from ptxgen.files.jsonfields import Fields, got
from ptxgen.models.config import keys
from ptxgen.models.config.families import CONTEXTS, FAMILIES, Family

ALIKE = 0.8  # how near a known name must be to be named beside one that is not
_WEIGHTS = (".gguf", ".safetensors", ".bin")
SHARED = ("torch_dtype", "dtype", "quantization_config", "compression_config")  # by all parts of a model


def read_config(path: str | Path) -> object:
    """The JSON of a `config.json`. Raises `SpecError` naming the file and the place."""
    if Path(path).suffix in _WEIGHTS:
        raise SpecError(
            f"{path}: must be a config.json (got a file of weights); `complete` and `export --model` take it"
        )
    try:
        config: object = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise SpecError(f"{path}: must be a text file with JSON (got bytes that are not UTF-8)") from None
    except json.JSONDecodeError as wrong:
        raise SpecError(f"{path}: must be JSON (line {wrong.lineno}, column {wrong.colno}: {wrong.msg})") from None
    except (RecursionError, ValueError) as wrong:  # nested too deeply; an integer of too many digits
        raise SpecError(f"{path}: must be JSON of a sane size ({str(wrong).splitlines()[0]})") from None
    return config


def config_file(path: str | Path) -> Path:
    """The file of a path, which may be the folder of a `config.json`."""
    return Path(path) / "config.json" if Path(path).is_dir() else Path(path)


def config_fields(config: object, source: str) -> tuple[Fields, Family]:
    """The values of a parsed `config.json` with its family's defaults, the text model's where it holds several; and the
    family that reads them. `model_type` is the outer one."""
    if not isinstance(config, dict):
        raise SpecError(f"{source}: must be a JSON object (got {type(config).__name__})")
    check_family(config, source, FAMILIES)
    outer = FAMILIES[config["model_type"]]
    family = FAMILIES[outer.inner] if outer.inner else outer
    values = text_values(config, outer, source)
    stray = {name: values[name] for name in family.names if name in values}
    keys.check(stray, family.keys, keys.CHANGES, source, None, values)
    said = {name: value for name, value in values.items() if name not in family.names}
    said |= {name: values[theirs] for name, theirs in family.names.items() if theirs in values}
    context = {"max_position_embeddings": CONTEXTS[outer.inner or config["model_type"]]}
    merged = {**context, **family.defaults, **outer.defaults, **said, "model_type": config["model_type"]}
    return Fields(merged, source, family.names), family


def check_family(config: object, source: str, known: Collection[str], what_for: str = "") -> None:
    """Raise `SpecError` for a config of another family than these: for what no family has here, or the families."""
    if not isinstance(config, dict):
        return  # `config_fields` says so
    name = config.get("model_type")
    if isinstance(name, str) and name in known:
        return
    misspelt = not isinstance(name, str) or name not in FAMILIES
    if misspelt:
        read_somewhere = frozenset(key for family in FAMILIES.values() for key in family.keys)
        for reason in keys.refusals(config, read_somewhere, keys.ANYWHERE, None, config):
            raise SpecError(f"{source}: {reason}, in a model of type {brief(name)}")
    rest = nearest(name, known, ALIKE) if misspelt else "; of it there are kernels of attention alone"
    raise SpecError(
        f"{source}: model_type: must be one of {', '.join(known)}{what_for} ({got(config, 'model_type')}{rest})"
    )


def text_values(config: dict[str, object], family: Family, source: str) -> dict[str, object]:
    """The text model's own values, with what a multimodal config says once for all its parts."""
    if not family.nested or (family.flat and family.nested not in config):
        return config
    inner = config.get(family.nested)
    if not isinstance(inner, dict):
        raise SpecError(f"{source}: {family.nested}: must be a JSON object (got {brief(inner)})")
    kind = inner.get("model_type", family.inner)
    if kind != family.inner:
        raise SpecError(f"{source}: {family.nested}: model_type: must be {family.inner} (got {brief(kind)})")
    return {name: config[name] for name in SHARED if name in config} | inner
