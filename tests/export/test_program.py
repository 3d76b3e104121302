"""A model in a folder: a script that reads nothing else decodes it, and what is written is what the listing says."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.errors import AssembleError, FileError
from ptxgen.export.program import export_program
from ptxgen.models.files import open_model
from ptxgen.models.reference import ReferenceModel
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec
from tests.support.stand_in_assemblers import LINKER, PTXAS, install

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "program" / "decode.py"
SHIPPED = EXAMPLES / "models" / "kjv-q8_0.gguf"


@pytest.fixture(scope="module")
def file() -> ArrayFile:
    spec = small_spec("llama")
    return ArrayFile(spec, random_weights(spec), "q8_0")


@pytest.fixture(scope="module")
def folder(file: ArrayFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "model"
    export_program(file, "sm_90", out, kv_dtype="f32", cubin=False)
    return out


def decoded(folder: Path, device: str = "cpu") -> list[int]:
    """16 tokens by the script."""
    command = [sys.executable, str(SCRIPT), str(folder), "--token", "1", "--count", "16", "--device", device]
    return [int(word) for word in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def test_a_script_decodes_the_folder_as_the_float64_model_does(file: ArrayFile, folder: Path) -> None:
    assert decoded(folder) == ReferenceModel(file.spec, file.values()).generate([1], 16)


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_script_decodes_the_shipped_model(where: str, tmp_path: Path) -> None:
    file = open_model(SHIPPED, 128)
    export_program(file, "sm_90", tmp_path / "model", kv_dtype="f32", cubin=False)
    values = {name: file.values(name) for name in file.tensors}
    assert decoded(tmp_path / "model", where) == ReferenceModel(file.spec, values).generate([1], 16)


def test_the_listing_holds_all_that_a_host_needs(folder: Path) -> None:
    listing = json.loads((folder / "program.json").read_text())
    assert listing["format"] == 1
    assert listing["target"] == "sm_90"
    assert {p.name for p in folder.iterdir()} == {"program.json", "weights.bin", "kernels"}
    assert {k["ptx"] for k in listing["kernels"]} == {f"kernels/{p.name}" for p in (folder / "kernels").iterdir()}
    assert (folder / "weights.bin").stat().st_size == listing["memory"]["weights"]["bytes"]
    for tensor in listing["tensors"].values():
        assert tensor["offset"] % 256 == 0
        assert tensor["offset"] + tensor["bytes"] <= listing["memory"][tensor["memory"]]["bytes"]
    for launch in listing["launches"]:
        assert launch["kernel"] < len(listing["kernels"])
        assert all(argument.keys() >= {"name"} for argument in launch["arguments"])
    assert {"tokens", "position", "length", "logits"} <= listing["tensors"].keys()


def test_the_script_refuses_what_the_folder_does_not_have(folder: Path, tmp_path: Path) -> None:
    decode = runpy.run_path(str(SCRIPT))["decode"]
    for where, token, count, said in (
        (tmp_path, 1, 1, "program.json: No such file"),
        (folder, 131, 1, r"token: must be from 0 to 130 \(got 131\)"),
        (folder, 1, 65, r"count: must be from 0 to 64 \(got 65\)"),
    ):
        with pytest.raises(SystemExit, match=said):
            decode(where, token, count, "cpu")


@pytest.mark.parametrize("there", [False, True])
def test_a_file_that_is_damaged_leaves_no_folder(
    file: ArrayFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    whole, read = ArrayFile.read, 0

    def damaged(self: ArrayFile, name: str) -> Mapping[str, np.ndarray]:
        nonlocal read
        read += 1
        if read == 5:
            raise FileError(f"{name}: is cut off")
        return whole(self, name)

    out = tmp_path / "out"
    if there:
        out.mkdir()
    monkeypatch.setattr(ArrayFile, "read", damaged)
    with pytest.raises(FileError, match="is cut off"):
        export_program(file, "sm_90", out, cubin=False)
    assert [*tmp_path.iterdir()] == [out] * there
    assert not there or not [*out.iterdir()]
    export_program(file, "sm_90", out, cubin=False)
    assert (out / "program.json").exists()


def test_a_folder_with_something_in_it_is_refused(file: ArrayFile, folder: Path) -> None:
    with pytest.raises(SpecError, match="must be a new or an empty folder"):
        export_program(file, "sm_90", folder)


def test_cubins_with_wgmma_are_never_nvjitlinks(
    file: ArrayFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no ptxas nothing is written, so that a second try finds no folder in its way."""
    monkeypatch.setattr("ptxgen.assembler.is_of_warpgroups", lambda text: True)
    install(monkeypatch, LINKER)
    with pytest.raises(AssembleError, match="wgmma gives wrong results"):
        export_program(file, "sm_90a", tmp_path / "model", kv_dtype="f32")
    assert not (tmp_path / "model").exists()
    install(monkeypatch, LINKER, PTXAS)
    listing = export_program(file, "sm_90a", tmp_path / "model", kv_dtype="f32")
    cubins = {kernel["cubin"] for kernel in listing["kernels"]}
    assert {(tmp_path / "model" / cubin).read_bytes() for cubin in cubins} == {b"ptxas 13.0"}


def test_rings_of_sliding_layers_decode_the_same_tokens(tmp_path: Path) -> None:
    """Windows of 8 in rings of 64, past their end; the caches of these layers are that small."""
    spec = small_spec("mistral", max_position_embeddings=160, sliding_window=8, num_hidden_layers=1)
    file = ArrayFile(spec, random_weights(spec), "f16")
    decode = runpy.run_path(str(SCRIPT))["decode"]
    found = []
    for rings in (0, 1):
        listing = export_program(file, "sm_80", tmp_path / str(rings), kv_dtype="f32", cubin=False, rings=rings)
        shape = listing["tensors"]["layers.0.k_cache"]["shape"]
        assert shape[1] == (64 if rings else 160)
        found.append(decode(tmp_path / str(rings), 1, 80, "cpu"))
    assert found[0] == found[1]
    assert len(set(found[0])) > 3
