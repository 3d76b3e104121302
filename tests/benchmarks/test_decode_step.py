"""The benchmark of whole decode steps on the CPU executor: random models, their files, rows of ours."""

from __future__ import annotations

import argparse
import functools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks import decode_step
from benchmarks.cases.models import MIXES, MODELS, cache_bytes, open_random, random_model, weight_bytes
from benchmarks.peers import llama_cpp
from benchmarks.peers.gguf_files import write_gguf
from benchmarks.peers.pauses import members, paused
from benchmarks.report import rows
from benchmarks.report.rows import Run
from benchmarks.steps import our_steps
from benchmarks.steps.our_steps import Ours
from ptxgen.models.files import open_model
from ptxgen.models.packing import formats_of
from ptxgen.models.step.decode import step_program
from ptxgen.runtime import Model
from ptxgen.runtime.cpu.device import CpuDevice

SMALL = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 128}  # fmt: skip
LLAMA = MODELS["llama-3-8b"] | SMALL
QWEN = MODELS["qwen2.5-1.5b"] | SMALL
MEGABYTES = {  # of llama.cpp's files
    ("tinyllama-1.1b", "q4_k_m"): 667, ("qwen2.5-1.5b", "q4_k_m"): 980, ("llama-3-8b", "q4_k_m"): 4913,
    ("llama-3.2-1b", "bf16"): 2472, ("llama-3-8b", "bf16"): 16060,
}  # fmt: skip


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(rows, "commit", lambda: "abc")
    return tmp_path


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice()


@pytest.mark.parametrize(("name", "weights"), MEGABYTES)
def test_weights_are_as_large_as_the_real_ones(name: str, weights: str) -> None:
    source = random_model(MODELS[name], weights, 4608)
    program = step_program(source.spec, formats_of(source), kv_dtype="f16")
    found = sum(tensor.nbytes for tensor in program.of_kind("weight"))
    assert found / 1e6 == pytest.approx(MEGABYTES[name, weights], rel=0.01)
    table = 0 if source.spec.tied else program.tensors["embed_tokens"].nbytes
    assert weight_bytes(program) == found - table
    shape = source.spec.shape
    assert cache_bytes(program, 100) == 100 * shape.n_layers * shape.n_kv_heads * shape.head_dim * 2 * 2


def test_half_of_the_layers_have_larger_values() -> None:
    formats = formats_of(random_model(MODELS["llama-3-8b"], "q4_k_m", 64))
    for name, count in (("v_proj", 16), ("down_proj", 16), ("q_proj", 0), ("lm_head", 1), ("embed_tokens", 0)):
        assert sum(format == "q6_k" for each, format in formats.items() if each.endswith(name)) == count


@pytest.mark.parametrize("weights", MIXES)
@pytest.mark.parametrize("config", [LLAMA, QWEN], ids=["llama", "qwen2"])
def test_weights_on_the_device_are_those_that_the_source_reads(
    device: CpuDevice, config: dict[str, Any], weights: str
) -> None:
    made = open_random(config, weights, 64, device, chunk=8)
    read = Model(made.source, device, "f16", chunk=8)
    for name, buffer in read.steps.weights.items():
        np.testing.assert_array_equal(made.steps.weights[name].numpy(), buffer.numpy(), name)
    logits = made.forward(3)
    assert np.isfinite(logits).all()
    assert logits.std() > 0


@pytest.mark.parametrize(("config", "weights"), [(LLAMA, "q4_k_m"), (QWEN, "q4_k_m"), (LLAMA, "bf16"), (QWEN, "q8_0")])
def test_a_file_has_the_same_weights(results: Path, config: dict[str, Any], weights: str) -> None:
    model = random_model(config, weights, 64)
    file = open_model(write_gguf(results / "model.gguf", model))
    assert formats_of(file) == formats_of(model)
    assert (file.spec.dim, file.spec.hidden, file.spec.tied) == (model.spec.dim, model.spec.hidden, model.spec.tied)
    for name in model.tensors:
        for key, values in model.read(name).items():
            np.testing.assert_array_equal(file.read(name)[key].reshape(values.shape), values, name)


