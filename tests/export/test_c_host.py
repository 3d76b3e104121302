"""The host in C: it compiles without CUDA headers, says what is missing, and on a GPU decodes an exported model."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptxgen.export.program import export_program
from ptxgen.models.files import open_model
from ptxgen.models.files.modelfile import ModelFile
from ptxgen.models.reference import ReferenceModel
from ptxgen.runtime.core.device import Device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = EXAMPLES / "c_host" / "decode.c"
COMPILER = shutil.which("cc")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    out = tmp_path_factory.mktemp("host") / "decode"
    command = [COMPILER, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-o", str(out), str(SOURCE)]
    subprocess.run([*command, "-ldl"], check=True)
    return out


def test_what_is_not_there_is_said(host: Path, tmp_path: Path) -> None:
    ran = subprocess.run([host, tmp_path], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (1, f"decode: {tmp_path}/program.json: cannot be opened\n")


def test_what_the_model_does_not_have_is_refused(host: Path, tmp_path: Path) -> None:
    listing = {"format": 1, "model": {"family": "llama", "vocab": 10, "max_len": 8}}
    (tmp_path / "program.json").write_text(json.dumps(listing))
    for words, said in ((["10"], "TOKEN: is none of this model"), (["1", "9"], "COUNT: is more than the cache has")):
        ran = subprocess.run([host, tmp_path, *words], capture_output=True, text=True)
        assert ran.returncode == 1
        assert said in ran.stderr


def small() -> tuple[ArrayFile, ReferenceModel]:
    """A llama of random weights, and its float64 model."""
    spec = small_spec("llama")
    file = ArrayFile(spec, random_weights(spec), "q8_0")
    return file, ReferenceModel(file.spec, file.values())


def shipped() -> tuple[ModelFile, ReferenceModel]:
    """The model of this repository, and its float64 model."""
    file = open_model(EXAMPLES / "models" / "kjv-q8_0.gguf", 128)
    return file, ReferenceModel(file.spec, {name: file.values(name) for name in file.tensors})


@pytest.mark.gpu
@pytest.mark.parametrize("of", [small, shipped])
def test_it_decodes_as_the_float64_model_does(
    of: Callable[[], tuple[Any, ReferenceModel]], host: Path, gpu: Device, tmp_path: Path
) -> None:
    file, reference = of()
    export_program(file, gpu.target, tmp_path / "model", kv_dtype="f32", cubin=False)
    shown = subprocess.run([host, tmp_path / "model", "1", "16"], capture_output=True, text=True, check=True).stdout
    assert [int(word) for word in shown.split()] == reference.generate([1], 16)
