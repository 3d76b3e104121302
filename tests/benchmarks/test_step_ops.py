"""The benchmark of a step's ops: ends of launches from graphs of the first ones, tables, the picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from benchmarks import step_ops
from benchmarks.report.rows import Run
from benchmarks.steps import bound_step
from benchmarks.steps.bound_step import Bound
from benchmarks.steps.our_steps import Ours, case_of
from ptxgen.kernels import DigitGemm
from ptxgen.runtime.cpu.device import CpuDevice
from tests.benchmarks.test_decode_step import LLAMA


class Spec(NamedTuple):
    kernel_name: str
    role: str


class Known(Bound):
    """A step whose launches take 1, 2, 3 … µs each, with 7 µs around a graph."""

    def us(self, launches: Sequence[Any], steps: int = 0, repeats: int = 0) -> float:
        return 7 + sum(float(each) for each in launches)


def known(layers: int) -> Known:
    roles = [("embedding", -1), *((role, layer) for layer in range(layers) for role in ("qkv", "mlp")), ("head", -1)]
    specs = {role: Spec("gemv", role) for role, _ in roles}
    ops = [SimpleNamespace(role=r, layer=n, spec=specs[r], name=f"layers.{n}.{r}" if n >= 0 else r) for r, n in roles]
    step = SimpleNamespace(launches=list(range(1, len(ops) + 1)), program=SimpleNamespace(ops=ops))
    return Known(step, lambda: None, 9, None)


@pytest.mark.parametrize("layers", [1, 3])
def test_launches_add_what_they_take_in_the_step(layers: int) -> None:
    assert known(layers).adds() == list(map(float, known(layers).step.launches))


def test_the_first_launches_of_a_kernel_stand_for_the_others() -> None:
    bound = known(10)
    expected = [float(each) for each in bound.step.launches]
    first, count = 1, 2 * bound_step.SAMPLES  # of two kernels in turns
    expected[first + count : -1] = [2.0 + 5, 3.0 + 5] * 4  # means of 2, 4 .. 12 and 3, 5 .. 13
    assert bound.adds() == expected


def test_rows_of_ops_add_up_to_the_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bound_step, "op_bytes", lambda program, op, length: 100 * length)
    run, bound = Run("decode_step_ops", "a GPU"), known(3)
    run.add({"op": "read"}, "floor", us=1.0, bytes=1000)
    bound_step.measure(bound, run, case_of("m", "bf16", 1, 9), "ptxgen")
    timeline, *ops = run.rows[1:]
    assert timeline["ends"][-1] == sum(bound.step.launches)
    assert sum(row["us"] for row in ops) == sum(bound.step.launches)
    by_op = {row["case"]["op"]: row for row in ops}
    assert (by_op["qkv"]["us"], by_op["qkv"]["count"], by_op["qkv"]["bytes"]) == (2 + 4 + 6, 3, 3000)
    table = step_ops.table(run.rows)
    assert "m, bf16, batch 1, depth 9 (ptxgen): 43 µs, 8 launches" in table
    assert "| qkv | gemv | 3 | 0.0 | 12.0 | 27.9% | 4.00 |" in table
    pytest.importorskip("matplotlib", reason="the picture needs the extra plot")
    step_ops.plot(run.rows, "m/bf16", tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("impl", "digits"), [("ptxgen", 3), ("ptxgen-fast", 1)])
def test_a_step_of_several_sequences(impl: str, digits: int) -> None:
    run = Run("decode_step_ops", "the executor")
    ours = Ours(run, run, CpuDevice(), {"small": LLAMA | {"num_hidden_layers": 1}}, max_len=64, steps=1)
    bound = ours.bound("small", "bf16", 2, 8, impl)
    assert bound.program.ops[0].sizes == {"rows": 2}
    down = [op.spec for op in bound.program.ops if op.role == "down_proj"]
    assert [spec.digits for spec in down if isinstance(spec, DigitGemm)] == [digits]
    assert bound.us(bound.step.launches, 1, 1) > 0
