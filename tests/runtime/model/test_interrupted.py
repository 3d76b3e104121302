"""An error in the middle of a step, a prompt or a launch: nothing half-written counts, and what follows is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, SpecError
from ptxgen.kernels import ArgMax
from ptxgen.runtime import Model, open_device
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.kv.strided import Blocks
from ptxgen.runtime.tools.trial import bind_example
from tests.runtime.model.test_model import PROMPT, file_of, model_of

Fail = Callable[[int], None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Lets the launch that comes after so many others raise, once."""
    left = -1
    whole = Program.launch_packed

    def launch(self: Program, *arguments: object) -> int:
        nonlocal left
        left -= 1
        if left == -1:
            raise KeyboardInterrupt
        return whole(self, *arguments)

    def after(others: int) -> None:
        nonlocal left
        left = others

    monkeypatch.setattr(Program, "launch_packed", launch)
    return after


@pytest.mark.parametrize("others", [0, 7, 40])
def test_a_prompt(fail: Fail, others: int) -> None:
    model = model_of(CpuDevice())
    expected = model.prefill(PROMPT)
    model.rollback(2)
    fail(others)
    with pytest.raises(KeyboardInterrupt):
        model.prefill(PROMPT[2:])
    assert model.length == 2
    assert model.prefill(PROMPT[2:]) == expected


@pytest.mark.parametrize("others", [0, 9])
def test_a_token_that_takes_the_place_of_others(fail: Fail, others: int) -> None:
    model = model_of(CpuDevice())
    expected = model.prefill(PROMPT)
    for step in (model.forward, model.forward_to_token):
        fail(others)
        with pytest.raises(KeyboardInterrupt):
            step(1, 3)
        assert model.length == 3, "the positions behind it have been given up, and may be written over"
        assert model.prefill(PROMPT[3:]) == expected


def test_a_token_at_the_end(fail: Fail) -> None:
    model = model_of(CpuDevice())
    expected = model.generate(PROMPT, 4)
    token = model.prefill(PROMPT, 0)
    fail(5)
    with pytest.raises(KeyboardInterrupt):
        model.forward_to_token(token)
    assert model.length == len(PROMPT)
    assert model.forward_to_token(token) == expected[len(PROMPT) + 1]


@pytest.mark.parametrize("others", [0, 40, 120])
def test_a_prompt_over_rings(fail: Fail, others: int) -> None:
    """What a ring has lost cannot be had again: the sequence ends before the chunk in which the error was."""
    model = Model(file_of("mistral"), CpuDevice(), "f32", chunk=2, rings=True)
    expected = model.prefill(PROMPT)
    model.reset()
    model.prefill(PROMPT[:3])
    fail(others)
    with pytest.raises(KeyboardInterrupt):
        model.prefill(PROMPT[3:])
    assert model.length in range(3 if others == 0 else 5, len(PROMPT), 2)
    assert model.prefill(PROMPT[model.length :]) == expected


@pytest.mark.parametrize("page_size", [0, 16])
@pytest.mark.parametrize("others", [0, 9])
def test_a_batch(fail: Fail, others: int, page_size: int) -> None:
    model = model_of(CpuDevice())
    expected = []
    for disturbed in (False, True):
        batch = model.batch(2, page_size=page_size)
        found = [batch.join(PROMPT)[1], batch.join(PROMPT[:5])[1]]
        for n in range(3):
            if disturbed and n == 1:
                lengths = [batch.length(slot) for slot in batch.active]
                fail(others)
                with pytest.raises(KeyboardInterrupt):
                    batch.step()
                assert [batch.length(slot) for slot in batch.active] == lengths
            found += batch.step().values()
        expected.append(found)
    assert expected[0] == expected[1]


@pytest.mark.parametrize("page_size", [0, 16])
def test_a_sequence_that_joins_or_leaves(monkeypatch: pytest.MonkeyPatch, page_size: int) -> None:
    """The slot is free after an error in a join, and taken after one in a leave."""
    batch = model_of(CpuDevice()).batch(2, page_size=page_size)
    batch.join(PROMPT)
    expected = batch.step()
    pages = batch.cache.pages.free_pages if batch.cache.pages else 0

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Blocks, "move_to", broken)
        with pytest.raises(KeyboardInterrupt):
            batch.join(PROMPT[:5])
        patch.setattr(Buffer, "fill", broken)
        with pytest.raises(KeyboardInterrupt):
            batch.leave(0)
    assert batch.active == (0,)
    assert [batch.cache.length(slot) for slot in (0, 1)] == [len(PROMPT) + 1, 0]
    assert (batch.cache.pages.free_pages if batch.cache.pages else 0) == pages
    slot, _ = batch.join(PROMPT)
    assert batch.step()[slot] == expected[0]


def test_a_snapshot_that_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(CpuDevice())
    expected = model.prefill(PROMPT)
    kept = model.snapshot()
    model.rollback(3)
    with pytest.raises(SpecError):
        model.restore(None)
    assert model.length == 3
    whole, left = Blocks.write, [1]

    def write(blocks: Blocks, *given: Any) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        whole(blocks, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Blocks, "write", write)
        with pytest.raises(KeyboardInterrupt):
            model.restore(kept)
    assert model.length == 0
    assert model.prefill(PROMPT) == expected


def test_counters_that_launches_leave_to_the_next_one() -> None:
    """Half of x is missing: some CTAs have counted themselves when another one ends the launch."""
    device = open_device("cpu", mode="random", threads=1)
    spec = ArgMax(n=5003)
    example = spec.example(np.random.default_rng(0), rows=1)
    launch, bound = bind_example(device.load(spec, "sm_80"), example, {"rows": 1})
    short = device.array(example["x"].reshape(-1)[:4096].copy())
    launch.launch()
    expected = bound["out"].numpy()
    for seed in range(6):
        device.seed = seed
        launch.update(x=short.pointer)
        with pytest.raises(ExecutionError, match="bounds"):
            launch.launch()
        launch.update(x=bound["x"])
        bound["out"].fill(-1)
        launch.launch()
        assert bound["out"].numpy() == expected
