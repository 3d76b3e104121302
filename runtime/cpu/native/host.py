"""The host's compiler: LLVM IR text → object code → callable addresses. Owns llvmlite and nothing of PTX."""

from __future__ import annotations

import functools
import gc
import os
import platform
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxgen.errors import CudaError, ModuleLoadError

_serial = 0
_LONG_TEXT = 400_000  # characters of IR: a tenth of a second


@dataclass(frozen=True, slots=True)
class Host:
    """What the code is compiled for. A test may take features away to see the slower paths."""

    cpu: str
    features: str
    versions: str
    triple: str = ""

    @property
    def native_half(self) -> bool:
        """Whether f16 ↔ f32 is an instruction (without it LLVM calls a library that may be absent)."""
        return platform.machine() in ("arm64", "aarch64") or "+f16c" in self.features.split(",")

    @property
    def masked_stores(self) -> bool:
        """Whether a part of a vector is stored by one instruction, whatever its elements."""
        return {"+avx512f", "+avx512bw", "+avx512vl"} <= set(self.features.split(","))


@functools.lru_cache(maxsize=1)
def this_host() -> Host:
    """This machine; the features are LLVM's names, all of them stated."""
    llvm = _llvm()
    features = llvm.get_host_cpu_features().flatten()
    import llvmlite

    version = ".".join(map(str, llvm.llvm_version_info))
    versions = f"llvmlite {llvmlite.__version__} LLVM {version}"
    return Host(llvm.get_host_cpu_name(), features, versions, llvm.get_default_triple())


@functools.lru_cache(maxsize=1)
def _llvm() -> Any:
    try:
        import llvmlite.binding as llvm
    except ImportError as missing:
        raise CudaError("the CPU executor needs llvmlite: pip install 'ptxgen[cpu]'") from missing
    lock = llvm.ffi.lib._lock
    if hasattr(os, "register_at_fork"):  # LLVM is never forked half-way through
        os.register_at_fork(before=lock.__enter__, after_in_parent=lock.__exit__, after_in_child=lock.__exit__)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _lock() -> Any:
    """llvmlite's own lock (reentrant): it takes it for every call, in finalisers too, whatever thread these run in."""
    return _llvm().ffi.lib._lock


def _machine(host: Host, level: int) -> Any:
    llvm = _llvm()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=host.cpu, features=host.features, opt=level, reloc="default", codemodel="jitdefault", jit=True
    )


def compile_ir(text: str, host: Host, level: int = 1) -> bytes:
    """Object code of a module's text. No mid-level passes: they cost more than they gain here.

    Python handles signals in its main thread between two steps of its own, so there a long text is left to another
    thread: Ctrl-C ends the wait, and what is under way ends by itself. The wait is one of many short ones: a signal may
    reach any thread of the process, and wakes that one alone.
    """
    if len(text) < _LONG_TEXT or threading.current_thread() is not threading.main_thread():
        return _compiled(text, host, level)
    compiled: Future[bytes] = Future()

    def work() -> None:
        try:
            compiled.set_result(_compiled(text, host, level))
        except BaseException as error:
            compiled.set_exception(error)

    threading.Thread(target=work, name="ptxgen-compile").start()
    while not wait((compiled,), timeout=0.1).done:
        pass
    return compiled.result()


def _compiled(text: str, host: Host, level: int) -> bytes:
    llvm = _llvm()
    with _lock():
        module = llvm.parse_assembly(text)
        return bytes(_machine(host, level).emit_object(module))


class Mappings:
    """How many more memory mappings the process may have. LLVM ends the process where a mapping fails.

    `most` (None: no known limit) and `count()` are the system's. Counting thousands takes longer than linking, so it
    happens only when what was free at the last count is used up, whatever was given back meanwhile. Unreachable
    modules may still wait for Python's garbage collector, which runs less often the larger a program is.
    """

    def __init__(self, most: int | None, count: Callable[[], int]) -> None:
        self._most, self._count = most, count
        self._free = 0

    def take(self, n: int) -> None:
        """Expect `n` more; `ModuleLoadError` where they do not fit beside a reserve for the rest of the process."""
        if self._most is None:
            return
        if self._free < n:
            self._recount()
        if self._free < n:
            gc.collect()
            self._recount()
        if self._free < n:
            raise ModuleLoadError(
                f"CPU executor: linking takes up to {n} memory mappings; {max(self._free, 0)} are free of the "
                f"{self._most} that this system grants a process (vm.max_map_count): too many kernels are loaded; drop "
                "devices and modules that are not in use"
            )
        self._free -= n

    def _recount(self) -> None:
        assert self._most is not None
        self._free = self._most - self._most // 16 - self._count()


def _mappings_of_this_system() -> Mappings:
    limit, maps = Path("/proc/sys/vm/max_map_count"), Path("/proc/self/maps")
    try:
        return Mappings(int(limit.read_text()), lambda: maps.read_bytes().count(b"\n"))
    except (OSError, ValueError):
        return Mappings(None, lambda: 0)


_MAPPINGS_PER_OBJECT = 3  # code, constants, variables
_mappings = _mappings_of_this_system()


@functools.lru_cache(maxsize=1)
def _linker() -> Any:
    """LLVM's linker for code in memory: one for the process, as each takes half a millisecond and 0.3 MB."""
    return _llvm().create_lljit_compiler(_machine(this_host(), 1))


class Linked:
    """Object code in memory; `address(name)` of what it exports. Lives as long as this object."""

    def __init__(self, objects: list[bytes], names: list[str]) -> None:
        global _serial
        llvm = _llvm()
        with _lock():
            _mappings.take(_MAPPINGS_PER_OBJECT * len(objects))
            _serial += 1
            builder = llvm.JITLibraryBuilder()
            for image in objects:
                builder.add_object_img(image)
            builder.add_current_process()
            for name in names:
                builder.export_symbol(name)
            self._library = builder.link(_linker(), f"ptxgen{_serial}")
            self._addresses = {name: int(self._library[name]) for name in names}

    def address(self, name: str) -> int:
        """Where an exported function lies."""
        return self._addresses[name]
