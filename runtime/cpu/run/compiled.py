"""An entry that is linked into this process, with the structures of its launches; optimised when it has run long."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

from ptxgen.runtime.cpu.compile.entry_cache import CompiledCache, Objects
from ptxgen.runtime.cpu.native.fork_safety import renewed_in_children
from ptxgen.runtime.cpu.native.host import Linked
from ptxgen.runtime.cpu.run.geometry import Geometry
from ptxgen.runtime.cpu.run.native_state import Block, Worker, launch_block

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.compile.counting import Counts

IMPROVE_SECONDS = 0.5


class Native:
    """An entry's code in this process: what a launch calls."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked  # which owns the code
        self.warp = linked.address("warp")
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.run = ctypes.CFUNCTYPE(number, pointer, pointer, number)(linked.address("thread.run"))
        self.resume = ctypes.CFUNCTYPE(number, pointer)(linked.address("resume.run"))


class Compiled:
    """An entry in one mode, linked into this process, with launch structures kept for reuse.

    Once it has run for `IMPROVE_SECONDS` in all, its support functions are optimised: sooner would not pay.
    """

    def __init__(self, cache: CompiledCache, name: str, check: bool, counting: bool = False) -> None:
        self.counts: Counts | None = None
        self._objects: Objects | None = None
        if counting:
            self.entry, linked, self.counts = cache.counting(name)
        else:
            self._objects, linked = cache.load(name, check)
            self.entry = self._objects.entry
        self.check, self._cache = check, cache
        self.native = Native(linked)
        self._seconds = 0.0
        self._idle: dict[Geometry, list[tuple[Block, list[Worker]]]] = {}
        self.renew_lock()
        renewed_in_children(self)

    def renew_lock(self) -> None:
        """Take a free lock: another thread may have held the old one when the process was forked."""
        self._lock = threading.Lock()

    def structures(self, geometry: Geometry, threads: int) -> tuple[Block, list[Worker]]:
        """A LAUNCH block and workers that no launch uses now."""
        with self._lock:
            idle = self._idle.get(geometry)
            found = idle.pop() if idle else None
        if found is None:
            found = launch_block(self.entry, geometry, self.check), []
        block, workers = found
        while len(workers) < threads:
            workers.append(Worker(self.entry, geometry, block, self.check))
        return block, workers

    def ran(self, seconds: float) -> None:
        """A launch took this long. Launches that are under way go on with the code that they began with."""
        if self._objects is None or self._objects.good:
            return
        with self._lock:
            self._seconds += seconds
            if self._seconds >= IMPROVE_SECONDS and not self._objects.good:
                self._objects, linked = self._cache.improve(self._objects, self.check)
                self.native = Native(linked)

    def give_back(self, geometry: Geometry, block: Block, workers: list[Worker]) -> None:
        """Structures for the next launch of this geometry; a few geometries are kept."""
        with self._lock:
            if len(self._idle) > 8:
                self._idle.clear()
            self._idle.setdefault(geometry, []).append((block, workers))
