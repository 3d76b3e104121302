"""Kernels made by several processes ahead of the GPU's time: generated, and assembled where there is a ptxas."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult, Pool

from ptxgen.assembler import VARIABLE, assemble
from ptxgen.generator import Ptx, generate
from ptxgen.kernel import KernelType

Made = tuple[Ptx, bytes]  # without a ptxas no machine code: the driver compiles the text
_COMING: dict[tuple[KernelType, str, str], AsyncResult[Made | None]] = {}  # what other processes make, or have made
_POOLS: list[Pool] = []  # they live as long as the process


def made(spec: KernelType, target: str, machine: str = "") -> Made:
    """One kernel, its machine code for `machine` (default: the target). nvJitLink leaves out what some texts ask for
    (`setmaxnreg`), so that it is not taken."""
    ptx = generate(spec, target)
    return ptx, assemble(ptx.text, machine or target).cubin if os.environ.get(VARIABLE) else b""


def prepared(specs: Iterable[KernelType], target: str) -> Iterator[tuple[KernelType, Made]]:
    """Each spec and its kernel, in that order, as soon as it is there."""
    wanted = list(dict.fromkeys(specs))
    with _pool() as pool:
        jobs = [pool.apply_async(made, (spec, target)) for spec in wanted]
        for spec, job in zip(wanted, jobs, strict=True):
            yield spec, job.get()


def ahead(wanted: Iterable[tuple[KernelType, str]], machine: str) -> None:
    """Begin to make these kernels, of a spec and a target each, in that order; `kernel` then has them."""
    pool = _pool()
    _POOLS.append(pool)
    for spec, target in dict.fromkeys(wanted):
        _COMING[spec, target, machine] = pool.apply_async(_made_elsewhere, (spec, target, machine))


def wait(ends: float) -> None:
    """Wait for what was begun ahead, until `ends` by the monotonic clock. A graph of some 100 µs needs that: beside
    processes that compile, its launch can take longer than the GPU takes for it."""
    for coming in _COMING.values():
        coming.wait(max(0.0, ends - time.monotonic()))


def kernel(spec: KernelType, target: str, machine: str = "") -> Made:
    """One kernel: what was begun ahead, or made now."""
    machine = machine or target
    coming = _COMING.get((spec, target, machine))
    return (coming and coming.get()) or made(spec, target, machine)


def _made_elsewhere(spec: KernelType, target: str, machine: str) -> Made | None:
    """None for a kernel that cannot be made: the process that wants it says why."""
    try:
        return made(spec, target, machine)
    except Exception:
        return None


def _pool() -> Pool:
    """Processes at a lower priority than the one that measures, for three of four processors: under a quota of CPU
    time, as containers have, more of them would stop that one, too."""
    found = os.environ.get(VARIABLE) or shutil.which("ptxas")
    if found:
        os.environ[VARIABLE] = found
    return get_context("spawn").Pool(max(1, 3 * (os.cpu_count() or 2) // 4), os.nice, (5,))
