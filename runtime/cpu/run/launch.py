"""One launch: prepares native structures, runs gangs over host threads, ends them all when one finds something.

What a thread does is `host_thread.py`'s. Native code returns to Python when a gang has to wait, and when `look` is
set, so that Ctrl-C and a limit of time are heeded.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.errors import ExecutionError, ExecutionNote
from ptxgen.runtime.cpu.flow.written_params import pointers
from ptxgen.runtime.cpu.native.layout import LAUNCH, PAUSED, WORKSPACE_BYTES
from ptxgen.runtime.cpu.run import findings
from ptxgen.runtime.cpu.run.geometry import Geometry
from ptxgen.runtime.cpu.run.host_thread import Seen, Share
from ptxgen.runtime.cpu.run.native_state import Gang, Worker, forget_order
from ptxgen.runtime.cpu.run.printing import printer
from ptxgen.runtime.cpu.run.thread_pool import asked_to_look
from ptxgen.runtime.cpu.support import faults

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.run.compiled import Compiled
    from ptxgen.runtime.cpu.run.global_memory import Memory
    from ptxgen.runtime.cpu.run.module_variables import Globals
    from ptxgen.runtime.cpu.run.options import Options

_MORE_SECONDS = 10.0  # behind the first finding of a launch in check mode, in which more are looked for
_LOOK_SECONDS = 0.5  # from one look at the time and at signals to the next, of a launch over several threads
BUDGET = 1 << 6  # backward branches of a warp before others get a turn
_SHUFFLED = 1 << 20  # gangs that one drawn order covers; larger grids repeat it


class Stopped(Exception):
    """The launch is over: it was interrupted, another thread found something, or its time was."""


class Run:
    """The state of one launch; `go` returns when the grid is done or raises what was found."""

    def __init__(
        self,
        compiled: Compiled,
        geometry: Geometry,
        params: np.ndarray,
        memory: Memory,
        globals_: Globals,
        source: findings.Source,
        how: Options,
        threads: int,
        beside: int = 0,
    ) -> None:
        self.compiled, self.geometry, self.memory, self.source = compiled, geometry, memory, source
        self.native = compiled.native
        self.mode, self.seed, self.time_limit = how.mode, how.seed, how.time_limit
        self.findings_left = how.most_findings if how.mode == "check" else 1
        self.notes_only: tuple[int, ...] = (
            (faults.FAULT_EQUAL_RACE, faults.FAULT_EQUAL_ORDER) if how.equal_stores == "note" else ()
        )
        self.notes: list[str] = []
        self.workers_wanted = max(1, min(threads, geometry.gangs))
        self.params, self.globals = params, globals_
        self.table = memory.table()
        self.number, self.beside = memory.begin_launch() if how.mode == "check" else 0, beside
        self.enough = math.inf  # when no more findings are looked for
        self.deadline = math.inf if how.time_limit is None else time.monotonic() + how.time_limit
        self.lock = threading.Lock()
        self.over = self.late = False
        self.progress = self.ends = self.resident = 0
        self.most = geometry.resident(compiled.entry)
        self.seen: dict[int, Seen] = {}  # by thread, of those that are in the launch

    def go(self, pool: Callable[[], ThreadPoolExecutor]) -> None:
        """Run the grid."""
        self.block, workers = self.compiled.structures(self.geometry, self.workers_wanted)
        used = workers[: self.workers_wanted]
        self._prepare(used)
        found = self._alone(used[0]) if len(used) == 1 else self._together(pool(), used)
        self.compiled.give_back(self.geometry, self.block, workers)
        places = {text.splitlines()[1] for text in found if "\n" in text}
        for note in dict.fromkeys(self.notes):
            if note.splitlines()[1] not in places:  # else something worse is known of it
                warnings.warn(note, ExecutionNote, stacklevel=4)
        if found:
            raise ExecutionError(*_each_place_once(found))

    def _prepare(self, workers: list[Worker]) -> None:
        block = self.block
        block.put("q", LAUNCH["next"], 0)
        block.put("q", LAUNCH["warp_function"], self.native.warp)
        block.put("I", LAUNCH["look"], 0)
        block.put("Q", LAUNCH["params"], self.params.ctypes.data)
        block.put("Q", LAUNCH["param_bytes"], self.params.nbytes)
        block.put("Q", LAUNCH["symbols"], self.globals.table.ctypes.data)
        block.bytes[LAUNCH["readable"] : LAUNCH["readable"] + len(self.table.fields)] = self.table.fields
        block.bytes[LAUNCH["workspace"] : LAUNCH["workspace"] + WORKSPACE_BYTES] = 0
        block.put("I", LAUNCH["budget"], BUDGET)
        if self.compiled.entry.prints:
            self.printer = printer(self.memory)
            block.put("Q", LAUNCH["print"], ctypes.cast(self.printer, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]
        block.put("I", LAUNCH["check"], int(self.mode == "check"))
        block.put("I", LAUNCH["random"], int(self.mode == "random"))
        block.put("I", LAUNCH["generation"], self.number)
        block.put("I", LAUNCH["before"], self.beside or self.number)
        if self.mode == "check":
            forget_order(block.order, self.geometry)
            self.memory.follow_reads(pointers(self.params, self.compiled.entry.written), self.number)
        if self.mode == "random":
            count = min(self.geometry.gangs, _SHUFFLED)
            self.order = np.random.default_rng(self.seed).permutation(count).astype(np.int64)
            block.put("q", LAUNCH["shuffled"], count)
            self.turns = [np.random.default_rng([self.seed, number]) for number in range(len(workers))]
            block.put("Q", LAUNCH["order"], self.order.ctypes.data)
        else:
            block.put("Q", LAUNCH["order"], 0)
        for number, worker in enumerate(workers):
            worker.reset(self.seed + number, forget=worker.table is not self.table)
            worker.table = self.table

    def _alone(self, worker: Worker) -> list[str]:
        """In the calling thread; every now and then native code returns, so that Python may handle a signal."""
        asked_to_look(self.block, True)
        try:
            return self._work(0, worker)
        finally:
            asked_to_look(self.block, False)

    def _together(self, pool: ThreadPoolExecutor, workers: list[Worker]) -> list[str]:
        """In threads of the pool, which have left the launch when this returns or raises; this one only waits."""
        futures: list[Future[list[str]]] = []
        try:
            futures += (pool.submit(self._work, number, worker) for number, worker in enumerate(workers))
            while wait(futures, self._patience()).not_done and not self.over:
                self._look_at_the_time()
        except BaseException:
            self.stop()
            raise
        finally:
            _join(futures)
        return [text for future in futures if not future.cancelled() for text in future.result()]

    def _patience(self) -> float:
        """Seconds until the time has to be looked at; so soon, too, a signal is handled that did not end the wait."""
        return _LOOK_SECONDS if self.time_limit is None else min(_LOOK_SECONDS, self.time_limit)

    def _look_at_the_time(self) -> None:
        now = time.monotonic()
        if now > self.deadline:
            self.stop(late=True)
        elif now > self.enough:
            self.stop()

    def _work(self, number: int, worker: Worker) -> list[str]:
        """A host thread's share of the grid; the texts of what was found."""
        share, found = Share(self, number, worker), None
        self.seen[number] = Seen()
        try:
            found = share.run()
        except Stopped:
            found = share.late() if self.late else None
        except BaseException:
            self.stop()
            raise
        finally:
            worker.spare.clear()
        if found is not None:
            self.stop()
        self.progressed(True)
        del self.seen[number]
        return [*share.found, *([found] if found else [])]

    def another_finding(self) -> bool:
        """Count one; whether the launch is to go on behind it, for some time yet."""
        with self.lock:
            self.findings_left -= 1
            self.enough = min(self.enough, time.monotonic() + _MORE_SECONDS)
            return self.findings_left > 0

    # what the threads share ---------------------------------------------------------------------------------------
    def begin(self, worker: Worker, going: bool = False) -> int:
        """Begin gangs and run them, up to one that does not end; what it came to (`layout`). `going`: the first has."""
        code: int = self.native.run(worker.thread.address, worker.gang.block.address, int(going))
        while code == PAUSED:
            self.look()
            code = self.native.run(worker.thread.address, worker.gang.block.address, 1)
        return code

    def resume(self, gang: Gang) -> int:
        """More turns for a gang that waits; what it came to."""
        code: int = self.native.resume(gang.block.address)
        while code == PAUSED:
            self.look()
            code = self.native.resume(gang.block.address)
        return code

    def look(self) -> None:
        """Raise `Stopped` when the launch is over for another reason than its end, or its time is; else go on."""
        self._look_at_the_time()
        self.block.put("I", LAUNCH["look"], 0)
        if self.over:
            self.block.put("I", LAUNCH["look"], 1)  # for the other threads
            raise Stopped

    def stop(self, late: bool = False) -> None:
        """All threads leave the launch at their next turn of a warp; `late`: and say where their gangs are."""
        self.late = self.late or late
        self.over = True
        self.block.put("I", LAUNCH["look"], 1)

    def progressed(self, ended: bool = True) -> None:
        """A thread's gangs came further; `ended`: one of them to its end, or to a place where it was left."""
        with self.lock:
            self.progress += 1
            self.ends += ended

    def held(self, more: int) -> None:
        """So many more gangs wait for others."""
        with self.lock:
            self.resident += more

    def left(self) -> int:
        """Gangs that have not begun."""
        return max(self.geometry.gangs - self.block.get("q", LAUNCH["next"]), 0)

    def may_begin(self) -> bool:
        """Whether a gang is left, and a GPU would have room for it."""
        return self.left() > 0 and self.resident < self.most

    def not_begun(self) -> str:
        """What a report of standstill adds where some gangs have not begun."""
        count, size = self.left(), self.geometry.ctas_per_gang
        if not count:
            return ""
        return (
            f"{count * size} of {self.geometry.ctas} CTAs have not begun: {self.resident * size} wait for each other, "
            "as many as the largest GPU holds at a time"
        )


def _each_place_once(found: list[str]) -> list[str]:
    """Several threads may have found the same; the first two lines of a text are the finding and its place. Of an
    uninitialised register the last line has its name: one instruction may read several."""
    first: dict[tuple[str, ...], str] = {}
    for text in found:
        lines = text.splitlines()
        what = lines[-1] if text.startswith(findings.UNWRITTEN_REGISTER) else ""
        first.setdefault((*lines[:2], what), text)
    return list(first.values())


def _join(futures: list[Future[list[str]]]) -> None:
    """Until every thread has left; they do so soon, so that another Ctrl-C need not end this."""
    for future in futures:
        future.cancel()  # what has not begun
    while True:
        try:
            wait(futures)
            return
        except KeyboardInterrupt:
            continue
