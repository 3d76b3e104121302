"""Models whose decode step is measured: shapes of real ones, formats of their weights, random weights on a device.

The weights are valid packed bytes that no file holds: of every matrix 64 rows are drawn and packed, and the others
repeat these records, each at its own address.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.models.files.modelfile import TensorInfo, is_vector, unfused
from ptxgen.models.program import Pairs, Program, Tensor
from ptxgen.models.spec import ModelSpec, model_spec
from ptxgen.weights import weight_format

if TYPE_CHECKING:
    from ptxgen.runtime import Model
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.memory.buffer import Buffer

ROWS = 64  # rows of a matrix that are drawn
RECORD_ROWS = 16
OF_NARROW_ROWS = {"q4_k": "q5_0", "q6_k": "q8_0"}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


def _config(family: str, layers: int, dim: int, hidden: int, heads: tuple[int, int, int], vocab: int, tied: bool,
            theta: float, **more: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": family, "num_hidden_layers": layers, "hidden_size": dim, "intermediate_size": hidden,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": heads[2], "vocab_size": vocab,
        "tie_word_embeddings": tied, "rope_theta": theta, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


MODELS: dict[str, dict[str, Any]] = {
    "tinyllama-1.1b": _config("llama", 22, 2048, 5632, (32, 4, 64), 32000, False, 1e4),
    "llama-3.2-1b": _config(
        "llama", 16, 2048, 8192, (32, 8, 64), 128256, True, 5e5, rope_scaling=LLAMA3 | {"factor": 32.0}
    ),
    "qwen2.5-0.5b": _config("qwen2", 24, 896, 4864, (14, 2, 64), 151936, True, 1e6),
    "qwen2.5-1.5b": _config("qwen2", 28, 1536, 8960, (12, 2, 128), 151936, True, 1e6),
    "llama-3-8b": _config("llama", 32, 4096, 14336, (32, 8, 128), 128256, False, 5e5),
}


def _everywhere(format: str) -> Callable[[ModelSpec, str], str]:
    return lambda spec, name: format


def _but_ends(format: str) -> Callable[[ModelSpec, str], str]:
    """Embeddings and head stay in bf16, as in files of these formats."""
    return lambda spec, name: "bf16" if name in ("embed_tokens", "lm_head") else format


def q4_k_m(spec: ModelSpec, name: str) -> str:
    """llama.cpp's mix: Q6_K for the head, and in half of the layers for values and the second half of the MLP; in their
    place blocks of 32 columns, where rows are no whole blocks of 256."""
    wide, columns = _q4_k_m(spec, name), spec.tensors()[name][-1]
    return wide if columns % weight_format(wide).block_cols == 0 else OF_NARROW_ROWS[wide]


def _q4_k_m(spec: ModelSpec, name: str) -> str:
    if name == "lm_head" or (name == "embed_tokens" and spec.tied):
        return "q6_k"
    if not name.endswith((".v_proj", ".down_proj")):
        return "q4_k"
    layer, count = int(name.split(".")[1]), spec.shape.n_layers
    eighth = count // 8
    return "q6_k" if layer < eighth or layer >= 7 * count // 8 or (layer - eighth) % 3 == 2 else "q4_k"


MIXES: dict[str, Callable[[ModelSpec, str], str]] = {
    "q4_k_m": q4_k_m,
    "bf16": _everywhere("bf16"),
    "q8_0": _everywhere("q8_0"),
    "e4m3": _but_ends("e4m3_channel"),
    "int4-128": _but_ends("int4_g128"),
}


@dataclass(frozen=True)
class RandomModel:
    """A model without a file: a source for `Model`, which gets its weights from `weights`."""

    spec: ModelSpec
    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> Mapping[str, np.ndarray]:
        """Arrays of a tensor's format, drawn: rows from `ROWS` on repeat."""
        info = self.tensors[name]
        if is_vector(name):
            return {"weight": _vector(name, info.cols)}
        drawn = _source(info.format, info.cols).items()
        return {key: np.resize(array, (info.rows, *array.shape[1:])) for key, array in drawn}

    def weights(self, device: Device, program: Program) -> dict[str, Buffer]:
        """The weights of a program in device memory."""
        found = {}
        for tensor in program.of_kind("weight"):
            buffer = found[tensor.name] = device.empty(tensor.shape, tensor.dtype)
            if tensor.gated:
                repeat(buffer, _gated(tensor.format, tensor.cols))
            elif tensor.format:
                offset = 0
                for part in tensor.parts:
                    nbytes = weight_format(tensor.format).nbytes(part.rows, tensor.cols)
                    own = buffer.view((nbytes,), "u8", offset)
                    repeat(own, _records(tensor.format, tensor.cols, part.pairs))
                    offset += nbytes
            else:
                buffer.copy_from(np.concatenate([_vector(part.name, part.rows) for part in tensor.parts]))
        return found


