"""Looks at this machine: driver, GPUs, what they load, the cache, optional parts. Needs none, changes nothing.

The driver is asked through ctypes, so that it is found even where the CUDA bindings are not installed.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from ptxgen.errors import AssembleError, SpecError, TargetError
from ptxgen.targets import ptx_of_driver, target_of_capability
from ptxgen.views.manifest import driver_text

_PARTS = {
    "jinja2": ("jinja2", "core"),
    "numpy": ("numpy", "core"),
    "click": ("click", "core"),
    "rich": ("rich", "core"),
    "cuda-bindings": ("cuda-bindings", "cuda: runs kernels on a GPU"),
    "llvmlite": ("llvmlite", "cpu: runs kernels without a GPU"),
    "nvidia-nvjitlink": ("nvidia-nvjitlink", "ptxas: assembles without a CUDA toolkit"),
    "gguf": ("gguf", "models: reads GGUF files"),
    "safetensors": ("safetensors", "models: reads Hugging Face checkpoints"),
    "tokenizers": ("tokenizers", "models: splits text into tokens"),
    "ml_dtypes": ("ml_dtypes", "bf16 and fp8 arrays in NumPy"),
}
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76  # CUdevice_attribute of the driver API
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class Line:
    """One finding. `state`: ok, absent (an optional part), wrong (something that should work and does not)."""

    topic: str
    state: str
    text: str


def examine() -> list[Line]:
    """Everything, in the order in which it is shown."""
    return [_python(), *_driver(), _cache(), _tuning(), _assembler(), *_parts()]


def _python() -> Line:
    version = platform.python_version()
    fine = sys.version_info >= (3, 10)
    return Line("python", "ok" if fine else "wrong", version if fine else f"{version}: 3.10 or newer is needed")


class _Driver:
    """libcuda, as far as the questions of this module go."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, function: str, *arguments: object) -> int:
        """The status of a driver call."""
        return int(getattr(self._library, function)(*arguments))

    def number(self, function: str, *arguments: object) -> int:
        """An int that a call stores in its first argument; raises `OSError` with the status."""
        value = ctypes.c_int()
        status = self.call(function, ctypes.byref(value), *arguments)
        if status:
            raise OSError(status, f"{function} returned {status}")
        return value.value

    def name(self, device: int) -> str:
        """The name of a GPU."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), device)
        return text.value.decode(errors="replace")

    def memory(self, device: int) -> int:
        """Its memory in bytes."""
        size = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        return size.value


def _driver() -> list[Line]:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = _Driver(ctypes.CDLL(name))
        version = driver.number("cuDriverGetVersion")
        status = driver.call("cuInit", 0)
    except (OSError, AttributeError):
        return [Line("driver", "absent", f"no {name}: kernels run on the CPU executor")]
    if status:
        why = "no GPU is visible" if status == _NO_DEVICE else f"cuInit returned {status}"
        return [Line("driver", "absent" if status == _NO_DEVICE else "wrong", f"CUDA {driver_text(version)}: {why}")]
    highest = ".".join(map(str, ptx_of_driver(version)))
    lines = [Line("driver", "ok", f"CUDA {driver_text(version)}: loads PTX ISA up to {highest} (as known here)")]
    try:
        return lines + [_gpu(driver, index) for index in range(driver.number("cuDeviceGetCount"))]
    except OSError as wrong:
        return [*lines, Line("gpu", "wrong", str(wrong))]


def _gpu(driver: _Driver, index: int) -> Line:
    device = driver.number("cuDeviceGet", index)
    major = driver.number("cuDeviceGetAttribute", _COMPUTE_MAJOR, device)
    minor = driver.number("cuDeviceGetAttribute", _COMPUTE_MINOR, device)
    described = f"{driver.name(device)}, {driver.memory(device) >> 30} GiB, compute capability {major}.{minor}"
    try:
        return Line(f"gpu {index}", "ok", f"{described}: generate for {target_of_capability(major, minor)}")
    except TargetError as old:
        return Line(f"gpu {index}", "wrong", f"{described}: {old}")


def _tuning() -> Line:
    from ptxgen.tuning import VARIABLE, Table

    own = os.environ.get(VARIABLE)
    if not own:
        return Line("tuning", "ok", f"the shipped table ({VARIABLE} is not set)")
    try:
        rows = len(Table.read(own).rows)
    except SpecError as wrong:
        return Line("tuning", "wrong", str(wrong))
    return Line("tuning", "ok", f"{own}: {rows} row{'' if rows == 1 else 's'} before the shipped ones")


def _cache() -> Line:
    from ptxgen.files.user_cache import default_directory

    folder = default_directory()
    if folder is None:
        off = os.environ.get("PTXGEN_CACHE_DIR", "").lower() == "off"
        return Line("cache", "ok", f"off ({'PTXGEN_CACHE_DIR=off' if off else 'no home directory'})")
    if not folder.exists():
        parent = next(p for p in folder.parents if p.exists())
        state = "ok" if os.access(parent, os.W_OK) else "wrong"
        return Line("cache", state, f"{folder}: {'empty' if state == 'ok' else 'cannot be made'}")
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return Line("cache", "wrong", f"{folder}: cannot be written; kernels are kept in memory only")
    files = [p for p in folder.rglob("*") if p.is_file()]
    return Line("cache", "ok", f"{folder}: {len(files)} entries, {_size(files)} MB")


def _size(files: list[Path]) -> str:
    total = 0
    for file in files:
        try:
            total += file.stat().st_size
        except OSError:  # another process removed it
            continue
    return f"{total / 1e6:.1f}"


def _assembler() -> Line:
    from ptxgen.assembler import available_assemblers

    try:
        found = available_assemblers()
    except AssembleError as wrong:
        return Line("assembler", "wrong", str(wrong))
    if not found:
        return Line("assembler", "absent", "none: pip install 'ptxgen[ptxas]'")
    return Line("assembler", "ok", ", then ".join(f"{each}{f' ({each.path})' if each.path else ''}" for each in found))


def _parts() -> list[Line]:
    return [_part(topic, *part) for topic, part in _PARTS.items()]


def _part(topic: str, distribution: str, purpose: str) -> Line:
    try:
        return Line(topic, "ok", f"{importlib.metadata.version(distribution)} ({purpose})")
    except importlib.metadata.PackageNotFoundError:
        return Line(topic, "wrong" if purpose == "core" else "absent", f"not installed ({purpose})")


def no_gpu() -> str | None:
    """Why no GPU can be used here; None where one can."""
    found = _driver()
    return None if any(line.topic.startswith("gpu") and line.state == "ok" for line in found) else found[-1].text
