"""One launch: gangs handed to host threads, gangs that wait for each other, and what to say when it fails."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.errors import ExecutionError
from ptxgen.runtime.cpu import report
from ptxgen.runtime.cpu.layout import DONE, FAULTED, GANG, LAUNCH, PARKED, RUNNABLE
from ptxgen.runtime.cpu.places import Places
from ptxgen.runtime.cpu.state import Gang, Geometry, Worker, forget_order
from ptxgen.runtime.cpu.support.gangs import MOST_ROUNDS
from ptxgen.runtime.cpu.waiting import deadlock_text, spinning_text

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.executor import Compiled
    from ptxgen.runtime.cpu.globals import Globals
    from ptxgen.runtime.cpu.memory import Memory

BUDGET = 1 << 10  # backward branches of a warp before others get a turn
_RESIDENT = 64  # gangs that one thread keeps waiting for each other
_PAUSES = 8  # of a gang in random mode, besides its first: others go on meanwhile
_PATIENCE_SECONDS = 600.0  # of a gang that only spins, though its state changes


class Run:
    """The state of one launch; `go` returns when the grid is done or raises what was found."""

    def __init__(
        self,
        compiled: Compiled,
        geometry: Geometry,
        params: np.ndarray,
        memory: Memory,
        globals_: Globals,
        source: report.Source,
        mode: str,
        seed: int,
        threads: int,
        beside: int = 0,
    ) -> None:
        self.compiled, self.geometry, self.memory, self.source = compiled, geometry, memory, source
        self.native = compiled.native
        self.mode, self.seed = mode, seed
        self.workers_wanted = max(1, min(threads, geometry.gangs))
        self.params, self.globals = params, globals_
        self.table = memory.table()
        self.number, self.beside = memory.begin_launch() if mode == "check" else 0, beside
        self.lock = threading.Lock()
        self.progress = 0  # rounds in which a thread's gangs came further, and threads that have ended
        self.stuck: dict[int, int | None] = {}  # by thread: the progress that its gangs saw and stood still

    def go(self, pool: Callable[[], ThreadPoolExecutor]) -> None:
        """Run the grid."""
        block, workers = self.compiled.structures(self.geometry, self.workers_wanted)
        self.block = block
        workers_used = workers[: self.workers_wanted]
        self._prepare(workers_used)
        self.stuck = dict.fromkeys(range(len(workers_used)))
        if len(workers_used) == 1:
            errors = [self._work(0, workers_used[0])]
        else:
            futures = [pool().submit(self._work, n, worker) for n, worker in enumerate(workers_used)]
            errors = [future.result() for future in futures]
        self.compiled.give_back(self.geometry, block, workers)
        for error in errors:
            if error is not None:
                raise ExecutionError(error)

    def _prepare(self, workers: list[Worker]) -> None:
        block = self.block
        block.put("q", LAUNCH["next"], 0)
        block.put("q", LAUNCH["warp_function"], self.native.warp)
        block.put("I", LAUNCH["abort"], 0)
        block.put("Q", LAUNCH["params"], self.params.ctypes.data)
        block.put("Q", LAUNCH["param_bytes"], self.params.nbytes)
        block.put("Q", LAUNCH["symbols"], self.globals.table.ctypes.data)
        block.put("Q", LAUNCH["begins"], self.table.begins.ctypes.data)
        block.put("Q", LAUNCH["ends"], self.table.ends.ctypes.data)
        block.put("Q", LAUNCH["shadows"], self.table.shadows.ctypes.data)
        block.put("Q", LAUNCH["allocations"], len(self.table.begins))
        block.put("I", LAUNCH["budget"], BUDGET)
        block.put("I", LAUNCH["check"], int(self.mode == "check"))
        block.put("I", LAUNCH["random"], int(self.mode == "random"))
        block.put("I", LAUNCH["generation"], self.number)
        block.put("I", LAUNCH["before"], self.beside or self.number)
        if self.mode == "check":
            forget_order(block.order, self.geometry)
        if self.mode == "random":
            self.order = np.random.default_rng(self.seed).permutation(self.geometry.gangs).astype(np.int64)
            self.turns = [np.random.default_rng([self.seed, number]) for number in range(len(workers))]
            block.put("Q", LAUNCH["order"], self.order.ctypes.data)
        else:
            block.put("Q", LAUNCH["order"], 0)
        for number, worker in enumerate(workers):
            worker.reset(self.seed + number, forget=worker.table is not self.table)
            worker.table = self.table

    def _work(self, number: int, worker: Worker) -> str | None:
        """Run gangs on one host thread; the text of what was found, if anything."""
        try:
            error = self._gangs(number, worker)
        except BaseException:
            self.block.put("I", LAUNCH["abort"], 1)
            raise
        if error is not None:
            self.block.put("I", LAUNCH["abort"], 1)
        self._progressed()
        del self.stuck[number]
        return error

    def _progressed(self) -> None:
        with self.lock:
            self.progress += 1

    def _gangs(self, number: int, worker: Worker) -> str | None:
        code = self.native.run(worker.thread.address, worker.gang.block.address)
        if code == DONE:
            return None
        if code in (FAULTED, PARKED):
            return self._failure(code, worker, worker.gang, [worker.gang])
        waiting = [_Waiting(worker.gang)]  # it spins, perhaps for a gang that has not begun; or is left on its way
        worker.gang = worker.another_gang()
        while len(waiting) < _RESIDENT and self.block.get("q", LAUNCH["next"]) < self.geometry.gangs:
            code = self.native.run(worker.thread.address, worker.gang.block.address)
            if code in (FAULTED, PARKED):
                return self._failure(code, worker, worker.gang, [worker.gang])
            if code != DONE:
                waiting.append(_Waiting(worker.gang))
                worker.gang = worker.another_gang()
        return self._turns(number, worker, waiting)

    def _turns(self, number: int, worker: Worker, waiting: list[_Waiting]) -> str | None:
        """Resume waiting gangs in turn until all are done, or nothing changes any more."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while waiting:
            before = self.progress  # whoever spins for something that comes later has not looked for it yet
            for one in self._in_turn(number, waiting):
                code = self.native.resume(one.gang.block.address)
                if code == DONE:
                    waiting.remove(one)
                    for other in waiting:
                        other.forget()
                    deadline = time.monotonic() + _PATIENCE_SECONDS
                elif code in (FAULTED, PARKED):
                    return self._failure(code, worker, one.gang, [w.gang for w in waiting])
                else:
                    one.look(code)
            if not waiting:
                break
            still = all(one.repeats >= 3 for one in waiting)
            if not still:
                self._progressed()
            self.stuck[number] = before if still else None
            if self.block.get("I", LAUNCH["abort"]):
                return None
            if still and all(seen == self.progress for seen in list(self.stuck.values())):
                return spinning_text(self.compiled.entry, self.source, [w.gang for w in waiting])
            if time.monotonic() > deadline:
                text = spinning_text(self.compiled.entry, self.source, [w.gang for w in waiting])
                return f"{text}\n  for {_PATIENCE_SECONDS:.0f} s"
            if still:
                time.sleep(0.0005)
        self.stuck[number] = None
        if self.block.get("q", LAUNCH["next"]) < self.geometry.gangs:
            return self._gangs(number, worker)
        return None

    def _in_turn(self, number: int, waiting: list[_Waiting]) -> list[_Waiting]:
        """A round of waiting gangs: in random mode in any order, and each for a few rounds of its own at first."""
        if self.mode != "random":
            return list(waiting)
        rng = self.turns[number]
        for one in waiting:
            if one.pauses:
                one.pauses -= 1
                one.gang.block.put("I", GANG["rounds"], int(rng.integers(MOST_ROUNDS)))
        return [waiting[index] for index in rng.permutation(len(waiting))]

    def _failure(self, code: int, worker: Worker, gang: Gang, gangs: list[Gang]) -> str:
        entry = self.compiled.entry
        if code == FAULTED:
            return report.fault_text(entry, self.source, worker, gangs, Places(entry, self.memory, self.params))
        return deadlock_text(entry, self.source, gang)


class _Waiting:
    """A gang that spins or was left on its way, and the states it was seen in."""

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.seen: set[bytes] = set()
        self.repeats = 0
        self.pauses = _PAUSES

    def forget(self) -> None:
        """What it spun in was not for ever: another gang has ended."""
        self.seen.clear()
        self.repeats = 0

    def look(self, code: int) -> None:
        """Note the state that a turn ended in; `repeats` counts how often in a row it spun in one seen before."""
        if code == RUNNABLE:
            self.repeats = 0
            return
        state = hashlib.blake2b(self.gang.warp_states(), digest_size=16).digest()
        self.repeats = self.repeats + 1 if state in self.seen else 0
        self.seen.add(state)
