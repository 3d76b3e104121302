"""Sample: the same tokens as NumPy whatever the parameters, the geometry and the executor's order; ties and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.kernels import ArgMax, Sample
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial
from tests.support.cpu_run import MODES
from tests.support.marks import needs_assembler

INF, NAN = np.inf, np.nan
CPU = open_device("cpu")
# Around a vector, a warp, a pass of the CTA, a cluster's second CTA; odd ones are not aligned.
VOCABULARIES = (1, 2, 3, 4, 5, 31, 33, 255, 1000, 3071, 3073, 4100, 16384, 16385)
KINDS = {"temperature": "f4", "top_k": "i4", "top_p": "f4", "min_p": "f4", "penalty": "f4", "counter": "i4",
         "history_len": "i4", "seed": "u8"}  # fmt: skip
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty": 1.0, "seed": 1, "counter": 0}


def arguments(logits: Any, history: Any = None, **of_rows: Any) -> dict[str, np.ndarray]:
    """Arguments for these logits; parameters of rows are numbers for all, or one a row."""
    x = np.atleast_2d(np.asarray(logits, np.float32))
    values = {**OFF, **of_rows}
    out: dict[str, np.ndarray] = {"logits": x}
    if history is not None:
        out["history"] = np.atleast_2d(np.asarray(history, np.int32))
        values.setdefault("history_len", out["history"].shape[1])
    for name, value in values.items():
        if name in ("penalty", "history_len") and history is None:
            continue
        out[name] = np.broadcast_to(np.asarray(value, KINDS[name]), len(x)).copy()
    return out


def tokens(logits: Any, device: Device = CPU, target: str | None = None, **more: Any) -> list[int]:
    """What is drawn; equal to the reference, too."""
    given = arguments(logits, **more)
    rows, vocab = given["logits"].shape
    history = given["history"].shape[1] if "history" in given else 0
    done = trial(Sample(vocab, history), device, target=target, arguments=given, rows=rows, repeat=False).require()
    return list(map(int, done.outputs["token"]))


def random_rows(vocab: int, rows: int, history: int, seed: int) -> dict[str, Any]:
    """Rows with every combination of limits, in turn."""
    rng, each = np.random.default_rng(seed), np.arange(rows)
    out = arguments(
        rng.normal(0, 3, (rows, vocab)),
        rng.integers(-3, vocab + 3, (rows, history)) if history else None,
        temperature=np.choose(each % 5, (0.0, 0.3, 1.0, 1.7, 20.0)),
        top_k=np.choose(each % 4, (0, 1, 20, vocab)),
        top_p=np.choose(each % 3, (1.0, 0.8, 0.1)),
        min_p=np.choose(each // 2 % 3, (0.0, 0.05, 0.5)),
        seed=rng.integers(0, 1 << 64, rows, np.uint64),
        counter=rng.integers(-(1 << 31), 1 << 31, rows),
    )
    if history:
        out["penalty"] = np.choose(each % 3, (1.0, 1.5, 0.5)).astype(np.float32)
        out["history_len"] = rng.integers(-1, history + 2, rows).astype(np.int32)
    return out


@pytest.mark.parametrize("history", [0, 30])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_every_vocabulary_and_every_combination_of_limits(device: Device, vocab: int, history: int) -> None:
    given = random_rows(vocab, 16 if vocab < 10_000 else 5, history, vocab)
    rows = len(given["seed"])
    trial(Sample(vocab, history), device, arguments=given, rows=rows, repeat=False).require()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_the_order_of_threads_and_the_geometry_decide_nothing(target: str, mode: str) -> None:
    """sm_90 shares the row of the second among the two CTAs of a cluster, sm_75 does not."""
    for vocab in (700, 16_500):
        spec = Sample(vocab, 20)
        given = random_rows(vocab, 3, 20, 9)
        trial(spec, open_device("cpu", mode=mode), target=target, arguments=given, rows=3, repeat=False).require()


@pytest.mark.parametrize("vocab", [128_256, 262_144, 360_448])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_large_vocabularies(vocab: int, target: str) -> None:
    given = random_rows(vocab, 2, 50, 1)
    given["temperature"][:] = (0.8, 1.2)
    trial(Sample(vocab, 50), CPU, target=target, arguments=given, rows=2, repeat=False).require()


@pytest.mark.parametrize(
    "x",
    [
        [1, 5, 2, 5], [-0.0, 0.0, -1, -1], [-INF] * 4, [-INF, -INF, -3e38, -INF], [1, INF, INF, 2], [1, NAN, INF, 2],
        [NAN] * 4, [-NAN, 1, NAN, INF], [-1e-45, -2e-45, 0, 1e-45],
    ],
)  # fmt: skip
def test_at_temperature_zero_it_is_arg_max(x: list[float]) -> None:
    """Ties go to the lowest index, NaN before all; a row that is not finite is not drawn from at any temperature."""
    row = np.float32([x])
    want = trial(ArgMax(4), CPU, arguments={"x": row}, rows=1).outputs["out"].tolist()
    for temperature in (0.0, -1.0, NAN) if np.isfinite(row.max()) else (0.0, 1.0, INF):
        assert tokens(row, temperature=temperature, top_k=3, top_p=0.5) == want


def test_what_is_drawn_is_drawn_as_often_as_it_should_be() -> None:
    probability = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    rows = 2000
    drawn = tokens(np.tile(np.log(probability), (rows, 1)), counter=np.arange(rows))
    share = np.bincount(drawn, minlength=5) / rows
    assert np.abs(share - probability).max() < 0.03


def test_temperature_flattens_and_sharpens() -> None:
    rows = 2000
    logits = np.tile([1.0, 0.0], (rows, 1))
    for temperature in (0.5, 2.0, INF):
        share = np.mean(tokens(logits, counter=np.arange(rows), temperature=temperature))
        assert share == pytest.approx(1 / (1 + np.exp(1 / temperature)), abs=0.03)


def _drawn(logits: Any, rows: int = 300, **limits: Any) -> set[int]:
    return set(tokens(np.tile(np.float32(logits), (rows, 1)), counter=np.arange(rows), temperature=50.0, **limits))


def test_top_k_keeps_the_largest_and_those_that_equal_the_last() -> None:
    assert _drawn([4, 1, 3, 2, 0], top_k=3) == {0, 2, 3}
    assert _drawn([4, 3, 3, 3, 0], top_k=2) == {0, 1, 2, 3}
    assert _drawn([7, 7, 1, 0], top_k=1) == {0, 1}
    assert _drawn([1, 2, 3], top_k=-1) == _drawn([1, 2, 3], top_k=3) == {0, 1, 2}


def test_top_p_keeps_the_fewest_that_reach_it_and_those_that_equal_the_last() -> None:
    near = np.array([0.4, 0.1, 0.3, 0.2])
    logits = 50 * np.log(near)
    assert _drawn(logits, top_p=0.39) == {0}
    assert _drawn(logits, top_p=0.69) == {0, 2}
    assert _drawn(logits, top_p=0.71) == {0, 2, 3}
    assert _drawn(logits, top_p=0.0) == _drawn(logits, top_p=-1.0) == {0}
    assert _drawn(logits, top_p=NAN) == {0, 1, 2, 3}
    assert _drawn([0, 0, 0, -1], top_p=0.1) == {0, 1, 2}


def test_top_p_is_of_what_top_k_left() -> None:
    logits = 50 * np.log([0.4, 0.1, 0.3, 0.2])
    assert _drawn(logits, top_k=2, top_p=0.57) == {0}  # 0.4 of 0.7
    assert _drawn(logits, top_k=2, top_p=0.58) == {0, 2}


def test_min_p_keeps_what_is_near_the_largest() -> None:
    logits = 50 * np.log([0.4, 0.1, 0.3, 0.2])
    assert _drawn(logits, min_p=0.6) == {0, 2}
    assert _drawn(logits, min_p=0.3) == {0, 2, 3}
    assert _drawn(logits, min_p=7.0) == {0}
    assert _drawn(logits, min_p=NAN) == _drawn(logits, min_p=-1.0) == {0, 1, 2, 3}


def test_the_penalty_is_for_tokens_of_the_history_once_each() -> None:
    logits = [[2.0, 1.5, -1.0, -1.2]]
    greedy = dict(temperature=0.0)
    assert tokens(logits, history=[[1, 2]], penalty=2.0, **greedy) == [0]
    assert tokens(logits, history=[[0, 0]], penalty=1.3, **greedy) == [0]  # 1.54, not 1.18
    assert tokens(logits, history=[[0, 0]], penalty=1.4, **greedy) == [1]
    assert tokens([[-1.0, -1.2]], history=[[0, 0]], penalty=1.3, **greedy) == [1]  # below zero: multiplied
    assert tokens(logits, history=[[-5, 4, 1 << 30]], penalty=9.0, **greedy) == [0]  # no tokens
    assert tokens(logits, history=[[3, 0]], history_len=1, penalty=9.0, **greedy) == [0]
    assert tokens(logits, history=[[3, 0]], history_len=99, penalty=9.0, **greedy) == [1]
    for odd in (0.0, -1.0, NAN):
        assert tokens(logits, history=[[0, 0]], penalty=odd, **greedy) == [0]


def test_what_cannot_be_is_never_drawn() -> None:
    assert _drawn([0, -INF, 0, -INF]) == {0, 2}
    rows = np.tile(np.float32([0, -1e30]), (50, 1))
    assert set(tokens(rows, counter=np.arange(50))) == {0}


def test_seed_and_counter_decide_and_the_place_in_the_batch_does_not() -> None:
    logits = np.random.default_rng(0).normal(0, 1, (1, 500)).astype(np.float32)
    alone = [tokens(logits, seed=seed, counter=counter)[0] for seed in (3, 1 << 63) for counter in (0, 1, -1)]
    assert len(set(alone)) > 3
    seeds, counters = np.repeat(np.uint64([3, 1 << 63]), 3), [0, 1, -1] * 2
    assert tokens(np.tile(logits, (6, 1)), seed=seeds, counter=counters) == alone
    order = [4, 2, 0, 5, 3, 1]
    swapped = tokens(np.tile(logits, (6, 1)), seed=seeds[order], counter=np.array(counters)[order])
    assert swapped == [alone[i] for i in order]


def test_a_replay_reads_its_parameters_anew() -> None:
    spec = Sample(300)
    given = {**spec.example(np.random.default_rng(0), rows=1), **arguments(np.zeros((1, 300)))}
    bound = {name: CPU.array(value) for name, value in given.items()}
    launch = CPU.load(spec).bind(**bound)
    drawn = []
    for counter in range(6):
        bound["counter"].copy_from(np.int32([counter]))
        launch.launch()
        CPU.synchronize()
        drawn.append(int(bound["token"].numpy()[0]))
    assert drawn == tokens(np.zeros((6, 300)), counter=np.arange(6))


@needs_assembler
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("spec", [Sample(1), Sample(1001, 40), Sample(262_144, 100), Sample(262_145)], ids=str)
def test_nothing_is_spilled(spec: Sample, target: str) -> None:
    ptx = generate(spec, target)
    assert assemble(ptx.text, target).resources[ptx.entry].clean


def test_programmatic_waits_first() -> None:
    text = generate(Sample(100, programmatic=True), "sm_90").text
    assert text.index("griddepcontrol.wait") < text.index("ld.global")
    assert not supports(Sample(100, programmatic=True), "sm_86")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"vocab": 0}, "vocab: must be from 1 to 1048576"),
        ({"vocab": 400_000, "history": 1}, "vocab: must be from 1 to 360448"),
        ({"vocab": 10, "history": -1}, "history: must be from 0 to"),
    ],
)
def test_an_illegal_spec_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as error:
        Sample(**fields)
    assert reason in str(error.value)
