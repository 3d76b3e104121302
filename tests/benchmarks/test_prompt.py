"""The benchmark of prompts on the CPU executor."""

from __future__ import annotations

import argparse

from benchmarks import prompt
from benchmarks.report.rows import Run
from ptxgen.runtime.cpu.device import CpuDevice
from tests.benchmarks.test_decode_step import LLAMA


def test_rows_of_a_small_model() -> None:
    run = Run("prompt", "a GPU")
    prompt.ours(run, CpuDevice(), "small", "q4_k_m", models={"small": LLAMA}, tokens=4, depths=(0, 3), max_len=16)
    assert [(row["impl"], row["case"]["depth"]) for row in run.rows] == [
        ("ptxgen", 0), ("ptxgen", 3), ("ptxgen-fast", 0), ("ptxgen-fast", 3),
    ]  # fmt: skip
    assert all(row["us"] > 0 and row["case"]["tokens"] == 4 for row in run.rows)
    assert "| small | q4_k_m | 4 | 0 | 1 |" in prompt.table(run.rows)


def test_first_tokens_of_a_small_model() -> None:
    for impl in ("ptxgen-fast", *prompt.CACHES):
        run = Run("prompt", "a GPU")
        prompt.first_token(run, CpuDevice(), "small", impl, models={"small": LLAMA}, prompts=(4, 11), chunk=8)
        found = [(row["impl"], row["case"]["tokens"], row["case"]["weights"]) for row in run.rows]
        assert found == [(impl, 4, "bf16"), (impl, 11, "bf16")]


def test_first_tokens_have_tasks_of_their_own() -> None:
    given = argparse.Namespace(models="", weights="", first_token=True, transformers=True)
    made = list(prompt.tasks(Run("prompt", "a GPU"), CpuDevice(), None, given, 0.0))
    beside = ("ptxgen-fast", "transformers-cudnn")
    assert [task.impl for task in made] == [*3 * beside, *prompt.CACHES, *3 * ("ptxgen",)]


def test_tasks_begin_with_what_has_a_peer() -> None:
    given = argparse.Namespace(models="", weights="", first_token=False)
    made = list(prompt.tasks(Run("prompt", "a GPU"), CpuDevice(), None, given, 0.0))
    assert [task.case["weights"] for task in made[:4]] == ["q4_k_m", "q4_k_m", "q4_k_m", "bf16"]
    assert max(prompt.DEPTHS) + prompt.TOKENS <= prompt.MAX_LEN