def test_rows_of_a_small_model(device: CpuDevice) -> None:
    run, ops = Run("decode_step", "a GPU", at_once=True), Run("decode_step_ops", "a GPU", at_once=True)
    ours = Ours(run, ops, device, {"small": LLAMA}, max_len=64, steps=2)
    ours.floors = {1000: 1.0}
    ours.single("small", "q4_k_m", (0, 8))
    ours.batch("small", "q4_k_m", 3, (8,))
    ours.roles("small", "q4_k_m", 1, 8)
    found, floors = ([row for row in run.rows if row["impl"] == impl] for impl in ("ptxgen", "floor"))
    assert [(row["case"]["batch"], row["case"]["depth"]) for row in found] == [(1, 0), (1, 8), (3, 8)]
    assert all(math.isfinite(row[name]) and row["us"] > 0 for row in found for name in ("us", "host_us", "tbs"))
    assert [row["us"] for row in floors] == pytest.approx([row["bytes"] / 1000 for row in found], rel=1e-3)
    assert found[1]["bytes"] - found[0]["bytes"] == 8 * 2 * 2 * 64 * 2 * 2
    by_op = {row["case"]["op"]: row for row in ops.rows}
    assert {"embed_tokens", "lm_head", "attention", "gate_up", "down_proj", "qkv_append"} <= by_op.keys()
    assert by_op["attention"]["count"] == 2
    assert by_op["gate_up"]["bytes"] >= 2 * 2 * 512 * 256 * 144 / 256
    run.save()
    assert "| small | q4_k_m | 3 | 8 |" in decode_step.table(rows.load("decode_step"))


def test_the_deepest_case_fits() -> None:
    deepest = max(max(depths) for depths in our_steps.DEPTHS.values())
    assert deepest + 2 * our_steps.STEPS < our_steps.MAX_LEN


def test_tasks_begin_with_one_sequence_of_every_model(device: CpuDevice) -> None:
    run = Run("decode_step", "a GPU")
    ours = Ours(run, run, device)
    given = argparse.Namespace(models="", weights="", transformers=True)
    peers = dict.fromkeys(("llama-3.2-1b", "llama-3-8b"), [mock.Mock()] * len(decode_step.TRANSFORMERS))
    first = list(decode_step.alone(ours, given))
    assert [(task.case["model"], task.case["weights"]) for task in first[1:7]] == list(our_steps.FIRST)
    assert {task.impl for task in first} == {"floor", "ptxgen", "ptxgen-persistent"}
    made = list(decode_step.tasks(run, ours, None, peers, given, 0.0))
    assert {task.impl for task in made} == {"ptxgen", "ptxgen ops", "ptxgen-fast ops", "transformers-compiled"}
    ops = [(task.case["batch"], task.impl) for task in made if task.impl.endswith("ops")]
    assert ops == [(1, "ptxgen ops")] * 6 + [(8, "ptxgen ops"), (8, "ptxgen-fast ops")] * 3
    given = argparse.Namespace(models="llama-3.2-1b", weights="bf16", transformers=False)
    few = [*decode_step.alone(ours, given), *decode_step.tasks(run, ours, None, {}, given, 0.0)]
    assert {task.case["model"] for task in few[1:]} == {"llama-3.2-1b"}


