"""The benchmark of steps in one launch on the CPU executor: when CTAs have come where, and steps with other shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cases.models import MODELS, open_random
from benchmarks.persistent_step import TracedStep, compare, fields_of, other, table
from benchmarks.report import rows
from benchmarks.report.rows import Run
from benchmarks.steps.our_steps import at_depth
from ptxgen.runtime.cpu.device import CpuDevice

SMALL = MODELS["qwen2.5-1.5b"] | {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 6,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 128,
}  # fmt: skip


def test_when_ctas_have_come_where() -> None:
    model = open_random(SMALL, "bf16", 64, CpuDevice(), chunk=8, persistent=True)
    step, spec = other(model, TracedStep, group_parts=3)
    at_depth(model, 20)
    step.launch(model.stream)
    times = step._given["times"].numpy()  # type: ignore[attr-defined]
    assert spec.group_parts == 3
    assert times.shape[:2] == (9, spec.ctas)
    assert times[:, :, 3].any(1).all()  # rows of every op are published somewhere
    assert "| attention | taken " in table(times, spec.n_layers)


def test_steps_with_other_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    with Run("persistent_step", "cpu") as run:
        tries = ["group_parts=2,split_rows=16", "group_parts=6"]
        compare(run, SMALL, "small", tries, (0, 40), CpuDevice(), max_len=64, steps=1, repeats=1)
    found = rows.load("persistent_step")
    assert [(row["impl"], row["case"]["fields"]) for row in found[:4]] == [
        ("ptxgen", ""), *(("ptxgen-persistent", fields) for fields in ("", *tries)),
    ]  # fmt: skip
    assert [row["case"]["depth"] for row in found] == [0] * 4 + [40] * 4
    assert all(row["us"] > 0 and row["error"] < 1e-3 for row in found)


def test_fields_from_text() -> None:
    assert fields_of("group_parts=3,split_rows=64") == {"group_parts": 3, "split_rows": 64}
    assert fields_of("") == {}
