"""Kernels made by several processes ahead of the GPU's time: generated, and assembled where there is a ptxas."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from multiprocessing import get_context

from ptxgen.assembler import VARIABLE, assemble
from ptxgen.generator import Ptx, generate
from ptxgen.kernel import KernelType

Made = tuple[Ptx, bytes]  # without a ptxas no machine code: the driver compiles the text


def made(spec: KernelType, target: str) -> Made:
    """One kernel. nvJitLink leaves out what some texts ask for (`setmaxnreg`), so that it is not taken."""
    ptx = generate(spec, target)
    return ptx, assemble(ptx.text, target).cubin if os.environ.get(VARIABLE) else b""


def prepared(specs: Iterable[KernelType], target: str) -> Iterator[tuple[KernelType, Made]]:
    """Each spec and its kernel, in that order, as soon as it is there."""
    wanted = list(dict.fromkeys(specs))
    found = os.environ.get(VARIABLE) or shutil.which("ptxas")
    if found:
        os.environ[VARIABLE] = found
    with get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        jobs = [pool.apply_async(made, (spec, target)) for spec in wanted]
        for spec, job in zip(wanted, jobs, strict=True):
            yield spec, job.get()