def test_the_others_stand_still_while_one_is_timed(device: CpuDevice) -> None:
    """All but the process that is timed; all while ours or llama.cpp is."""
    peers = [mock.Mock(process=sleeper()) for _ in range(2)]
    llama = mock.Mock(processes=(sleeper(), None))
    every = [*(peer.process for peer in peers), llama.processes[0]]
    quiet = functools.partial(decode_step.still, llama, {"llama-3.2-1b": peers})
    run = Run("decode_step", "a GPU")
    ours = Ours(run, run, device, {"small": LLAMA | {"num_hidden_layers": 1}}, max_len=64, steps=1, quiet=quiet)
    seen: list[list[bool]] = []

    def look(*_: object, **__: object) -> float:
        seen.append([stands(each) for each in every])
        return 1.0

    try:
        peers[0].measure.side_effect = lambda _: look() and {"us": 1.0}
        but_one = functools.partial(quiet, peers[0])
        decode_step.transformers_step(run, peers[0], but_one, "llama-3.2-1b", 1, 128)
        assert seen == [[False, True, True]]
        seen.clear()
        llama.bench.side_effect = llama.batched.side_effect = lambda *_, **__: [] if look() else None
        decode_step.llama_single(run, llama, quiet, "small", (0,), 0.0)
        decode_step.llama_batches(run, llama, quiet, "small", (8,), (0,), 0.0)
        timed = dict.fromkeys(("graph_us", "tokens_us", "median_us", "measure"), mock.Mock(side_effect=look))
        with mock.patch.multiple(our_steps, **timed):
            ours.single("small", "bf16", (3,))  # the step, and the host
            ours.batch("small", "bf16", 2, (3,))  # the same, exact and rounded
            ours.roles("small", "bf16", 1, 3)
        assert seen == [[True] * 3] * (2 + 2 + 4 + 1)
        assert not any(map(stands, every)), "they go on"
    finally:
        for process in members({each.pid for each in every}):
            os.kill(process, signal.SIGKILL)
        for each in every:
            each.wait()
    with paused(every):  # all have ended
        pass


def sleeper() -> subprocess.Popen[bytes]:
    """A process with another in a process group of its own, as ninja's are."""
    child = "subprocess.Popen(['sleep', '600'], preexec_fn=os.setpgrp)"
    code = f"import os, subprocess; each = {child}; print(flush=True); each.wait()"
    begun = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert begun.stdout is not None
    begun.stdout.readline()
    return begun


def stands(process: subprocess.Popen[bytes]) -> bool:
    """Whether it and its child are stopped: the letter behind a name in brackets. A signal takes effect a moment
    later."""
    both = members({process.pid})
    assert len(both) == 2
    for _ in range(50):
        stats = (Path(f"/proc/{each}/stat").read_text() for each in both)
        if all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats):
            return True
        time.sleep(0.002)
    return False


def test_rows_of_a_step_in_one_launch(device: CpuDevice) -> None:
    run = Run("decode_step", "the executor")
    ours = Ours(run, run, device, {"small": LLAMA | {"num_hidden_layers": 1}}, max_len=64, steps=1)
    ours.persistent("small", "bf16", (3,))
    (row,) = run.rows
    assert row["impl"] == "ptxgen-persistent"
    assert row["us"] > 0
    assert row["bytes"] > 0


def test_a_floor_past_the_sizes_goes_on_at_their_rate() -> None:
    times = {1000: 10.0, 2000: 18.0}
    assert [our_steps.floor_us(times, n) for n in (500, 1500, 2000, 4000)] == [5.0, 14.0, 18.0, 36.0]


def test_a_table_says_what_is_missing_and_why() -> None:
    run = Run("decode_step", "a GPU")
    case = decode_step.case_of("m", "bf16", 1, 0)
    run.add(case, "ptxgen", us=100.0, host_us=9.0, bytes=1_000_000)
    run.add(case, "llama.cpp", us=250.0)
    run.add(case, "transformers-compiled", why="no time")
    run.add(case, "floor", us=80.0)
    table = decode_step.table(run.rows)
    assert "| m | bf16 | 1 | 0 | 1 | 100 |  |  | 250 |  | 80 | 9 | 0.80 | 2.50 |" in table
    assert "transformers-compiled, m, bf16, 1, 0: no time" in table


def test_rows_of_a_program_are_its_lines_in_json() -> None:
    assert llama_cpp.rows_of('loading\n{"pp": 1}\nnoise {"pp": 2}\n{broken}\n') == [{"pp": 1}, {"pp": 2}]
    with pytest.raises(RuntimeError, match="no rows in what was said: nothing"):
        llama_cpp.rows_of("nothing")
