"""The host's compiler: LLVM IR text → object code → callable addresses. Owns llvmlite and nothing of PTX."""

from __future__ import annotations

import functools
import os
import platform
import threading
from dataclasses import dataclass
from typing import Any

_lock = threading.Lock()  # llvmlite is not thread-safe
_serial = 0
if hasattr(os, "register_at_fork"):  # LLVM is never forked half-way through
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


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
        from ptxgen.errors import ExecutionError

        raise ExecutionError("the CPU executor needs llvmlite: pip install 'ptxgen[cpu]'") from missing
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _machine(host: Host, level: int) -> Any:
    llvm = _llvm()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=host.cpu, features=host.features, opt=level, reloc="default", codemodel="jitdefault", jit=True
    )


def compile_ir(text: str, host: Host, level: int = 1) -> bytes:
    """Object code of a module's text. No mid-level passes: they cost more than they gain here."""
    llvm = _llvm()
    with _lock:
        module = llvm.parse_assembly(text)
        return bytes(_machine(host, level).emit_object(module))


class Linked:
    """Object code in memory; `address(name)` of what it exports. Lives as long as this object."""

    def __init__(self, objects: list[bytes], names: list[str], host: Host) -> None:
        global _serial
        llvm = _llvm()
        with _lock:
            _serial += 1
            self._jit = llvm.create_lljit_compiler(_machine(host, 1))
            builder = llvm.JITLibraryBuilder()
            for image in objects:
                builder.add_object_img(image)
            builder.add_current_process()
            for name in names:
                builder.export_symbol(name)
            self._library = builder.link(self._jit, f"ptxgen{_serial}")
            self._addresses = {name: int(self._library[name]) for name in names}

    def address(self, name: str) -> int:
        """Where an exported function lies."""
        return self._addresses[name]
