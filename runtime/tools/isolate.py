"""A call in a process of its own, with limits: for PTX of strangers. Owns that process, and what is taken from it.

What the process answers is data: numbers, text, arrays and the records and errors of this package, nothing that runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ptxgen.errors import ExecutionError, SpecError, brief

T = TypeVar("T")
MOST_PRINTED = 1 << 20  # bytes of what a kernel prints, or of an assembler's complaint, that are kept
_NUMPY = {"_reconstruct", "_frombuffer", "ndarray", "dtype", "scalar"}  # what arrays are made of
_PLAIN = {"complex", "set", "frozenset", "bytearray", "slice", "range"}
_STARVED = ("bad_alloc", "LLVM ERROR: out of memory", "llocation failed")  # as C++ and LLVM say it


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a process: `seconds` of wall time from its start, `cpu_seconds` of all its threads together, and `memory` in
    bytes of address space beyond what Python and the executor take.
    """

    seconds: float = 60.0
    cpu_seconds: int = 60
    memory: int = 4 << 30

    def __post_init__(self) -> None:
        for field, kinds in (("seconds", (int, float)), ("cpu_seconds", (int,)), ("memory", (int,))):
            value = getattr(self, field)
            if type(value) not in kinds or not 0 < value < 1 << 62:
                raise SpecError(f"Limits.{field}: must be a number above 0 (got {brief(value)})")


def isolated(function: Callable[..., T], *arguments: Any, limits: Limits | None = None, **named: Any) -> T:
    """`function(*arguments, **named)` in a process of its own, which ends with it; the value is a copy.

    The function is one that a module has by name; its arguments go there and its value comes back by pickle, of which
    only arrays, plain values and this package's dataclasses are taken. Warnings and what kernels print come back too.
    There the process may use no more than `limits` (default: a minute, 4 GiB); its files are read only.

    Raises what the function raised, where that is an error of this package; `ExecutionError` that names the limit, or
    the signal, that ended the process.
    """
    bounds = limits or Limits()
    request = pickle.dumps((bounds, function, arguments, named))
    command = [sys.executable, "-c", "from ptxgen.runtime.tools.confined import main; main()"]
    started = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    ) as process:
        try:
            printed, answer = _Drain(process.stderr, MOST_PRINTED), _Drain(process.stdout, bounds.memory)
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.write(request)
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(bounds.seconds - (time.monotonic() - started), 0.01))
        finally:
            late = process.poll() is None
            process.kill()
        code = process.wait()
        said, data = printed.end().decode(errors="replace"), answer.end()
    if late:
        raise ExecutionError(f"isolated: not over after {bounds.seconds:g} s of wall time (Limits.seconds)")
    return _taken(data, said, code, bounds)  # type: ignore[no-any-return]


def _environment() -> dict[str, str]:
    """This process's own, with its module path; libraries of NumPy start no threads of their own."""
    path = os.pathsep.join(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class _Drain(threading.Thread):
    """Reads a pipe to its end and keeps the first bytes, so that no writer waits and this memory stays small."""

    def __init__(self, pipe: Any, most: int) -> None:
        super().__init__(daemon=True)
        self._pipe, self._most, self._kept = pipe, most, bytearray()
        self.start()

    def run(self) -> None:
        while data := self._pipe.read1(1 << 16):
            self._kept += data[: max(self._most - len(self._kept), 0)]

    def end(self) -> bytes:
        """What was kept, once the writer is gone."""
        self.join(10.0)
        return bytes(self._kept)


def _taken(data: bytes, said: str, code: int, limits: Limits) -> Any:
    """The value of an answer, or the reason why there is none."""
    try:
        kind, value, noted = _Plain(io.BytesIO(data)).load()
    except Exception:  # whatever a broken answer makes of itself
        raise ExecutionError(f"isolated: {_end(code, said, limits)}") from None
    if said:
        _print(said)
    for category, text in noted:
        warnings.warn(category(text) if issubclass(category, Warning) else UserWarning(text), stacklevel=3)
    if kind == "value":
        return value
    if kind == "raised" and isinstance(value, Exception):
        raise value
    if kind == "memory":
        raise ExecutionError(f"isolated: more than {limits.memory:,} bytes of memory are needed (Limits.memory)")
    raise ExecutionError(f"isolated: the call failed with {value}")


def _print(text: str) -> None:
    """What kernels printed, without what a terminal would obey."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
    print(shown, end="" if shown.endswith("\n") else "\n")


def _end(code: int, said: str, limits: Limits) -> str:
    """Why a process ended without an answer."""
    last = said.strip().rpartition("\n")[2]
    if code == -getattr(signal, "SIGXCPU", 0):
        return f"more than {limits.cpu_seconds} s of CPU time are needed (Limits.cpu_seconds)"
    if "memory" in last.lower() or any(sign in said for sign in _STARVED):
        return f"more than {limits.memory:,} bytes of memory are needed (Limits.memory)"
    how = f"by {signal.Signals(-code).name}" if -code in {int(s) for s in signal.Signals} else f"with code {code}"
    return f"the process ended {how}{f': {brief(last)}' if last else ''}"


class _Plain(pickle.Unpickler):
    """Takes plain values, arrays, and dataclasses, named tuples and errors of this package."""

    def find_class(self, module: str, name: str) -> Any:
        top = module.partition(".")[0]
        if (top == "numpy" and name in _NUMPY) or (module == "builtins" and name in _PLAIN):
            return getattr(importlib.import_module(module), name)
        if top == "ml_dtypes" or (module == "builtins" and name.endswith("Warning")):
            found = getattr(importlib.import_module(module), name)
            if isinstance(found, type):
                return found
        if top == "ptxgen" and module in sys.modules and "." not in name:
            found = getattr(sys.modules[module], name)
            if isinstance(found, type) and (
                dataclasses.is_dataclass(found) or issubclass(found, Exception | str) or hasattr(found, "_fields")
            ):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
