"""`quantised`: which matrices are in which format, what is refused before and while they are read."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from gguf import GGMLQuantizationType as Type

from ptxgen.errors import ConfigWarning, FileError, SpecError
from ptxgen.models.files import ModelFile, modelfile, open_model, quantised
from ptxgen.models.memory_plan import memory_plan
from ptxgen.weights import weight_format, weight_formats
from tests.support.models.model_files import as_type, write_checkpoint, write_gguf

SIZES = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=1, head_dim=64)
HEAD = {"embed_tokens", "lm_head"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """A llama with biases and a head of its own, in f16."""
    return open_model(write_gguf(tmp_path_factory.mktemp("m") / "m.gguf", "llama", as_type(Type.F16), **SIZES))


def matrices(file: ModelFile) -> set[str]:
    return {name for name, info in file.tensors.items() if info.rows > 1}


@pytest.mark.parametrize("name", weight_formats())
def test_matrices_are_what_the_format_makes_of_the_files_values(
    name: str, file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a matrix is quantised some rows at a time, of which the vocabulary's 131 are no multiple."""
    monkeypatch.setattr("ptxgen.models.files.quantise._AT_ONCE", 1)
    found = quantised(file, name, name)
    for key in matrices(file):
        made, want = found.read(key), weight_format(name).quantise(file.values(key))
        assert made.keys() == want.keys()
        for part, array in want.items():
            np.testing.assert_array_equal(made[part], array, f"{key}.{part}")
        rows, cols = file.values(key).shape
        assert found.tensors[key] == modelfile.TensorInfo(name, rows, cols)
        np.testing.assert_array_equal(found.values(key), weight_format(name).dequantise(want, rows, cols))


@pytest.mark.parametrize(
    ("options", "changed"), [({"quantise": "q4_k"}, False), ({"quantise_head": "q6_k"}, True), ({}, None)]
)
def test_layers_and_head_are_asked_for_apart(options: dict[str, Any], changed: bool | None, file: ModelFile) -> None:
    found = quantised(file, **options)
    assert found.tensors.keys() == file.tensors.keys()
    want = set() if changed is None else {key for key in matrices(file) if (key in HEAD) == changed}
    assert {key for key in file.tensors if found.tensors[key] != file.tensors[key]} == want
    for key in file.tensors.keys() - want:  # vectors among them
        np.testing.assert_array_equal(found.values(key), file.values(key))


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    file = open_model(write_checkpoint(tmp_path / "m", "qwen3", **SIZES))
    assert "lm_head" not in file.tensors
    found = quantised(file, "int4_g32", "q8_0")
    assert {info.format for name, info in found.tensors.items() if info.rows > 1} == {"int4_g32", "q8_0"}
    assert found.tensors["embed_tokens"].format == "q8_0"


def test_a_plan_of_memory_knows_the_formats(file: ModelFile) -> None:
    plan = memory_plan(quantised(file, "q4_k", "q8_0"))
    layers = sum(
        weight_format("q4_k").nbytes(info.rows, info.cols)
        for key, info in file.tensors.items()
        if key in matrices(file) - HEAD
    )
    assert plan.formats["q4_k"] == layers
    assert plan.formats.keys() == {"q4_k", "q8_0", ""}


def unreadable(file: ModelFile) -> ModelFile:
    def read() -> Any:
        raise AssertionError("a weight was read")

    return replace(file, held={name: replace(one, read=read) for name, one in file.held.items()})


@pytest.mark.parametrize(("option", "tensor"), [("quantise", "blk.0.attn_q.weight"), ("quantise_head", "token_embd")])
def test_columns_that_a_format_cannot_have_are_refused_before_a_weight_is_read(
    option: str, tensor: str, tmp_path: Path
) -> None:
    file = unreadable(open_model(write_gguf(tmp_path / "m.gguf", "llama")))
    with pytest.raises(SpecError, match=rf"^{option}: .*{tensor}.* in q4_k: cols: .* \(got 64") as wrong:
        quantised(file, **{option: "q4_k"})
    possible = str(wrong.value).partition("possible are ")[2].split(", ")
    for name in weight_formats():
        if name in possible:
            quantised(file, **{option: name})
        else:
            with pytest.raises(SpecError):
                quantised(file, **{option: name})


@pytest.mark.parametrize("option", ["quantise", "quantise_head"])
@pytest.mark.parametrize(("name", "text"), [("q4k", "(got 'q4k'; nearest: q4_k)"), (4, "(got 4)"), ([], "(got [])")])
def test_unknown_formats_are_refused(option: str, name: Any, text: str, file: ModelFile) -> None:
    with pytest.raises(SpecError, match=rf"^{option}: must be one of .*{re.escape(text)}$"):
        quantised(file, **{option: name})


