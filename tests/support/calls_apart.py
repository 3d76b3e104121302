"""Functions for a process of its own: what strangers' code might try there."""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings
from pathlib import Path

import numpy as np

from ptxgen.errors import ExecutionNote
from ptxgen.runtime import open_device


def launched(text: str, values: np.ndarray, mode: str = "check") -> np.ndarray:
    """A launch of entry `k` over an array; the array afterwards."""
    device = open_device("cpu", mode=mode, threads=1)
    buffer = device.array(values)
    device.module(text)["k"].launch(1, 32, [buffer])
    warnings.warn("seen", ExecutionNote, stacklevel=1)
    print("said \x1b[31mred")
    return buffer.numpy()


def attempts(folder: str) -> dict[str, str]:
    """What of writing files, starting programs and using the network goes, by name."""

    def write(name: str) -> None:
        with open(os.path.join(folder, name), "w") as file:
            file.write("x")

    ways = {
        "append": lambda: write("there"), "create": lambda: write("new"),
        "remove": lambda: os.remove(f"{folder}/there"),
        "directory": lambda: os.mkdir(f"{folder}/sub"), "link": lambda: os.symlink("/", f"{folder}/link"),
        "rename": lambda: os.rename(f"{folder}/there", f"{folder}/then"),
        "program": lambda: os.execv(sys.executable, [sys.executable, "-c", "pass"]),
        "network": lambda: socket.create_connection(("127.0.0.1", 9), 1.0),
        "signal": lambda: os.kill(os.getppid(), 0),
        "read": lambda: Path(folder, "there").read_text(),
    }  # fmt: skip
    found = {}
    for name, way in ways.items():
        try:
            way()
            found[name] = "done"
        except OSError as refused:
            found[name] = os.strerror(refused.errno or 0)
    return found


def crash() -> None:
    """As native code might end."""
    os.kill(os.getpid(), signal.SIGSEGV)


def starve_as_a_text_is_read() -> None:
    """Memory ends within the parser, which says so of the text."""
    from ptxgen import parser

    def full(_: object) -> None:
        raise MemoryError

    parser._Parser.module = full  # type: ignore[method-assign, assignment]
    parser.parse(".version 8.0")


def starve_as_llvm() -> None:
    """As LLVM ends where it gets no memory."""
    print("LLVM ERROR: out of memory\nBuffer allocation failed", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)


def forge() -> object:
    """Answer with what would run something where it is read."""

    class Forged:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("echo forged > forged",)

    return Forged()


def use_memory(nbytes: int) -> int:
    """Allocate and write so many bytes; how many they were."""
    return np.ones(nbytes, np.uint8).nbytes


def compute() -> None:
    """Compute until it is stopped."""
    while True:
        pass
