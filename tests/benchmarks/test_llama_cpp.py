"""llama.cpp as a peer, with a compiler and programs that only write down what they were told."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from benchmarks import decode_step, prompt
from benchmarks.cases.models import MODELS
from benchmarks.peers import llama_cpp
from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.report import rows
from benchmarks.report.command import command
from benchmarks.report.rows import Run
from benchmarks.steps import bound_step, our_steps
from ptxgen.runtime.cpu.device import CpuDevice
from tests.benchmarks.test_decode_step import LLAMA
from tests.benchmarks.test_transformers_step import peer

CMAKE = """#!/bin/bash
echo "$@" >> "$(dirname "$0")/said"
[ "$1" = --build ] || exit 0
[ -e "$(dirname "$0")/broken" ] && echo "no compiler" && exit 3
mkdir -p "$2/bin"
for name in llama-bench llama-batched-bench; do cp "$(dirname "$0")/$name" "$2/bin/"; done
"""
BENCH = r"""#!/bin/bash
echo "loading $3" >&2
while [ $# -gt 0 ]; do case $1 in -p) p=$2;; -n) n=$2;; esac; shift; done
for d in 0 4096; do echo "{\"n_prompt\": $p, \"n_gen\": $n, \"n_depth\": $d, \"avg_ts\": 500.0}"; done
"""
BATCHED = r"""#!/bin/bash
for pp in 512 4096; do for pl in 8 32; do echo "{\"pp\": $pp, \"pl\": $pl, \"tg\": 32, \"t_tg\": 0.064}"; done; done
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in (("cmake", CMAKE), ("llama-bench", BENCH), ("llama-batched-bench", BATCHED)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(MODELS, "small", LLAMA)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "CMakeLists.txt").write_text("project(llama.cpp)\n")
    path = tmp_path / "source.tar.xz"
    with tarfile.open(path, "w:xz") as packed:
        packed.add(tmp_path / "CMakeLists.txt", "CMakeLists.txt")
    return path


def built(made: LlamaCpp) -> LlamaCpp:
    waits(made)
    return made


def test_a_build_has_both_programs_and_is_made_once(tools: Path, source: Path, tmp_path: Path) -> None:
    built(LlamaCpp(source, tmp_path / "work"))
    configure, build = (tools / "said").read_text().splitlines()
    assert "-DCMAKE_CUDA_ARCHITECTURES=90a -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON" in configure
    assert build.endswith("--target llama-bench llama-batched-bench")
    assert built(LlamaCpp(source, tmp_path / "work"))._building is None
    assert len((tools / "said").read_text().splitlines()) == 2


def test_a_build_that_fails_says_why(tools: Path, source: Path, tmp_path: Path) -> None:
    (tools / "broken").touch()
    with pytest.raises(RuntimeError, match="no compiler"):
        built(LlamaCpp(source, tmp_path / "work"))


def test_two_at_once_make_one_build(tools: Path, source: Path, tmp_path: Path) -> None:
    both = [LlamaCpp(source, tmp_path / "work") for _ in range(2)]
    assert all(made._building is not None for made in both)
    assert [built(made)._building for made in both] == [None, None]
    assert len((tools / "said").read_text().splitlines()) == 2


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_programs_that_are_built_already(packed: bool, tools: Path, tmp_path: Path) -> None:
    (tmp_path / "ready" / "bin").mkdir(parents=True)
    for name in llama_cpp.TARGETS:
        (tmp_path / "ready" / "bin" / name).write_bytes((tools / name).read_bytes())
        (tmp_path / "ready" / "bin" / name).chmod(0o755)
    source = tmp_path / "ready"
    if packed:
        source = tmp_path / "ready.tar.xz"
        with tarfile.open(source, "w:xz") as archive:
            archive.add(tmp_path / "ready", ".")
    made = built(LlamaCpp(source, tmp_path / "work"))
    (row, _) = made.bench(tmp_path / "any.gguf", 9, prompt=0, tokens=4, depths=(0,))
    assert (row["n_gen"], row["avg_ts"]) == (4, 500.0)
    assert not (tools / "said").exists()


def test_a_folder_without_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="without llama-bench and llama-batched-bench"):
        LlamaCpp(tmp_path, tmp_path / "work")


