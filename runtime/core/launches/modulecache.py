"""`ModuleCache`: loaded kernels of one device, keyed by their specs, for each tuning table that was in force. Owns no
machine code and no files.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from ptxgen.errors import ModuleLoadError, PtxgenError, SpecError, TargetError, brief
from ptxgen.kernel import KernelType
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target
from ptxgen.tuning import Table, in_force

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from ptxgen.generator import Ptx
    from ptxgen.runtime.core.launches.kernel import Kernel
    from ptxgen.runtime.core.memory.buffer_device import BufferDevice

    Key = tuple[KernelType, Target, str]  # and of which kind
    Kernels = tuple[dict[KernelType, Kernel], dict[tuple[KernelType, Target], Kernel]]

log = logging.getLogger("ptxgen.runtime")
LINE_INFO = "PTXGEN_LINE_INFO"
_caches: WeakSet[ModuleCache] = WeakSet()


@dataclass(frozen=True, slots=True)
class Loaded:
    """One line of a cache's history: what was loaded, where its machine code came from, and how long that took."""

    spec: KernelType
    target: Target
    origin: str
    generate_ms: float
    load_ms: float


@dataclass(frozen=True, slots=True)
class Rendered:
    """Generated text that is to be loaded, and how long it took to generate."""

    ptx: Ptx
    ms: float


def line_info_by_default() -> bool:
    """Whether PTXGEN_LINE_INFO asks for `.loc` in the texts that devices load; `SpecError` for what is not 0 or 1."""
    value = os.environ.get(LINE_INFO, "")
    if value not in ("", "0", "1"):
        raise SpecError(f"{LINE_INFO}: must be 0 or 1 (got {brief(value)})")
    return value == "1"


def _no_spec(given: object, label: str) -> SpecError:
    """What is said of anything but a spec."""
    instead = "; device.module(text) loads a PTX text" if isinstance(given, str | bytes) else ""
    instead = "; make_spec makes one of a name and fields" if isinstance(given, Mapping) else instead
    return SpecError(f"{label}: must be a spec, KernelType(...) with its fields{instead} (got {brief(given)})")


def _kind(table: Table, line_info: bool) -> str:
    """What kernels of one spec and target differ by: the tuning table that was in force, and line info."""
    return f"{table.digest} with lines" if line_info else table.digest


