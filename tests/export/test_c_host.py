"""The host in C: it compiles without CUDA headers, says what is missing, and on a GPU decodes an exported model."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ptxgen.export.program import export_program
from ptxgen.models.reference import ReferenceModel
from ptxgen.runtime.core.device import Device
from tests.support.array_file import ArrayFile
from tests.support.families import random_weights, small_spec

SOURCE = Path(__file__).parents[2] / "examples" / "c_host" / "decode.c"
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


@pytest.mark.gpu
def test_it_decodes_as_the_float64_model_does(host: Path, gpu: Device, tmp_path: Path) -> None:
    spec = small_spec("llama")
    file = ArrayFile(spec, random_weights(spec), "q8_0")
    export_program(file, gpu.target, tmp_path / "model", kv_dtype="f32", cubin=False)
    shown = subprocess.run([host, tmp_path / "model", "1", "16"], capture_output=True, text=True, check=True).stdout
    assert [int(word) for word in shown.split()] == ReferenceModel(file.spec, file.values()).generate([1], 16)
