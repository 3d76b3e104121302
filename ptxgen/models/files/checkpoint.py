"""A Hugging Face checkpoint as a `ModelFile`: config.json, shards through `safetensors`, and the parts that make a
weight (scales, zero points). Owns no unpacking of 4-bit codes: `packed_int4.py` does it.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import UNREADABLE, ConfigWarning, FileError, brief
from ptxgen.files.regular import check_pulled, size_of
from ptxgen.files.small_json import LARGEST_JSON, read_json
from ptxgen.models.files.modelfile import (
    SCALED_ROWS,
    Held,
    ModelFile,
    Source,
    TensorInfo,
    assemble,
    is_vector,
    plain,
    sliced,
)
from ptxgen.models.files.stored import Stored
from ptxgen.models.spec import MLP, QKV, ModelSpec, model_spec

if TYPE_CHECKING:
    from ptxgen.models.text import Text

_MOST_SHARDS, _LONGEST_NAME = 1 << 10, 255
_LONGEST_BIAS = 1 << 24  # bytes of a bias that are looked through for a value
_COMPARED = 1 << 24  # bytes of two tensors that are compared at once
_METADATA = "__metadata__"  # of a header: no tensor
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
# Our formats by the file's types, and the bytes of one element of every type that a shard may hold.
FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "e4m3"}
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
# Scales of activations and of a quantised cache: what they scale is f32 here, or has a type of its own.
_UNUSED = ("input_scale", "k_scale", "v_scale", "rotary_emb.inv_freq")
# Parts of a multimodal model that its text model does without.
_OTHERS = ("vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector.")
_PARTS = ("weight", "bias", "weight_scale", "weight_scale_inv", "qweight", "qzeros", "scales", "g_idx")
_FUSED = {"qkv_proj": QKV, "gate_up_proj": ("gate_proj", "up_proj")}
_OF_ATTENTION = (*QKV, "qkv_proj", "o_proj", "q_norm", "k_norm")
_OF_MLP = (*MLP, "gate_up_proj")
_ENDS = ("embed_tokens.weight", "lm_head.weight", "lm_head.bias")
_OUTER = re.compile(r"^(model\.language_model\.|language_model\.model\.|language_model\.|model\.)?")


def open_checkpoint(path: Path, max_len: int | None = None) -> ModelFile:
    """The model of a folder, or of one .safetensors file with `config.json` beside it."""
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / "config.json")
    spec = model_spec(config, str(folder / "config.json"), max_len)
    stored: dict[str, Stored] = {}
    for shard in _shards(path, folder):
        for one in _read_shard(shard):
            if stored.setdefault(one.name, one) is not one:
                raise FileError(f"{shard}: {one.name}: stands in another file of the folder, too")
    spec = _with_head(folder, spec, stored)
    held = _held(folder, spec, stored, _quantization(config))
    return assemble(path, "safetensors", spec, held, lambda: _text(folder), partial(_theirs, spec, stored))


def _text(folder: Path) -> Text:
    from ptxgen.models.text.json_file import text_of

    return text_of(folder)


def _theirs(spec: ModelSpec, stored: Mapping[str, Stored], ours: str) -> str:
    """What the files would call a tensor of our name, by their names of others."""
    layer, _, last = ours.removesuffix(".bias").rpartition(".")
    last = next((fused for fused, parts in _FUSED.items() if spec.block.fused and last in parts), last)
    part = "self_attn." if last in _OF_ATTENTION else "mlp." if last in _OF_MLP else ""
    inner = next((one for one in stored if re.match(r"([a-z_]+\.)*layers\.", one)), "model.layers.")
    before = inner[: inner.index("layers.")]
    if ours.startswith("lm_head"):
        before = before.removesuffix("model.")
    name = f"{before}{layer}.{part}{last}" if layer else f"{before}{last}"
    if ours.endswith(".bias"):
        return f"{name}.bias"
    packed = part and not is_vector(ours) and any(one.endswith(".qweight") for one in stored)
    return f"{name}.{'qweight' if packed else 'weight'}"


def _quantization(config: Any) -> dict[str, Any]:
    found = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    return found if isinstance(found, dict) else {}


def _with_head(folder: Path, spec: ModelSpec, stored: dict[str, Stored]) -> ModelSpec:
    """The model with the head and the bias of the logits that its files have. Of a model with tied embeddings a head
    that is the embedding once more, in the same type, is left out of `stored`; another one is used, with a warning."""
    parts: dict[str, Stored] = {}
    for one in stored.values():
        if (name := _OUTER.sub("", one.name)) in _ENDS:
            _add(folder, parts, name, one)
    head, embedding = parts.get("lm_head.weight"), parts.get("embed_tokens.weight")
    spec = replace(spec, head_bias="lm_head.bias" in parts)
    if head is None or not spec.tied:
        return spec
    if embedding is not None and _same(head, embedding):
        del stored[head.name]
        return spec
    said = f"{folder / 'config.json'}: tie_word_embeddings: says that {head.name} is the embedding"
    if embedding is not None and (head.type, head.shape) != (embedding.type, embedding.shape):
        here, there = (f"{one.type} {list(one.shape)}" for one in (head, embedding))
        said += f", and it is stored as {here}, not as {there}"
    else:
        said += ", and it differs"
    warnings.warn(f"{said}: logits are its products", ConfigWarning, stacklevel=2)
    return replace(spec, tied=False)


def _same(one: Stored, other: Stored) -> bool:
    """Whether two tensors hold the same values; of those with scales it is not asked."""
    if one.type == "F8_E4M3" or (one.type, one.shape) != (other.type, other.shape):
        return False
    ranges = (slice(first, first + _COMPARED) for first in range(0, len(one.raw), _COMPARED))
    return all(np.array_equal(one.raw[some], other.raw[some]) for some in ranges)


# -- shards ----------------------------------------------------------------------------------------------------------


def _shards(path: Path, folder: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if not (folder / _INDEX).exists():
        if (folder / _WHOLE).exists():  # beside which some folders hold the same weights under other names
            return [folder / _WHOLE]
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise FileError(f"{folder}: holds no .safetensors file")
        return found
    index = read_json(folder / _INDEX)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise FileError(f"{folder / _INDEX}: weight_map: must give a file name for each tensor (got {brief(names)})")
    files = sorted(set(names.values()))
    if len(files) > _MOST_SHARDS:
        raise FileError(f"{folder / _INDEX}: weight_map: must name at most {_MOST_SHARDS} files (got {len(files)})")
    if wrong := [name for name in files if Path(name).name != name or len(name) > _LONGEST_NAME]:
        raise FileError(f"{folder / _INDEX}: weight_map: must name files of the same folder (got {brief(wrong[0])})")
    for name in files:
        if not (folder / name).exists():
            first = next(tensor for tensor, file in names.items() if file == name)
            said = f"names {name}, which is not in the folder (for {brief(first)})"
            raise FileError(f"{folder / _INDEX}: weight_map: {said}")
    return [folder / name for name in files]


def _read_shard(path: Path) -> list[Stored]:
    """Every tensor of a shard. `safetensors` checks the header: types, sizes, no gap, nothing outside the file."""
    from safetensors import SafetensorError, safe_open

    header = _header_bytes(path)
    try:
        with safe_open(str(path), "numpy") as shard:
            slices = {name: shard.get_slice(name) for name in shard.offset_keys()}
            found = {name: (str(part.get_dtype()), tuple(part.get_shape())) for name, part in slices.items()}
    except (SafetensorError, OSError, ValueError) as wrong:
        _check_length(path, header)
        raise FileError(f"{path}: is no safetensors file ({str(wrong).splitlines()[0]})") from None
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    stored, at = [], 8 + header
    for name, (kind, shape) in found.items():
        end = at + math.prod(shape) * _BITS.get(kind, 0) // 8
        stored.append(Stored(name, kind, shape, data[at:end]))
        at = end
    return stored


def _header_bytes(path: Path) -> int:
    """How long the file says that its header is; there is so much of it."""
    try:
        check_pulled(path)
        size = size_of(path)
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
    except OSError as wrong:
        raise FileError(f"{path}: cannot be read ({wrong.strerror or wrong})") from None
    if size < 8:
        raise FileError(f"{path}: is no safetensors file (8 bytes are due at least, got {size})")
    if header > LARGEST_JSON:
        most = f"its header must be at most {LARGEST_JSON >> 20} MiB"
        raise FileError(f"{path}: is no safetensors file ({most}, got {header} bytes)")
    if 8 + header > size:
        raise FileError(f"{path}: ends within its header: {8 + header} bytes are due (got {size})")
    return header


def _check_length(path: Path, header: int) -> None:
    """Raise `FileError` where the file is not as long as its header says, as far as that can be read."""
    size = size_of(path)
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(8 + header)[8:])
        ends = {name: 8 + header + int(one["data_offsets"][1]) for name, one in found.items() if name != _METADATA}
    except (*UNREADABLE, KeyError, TypeError, AttributeError, IndexError):
        return
    due = max(ends.values(), default=8 + header)
    if due > size:
        cut = min((name for name in ends if ends[name] > size), key=ends.__getitem__)
        raise FileError(f"{path}: {brief(cut)}: ends behind the end of the file: {due} bytes are due (got {size})")
    if due < size:
        raise FileError(f"{path}: holds more than its tensors: {due} bytes are due (got {size})")


# -- tensors ---------------------------------------------------------------------------------------------------------


def _held(
    folder: Path, spec: ModelSpec, stored: Mapping[str, Stored], quantization: Mapping[str, Any]
) -> dict[str, Held]:
    """Every tensor by our name, its parts joined; fused products taken apart."""
    groups: dict[str, dict[str, Stored]] = {}
    wanted = spec.tensors()
    for one in stored.values():
        base, _, part = _OUTER.sub("", one.name).rpartition(".")
        if one.name.endswith(_UNUSED) or (spec.shape.family == "gemma3" and one.name.startswith(_OTHERS)):
            continue
        if part not in _PARTS:
            raise FileError(f"{folder}: {one.name} ({one.type}): is not covered")
        ours = base.replace(".self_attn.", ".").replace(".mlp.", ".")
        ours = f"{ours}.bias" if part == "bias" else ours
        if part == "bias" and ours not in wanted and len(one.raw) <= _LONGEST_BIAS and not one.raw.any():
            continue  # as some GPTQ files have for every matrix
        _add(folder, groups.setdefault(ours, {}), part, one)
    held: dict[str, Held] = {}
    for name, parts in groups.items():
        whole = _matrix(folder, name, parts, quantization)
        layer, _, last = name.rpartition(".")
        if last not in _FUSED:
            held[name] = whole
            continue
        rows = [spec.products()[product][0] for product in _FUSED[last]]
        if sum(rows) != whole.info.rows:
            raise FileError(f"{folder}: {whole.name}: must have {sum(rows)} rows (got {whole.info.rows})")
        for index, product in enumerate(_FUSED[last]):
            start = sum(rows[:index])
            if whole.info.format == "e4m3_block" and start % SCALED_ROWS:
                where, must = f"{folder}: {whole.name}", f"must begin at a block of {SCALED_ROWS} rows"
                raise FileError(f"{where} ({whole.info.format}): {product} {must} (got {start})")
            read = sliced(whole.read, whole.info.rows, start, start + rows[index])
            held[f"{layer}.{product}"] = Held(
                TensorInfo(whole.info.format, rows[index], whole.info.cols), read, whole.name
            )
    return held


def _add(folder: Path, parts: dict[str, Stored], name: str, one: Stored) -> None:
    """A part under its name without prefixes, which no two tensors may have."""
    other = parts.setdefault(name, one)
    if other is not one:
        raise FileError(f"{folder}: {one.name}: stands there as {other.name}, too")


def _matrix(folder: Path, name: str, parts: Mapping[str, Stored], quantization: Mapping[str, Any]) -> Held:
    """One tensor from its parts; what they are decides the format."""
    if "qweight" in parts:
        from ptxgen.models.files.packed_int4 import int4

        return int4(folder, parts, quantization)
    one = parts.get("bias") or parts.get("weight")
    if one is None:
        found = next(iter(parts.values()))
        raise FileError(f"{folder}: {found.name} ({found.type}): stands without its weight")
    where = f"{folder}: {one.name}"
    if one.type not in FORMATS:
        raise FileError(f"{where}: {one.type} is not covered; {', '.join(FORMATS)} are, and int4 of AWQ and GPTQ")
    if not 1 <= len(one.shape) <= 2 or 0 in one.shape or (is_vector(name) and len(one.shape) != 1):
        raise FileError(f"{where}: must be a {'vector' if is_vector(name) else 'matrix'} (got shape {list(one.shape)})")
    rows, cols = (1, *one.shape)[-2:]
    shape = (cols,) if is_vector(name) else (rows, cols)
    format, scale = FORMATS[one.type], parts.get("weight_scale") or parts.get("weight_scale_inv")
    if format != "e4m3":
        if scale is not None:
            raise FileError(f"{where}: {one.type} with {scale.name} is not covered")
        return Held(TensorInfo(format, rows, cols), partial(plain, one.raw, format, shape), one.name)
    if scale is None or scale.type not in ("F32", "F16", "BF16"):
        raise FileError(f"{where}: F8_E4M3 needs weight_scale or weight_scale_inv in F32, F16 or BF16")
    format = _scaled(where, scale.shape, rows, cols)
    return Held(TensorInfo(format, rows, cols), partial(_read_e4m3, one, scale), one.name)


def _scaled(where: str, scale: tuple[int, ...], rows: int, cols: int) -> str:
    """The format that a scale's shape makes of e4m3 weights."""
    if math.prod(scale) == 1:
        return "e4m3"
    if scale in ((rows,), (rows, 1)):
        return "e4m3_channel"
    if scale == (-(-rows // 128), -(-cols // 128)):
        return "e4m3_block"
    raise FileError(f"{where}: scales must be one, one a row, or one of 128 x 128 (got shape {list(scale)})")


def _read_e4m3(weight: Stored, scale: Stored) -> Source:
    factors = plain(scale.raw, FORMATS[scale.type], (max(math.prod(scale.shape), 1),))["weight"]
    shape = () if factors.size == 1 else (weight.shape[0],) if len(factors) == weight.shape[0] else scale.shape
    return plain(weight.raw, "e4m3", weight.shape) | {"scale": factors.reshape(shape)}