class ModuleCache:
    """Every spec is generated and loaded once per device, whichever threads ask; a hit is a dictionary look-up.

    `history` has one `Loaded` for each load. A failed load is not remembered: the next call tries again.
    """

    def __init__(self, device: BufferDevice) -> None:
        self.device = device
        self.line_info = line_info_by_default()
        self.history: list[Loaded] = []
        self._kernels: dict[KernelType, Kernel] = {}  # for the device's own target, under the table
        self._all: dict[tuple[KernelType, Target], Kernel] = {}  # under the table
        self._table: Table | None = None
        self._by_table: dict[str, Kernels] = {}
        self._pending: dict[Key, Future[Kernel]] = {}
        self._lock = threading.Lock()
        self._generating = threading.Lock()
        _caches.add(self)

    def load(self, spec: KernelType, target: object = None, line_info: bool | None = None) -> Kernel:
        """The kernel of `spec`; `target` (default: the device's) must run on the device. See `Device.load`."""
        if not isinstance(spec, KernelType):  # before it is looked up, as a list cannot be
            raise _no_spec(spec, "load")
        if in_force() is not self._table:
            self._change_table()
        if line_info is not None and line_info != self.line_info:
            where = self.device.target if target is None else parse_target(target)  # type: ignore[arg-type]
            return self._load(spec, where, line_info=line_info).result()
        if target is None:
            found = self._kernels.get(spec)
            return found if found is not None else self._load(spec, self.device.target).result()
        where = parse_target(target)  # type: ignore[arg-type]
        return self._all.get((spec, where)) or self._load(spec, where).result()

    def warmup(
        self, specs: Iterable[KernelType], target: object = None, workers: int | None = None
    ) -> dict[KernelType, Kernel]:
        """Load all specs, compiling in up to `workers` threads (default: one a CPU); one error reports every failure.

        What needs no compiler is loaded by this thread: Python and the driver take loads one by one anyway, and threads
        would only wait for each other.
        """
        from concurrent.futures import ThreadPoolExecutor

        if workers is not None and (not isinstance(workers, int) or workers < 1):
            raise SpecError(f"warmup.workers: must be an int ≥ 1, or None (got {workers!r})")
        if not isinstance(specs, Iterable):
            raise SpecError(f"warmup: must be several specs (got {brief(specs)})")
        specs = tuple(specs)
        for spec in specs:
            if not isinstance(spec, KernelType):
                raise _no_spec(spec, "warmup")
        where = self.device.target if target is None else parse_target(target)  # type: ignore[arg-type]
        if in_force() is not self._table:
            self._change_table()
        with ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="ptxgen-warmup") as pool:
            loads = {spec: self._load(spec, where, pool) for spec in dict.fromkeys(specs)}
        failed = {spec: load.exception() for spec, load in loads.items() if load.exception() is not None}
        if failed:
            lines = "\n".join(f"{spec!r}: {error}" for spec, error in failed.items())
            raise ModuleLoadError(f"warmup: {len(failed)} of {len(loads)} specs failed\n{lines}")
        return {spec: load.result() for spec, load in loads.items()}

    def __contains__(self, spec: object) -> bool:
        return spec in self._kernels

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"ModuleCache({len(self)} kernels, {self.device.name})"

    def _change_table(self) -> None:
        """Go on with the kernels of the table that is in force now."""
        with self._lock:
            self._table = in_force()
            self._kernels, self._all = self._kernels_under(_kind(self._table, self.line_info))

    def _kernels_under(self, table: str) -> Kernels:
        return self._by_table.setdefault(table, ({}, {}))

    def _load(
        self,
        spec: KernelType,
        target: Target,
        pool: ThreadPoolExecutor | None = None,
        line_info: bool | None = None,
    ) -> Future[Kernel]:
        """A load, over or under way: one thread does it, the others wait. What must be compiled is left to a `pool`."""
        with_lines = self.line_info if line_info is None else line_info
        key = (spec, target, _kind(in_force(), with_lines))
        load: Future[Kernel] = Future()
        with self._lock:
            ready = self._kernels_under(key[2])[1].get((spec, target))
            first = load if ready is not None else self._pending.setdefault(key, load)
        if ready is not None:
            load.set_result(ready)
        elif first is load:
            try:
                rendered = self._render(spec, target, with_lines)
                others = None if pool is None or self.device._at_hand(rendered.ptx.text) else pool
            except BaseException as error:
                self._end(key, load, error)
            else:
                if others is None:
                    self._link(key, load, rendered)
                else:
                    others.submit(self._link, key, load, rendered)
        return first

    def _render(self, spec: KernelType, target: Target, line_info: bool) -> Rendered:
        from ptxgen.generator import generate

        device = self.device
        if device.strict:
            raise ModuleLoadError(
                f"{device.name} is strict: {spec!r} for {target} is not loaded; warm it up first (device.warmup([…]))"
            )
        if not device._runs(target):
            raise TargetError(f"target: {device.name} runs what {device.target} includes (got {target})")
        try:
            with self._generating:  # Python takes turns anyway, and takes them better here
                started = time.perf_counter()
                ptx = generate(spec, target, line_info=line_info)
        except PtxgenError:
            log.debug("%r for %s on %s: not generated", spec, target, device.name)
            raise
        return Rendered(ptx, (time.perf_counter() - started) * 1e3)

    def _link(self, key: Key, load: Future[Kernel], rendered: Rendered) -> None:
        from ptxgen.runtime.core.launches.kernel import Kernel

        spec, target, _ = key
        device, ptx = self.device, rendered.ptx
        started = time.perf_counter()
        try:
            code = device._load(ptx.text, f"{ptx.entry} {ptx.digest[:12]}")
            kernel = Kernel(device, ptx, code.function(ptx.entry))
        except BaseException as error:
            self._end(key, load, error)
            return
        line = Loaded(spec, target, code.origin, rendered.ms, (time.perf_counter() - started) * 1e3)
        self.history.append(line)
        log.debug("%r for %s on %s: %s, %.1f ms", spec, target, device.name, code.origin, line.load_ms)
        self._end(key, load, kernel)

    def _end(self, key: Key, load: Future[Kernel], outcome: Kernel | BaseException) -> None:
        """Let those who wait for a load have its kernel, or its error."""
        spec, target, table = key
        with self._lock:
            self._pending.pop(key, None)
            if not isinstance(outcome, BaseException):
                own, every = self._kernels_under(table)
                every[spec, target] = outcome
                if target == self.device.target:
                    own[spec] = outcome
        if not isinstance(outcome, BaseException):
            load.set_result(outcome)
            return
        load.set_exception(outcome)
        if not isinstance(outcome, Exception):  # an interrupt is for this thread first
            raise outcome

    def _after_fork(self) -> None:
        """A thread that held the lock, or was loading, is not in the child."""
        self._lock, self._generating = threading.Lock(), threading.Lock()
        self._pending = {}


def _after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
