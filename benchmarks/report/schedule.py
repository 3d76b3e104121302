"""Tasks of a benchmark that has so many seconds: the most important of those that can begin, and none that would not
end in time. What waits for something is waited for only when nothing else can be done."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.report.rows import Run

Case = dict[str, Any]
T = TypeVar("T")
SECONDS = ("--seconds", {"type": float, "default": 3600.0, "help": "begin no case after so many (default: 3600)"})
TICK = 0.2  # seconds between looks for what is ready


def in_time(cases: Sequence[T], ends: float) -> Iterator[T]:
    """The cases, until `ends` (of `time.monotonic`); then a `SystemExit` ends the run, whose rows are partial."""
    for index, case in enumerate(cases):
        if time.monotonic() > ends:
            raise SystemExit(f"--seconds: ended after {index} of {len(cases)} cases")
        yield case


def as_there_is_time(run: Run, cases: Sequence[Case], measure: Callable[[Run, Case], None], seconds: float) -> None:
    """Measure cases until so many seconds have gone, and name those that then find no time."""
    ends = time.monotonic() + seconds
    for case in cases:
        if time.monotonic() > ends:
            print("no time for", case, flush=True)
            continue
        measure(run, case)


@dataclass(frozen=True)
class Task:
    """Something that adds rows for `case` and `impl`. `seconds`: about what it takes. `ready`: whether it can begin;
    it raises where it never will."""

    case: Case
    impl: str
    work: Callable[[], None]
    seconds: float
    ready: Callable[[], bool] = lambda: True


def work_off(run: Run, tasks: Sequence[Task], ends: float) -> None:
    """Do what can be done until `ends` (of `time.monotonic`). What fails or finds no time is a row that says why."""
    left = list(tasks)
    while left:
        now = time.monotonic()
        for late in [task for task in left if now + task.seconds > ends]:
            left.remove(late)
            run.add(
                late.case, late.impl, why=f"{ends - now:.0f} s were left of the run, it takes about {late.seconds:.0f}"
            )
        task = next((task for task in left if _ready(run, task, left)), None)
        if task is None:
            time.sleep(TICK if left else 0)
            continue
        left.remove(task)
        print(f"{ends - now:.0f} s left: {task.impl} {task.case}", flush=True)
        try:
            task.work()
        except Exception as wrong:
            _failed(run, task, wrong)


def _ready(run: Run, task: Task, left: list[Task]) -> bool:
    if task not in left:
        return False
    try:
        return task.ready()
    except Exception as wrong:
        left.remove(task)
        _failed(run, task, wrong)
        return False


def _failed(run: Run, task: Task, wrong: Exception) -> None:
    traceback.print_exception(wrong)
    run.add(task.case, task.impl, why=f"{type(wrong).__name__}: {wrong}"[:400])
