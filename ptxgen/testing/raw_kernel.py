"""CUDA C++ kernels without a GPU, launched as CuPy's `RawKernel` and `RawModule` are, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import SpecError

if TYPE_CHECKING:
    from ptxgen.runtime import Device


class RawModule:
    """CUDA C++ source, compiled by NVRTC for `target` when it is first needed.

    `options` are NVRTC's. `device` runs its kernels (default: the CPU executor in check mode).
    """

    def __init__(
        self, code: str, options: Sequence[str] = (), *, target: str = "sm_80", device: Device | None = None
    ) -> None:
        from ptxgen.runtime import open_device

        self.code, self.options, self.target = code, tuple(options), target
        self.device = open_device("cpu", mode="check") if device is None else device
        self._ptx = ""

    @property
    def ptx(self) -> str:
        """The PTX. Raises `AssembleError` with NVRTC's log, or with what to install."""
        from ptxgen.runtime import compile_cuda

        if not self._ptx:
            self._ptx = compile_cuda(self.code, self.target, options=self.options)
        return self._ptx

    def get_function(self, name: str) -> RawKernel:
        """The kernel of that name, which is `extern "C"`."""
        return RawKernel(self.code, name, self.options, module=self)


class RawKernel:
    """One kernel of CUDA C++ source: `RawKernel(code, name)(grid, block, args)`.

    Arguments are NumPy arrays, which are used in place, and NumPy scalars; as in CuPy a plain integer is a `long long`,
    a float a `double`. Shapes are tuples of one to three, or a number.
    """

    def __init__(
        self, code: str, name: str, options: Sequence[str] = (), *, target: str = "sm_80",
        device: Device | None = None, module: RawModule | None = None,
    ) -> None:  # fmt: skip
        self.module = RawModule(code, options, target=target, device=device) if module is None else module
        self.name = name

    def __call__(self, grid: Any, block: Any, args: Sequence[Any], *, shared_mem: int = 0) -> None:
        """Compile where needed, and run to the end. Raises `ExecutionError` for a finding, `SpecError` for a name that
        the source lacks."""
        loaded = self.module.device.module(self.module.ptx)
        if self.name not in loaded.entries:
            known = ", ".join(loaded.entries) or "none"
            raise SpecError(f'RawKernel.name: must be an extern "C" kernel of the source ({known}; got {self.name!r})')
        plain = [np.float64(each) if type(each) is float else each for each in args]
        loaded[self.name].launch(grid, block, plain, shared=shared_mem)


__all__ = ["RawKernel", "RawModule"]
