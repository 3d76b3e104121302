"""A host thread's share of a launch: runs gangs, keeps those that wait for each other, tells when nothing changes."""

from __future__ import annotations

import ctypes
import hashlib
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ptxgen.runtime.cpu.native.layout import DONE, FAULTED, GANG, PARKED, RUNNABLE
from ptxgen.runtime.cpu.run import findings
from ptxgen.runtime.cpu.run.address_names import Places
from ptxgen.runtime.cpu.run.standstill import deadlock, late, spinning
from ptxgen.runtime.cpu.support import faults
from ptxgen.runtime.cpu.support.scheduler import LATER_ROUNDS, MOST_ROUNDS

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.runtime.cpu.run.compiled import Compiled
    from ptxgen.runtime.cpu.run.global_memory import Memory
    from ptxgen.runtime.cpu.run.native_state import Gang, Worker

FIRST_ROOM = 64  # gangs that a thread keeps waiting for each other, while any of a launch's still ends
_NAP_SECONDS = 0.0005  # of a thread that can only wait for others
_PAUSES = 8  # of a gang in random mode, besides its first: others go on meanwhile
_LOOKS = 8  # at a gang in random order that repeats no state, until it goes on in a fixed order for as many
_REPEATS = 3  # times in a row that a state was seen before, until it counts as standing still


class Seen(NamedTuple):
    """What a thread last saw: the launch's counts when a round began in which nothing of its own ended, in which its
    warps only repeated their states, and in which memory was as before too."""

    ends: int | None = None
    spins: int | None = None
    progress: int | None = None


class Run(Protocol):
    """A launch, as its threads see it; `launch.Run` is one."""

    compiled: Compiled
    source: findings.Source
    memory: Memory
    params: np.ndarray
    mode: str
    time_limit: float | None
    notes_only: tuple[int, ...]
    notes: list[str]
    turns: list[np.random.Generator]  # by thread, in random mode
    seen: dict[int, Seen]  # by thread, of those that are in the launch
    progress: int
    ends: int

    def may_begin(self) -> bool:
        """Whether a gang is left, and a GPU would have room for it."""

    def left(self) -> int:
        """Gangs that have not begun."""

    def begin(self, worker: Worker, going: bool = False) -> int:
        """Begin gangs and run them, up to one that does not end."""

    def resume(self, gang: Gang) -> int:
        """More turns for a gang that waits."""

    def look(self) -> None:
        """Raise `Stopped` when the launch is over for another reason than its end."""

    def held(self, more: int) -> None:
        """So many more gangs wait for others."""

    def progressed(self, ended: bool = True) -> None:
        """A thread's gangs came further."""

    def another_finding(self) -> bool:
        """Count one; whether the launch is to go on behind it."""

    def not_begun(self) -> str:
        """What a report of standstill adds where some gangs have not begun."""


class Waiting:
    """A gang that spins or was left on its way, and the states its warps were seen in.

    In random order warps that spin hardly ever stand all where they stood before. So after some looks a gang goes on in
    a fixed order, in which a loop that has no end soon repeats its states; as long as it repeats them it stays there,
    else random order is back, each time for twice as long.
    """

    def __init__(self, gang: Gang, randomly: bool) -> None:
        self.gang = gang
        self.seen: set[bytes] = set()
        self.repeats = 0
        self.pauses = _PAUSES
        self.cut_short = False  # its turn is one of few rounds
        self._random_mode = self._randomly = randomly
        self._looks, self._most = 0, _LOOKS

    def forget(self) -> None:
        """What it spun in was not for ever: another gang has ended."""
        self.seen.clear()
        self.repeats = 0

    def look(self, code: int) -> None:
        """Note the state that a turn ended in; `repeats` counts how often in a row it was one seen before. Where warps
        have run, as in a loop through barriers, that counts after all rounds of a turn in a fixed order only."""
        if code == RUNNABLE and (self._randomly or self.cut_short):
            self.repeats = 0
        else:
            state = hashlib.blake2b(self.gang.warp_states(), digest_size=16).digest()
            self.repeats = self.repeats + 1 if state in self.seen else 0
            self.seen.add(state)
        self._looks += 1
        if self._random_mode and not self.repeats and self._looks >= self._most:
            self._change_order()

    def _change_order(self) -> None:
        self._randomly = not self._randomly
        self._looks = 0
        if self._randomly:
            self._most *= 2
        self.gang.block.put("I", GANG["random"], int(self._randomly))


