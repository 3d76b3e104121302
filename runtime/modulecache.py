"""`ModuleCache`: loaded kernels of one device, keyed by their specs, for each tuning table that was in force. Owns no
machine code and no files.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from ptxgen.errors import ModuleLoadError, PtxgenError, SpecError, TargetError, brief
from ptxgen.kernel import KernelType
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target
from ptxgen.tuning import Table, in_force

if TYPE_CHECKING:
    from ptxgen.runtime.device import Device
    from ptxgen.runtime.kernel import Kernel

log = logging.getLogger("ptxgen.runtime")
_caches: WeakSet[ModuleCache] = WeakSet()


@dataclass(frozen=True, slots=True)
class Loaded:
    """One line of a cache's history: what was loaded, where its machine code came from, and how long that took."""

    spec: KernelType
    target: Target
    origin: str
    generate_ms: float
    load_ms: float


class ModuleCache:
    """Every spec is generated and loaded once per device, whichever threads ask; a hit is a dictionary look-up.

    `history` has one `Loaded` for each load. A failed load is not remembered: the next call tries again.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.history: list[Loaded] = []
        self._kernels: dict[KernelType, Kernel] = {}  # for the device's own target, under the table
        self._all: dict[tuple[KernelType, Target], Kernel] = {}  # under the table
        self._table: Table | None = None
        self._by_table: dict[str, tuple[dict[KernelType, Kernel], dict[tuple[KernelType, Target], Kernel]]] = {}
        self._pending: dict[tuple[KernelType, Target, str], Future[Kernel]] = {}
        self._lock = threading.Lock()
        self._generating = threading.Lock()
        _caches.add(self)

    def load(self, spec: KernelType, target: object = None) -> Kernel:
        """The kernel of `spec`; `target` (default: the device's) must run on the device. See `Device.load`."""
        if in_force() is not self._table:
            self._change_table()
        if target is None:
            found = self._kernels.get(spec)
            return found if found is not None else self._load(spec, self.device.target)
        where = parse_target(target)  # type: ignore[arg-type]
        return self._all.get((spec, where)) or self._load(spec, where)

    def warmup(
        self, specs: Iterable[KernelType], target: object = None, workers: int | None = None
    ) -> dict[KernelType, Kernel]:
        """Load all specs in `workers` threads (default: as many as there are CPUs); one error reports every failure."""
        wanted = list(dict.fromkeys(specs))
        if not wanted:
            return {}
        if workers is not None and (not isinstance(workers, int) or workers < 1):
            raise SpecError(f"warmup.workers: must be an int ≥ 1, or None (got {workers!r})")
        threads = min(len(wanted), workers or os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, thread_name_prefix="ptxgen-warmup") as pool:
            futures = {spec: pool.submit(self.load, spec, target) for spec in wanted}
        failed = {spec: f.exception() for spec, f in futures.items() if f.exception() is not None}
        if failed:
            lines = "\n".join(f"{spec!r}: {error}" for spec, error in failed.items())
            raise ModuleLoadError(f"warmup: {len(failed)} of {len(wanted)} specs failed\n{lines}")
        return {spec: f.result() for spec, f in futures.items()}

    def __contains__(self, spec: object) -> bool:
        return spec in self._kernels

    def __len__(self) -> int:
        return len(self._all)

    def _change_table(self) -> None:
        """Go on with the kernels of the table that is in force now."""
        with self._lock:
            self._table = in_force()
            self._kernels, self._all = self._by_table.setdefault(self._table.digest, ({}, {}))

    def _load(self, spec: KernelType, target: Target) -> Kernel:
        """One thread loads, the others wait for it."""
        if not isinstance(spec, KernelType):
            raise SpecError(f"load: must be a spec, KernelType(...) with its fields (got {brief(spec)})")
        key = (spec, target, in_force().digest)
        with self._lock:
            kernels, all_kernels = self._kernels, self._all
            ready = kernels.get(spec) if target == self.device.target else all_kernels.get((spec, target))
            if ready is not None:
                return ready
            pending = self._pending.get(key)
            if pending is None:
                mine = self._pending[key] = Future()
        if pending is not None:
            return pending.result()
        try:
            kernel = self._build(spec, target)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            with self._lock:
                all_kernels[spec, target] = kernel
                if target == self.device.target:
                    kernels[spec] = kernel
            mine.set_result(kernel)
            return kernel
        finally:
            with self._lock:
                self._pending.pop(key, None)

    def _build(self, spec: KernelType, target: Target) -> Kernel:
        from ptxgen.generator import generate
        from ptxgen.runtime.kernel import Kernel

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
                ptx = generate(spec, target)
        except PtxgenError:
            log.debug("%r for %s on %s: not generated", spec, target, device.name)
            raise
        rendered = time.perf_counter()
        code = device._load(ptx.text, f"{ptx.entry} {ptx.digest[:12]}")
        kernel = Kernel(device, ptx, code.function(ptx.entry))
        now = time.perf_counter()
        line = Loaded(spec, target, code.origin, (rendered - started) * 1e3, (now - rendered) * 1e3)
        self.history.append(line)
        log.debug("%r for %s on %s: %s, %.1f ms", spec, target, device.name, code.origin, line.load_ms)
        return kernel

    def _after_fork(self) -> None:
        """A thread that held the lock, or was loading, is not in the child."""
        self._lock, self._generating = threading.Lock(), threading.Lock()
        self._pending = {}


def _after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
