"""Programs: PTX that runs on this host. Owns compilation on demand, caching, launches over host threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen import nodes
from ptxgen.errors import CudaError
from ptxgen.runtime.core import backend
from ptxgen.runtime.cpu.compile.entry import Entry
from ptxgen.runtime.cpu.compile.entry_cache import CompiledCache
from ptxgen.runtime.cpu.native import layout
from ptxgen.runtime.cpu.native.fork_safety import renewed_in_children
from ptxgen.runtime.cpu.native.host import Host, this_host
from ptxgen.runtime.cpu.run.compiled import Compiled
from ptxgen.runtime.cpu.run.findings import Source
from ptxgen.runtime.cpu.run.geometry import Geometry, fitted
from ptxgen.runtime.cpu.run.global_memory import Memory
from ptxgen.runtime.cpu.run.launch import Run
from ptxgen.runtime.cpu.run.module_variables import Globals
from ptxgen.runtime.cpu.run.options import MODES, Options
from ptxgen.runtime.cpu.run.param_space import pack
from ptxgen.runtime.cpu.run.thread_pool import thread_pool

if TYPE_CHECKING:
    from ptxgen.runtime.cpu.compile.counting import Counts


class Program:
    """A parsed module whose entries are compiled when first launched.

    Options as in `Options`, `SpecError` where one is wrong.
    Raises `IsaError` where an entry has an instruction that the executor lacks.
    """

    def __init__(
        self,
        module: nodes.Module,
        *,
        mode: str = "fast",
        seed: int = 0,
        threads: int | None = None,
        time_limit: float | None = None,
        most_findings: int = 20,
        equal_stores: str = "note",
        host: Host | None = None,
    ) -> None:
        self.options = Options(mode, seed, threads, time_limit, most_findings, equal_stores)
        self.threads = threads or os.cpu_count() or 1
        self.host = host or this_host()
        self._cache = CompiledCache(module, self.host)
        self.source = Source(self._cache.file, self._cache.text)
        self.globals = Globals(self._cache.variables())
        self._compiled: dict[tuple[str, bool], Compiled] = {}
        self.renew_lock()
        renewed_in_children(self)

    def renew_lock(self) -> None:
        """Take a free lock: another thread may have held the old one when the process was forked."""
        self._lock = threading.Lock()

    @classmethod
    def from_text(cls, text: str, file: str = "<ptx>", verify: bool = False, **options: Any) -> Program:
        """A program of PTX text; text that the disk cache knows is not even parsed.

        `verify`: refuse with `IsaError` what is no legal PTX, rather than run something like it: at once, but forms
        that the instruction table lacks when an entry that reaches them is asked for.
        """
        program = cls.__new__(cls)
        program.__init__(CompiledCache.lazy(text, file, verify), **options)  # type: ignore[misc]
        return program

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries."""
        return self._cache.entries()

    def entry(self, name: str, mode: str | None = None) -> Entry:
        """The description of an entry (parameters, static shared and local memory, directives); compiles it."""
        return self.compiled(name, (mode or self.options.mode) == "check").entry

    def compiled(self, name: str, check: bool) -> Compiled:
        """An entry ready to run."""
        key = (name, check)
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                found = self._compiled[key] = Compiled(self._cache, name, check)
            return found

    def counted(self, name: str) -> Counts:
        """Count what later launches of an entry in fast mode execute; they may not run beside each other."""
        with self._lock:
            compiled = self._compiled[name, False] = Compiled(self._cache, name, False, counting=True)
        assert compiled.counts is not None
        return compiled.counts

    def launch(
        self,
        entry: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[object],
        *,
        shared: int = 0,
        cluster: int | Sequence[int] = (1, 1, 1),
        memory: Memory,
        mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        """Run a grid to its end. `args` are numbers, NumPy scalars or bytes, one for each parameter, in order.

        Raises `ExecutionError` for a finding; memory keeps what was written until then, and the program stays usable.
        """
        usual = self.options
        how = replace(usual, mode=usual.mode if mode is None else mode, seed=usual.seed if seed is None else seed)
        compiled = self.compiled(entry, how.mode == "check")
        params = pack(compiled.entry, args)
        geometry = fitted(compiled.entry, backend.Geometry.of(grid, block, shared, cluster))
        self.launch_packed(compiled, geometry, params, memory, how)

    def launch_packed(
        self,
        compiled: Compiled,
        geometry: Geometry,
        params: np.ndarray,
        memory: Memory,
        how: Options,
        beside: int = 0,
    ) -> int:
        """`launch` with the parameter block as bytes; what a prepared launch calls each time.

        Returns the launch's number (`Memory.begin_launch`). `beside`: the number of the launch that this one may run
        beside on a GPU, until its griddepcontrol.wait; check mode sees to that.
        """
        self.globals.place(memory)
        try:
            run = Run(compiled, geometry, params, memory, self.globals, self.source, how, self.threads, beside)
            start = time.perf_counter()
            run.go(thread_pool)
        except MemoryError:
            local = f"{geometry.threads:,} threads of {compiled.entry.local_bytes:,} bytes of local memory a CTA"
            raise CudaError(f"cpu: {compiled.entry.name}: out of memory for a launch ({local})") from None
        compiled.ran(time.perf_counter() - start)
        return run.number


__all__ = ["MODES", "Compiled", "Program", "layout"]
