"""`open_device`: devices by name, and the one object of every GPU of this process."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ptxgen.errors import CudaError, SpecError

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

_NAME = re.compile(r"cpu|cuda(?::(\d+))?", re.ASCII)
_open: dict[int, Device] = {}
_open_lock = threading.Lock()


def open_device(name: str | None = None, **options: Any) -> Device:
    """A device by name: "cuda", "cuda:1", "cpu"; None is "cuda" where a GPU can be used, else "cpu".

    A GPU has one `Device` object per process (until that is closed), so that modules and memory are shared; the CPU
    executor gets a new one per call, with `options` of its own: `mode` "fast" (default), "random" or "check", `seed` of
    a random order, `threads` of the host (default: one a CPU), `time_limit` of a launch in seconds, `most_findings` of
    a launch (20), `equal_stores` "note" or "finding". Raises `CudaError` that says why a GPU cannot be used, and
    `SpecError` for another name or value.
    """
    if name is None:
        try:
            return open_device("cuda", **options)
        except CudaError as missing:
            import logging

            logging.getLogger("ptxgen.runtime").info("no GPU can be used (%s): opening the CPU executor", missing)
            name = "cpu"
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise SpecError(f'open_device: name must be "cuda", "cuda:<index>", "cpu" or None (got {name!r})')
    if name == "cpu":
        from ptxgen.runtime.cpu.device import CpuDevice

        return CpuDevice(**options)
    return _open_cuda(int(found[1] or 0), options)


def is_device_name(name: str) -> bool:
    """Whether `open_device` takes it."""
    return _NAME.fullmatch(name) is not None


def _open_cuda(index: int, options: dict[str, Any]) -> Device:
    if options:
        raise SpecError(f"open_device: a CUDA device takes no options (got {', '.join(sorted(options))})")
    with _open_lock:
        device = _open.get(index)
        if device is None or device.closed:
            device = _open[index] = _start(index)
        return device


def _start(index: int) -> Device:
    """A GPU's device, with what it and a first load need imported while the driver starts, which takes as long."""
    from ptxgen.runtime.cuda.driver import Driver, import_binding

    binding = import_binding()
    with _preparing():
        driver = Driver(binding)
        from ptxgen.runtime.cuda.device import CudaDevice  # waits until the thread has it

        return CudaDevice(index, driver)


@contextmanager
def _preparing() -> Iterator[None]:
    """Import in another thread meanwhile, as long as the driver lets Python run. A failure there is left to the thread
    that needs the module; where the driver does not start, no more is imported.

    The device comes first: these two threads then import no modules that import each other.
    """
    failed = threading.Event()

    def work() -> None:
        with suppress(Exception):
            for name in ("runtime.cuda.device", "generator", "runtime.core.launches.kernel", "render"):
                if failed.is_set():
                    return
                import_module(f"ptxgen.{name}")
            import_module("ptxgen.render").prepare()

    thread = threading.Thread(target=work, name="ptxgen-imports")
    with suppress(RuntimeError):  # no more threads: nothing is prepared
        thread.start()
    try:
        yield
    except BaseException:
        failed.set()
        raise
    finally:
        if thread.ident is not None:
            thread.join()


def _after_fork() -> None:
    """A thread that held the lock is not in the child."""
    global _open_lock
    _open_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