def random_model(config: Mapping[str, Any], weights: str, max_len: int) -> RandomModel:
    """A model of a configuration with weights as one of `MIXES`, for so many positions."""
    spec = unfused(model_spec(dict(config), max_len=max_len))
    infos = {}
    for name, shape in spec.tensors().items():
        rows, cols = (1, *shape)[-2:]
        infos[name] = TensorInfo("f32" if is_vector(name) else MIXES[weights](spec, name), rows, cols)
    return RandomModel(spec, infos)


def open_random(
    config: Mapping[str, Any], weights: str, max_len: int, device: Device, kv_dtype: str = "f16", **options: Any
) -> Model:
    """A `Model` with random weights, its cache full of random values; `options` are its constructor's."""
    from ptxgen.models.packing import formats_of
    from ptxgen.models.step.decode import step_program
    from ptxgen.runtime import Model

    source = random_model(config, weights, max_len)
    program = step_program(source.spec, formats_of(source), kv_dtype=kv_dtype, target=device.target.name)
    model = Model(source, device, kv_dtype, weights=source.weights(device, program), **options)
    for layer in range(source.spec.shape.n_layers):
        fill_cache(model.cache.buffers(layer))
    return model


def fill_cache(buffers: Mapping[str, Buffer]) -> None:
    """Random keys and values, all finite."""
    for buffer in buffers.values():
        drawn = np.random.default_rng(1).standard_normal(min(buffer.size, 1 << 16)).astype(buffer.dtype.numpy)
        repeat(buffer, drawn.view(np.uint8))


def repeat(buffer: Buffer, pattern: np.ndarray) -> None:
    """Fill a buffer with the bytes of a pattern over and over, on the device."""
    nbytes = buffer.nbytes
    done = min(nbytes, pattern.nbytes)
    buffer.view((done,), "u8").copy_from(np.ascontiguousarray(pattern).reshape(-1).view(np.uint8)[:done])
    while done < nbytes:
        more = min(done, nbytes - done)
        buffer.view((more,), "u8", done).copy_from(buffer.view((more,), "u8"))
        done += more


def weight_bytes(program: Program) -> int:
    """Bytes of the weights that a step reads: of a table that is no head only some rows, which do not count."""
    read = {ref.tensor for op in program.ops for param, ref in op.buffers() if param.name != "table"}
    return sum(tensor.nbytes for tensor in program.of_kind("weight") if tensor.name in read)


def cache_bytes(program: Program, length: int) -> int:
    """Bytes of keys and values of `length` positions, of all layers and sequences."""
    caches: list[Tensor] = [
        tensor for name, tensor in program.tensors.items() if name.endswith(("k_cache", "v_cache", "_scales"))
    ]
    return sum(tensor.nbytes // tensor.shape[-2] * length for tensor in caches)


@cache
def _source(format: str, cols: int) -> Mapping[str, np.ndarray]:
    """A format's arrays of `ROWS` rows."""
    values = np.random.default_rng(cols).standard_normal((ROWS, cols), np.float32) * np.float32(cols**-0.5)
    return weight_format(format).quantise(values)


@cache
def _records(format: str, cols: int, pairs: Pairs | None = None) -> np.ndarray:
    """`ROWS` packed rows, or a head of them in its order."""
    if pairs is None:
        return weight_format(format).pack(_source(format, cols), ROWS, cols)
    rows = math.lcm(ROWS, pairs.head_dim)
    order = pairs.order(rows) % ROWS
    drawn = {name: array[order] if array.ndim else array for name, array in _source(format, cols).items()}
    return weight_format(format).pack(drawn, rows, cols)


@cache
def _gated(format: str, cols: int) -> np.ndarray:
    """The same, record by record twice: gate and up."""
    records = _records(format, cols).reshape(ROWS // RECORD_ROWS, -1)
    return np.repeat(records, 2, 0).reshape(-1)


def _vector(name: str, n: int) -> np.ndarray:
    """A norm's weight of ones, a bias of zeros."""
    return np.zeros(n, np.float32) if name.endswith(".bias") else np.ones(n, np.float32)
