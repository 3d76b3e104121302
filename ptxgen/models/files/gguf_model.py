"""A GGUF file as a `ModelFile`: tensor names by tables. Owns neither the header, nor metadata, nor the packing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ptxgen.errors import ConfigWarning, FileError, SpecError, brief, nearest
from ptxgen.files.jsonfields import got
from ptxgen.models.config.fields import ALIKE
from ptxgen.models.files.gguf_config import config_of, vector
from ptxgen.models.files.gguf_header import GgufFile, GgufTensor, read_gguf
from ptxgen.models.files.gguf_keys import ARCHS, Arch, equals, in_words_of_the_file, warn_of_unknown
from ptxgen.models.files.modelfile import PLAIN, Held, ModelFile, Source, TensorInfo, assemble, is_vector, plain, sliced
from ptxgen.models.spec import QKV, ModelSpec, model_spec

if TYPE_CHECKING:
    from ptxgen.models.text import Text

# Our weight formats by GGUF's types.
FORMATS = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "q8_0", "Q4_0": "q4_0", "Q4_1": "q4_1", "Q5_0": "q5_0",
    "Q5_1": "q5_1", "Q4_K": "q4_k", "Q5_K": "q5_k", "Q6_K": "q6_k",
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
        rule = f"must be one of {', '.join(ARCHS)}"
        said = f"{got(file.fields, 'general.architecture')}{nearest(name, ARCHS, ALIKE)}"
        raise FileError(f"{path}: general.architecture: {rule} ({said})")
    if not equals(parts := file.fields.get("split.count", 0), 0):
        raise FileError(f"{path}: split.count: a model in {brief(parts)} files is not covered; merge them first")
    spec = _spec(file, str(name), arch, max_len)
    theirs = {ours: name for name, several in _names(spec).items() for ours in several}
    return assemble(path, "gguf", spec, _held(file, spec), lambda: _text(file), theirs.__getitem__)


def _text(file: GgufFile) -> Text:
    from ptxgen.models.text.gguf import text_of

    return text_of(file.fields, str(file.path))


# -- the architecture ------------------------------------------------------------------------------------------------


def _spec(file: GgufFile, name: str, arch: Arch, max_len: int | None) -> ModelSpec:
    """The metadata as the keys of a `config.json`, and what those cannot say."""
    said = {key.removeprefix(f"{name}."): value for key, value in file.fields.items() if key.startswith(f"{name}.")}
    words = partial(in_words_of_the_file, path=file.path, name=name, arch=arch, said=said)

    def warn(text: str) -> None:
        warnings.warn(words(text), ConfigWarning, stacklevel=2)

    warn_of_unknown(said, f"{file.path}: {name}.", arch)
    config = config_of(file, name, arch, said)
    try:
        spec = model_spec(config, str(file.path), max_len, warn=warn)
    except SpecError as wrong:
        raise SpecError(words(str(wrong)) if str(wrong).startswith(f"{file.path}: ") else str(wrong)) from None
    biases = tuple(product for product in spec.products() if f"blk.0.{_PRODUCTS[product]}.bias" in file.tensors)
    block = replace(spec.block, norm_offset=0.0) if arch.one_added else spec.block
    head_bias = _HEAD_BIAS in file.tensors
    spec = replace(spec, biases=biases, block=block, rope_style=arch.rope_style, head_bias=head_bias)
    factors = vector(file, "rope_freqs.weight")
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
    return plain(raw, format, shape) if format in PLAIN else {"blocks": raw.reshape(shape[0], -1)}