class Memories:
    """The states of memory in which a thread's gangs were seen to spin.

    Each time that memory is another one it is looked at half as often: a loop whose counter lies in memory costs
    little, and a launch that hangs is known after about twice the time that it ran until then.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._repeats = 0
        self._pause = self._due = 1  # rounds from one look to the next, and until the next

    def still(self, gangs: list[Gang], written: list[tuple[int, int]]) -> bool | None:
        """Whether warps and memory repeat what they were before; None where that is not known yet.

        `written`: (address, bytes) of what the launch may write.
        """
        self._due -= 1
        if self._due > 0:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for gang in gangs:
            digest.update(gang.warp_states())
            for part in gang.own_memory():
                digest.update(part.data)
        for begin, size in written:
            digest.update((ctypes.c_uint8 * size).from_address(begin))
        state = digest.digest()
        known = state in self._seen
        self._seen.add(state)
        self._repeats = self._repeats + 1 if known else 0
        self._due = self._pause = 1 if known else 2 * self._pause
        if known and self._repeats < _REPEATS:
            return None
        return known


class Share:
    """What worker `number` of a run does, from the first gang that it takes to its last."""

    def __init__(self, run: Run, number: int, worker: Worker) -> None:
        self.of, self.number, self.worker = run, number, worker
        self.waiting: list[Waiting] = []
        self.memories = Memories()
        self.room = FIRST_ROOM
        self.found: list[str] = []  # what the launch went on behind
        self.beginning: list[Gang] = []  # the worker's own, while gangs begin and run in it

    def run(self) -> str | None:
        """Until no gang is left; the text of what ended the launch, if anything (besides `found`)."""
        while True:
            if len(self.waiting) < self.room and self.of.may_begin():
                found = self._begin()
            elif self.waiting:
                found = self._round()
            elif self.of.left():
                self._wait_for_room()
                found = None
            else:
                return None
            if found is not None:
                return found

    def late(self) -> str:
        """Where the gangs are that were under way when the launch's time was over."""
        of = self.of
        return late(of.compiled.entry, of.source, [*self._gangs(), *self.beginning], of.time_limit or 0.0)

    def _begin(self) -> str | None:
        """Begin gangs and run them to their end, up to one that has to wait."""
        worker = self.worker
        self.of.progressed()
        self.beginning = [worker.gang]
        code = self.of.begin(worker)
        while code == FAULTED and self._goes_on([worker.gang]):
            code = self.of.begin(worker, going=True)
        self.beginning = []
        if code in (FAULTED, PARKED):
            return self._failure(code, worker.gang)
        if code != DONE:  # it spins, perhaps for a gang that has not begun; or is left on its way
            self.waiting.append(Waiting(worker.gang, self.of.mode == "random"))
            self.of.held(1)
            worker.gang = worker.another_gang()
        return None

    def _round(self) -> str | None:
        """Resume each waiting gang once. Where nothing moves on any thread, let more begin, or else say so."""
        of = self.of
        before, ends = of.progress, of.ends  # a warp that spins for what comes later has not looked for it yet
        ended = False
        for one in self._in_turn():
            code = of.resume(one.gang)
            while code == FAULTED and self._goes_on(self._gangs()):
                code = of.resume(one.gang)
            if code == DONE:
                self.waiting.remove(one)
                self.worker.spare.append(one.gang)
                of.held(-1)
                ended = True
                for other in self.waiting:
                    other.forget()
            elif code in (FAULTED, PARKED):
                return self._failure(code, one.gang)
            else:
                one.look(code)
                ended = ended or (code == RUNNABLE and not one.repeats)
        spins = bool(self.waiting) and all(one.repeats >= _REPEATS for one in self.waiting)
        if not spins:
            of.progressed(ended)
        still = spins and self._memory_is_still(before)
        return self._noted(Seen(None if ended else ends, before if spins else None, before if still else None))

    def _memory_is_still(self, before: int) -> bool:
        """Whether memory repeats what it was, too: looked at where all warps of the launch repeat their states."""
        of = self.of
        others = [one for number, one in of.seen.items() if number != self.number]
        if before != of.progress or any(one.spins != before for one in others):
            return False
        still = self.memories.still(self._gangs(), of.memory.writable())
        if still is False:
            of.progressed(False)
        return bool(still)

    def _wait_for_room(self) -> None:
        """Other threads keep as many gangs waiting as there may be; they also tell when these stand still."""
        self.of.seen[self.number] = Seen(self.of.ends, self.of.progress, self.of.progress)
        self.of.look()
        time.sleep(_NAP_SECONDS)

    def _noted(self, seen: Seen) -> str | None:
        of = self.of
        of.seen[self.number] = seen
        everybody = list(of.seen.values())
        if of.may_begin() and all(one.ends == of.ends for one in everybody):
            self.room *= 2  # all wait, perhaps for what has not begun
        elif seen.progress is not None:
            if all(one.progress == of.progress for one in everybody):
                return spinning(of.compiled.entry, of.source, self._gangs(), of.not_begun())
            of.look()
            time.sleep(_NAP_SECONDS)
        return None

    def _in_turn(self) -> list[Waiting]:
        """A round of waiting gangs: in random mode in any order, and each for a few rounds of its own at first."""
        if self.of.mode != "random":
            return list(self.waiting)
        rng = self.of.turns[self.number]
        for one in self.waiting:
            one.cut_short = bool(one.pauses)
            if one.pauses:
                one.pauses -= 1
                one.gang.block.put("I", GANG["rounds"], int(rng.integers(MOST_ROUNDS)) or LATER_ROUNDS)
        return [self.waiting[index] for index in rng.permutation(len(self.waiting))]

    def _gangs(self) -> list[Gang]:
        return [one.gang for one in self.waiting]

    def _goes_on(self, gangs: list[Gang]) -> bool:
        """Note what native code has found, and let the warp go on if nothing of it ends the launch."""
        of = self.of
        entry, goes_on = of.compiled.entry, True
        for fault in self.worker.faults():
            text = findings.found(entry, of.source, fault, gangs, Places(entry, of.memory, of.params))
            if fault.kind in of.notes_only:
                of.notes.append(text)
            else:
                self.found.append(text)
                goes_on = fault.kind in faults.GOES_ON and goes_on
                if not of.another_finding():
                    return False
        if goes_on:
            self.worker.go_on(gangs)
        return goes_on

    def _failure(self, code: int, gang: Gang) -> str:
        """What ends the launch, besides what it went on behind: nothing (where that was enough), or a deadlock."""
        return "" if code == FAULTED else deadlock(self.of.compiled.entry, self.of.source, gang)