def test_rows_of_its_programs(tools: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "POSITIONS", 64)
    made, run, ends = built(LlamaCpp(source, tmp_path / "work")), Run("some", "a GPU"), time.monotonic() + 60
    decode_step.llama_single(run, made, nullcontext, "small", (0, 4096), ends)
    decode_step.llama_batches(run, made, nullcontext, "small", (8, 32), (512, 4096), ends)
    prompt.llama_prompts(run, made, "small", ends)
    found = [json.dumps([*row["case"].values()]) + f" {row['impl']} {row['us']:g}" for row in run.rows]
    assert found == [
        '["small", "q4_k_m", 1, 0] llama.cpp 2000',
        '["small", "q4_k_m", 1, 4096] llama.cpp 2000',
        '["small", "q4_k_m", 8, 512] llama.cpp 2000',
        '["small", "q4_k_m", 32, 512] llama.cpp 2000',
        '["small", "q4_k_m", 8, 4096] llama.cpp 2000',
        '["small", "q4_k_m", 32, 4096] llama.cpp 2000',
        '["small", "q4_k_m", 512, 0, 1] llama.cpp 1.024e+06',
        '["small", "q4_k_m", 512, 4096, 1] llama.cpp 1.024e+06',
    ]
    assert llama_cpp.path_of(tmp_path / "work", "small").exists()


def test_files_are_written_beside(tools: Path, source: Path, tmp_path: Path) -> None:
    made = built(LlamaCpp(source, tmp_path / "work"))
    made.write(["no-such-model"])
    with pytest.raises(RuntimeError, match=r"files.log: exit 1: (?s:.)*no-such-model"):
        waits(made, "no-such-model")


def waits(made: LlamaCpp, name: str = "") -> None:
    while not made.ready(name):
        time.sleep(0.01)


def test_a_run_goes_on_past_what_fails(
    tools: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of `main` on the CPU executor, where the floor cannot be had."""
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(llama_cpp, "POSITIONS", 64)
    monkeypatch.setattr(LlamaCpp, "write", lambda made, names: [made.file(name) for name in names])
    monkeypatch.setattr("ptxgen.runtime.open_device", lambda name: CpuDevice())
    monkeypatch.setattr(decode_step, "gpu", lambda: "none")
    monkeypatch.setattr(decode_step, "FIRST", (("small", "q4_k_m"), ("small", "bf16")))
    monkeypatch.setattr(decode_step, "MORE", (("small", "q8_0"),))
    monkeypatch.setattr(decode_step, "DEPTHS", {1: (0, 8), 2: (), 4: (), 8: (8,), 32: ()})
    monkeypatch.setattr(decode_step, "ROLES", {(1, 8): decode_step.FIRST, (2, 8): (("small", "bf16"),)})
    monkeypatch.setattr(decode_step, "Ours", partial(decode_step.Ours, models={"small": LLAMA}, max_len=64, steps=1))
    monkeypatch.setattr(decode_step, "TRANSFORMERS", (((1, 8), (4, 8), (2, 8)),))
    monkeypatch.setattr(sys, "executable", str(peer(tmp_path)))
    measured = bound_step.graph_us
    for module in (bound_step, our_steps):
        monkeypatch.setattr(
            module, "graph_us", lambda device, graph, place, *_, **__: measured(device, graph, place, 1, 1)
        )
    argv = ["--seconds", "900", "--llama", str(source), "--work", str(tmp_path / "work")]
    command("decode_step", "", decode_step.main, *decode_step.OPTIONS, table=decode_step.table, argv=argv, at_once=True)
    found = rows.load("decode_step")
    counts = {impl: sum(row["impl"] == impl and "us" in row for row in found) for impl in decode_step.IMPLS}
    ours = {"ptxgen": 9, "ptxgen-fast": 3, "ptxgen-persistent": 2}
    assert counts == ours | {"llama.cpp": 6, "transformers-compiled": 1, "floor": 0}
    assert {(row["impl"], row["why"][:9]) for row in found if "why" in row if row["impl"] != "floor"} == {
        ("transformers-compiled", "no memory"),
        ("transformers-compiled", "RuntimeEr"),
    }
    ops = {(row["case"]["weights"], row["impl"], row["case"]["op"]) for row in rows.load("decode_step_ops")}
    assert {("q4_k_m", "ptxgen", "lm_head"), ("bf16", "ptxgen-fast", "qkv_append")} <= ops
