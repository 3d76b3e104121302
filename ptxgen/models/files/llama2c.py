"""llama2.c checkpoints as `ModelFile`s: version 0 (seven int32, then float32) and version 1 (magic "ak42").

The tokenizer lies beside the checkpoint: `tokenizer.bin`, or `tok<vocabulary>.bin`. Layout: export.py of
github.com/karpathy/llama2.c; version 2 (int8 groups) is not covered.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.errors import FileError
from ptxgen.models.files.modelfile import Held, ModelFile, Source, TensorInfo, assemble, plain
from ptxgen.models.spec import ModelSpec, model_spec

if TYPE_CHECKING:
    from ptxgen.models.text import Text

_NAMES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
_MOST = 1 << 24
_MAGIC = 0x616B3432
_LEGACY_HEADER, _HEADER = 4 * len(_NAMES), 256
_EPS, _THETA = 1e-5, 10000.0


def open_llama2c(path: Path, max_len: int | None = None) -> ModelFile:
    """The model of a checkpoint. Raises `FileError` naming the value."""
    size = path.stat().st_size
    if size < _HEADER:
        raise FileError(f"{path}: is too short for a llama2.c checkpoint ({size} bytes)")
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    values, begin, shared = _header(path, data)
    spec = _spec(path, values, shared, max_len)
    order = _version_0(spec, values["max_seq_len"]) if begin == _LEGACY_HEADER else _version_1(spec)
    held: dict[str, Held] = {}
    at = begin
    for name, shape in order:
        nbytes = 4 * math.prod(shape)
        if at + nbytes > size:
            raise FileError(f"{path}: {name}: lies behind the end of the file ({size} bytes)")
        rows, cols = (1, *shape)[-2:]
        if name:
            read: partial[Source] = partial(plain, data[at : at + nbytes], "f32", shape)
            held[name] = Held(TensorInfo("f32", rows, cols), read, name)
        at += nbytes
    if at != size:
        raise FileError(f"{path}: must be {at} bytes for {values} (got {size})")
    return assemble(path, "llama2.c", spec, held, lambda: _text(path, spec.shape.vocab))


def _text(path: Path, vocab: int) -> Text:
    from ptxgen.models.text.llama2c import text_of

    return text_of([path.parent / f"tok{vocab}.bin", path.parent / "tokenizer.bin"], vocab)


def _header(path: Path, data: np.ndarray) -> tuple[dict[str, int], int, bool]:
    """The seven values, where the weights begin, and whether the head is the embedding."""
    words = data[:_HEADER].view("<i4")
    if int(words[0]) == _MAGIC:
        if int(words[1]) != 1:
            raise FileError(f"{path}: version: must be 0 or 1 (got {int(words[1])})")
        numbers, begin, shared = words[2:9].tolist(), _HEADER, bool(data[4 * 9])
    else:
        numbers, begin, shared = words[:7].tolist(), _LEGACY_HEADER, int(words[5]) > 0
        numbers[5] = abs(numbers[5])
    values = dict(zip(_NAMES, numbers, strict=True))
    for name, value in values.items():
        if not 1 <= value <= _MOST:
            raise FileError(f"{path}: {name}: must be from 1 to {_MOST} (got {value}); is this a llama2.c checkpoint?")
    if 4 * values["dim"] * (values["vocab_size"] + values["n_layers"]) > data.size:
        raise FileError(f"{path}: is too short for {values} ({data.size} bytes)")
    return values, begin, shared


def _spec(path: Path, values: dict[str, int], shared: bool, max_len: int | None) -> ModelSpec:
    config = {
        "model_type": "llama", "hidden_size": values["dim"], "intermediate_size": values["hidden_dim"],
        "num_hidden_layers": values["n_layers"], "num_attention_heads": values["n_heads"],
        "num_key_value_heads": values["n_kv_heads"], "vocab_size": values["vocab_size"],
        "max_position_embeddings": values["max_seq_len"], "rms_norm_eps": _EPS, "rope_theta": _THETA,
        "tie_word_embeddings": shared, "torch_dtype": "float32",
    }  # fmt: skip
    return replace(model_spec(config, str(path), max_len), rope_style="norm")


Order = list[tuple[str, tuple[int, ...]]]


def _of_layers(spec: ModelSpec, *names: str) -> Order:
    """Tensors of each kind for all layers together."""
    shapes: dict[str, tuple[int, ...]] = {**spec.products(), **{name: (width,) for name, width in spec.norms().items()}}
    return [(f"layers.{layer}.{name}", shapes[name]) for name in names for layer in range(spec.shape.n_layers)]


def _version_0(spec: ModelSpec, max_len: int) -> Order:
    """ "" names what is skipped: two tables of RoPE."""
    tables = (max_len, spec.shape.head_dim // 2)
    return [
        ("embed_tokens", (spec.shape.vocab, spec.dim)),
        *_of_layers(spec, "input_layernorm", "q_proj", "k_proj", "v_proj", "o_proj", "post_attention_layernorm"),
        *_of_layers(spec, "gate_proj", "down_proj", "up_proj"),
        ("norm", (spec.dim,)),
        ("", tables),
        ("", tables),
        *([] if spec.tied else [("lm_head", (spec.shape.vocab, spec.dim))]),
    ]


def _version_1(spec: ModelSpec) -> Order:
    return [
        *_of_layers(spec, "input_layernorm", "post_attention_layernorm"),
        ("norm", (spec.dim,)),
        ("embed_tokens", (spec.shape.vocab, spec.dim)),
        *_of_layers(spec, "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj"),
        *([] if spec.tied else [("lm_head", (spec.shape.vocab, spec.dim))]),
    ]