def test_what_is_quantised_already_stays_or_is_warned_of(tmp_path: Path) -> None:
    file = open_model(write_gguf(tmp_path / "m.gguf", "llama", as_type(Type.Q8_0), **SIZES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same, plain = quantised(file, "q8_0", "q8_0"), quantised(file, "bf16")
    assert same == file
    np.testing.assert_allclose(plain.values("layers.0.q_proj"), file.values("layers.0.q_proj"), rtol=2**-8)
    with pytest.warns(
        ConfigWarning, match="m.gguf: 7 matrices are quantised already, in q8_0: q4_k adds its error"
    ) as warned:
        again = quantised(file, "q4_k")
    assert [one.filename for one in warned] == [__file__]
    made = weight_format("q4_k").quantise(file.values("layers.0.q_proj"))
    np.testing.assert_array_equal(again.read("layers.0.q_proj")["blocks"], made["blocks"])
    assert again.stored("layers.0.q_proj").keys() == {"blocks"}
    np.testing.assert_array_equal(again.stored("layers.0.q_proj")["blocks"], file.read("layers.0.q_proj")["blocks"])


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16])
@pytest.mark.filterwarnings("error")
def test_what_is_not_quantised_is_not_warned_of(kind: Type, tmp_path: Path) -> None:
    file = open_model(write_gguf(tmp_path / "m.gguf", "llama", as_type(kind)))
    assert quantised(file, "q8_0").tensors["layers.0.q_proj"].format == "q8_0"


def changed(tmp_path: Path, change: Any) -> ModelFile:
    """A model in f32 whose `o_proj` is changed."""

    def convert(name: str, values: np.ndarray) -> tuple[np.ndarray, None]:
        return (change(values.copy()) if name.endswith("o_proj") else values), None

    return open_model(write_gguf(tmp_path / "m.gguf", "llama", convert, **SIZES))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_named(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.models.files.quantise._AT_ONCE", 1)

    def change(values: np.ndarray) -> np.ndarray:
        values[200, 7] = value
        return values

    file = quantised(changed(tmp_path, change), "q8_0")
    with pytest.raises(
        FileError, match=rf"m.gguf: blk.0.attn_output.weight: must be finite \(got {value} at \[200, 7]"
    ):
        file.read("layers.0.o_proj")


@pytest.mark.parametrize("name", weight_formats())
@pytest.mark.parametrize("factor", [1e-12, 1e9, 1e38])
def test_values_beyond_a_formats_range_are_refused_and_others_close(name: str, factor: float, tmp_path: Path) -> None:
    source = changed(tmp_path, lambda values: values / np.abs(values).max() * np.float32(factor))
    file, values = quantised(source, name), source.values("layers.0.o_proj").astype(np.float64)
    if name in ("f32", "bf16") or name.startswith("e4m3"):  # whose scales are f32
        difference = file.values("layers.0.o_proj") - values
        assert np.sqrt((difference**2).sum()) <= 0.1 * np.sqrt((values**2).sum())
        return
    with pytest.raises(FileError, match=rf"attn_output.weight: its values are beyond the range of {name} \(their root"):
        file.read("layers.0.o_proj")


@pytest.mark.parametrize("name", weight_formats())
def test_a_matrix_of_zeros_stays_zeros(name: str, tmp_path: Path) -> None:
    file = quantised(changed(tmp_path, np.zeros_like), name)
    assert not file.values("layers.0.o_proj").any()


def test_what_is_quantised_twice_is_quantised_once_from_the_file(file: ModelFile) -> None:
    once, twice = quantised(file, "q8_0"), quantised(quantised(file, "q4_0"), "q8_0")
    name = "layers.0.q_proj"
    assert np.array_equal(once.values(name), twice.values(name))
    back = quantised(quantised(file, "q4_0"), file.tensors[name].format)
    assert np.array_equal(back.values(name), file.values(name))
    assert quantised(quantised(file, "q4_0"), None, "q8_0").tensors[name].format == "q4_0"


def test_values_of_a_fused_tensor_are_named_by_their_part(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", "phi3", **SIZES)
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays["model.layers.0.self_attn.qkv_proj.weight"][-1, 7] = np.nan  # the last row of v
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    file = quantised(open_model(folder), "q8_0")
    file.read("layers.0.k_proj")
    with pytest.raises(FileError, match=r"qkv_proj.weight, of it layers.0.v_proj: must be finite \(got nan at \["):
        file.read("layers.0.v_proj")
