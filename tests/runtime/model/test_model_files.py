"""A model decodes from every kind of file: its logits are those of the float64 model with the file's values.

What a format's values are, `tests.weights` and `tests.models` hold against `gguf` and against plain arithmetic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from ptxgen.models.files import open_model
from ptxgen.models.reference import ReferenceModel
from ptxgen.runtime import Device, Model, open_device
from ptxgen.weights import weight_format
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import CONFIGS, PROMPT, random_weights, small_spec, torch_name
from tests.support.models.model_files import ARCHS, write_folder, write_gguf
from tests.support.models.raw_files import packed_codes, write_llama2c

CLOSE = 1e-5  # of the largest logit
SIZES = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=2, head_dim=64)
# As llama.cpp's Q4_K_M mixes types: the rest of the matrices in the first of them.
MIX = {"v_proj": "q6_k", "down_proj": "q6_k", "o_proj": "q5_k", "embed_tokens": "q6_k", "lm_head": "q8_0"}


def check(device: Device, path: Path, prompt: tuple[int, ...] = PROMPT) -> None:
    """Logits after each token of a prompt, and the tokens after it."""
    file = open_model(path)
    model = Model(file, device, "f32", chunk=8)
    reference = ReferenceModel(file.spec, {name: file.values(name) for name in file.tensors})
    expected = reference.forward(prompt)
    found = [model.forward(token) for token in prompt]
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE * np.abs(expected).max())
    reference.rollback(0)
    assert model.generate(prompt, 8)[len(prompt) :] == reference.generate(prompt, 8)


@pytest.mark.parametrize("family", ARCHS)
def test_a_gguf_file_of_a_family(device: Device, family: str, tmp_path: Path) -> None:
    check(device, write_gguf(tmp_path / "m.gguf", family))


@pytest.mark.parametrize("first", ["q4_k", "q5_k", "q4_0", "q4_1", "q5_0", "q5_1", "f16", "bf16"])
def test_a_gguf_file_of_mixed_types(device: Device, first: str, tmp_path: Path) -> None:
    def convert(name: str, values: np.ndarray) -> tuple[np.ndarray, Any]:
        if values.ndim == 1:
            return values, None
        format = MIX.get(name.rsplit(".", 1)[-1], first)
        source = weight_format(format).quantise(values)
        array = source["blocks"] if "blocks" in source else source["weight"].view(np.uint8)
        return np.ascontiguousarray(array), Type[format.upper()]

    check(device, write_gguf(tmp_path / "m.gguf", "llama", convert, **SIZES))


# As llama.cpp's Q4_K_M has models whose hidden size is no multiple of 256, as Qwen2.5 0.5B's is not.
NARROW = {"down_proj": "q4_k", "v_proj": "q8_0", "embed_tokens": "q8_0"}


@pytest.mark.parametrize(
    ("slots", "precision"), [(1, "exact"), (3, "exact"), (8, "fast"), (9, "exact"), (17, "fast"), (33, "exact")]
)
def test_a_mixture_of_types_for_narrow_rows(slots: int, precision: str) -> None:
    """Batches in check mode: K-quants, which want 256 columns, beside others."""
    spec = small_spec("qwen2", hidden_size=160, intermediate_size=512, num_hidden_layers=2, head_dim=32)
    formats = {name: NARROW.get(name.rpartition(".")[2], "q5_0") for name in spec.tensors()}
    formats["layers.1.down_proj"] = "q6_k"
    file = ArrayFile(spec, random_weights(spec), formats=formats)
    batch = Model(file, open_device("cpu", mode="check"), "f32", chunk=8, precision=precision).batch(slots)
    batch.cache.zero()  # rows past a length are loaded early
    joined = dict(batch.join(PROMPT) for _ in range(slots))
    batch.step()
    reference = ReferenceModel(spec, file.values())
    first = int(np.argmax(reference.forward(PROMPT)[-1]))
    want = reference.forward([first])[-1]
    assert set(joined.values()) == {first}
    bound = (CLOSE if precision == "exact" else 3e-2) * np.abs(want).max()
    np.testing.assert_allclose(batch.logits(), [want] * slots, rtol=0, atol=bound)


def quantised(folder: Path, format: str, parts: Any, quantization: dict[str, Any]) -> Path:
    """A llama whose products are in `format`, each as `parts` lays its source arrays out."""
    config = CONFIGS["llama"] | SIZES | {"attention_bias": False, "mlp_bias": False}
    spec = small_spec("llama", **config)
    arrays: dict[str, np.ndarray] = {}
    for name, values in random_weights(spec).items():
        theirs = torch_name(name)
        if values.ndim == 1 or not name.endswith("_proj"):
            arrays[theirs] = values
            continue
        for part, array in parts(weight_format(format).quantise(values)).items():
            arrays[f"{theirs.removesuffix('weight')}{part}"] = np.ascontiguousarray(array)
    return write_folder(folder, config | {"quantization_config": quantization}, arrays)


@pytest.mark.parametrize("format", ["e4m3", "e4m3_channel", "e4m3_block"])
def test_a_checkpoint_in_fp8(device: Device, format: str, tmp_path: Path) -> None:
    scale = "weight_scale_inv" if format == "e4m3_block" else "weight_scale"
    check(
        device,
        quantised(
            tmp_path, format, lambda s: {"weight": s["weight"], scale: np.asarray(s["scale"])}, {"quant_method": "fp8"}
        ),
    )


@pytest.mark.parametrize("method", ["awq", "gptq"])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_a_checkpoint_in_int4(device: Device, method: str, size: int, tmp_path: Path) -> None:
    awq = method == "awq"
    order = (0, 2, 4, 6, 1, 3, 5, 7) if awq else tuple(range(8))

    def parts(source: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        zeros = source["zeros"].T.astype(np.int64) - (not awq)
        return {
            "qweight": packed_codes(source["qweight"].T, 1 if awq else 0, order),
            "qzeros": packed_codes(zeros & 15, 1, order),
            "scales": source["scales"].T,
        }

    check(device, quantised(tmp_path, f"int4_g{size}", parts, {"quant_method": method, "bits": 4}))


def test_a_llama2c_checkpoint(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    write_llama2c(path, 0, False)
    check(device, path, PROMPT[:7])  # of 16 positions
