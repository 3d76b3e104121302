"""docs/adding-a-kernel.md: its examples are kernel types that generate, run and match their references."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ptxgen import kernel
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32
from ptxgen.errors import ExecutionError, SpecError
from ptxgen.generator import _generate, clear_cache
from ptxgen.golden import Goldens
from ptxgen.kernel import KernelType, supports
from ptxgen.launch import Launch, Param, buffer
from ptxgen.render import environment
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.targets import Target, target
from tests.support.demo_kernel import demo_template
from tests.support.guide import EXAMPLES, PAGE, example, part


@contextmanager
def registered(name: str) -> Iterator[type[KernelType]]:
    """An example's class with its template. Both have another name than on the page: a copy of the repository to which
    the page's files were added has kernel types of those."""
    python, template = example(name)
    title, module = "".join(map(str.capitalize, name.split("_"))), ModuleType(f"of_page_{name}")
    sys.modules[module.__name__] = module
    try:
        with demo_template(template, module.__name__):
            exec(compile(python.replace(title, f"OfPage{title}"), str(PAGE), "exec"), vars(module))
            yield vars(module)[f"OfPage{title}"]
    finally:
        kernel._REGISTRY.pop(module.__name__, None)
        del sys.modules[module.__name__]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_generates_runs_and_matches_its_reference(name: str) -> None:
    device = CpuDevice(mode="check")
    with registered(name) as cls:
        for fields in cls.goldens:
            spec = cls(**fields)
            for where in cls.golden_targets:
                if supports(spec, where):
                    assert _generate(spec, target(where)).text.startswith(f"// {spec!r} for {where}\n")
                    trial(spec, device, target=where, seed=1).require()


def test_the_first_example_refuses_what_it_does_not_take() -> None:
    with registered(EXAMPLES[0]) as cls:
        reasons = supports({"kernel_type": cls.kernel_name, "dim": 2000, "dtype": "f16"}, "sm_80").reasons
    assert [reason.partition(":")[0] for reason in reasons] == ["dim", "dtype"]


def test_mistakes_in_what_tests_need_to_know_name_the_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice()
    with registered(EXAMPLES[0]) as cls, monkeypatch.context() as patch:
        spec = cls(**cls.goldens[0])
        for wrong in ({"y": 1}, 1):
            patch.setattr(cls, "reference", lambda self, wrong=wrong, **arguments: wrong)
            with pytest.raises(SpecError, match=r"ScaleRows\.reference: must be a dict by out \(got (y|int)\)"):
                trial(spec, device)
        patch.setattr(cls, "given", KernelType.given)
        with pytest.raises(TypeError, match=r"factor: a scalar needs a value, from given\(\)"):
            spec.example(np.random.default_rng(0))
        patch.setattr(cls, "goldens", (dict(dims=64),))
        with pytest.raises(SpecError, match=r"ScaleRows\.goldens: .*'dims'"):
            Goldens(tmp_path, {cls.kernel_name}).cases()


@dataclass(frozen=True)
class Reversed(KernelType):
    """x, with its first element for its last; by the page's function."""

    dim: int = 77
    kernel_name = "reversed"

    def params(self) -> tuple[Param, ...]:
        return (buffer("x", f32, self.dim, access="inout"),)

    def launch(self, target: Target) -> Launch:
        return Launch((1, 1, 1), (96, 1, 1))

    def build(self, b: Builder) -> None:
        with b.fragment("load"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            inside = b.op("setp.lt.u32", "inside", thread, self.dim)
            place = b.op("mad.wide.u32", "place", thread, 4, b.ld_param("x"))
            value = b.op("ld.global.f32", "value", place[0], pred=inside)
        names: dict[str, Any] = {"Builder": Builder, "Reg": Reg}
        exec(part("python", "b.shared("), names)
        names["reverse"](b, thread, inside, value, self.dim)
        with b.fragment("store"):
            b.op("st.global.f32", place[0], value, pred=inside)

    def reference(self, **arguments: Any) -> dict[str, Any]:
        return {"x": arguments["x"][::-1].copy()}


@pytest.mark.parametrize("barrier", ["{{ barrier() }}\n", ""], ids=["with", "without"])
def test_the_exchange_through_shared_memory_needs_its_barrier(barrier: str) -> None:
    lines = part("jinja", "{{ take }}").replace("{{ barrier() }}\n", barrier)
    head = '{% extends "entry.ptx.j2" %}\n{% from "flow.ptx.j2" import barrier %}\n{% block body %}\n{{ load }}\n'
    clear_cache()
    with demo_template(f"{head}{lines}{{{{ store }}}}\n{{% endblock %}}\n", "reversed"):
        if barrier:
            trial(Reversed(), CpuDevice(mode="check"), target="sm_75").require()
        else:
            with pytest.raises(ExecutionError, match="race"):
                trial(Reversed(), CpuDevice(mode="check"), target="sm_75")
    clear_cache()


def test_the_macros_of_the_page_take_what_it_says() -> None:
    flow: Any = environment().get_template("flow.ptx.j2").module
    stated = re.findall(r"^\| `\{[%{] (?:call(?:\(\w+\))? )?((\w+)\([^`]*\)) [%}]\}` \|", PAGE.read_text(), re.M)
    assert len(stated) > 5
    assert [call for call, _ in stated] == [flow.signature(name) for _, name in stated]


def test_the_rms_norm_is_short() -> None:
    """The whole file and the whole template, with empty lines, imports and docstrings."""
    python, template = example("norm_rows")
    assert python.count("\n") <= 54
    assert template.count("\n") <= 16


def test_commands_of_the_document_exist() -> None:
    block = part("console", "ptxgen generate")
    lines = block.splitlines()
    assert len(lines) >= 4
    for line in lines:
        words = line.removeprefix("$ ptxgen ").partition("#")[0].split()
        command = words[: next(i for i, word in enumerate(words) if word == "scale-rows")]
        done = subprocess.run([sys.executable, "-m", "ptxgen", *command, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, line
        assert all(word in done.stdout for word in words if word.startswith("--") and word != "--dim"), line
