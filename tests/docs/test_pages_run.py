"""The Python of pages that have no test of their own runs as it stands, behind what the page takes as given; so do the
commands of docs/targets-and-requirements.md and the first of docs/checking.md, which prints what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen import runtime
from ptxgen.cli._main import invoke
from ptxgen.kernels import KvCacheScatter
from tests.support.packages import ROOT

SPEC = KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2)
FILL = """.version 7.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 p) {
    .reg .u32 %t;
    .reg .u64 %a, %p;
    mov.u32 %t, %tid.x;
    ld.param.u64 %p, [p];
    mad.wide.u32 %a, %t, 4, %p;
    st.global.u32 [%a], %t;
    ret;
}
"""
RACE = """.version 7.0
.target sm_80
.address_size 64
.file 1 "kernel.py"
.visible .entry k(.param .u64 p)
{
    .reg .pred %first, %leads;
    .reg .u32 %t, %x0;
    .reg .u64 %a, %p;
    .shared .align 4 .b8 s[1024];
    mov.u32 %t, %tid.x;
    ld.param.u64 %p, [p];
    mad.wide.u32 %a, %t, 4, %p;
    setp.lt.u32 %first, %t, 32;
    setp.eq.u32 %leads, %t, 0;
    @!%first bra $read;
    .loc 1 11 0
    @%leads st.shared.u32 [s], %t;
    bar.warp.sync 0xffffffff;
    // no barrier of the CTA stands here

$read:
    .loc 1 12 0
    ld.shared.u32 %x0, [s];
    and.b32 %x0, %x0, 0;
    st.global.u32 [%a], %x0;
    ret;
}
"""
GIVEN: dict[str, dict[str, Any]] = {
    "how-it-works": {"ptxgen": ptxgen, "KvCacheScatter": KvCacheScatter},
    "model-files": {},
    "cpu-executor": {
        "runtime": runtime, "spec": SPEC, "text": FILL,
        "values": np.zeros(128, np.uint32),
    },
}  # fmt: skip


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"```{language}\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL
    )


@pytest.mark.parametrize("page", GIVEN)
def test_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    Path("theirs.ptx").write_text(FILL)
    names = dict(GIVEN[page])
    for block in blocks(page, "python"):
        exec(block, names)
    {"how-it-works": _a_text, "model-files": _a_model, "cpu-executor": _a_report}[page](names)


def _a_text(names: dict[str, Any]) -> None:
    assert names["ptx"].text.startswith("//")


def _a_model(names: dict[str, Any]) -> None:
    (said,) = re.findall(r"# (5 TensorInfo.*)", blocks("model-files", "python")[0])
    model = names["model"]
    assert said == f"{model.spec.shape.n_layers} {model.tensors['layers.0.q_proj']}"
    assert len(names["tokens"]) > 1


def _a_report(names: dict[str, Any]) -> None:
    assert names["module"]["kernel"]
    assert not names["report"].findings


def test_the_commands_of_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kernel.ptx").write_text(FILL)
    (block,) = blocks("targets-and-requirements", "console")
    commands = [shlex.split(line.removeprefix("$ ptxgen ")) for line in block.splitlines()]
    assert [invoke(words) for words in commands] == [0, 0]
    assert invoke([*commands[1][:-1], "7.5"]) == 1


def test_the_race_of_checking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kernel.ptx").write_text(RACE)
    Path("kernel.py").write_text("\n" * 11 + "    total = partial[0]\n")
    command, shown = blocks("checking", "console")[0].split("\n", 1)
    assert invoke(shlex.split(command.removeprefix("$ ptxgen "))) == 1
    assert shown in capsys.readouterr().out
