"""The kernels of a tuning job's choices: generated with each, compiled side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from ptxgen.generator import Ptx, generate
from ptxgen.kernel import KernelType
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.targets import Target
from ptxgen.tuning import Choice, ProductChoice, fixed, using

C = TypeVar("C", Choice, ProductChoice)


class ChoiceKernels(Generic[C]):
    """Kernels of one spec, by the choice that they are planned with."""

    def __init__(self, device: Device, spec: KernelType, target: Target) -> None:
        self.device, self.spec, self.target = device, spec, target
        self._ready: dict[C, Kernel] = {}

    def prepare(self, choices: Sequence[C]) -> None:
        """Compile the kernels of these choices side by side, for `us` to find. One that does not compile ends it:
        choices are bounds that every plan keeps to, so that is a fault of the generator."""
        made = [self._ptx(choice) for choice in choices]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._ready = dict(zip(choices, pool.map(self._load, made, choices), strict=True))

    def kernel(self, choice: C) -> Kernel:
        """The kernel of a choice, once: one that was prepared is given away."""
        return self._ready.pop(choice, None) or self._load(self._ptx(choice), choice)

    def _ptx(self, choice: C) -> Ptx:
        with using(fixed(choice)):
            return generate(self.spec, self.target)

    def _load(self, ptx: Ptx, choice: C) -> Kernel:
        return Kernel(self.device, ptx, self.device._load(ptx.text, f"{ptx.entry} {choice}").function(ptx.entry))
