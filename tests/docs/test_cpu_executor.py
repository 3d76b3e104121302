"""docs/cpu-executor.md says what the committed rows say, and names what the executor has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import cpu_executor
from benchmarks.documents import cpu_executor as cpu_executor_document
from benchmarks.report.rows import load
from ptxgen import isa
from ptxgen.runtime.cpu.flow import registry
from ptxgen.runtime.cpu.flow.recursion import ON_THE_STACK

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "cpu-executor.md"


def test_the_figures_are_those_of_the_last_committed_run():
    text = DOCUMENT.read_text(encoding="utf-8")
    figures = text.partition(cpu_executor.MARKS[0])[2].partition(cpu_executor.MARKS[1])[0]
    wanted = cpu_executor_document.section(load("cpu_executor"))
    assert figures.strip() == wanted.strip(), "python -m benchmarks.cpu_executor --docs"


def test_the_figures_of_fuzzing_are_those_of_the_committed_rows():
    text = DOCUMENT.read_text(encoding="utf-8")
    written = text.partition(cpu_executor.FUZZ_MARKS[0])[2].partition(cpu_executor.FUZZ_MARKS[1])[0]
    assert written.strip() == cpu_executor_document.fuzzing(cpu_executor_document.fuzz_rows()).strip()


def test_fuzzing_counts_the_last_run_of_each_device():
    def row(device, programs, differences, **more):
        return {"case": {"device": device, "programs": programs}, "differences": differences, **more}

    rows = [row("fast", 10000, 4, note="both mended"), row("fast", 20000, 0), row("oracle", 600, 2, note="open")]
    said = cpu_executor_document.fuzzing(rows)
    assert "none in 20,000 programs in fast mode; 2 in 600 programs in the NumPy interpreter" in said
    assert "Before: 4 in 10,000 programs in fast mode (both mended)." in said


def test_the_first_run_is_told_apart_from_being_ready():
    said = cpu_executor_document.section(load("cpu_executor"))
    rows = [r for r in load("cpu_executor") if r["case"].get("cache") == "object cache"]
    assert len(rows) == len(cpu_executor.CASES)
    for row in rows:
        name = cpu_executor_document.NAMES[row["case"]["kernel"]]
        (line,) = (words for words in said.splitlines() if words.startswith(f"| {name} | ") and words.count("|") == 9)
        assert f"| {row['load_cpu_ms']:.1f} | {row['cpu_ms']:.1f} | {row['least_ms']:.1f} |" in line
    assert f"to {max(row['cpu_ms'] for row in rows):.1f} ms of CPU time" in said
    assert f"to {max(row['open_cpu_ms'] for row in rows):.0f} ms, and importing llvmlite" in said


def test_what_check_mode_costs_is_shown_for_the_dearest_kernels_too():
    said = cpu_executor_document.section(load("cpu_executor"))
    table = said.partition("| check ÷ fast |")[2].partition("\n\n")[0]
    ratios = [float(line.split("|")[-2]) for line in table.splitlines() if line.endswith(" |") and "---" not in line]
    assert len(ratios) == len(cpu_executor.CASES) + len(cpu_executor.CHECKED)
    assert ratios == sorted(ratios)
    assert f"{ratios[0]:.1f} to {ratios[-1]:.1f} times as long as fast mode" in said


def test_a_process_of_the_benchmark_pays_for_no_threads_of_blas(tmp_path, monkeypatch):
    seen = {}

    def started(command, **options):
        seen.update(options["env"])
        return subprocess.CompletedProcess(command, 0, stdout='{"ms": 1.0}')

    monkeypatch.setattr(cpu_executor.subprocess, "run", started)
    assert cpu_executor._in_a_process("sgemm", str(tmp_path), str(tmp_path)) == {"ms": 1.0}
    assert seen["OPENBLAS_NUM_THREADS"] == "1"


def test_what_the_limits_name_is_what_the_executor_lacks():
    limits = DOCUMENT.read_text(encoding="utf-8").partition("## Limits")[2].partition("## Figures")[0]
    supported = {words.partition(".")[0] for words in registry.opcodes()}
    named = {"multimem", "clusterlaunchcontrol"}
    spelled_out = {"tensormap", "wmma"}  # in other instructions, as docs/compilers.md says
    spelled_out |= ON_THE_STACK  # in instructions of the flow
    assert not named & supported
    assert set(isa.opcodes()) - supported - spelled_out - {"call"} <= named
    for name in (*named, "recursion", "vprintf", "malloc", "im2col", "alloca", "sparse"):
        assert name in limits, name


@pytest.mark.parametrize("name", cpu_executor.CASES)
def test_what_the_benchmark_runs_is_right(name):
    case = cpu_executor.CASES[name]()
    launch, arguments, expected = cpu_executor.bound(case, cpu_executor.open_device("cpu"))
    launch.launch()
    assert case.error(arguments, expected) < 1e-3


def test_a_kernel_grows_by_whole_ctas():
    for make in cpu_executor.SCALED.values():
        small, large = make(1), make(4)
        assert large.ctas == 4 * small.ctas


def test_rounds_alternate_and_are_summed_up_by_their_medians():
    order: list[str] = []
    rows = cpu_executor.median_ms([lambda: order.append("a"), lambda: order.append("b")], 3, 0.0)
    assert order == ["a", "b"] * 3
    assert all(0 <= row["least_ms"] <= row["ms"] for row in rows)


def test_a_process_accounts_for_every_part_of_its_beginning():
    measured = cpu_executor.first("sgemm")
    parts = {f"{name}{clock}" for name in ("llvmlite_", "open_", "load_", "") for clock in ("ms", "cpu_ms")}
    assert measured.keys() == parts
    assert measured["ms"] > measured["load_ms"] > 0
