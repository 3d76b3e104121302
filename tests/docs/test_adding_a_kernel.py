"""docs/adding-a-kernel.md: its example is a kernel type that generates, runs and matches its reference."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ptxgen import kernel
from ptxgen.generator import _generate
from ptxgen.kernel import KernelType, supports
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import target
from tests.support.demo_kernel import demo_template

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "adding-a-kernel.md"


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return str(found)


@pytest.fixture
def scale_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[KernelType]]:
    """The class of the document's Python block, with its template, for one test."""
    module = ModuleType("scale_rows")
    monkeypatch.setitem(sys.modules, "scale_rows", module)
    with demo_template(block("jinja"), "scale_rows"):
        exec(compile(block("python"), str(DOCUMENT), "exec"), vars(module))
        yield module.ScaleRows
    del kernel._REGISTRY["scale_rows"]


def test_the_example_generates_runs_and_matches_its_reference(scale_rows: type[KernelType]) -> None:
    device = CpuDevice(mode="check")
    for fields in scale_rows.goldens:
        spec = scale_rows(**fields)
        for name in scale_rows.golden_targets:
            assert _generate(spec, target(name)).text.startswith(f"// {spec!r} for {name}\n")
            trial(spec, device, target=name, seed=1).require()


def test_the_example_refuses_what_it_does_not_take(scale_rows: type[KernelType]) -> None:
    reasons = supports({"kernel_type": "scale_rows", "dim": 2000, "dtype": "f16"}, "sm_80").reasons
    assert [reason.partition(":")[0] for reason in reasons] == ["dim", "dtype"]


def test_commands_of_the_document_exist() -> None:
    lines = block("console").splitlines()
    assert len(lines) >= 4
    for line in lines:
        words = line.removeprefix("$ ptxgen ").partition("#")[0].split()
        command = words[: next(i for i, word in enumerate(words) if word == "scale-rows")]
        done = subprocess.run([sys.executable, "-m", "ptxgen", *command, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, line
        assert all(word in done.stdout for word in words if word.startswith("--") and word != "--dim"), line
