"""4-bit weights of AWQ and GPTQ checkpoints as plain codes, scales and zero points. Owns their bit orders, no format.

AWQ (GEMM layout): `qweight` int32 `[inputs, outputs / 8]`, `qzeros` `[groups, outputs / 8]`, the eight codes of a word
in the order 0 2 4 6 1 3 5 7. GPTQ: `qweight` int32 `[inputs / 8, outputs]`, `qzeros` `[groups, outputs / 8]` in order,
zero points stored less one (but in "gptq_v2"), `g_idx [inputs]`. Both: `scales` f16 `[groups, outputs]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.errors import FileError, brief
from ptxgen.models.files.modelfile import Held, Source, TensorInfo
from ptxgen.models.files.stored import Stored

_GROUPS = (32, 64, 128)
_IN_ORDER = range(8)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def int4(folder: Path, parts: Mapping[str, Stored], quantization: Mapping[str, Any]) -> Held:
    """The matrix of `qweight`, `qzeros` and `scales`. Raises `FileError` for what is not covered."""
    weight = parts["qweight"]
    where = f"{folder}: {weight.name}"
    method, bits = quantization.get("quant_method"), quantization.get("bits", 4)
    if method not in ("awq", "gptq") or bits != 4 or quantization.get("version", "gemm") not in ("gemm", "GEMM"):
        raise FileError(
            f"{where}: quantization_config: must be awq (gemm) or gptq of 4 bits (got {brief(method)}, {bits})"
        )
    if lacking := [name for name in ("qzeros", "scales") if name not in parts]:
        raise FileError(f"{where}: stands without {', '.join(lacking)}")
    awq, zeros, scales = method == "awq", parts["qzeros"], parts["scales"]
    for part, kind in ((weight, "I32"), (zeros, "I32"), (scales, "F16")):
        _typed(where, part, kind)
    cols, rows = weight.shape[0] * (1 if awq else 8), weight.shape[1] * (8 if awq else 1)
    groups = scales.shape[0]
    size = cols // groups if groups else 0
    if size not in _GROUPS or size * groups != cols:
        raise FileError(f"{where}: groups must have {', '.join(map(str, _GROUPS))} columns (got {groups} of {cols})")
    if scales.shape != (groups, rows) or zeros.shape != (groups, rows // 8) or rows % 8:
        shapes = f"{list(weight.shape)}, {list(zeros.shape)}, {list(scales.shape)}"
        raise FileError(f"{where}: qweight, qzeros and scales must agree (got shapes {shapes})")
    if "g_idx" in parts:
        _in_groups(where, parts["g_idx"], size, cols)
    less_one = not awq and quantization.get("checkpoint_format") != "gptq_v2"
    read = partial(_read, weight, zeros, scales, awq, less_one)
    return Held(TensorInfo(f"int4_g{size}", rows, cols), read, weight.name)


def _typed(where: str, one: Stored, kind: str) -> None:
    if one.type != kind or len(one.shape) != 2:
        raise FileError(f"{where}: {one.name}: must be a matrix of {kind} (got {one.type} {list(one.shape)})")


def _in_groups(where: str, index: Stored, size: int, cols: int) -> None:
    """`g_idx` must follow the columns: a checkpoint in the order of activations ("desc_act") is not covered."""
    if index.type != "I32" or index.shape != (cols,):
        raise FileError(f"{where}: {index.name}: must be {cols} of I32 (got {index.type} {list(index.shape)})")
    if not np.array_equal(index.raw.view("<i4"), np.arange(cols) // size):
        raise FileError(f"{where}: {index.name}: columns out of order (desc_act) are not covered")


def _read(weight: Stored, zeros: Stored, scales: Stored, awq: bool, less_one: bool) -> Source:
    order = _AWQ_ORDER if awq else _IN_ORDER
    words = weight.raw.view("<u4").reshape(weight.shape)
    codes = _nibbles(words, order, 1) if awq else _nibbles(words, order, 0)
    points = _nibbles(zeros.raw.view("<u4").reshape(zeros.shape), order, 1)
    if less_one:
        points = (points + 1) & 15
    factors = scales.raw.view("<f2").reshape(scales.shape)
    return {
        name: np.ascontiguousarray(part.T)
        for name, part in (("qweight", codes), ("scales", factors), ("zeros", points))
    }


def _nibbles(words: np.ndarray, order: range | tuple[int, ...], axis: int) -> np.ndarray:
    """The codes of int32 words, eight along `axis` for each, uint8; nibble i of a word is code `order[i]` of it."""
    rows, cols = words.shape
    out = np.empty((rows, cols, 8) if axis else (rows, 8, cols), np.uint8)
    for nibble, place in enumerate(order):
        codes = ((words >> np.uint32(4 * nibble)) & np.uint32(15)).astype(np.uint8)
        if axis:
            out[:, :, place] = codes
        else:
            out[:, place] = codes
    return out.reshape(rows, cols * 8) if axis else out.reshape(rows * 8, cols)
