"""The examples: short, right where their libraries are, one sentence where not; hosts built against a bundle."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.cli._main import invoke
from ptxgen.runtime.core.device import Device
from tests.docs.test_names import wrong
from tests.support.packages import ROOT

EXAMPLES = ROOT / "examples"
LIBRARIES = {"torch": "torch", "jax": "JAX", "cupy": "CuPy"}
MOST = 80
HOSTS = ("c_bundle/attend.c", "rust_bundle/attend.rs")


def run(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name / "decode.py")]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("path", [*(f"{name}/decode.py" for name in ("numpy", "program", *LIBRARIES)), *HOSTS])
def test_an_example_is_short_and_names_what_is_there(path: str) -> None:
    text = (EXAMPLES / path).read_text()
    assert len(text.splitlines()) <= MOST
    if path.endswith(".py"):
        assert list(wrong(text, set())) == []


def test_the_table_names_every_example_and_tests_that_are_there() -> None:
    text = (EXAMPLES / "README.md").read_text()
    named = re.findall(r"^\| \[(\w+)\]\((\w+)/", text, re.MULTILINE)
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert [name for name, _ in named] == [folder for _, folder in named]
    assert {name for name, _ in named} == folders
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(tests) >= len(folders)
    for file, name in tests:
        assert f"def {name}(" in (ROOT / file).read_text(), name


def test_numpy_on_the_cpu_executor() -> None:
    shown = run("numpy")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("32 positions, largest error")


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_not_there_is_one_sentence(name: str) -> None:
    if importlib.util.find_spec(name):
        return  # the tests below run it
    shown = run(name)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr == f"this example needs {LIBRARIES[name]}: No module named '{name}'\n"


def test_torch_compiles_a_step() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert "8 tokens of 2 sequences" in run("torch").stdout


@pytest.mark.gpu
@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_on_a_gpu(gpu: Device, name: str) -> None:
    pytest.importorskip(name, reason=f"{LIBRARIES[name]} is not installed")
    shown = run(name)
    assert shown.returncode == 0, shown.stderr
    assert "largest difference" in shown.stdout


# -- hosts in other languages, on one bundle ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host") / "bundle"
    config = str(EXAMPLES / "train" / "config.json")
    assert invoke(["export", "--config", config, "--target", "sm_80", "--no-cubin", "-o", str(folder)]) == 0
    return folder


def contracts(bundle: Path) -> dict[str, Any]:
    return {kernel["name"]: kernel for kernel in json.loads((bundle / "manifest.json").read_text())["kernels"]}


def build(bundle: Path, host: str) -> Path:
    """The program of a host; skips where its compiler is not there."""
    source, out = EXAMPLES / host, bundle.parent / host.partition("/")[0]
    compiler = "rustc" if source.suffix == ".rs" else "cc"
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler} on PATH")
    if compiler == "cc":
        options = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", str(bundle), str(source)]
        command = ["cc", *options, "-o", str(out), "-ldl", "-lm"]
    else:
        beside = Path(shutil.copy(source, bundle.parent))
        command = ["rustc", "--edition=2021", "-D", "warnings", "-o", str(out), str(beside)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def told(out: Path, bundle: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([out, bundle / "sm_80"], capture_output=True, text=True)


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_gives_every_parameter_of_the_manifest(bundle: Path, host: str) -> None:
    """Without a compiler: the fields that it fills, the entries and the files that it names."""
    text, kernels = (EXAMPLES / host).read_text(), contracts(bundle)
    for name in ("append", "decode"):
        wanted = {p["name"] for p in kernels[name]["parameters"]}
        if host.endswith(".rs"):
            (inside,) = re.findall(rf"{name}::Params \{{(.*?)\}}", text, re.DOTALL)
            given = set(re.findall(r"(\w+)(?=[:,]| *$)", re.sub(r"z\([^()]*(\(\))?\)|decode::\w+\(\)", "", inside)))
        else:
            variable = re.findall(rf"{name}_sm_80_params (\w)", text)[0]
            given = set(re.findall(r"\.(\w+) =", re.findall(rf"{name}_sm_80_params \w = \{{(.*?)\}};", text)[0]))
            given |= set(re.findall(rf"\b{variable}\.(\w+) = zeros", text))
        assert given == wanted, (host, name)
        called = rf"{name}::(\w+)" if host.endswith(".rs") else rf"{name}_sm_80_(\w+)"
        stub = (bundle / kernels[name]["files"]["rust" if host.endswith(".rs") else "c"]).read_text()
        assert all(re.search(rf"\b(?:{name}_sm_80_)?{word}\b", stub) for word in re.findall(called, text))


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_builds_without_a_warning_and_says_what_is_missing(bundle: Path, host: str) -> None:
    out = build(bundle, host)
    try:
        import ctypes

        ctypes.CDLL("libcuda.so.1")
    except OSError:
        shown = told(out, bundle)
        assert (shown.returncode, shown.stderr) == (1, "attend: no libcuda.so.1\n")


@pytest.mark.gpu
@pytest.mark.parametrize("host", HOSTS)
def test_a_host_attends_as_numpy_does(gpu: Device, bundle: Path, host: str) -> None:
    shown = told(build(bundle, host), bundle)
    assert shown.returncode == 0, shown.stderr
    found = np.array([line.split() for line in shown.stdout.splitlines()], float)
    values = np.sin(0.1 * np.arange(6 * 32) + np.arange(8)[:, None])
    q, kv = values.reshape(8, 6, 32), values[:, : 2 * 32].reshape(8, 2, 32).repeat(3, axis=1)
    for at in range(8):
        scores = np.einsum("hd,phd->hp", q[at], kv[: at + 1]) / np.sqrt(32)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        out = np.einsum("hp,phd->hd", weights / weights.sum(1, keepdims=True), kv[: at + 1])
        np.testing.assert_allclose(found[at], (out[0, 0], out[-1, -1]), atol=2e-5)
