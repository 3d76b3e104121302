"""Tasks of a benchmark with so many seconds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks.report import schedule
from benchmarks.report.rows import Run
from benchmarks.report.schedule import Task, in_time, work_off


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "TICK", 0.001)


def done(*tasks: Task, seconds: float = 100) -> list[tuple[Any, ...]]:
    run = Run("some", "a GPU")
    work_off(run, tasks, time.monotonic() + seconds)
    return [(row["case"]["n"], row["why"]) for row in run.rows]


def test_the_first_that_is_ready_is_done_first() -> None:
    order: list[int] = []
    waits = iter((False, False, True, True))

    def task(n: int, **more: Any) -> Task:
        return Task({"n": n}, "ours", lambda: order.append(n), 1, **more)

    assert not done(task(0, ready=lambda: next(waits)), task(1), task(2), task(3))
    assert order == [1, 2, 0, 3]


def test_a_failure_is_a_row_and_the_rest_goes_on() -> None:
    order: list[int] = []

    def fails() -> None:
        raise ValueError("no such thing")

    found = done(Task({"n": 0}, "ours", fails, 1), Task({"n": 1}, "ours", lambda: order.append(1), 1))
    assert found == [(0, "ValueError: no such thing")]
    assert order == [1]


def test_what_never_becomes_ready_is_a_row() -> None:
    def broken() -> bool:
        raise RuntimeError("the build failed")

    assert done(Task({"n": 0}, "ours", print, 1, broken)) == [(0, "RuntimeError: the build failed")]


def test_what_would_not_end_in_time_is_a_row() -> None:
    order: list[int] = []
    found = done(Task({"n": 0}, "ours", print, 50), Task({"n": 1}, "ours", lambda: order.append(1), 1), seconds=10)
    assert [(n, "it takes about 50" in why) for n, why in found] == [(0, True)]
    assert order == [1]


def test_waiting_ends_with_the_time() -> None:
    found = done(Task({"n": 0}, "ours", print, 0.01, lambda: False), seconds=0.05)
    assert [n for n, _ in found] == [0]


def test_cases_until_the_time_is_over() -> None:
    assert list(in_time("abc", time.monotonic() + 100)) == list("abc")
    late = in_time("abc", time.monotonic() + 0.05)
    assert next(late) == "a"
    time.sleep(0.06)
    with pytest.raises(SystemExit, match="--seconds: ended after 1 of 3 cases"):
        next(late)
