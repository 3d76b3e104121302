"""The device protocol: Device / Buffer / Module-Kernel, the same for CUDA and the CPU executor.

Owns what both share of code and order; memory is `BufferDevice`'s. A backend is a subclass that supplies the
underscored methods, and nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ptxgen.runtime.core.memory.buffer_device import BufferDevice
from ptxgen.runtime.core.stream import Stream

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType
    from ptxgen.runtime.core.launches.graph import Graph
    from ptxgen.runtime.core.launches.kernel import Kernel
    from ptxgen.runtime.core.launches.module import Module
    from ptxgen.runtime.core.launches.modulecache import ModuleCache


class Device(BufferDevice):
    """A GPU, or the CPU executor. `target` is the most capable architecture it runs; `name` is "cuda:0" or "cpu".

    `strict`: from when it is set, `load` raises for a spec that is not loaded yet (see `warmup`).
    """

    modules: ModuleCache

    # code ---------------------------------------------------------------------------------------------------------
    def load(self, spec: KernelType, target: object = None, *, line_info: bool | None = None) -> Kernel:
        """The kernel of a spec for this device (or for an older `target`), through the module cache.

        `line_info`: with lines of Python and of templates, which profilers and debuggers show; default: as the
        environment's PTXGEN_LINE_INFO (0 or 1) was when the device was opened.
        Raises `SpecError` or `TargetError` where the spec has no such kernel, `ModuleLoadError` where it will not load.
        """
        return self.modules.load(spec, target, line_info)

    def module(self, text: str, name: str = "module") -> Module:
        """Any PTX text as a loaded module, which messages and findings call by this name (a file, say); raises
        `ModuleLoadError`."""
        from ptxgen.runtime.core.launches.module import Module

        return Module(self, text, name)

    def warmup(
        self, specs: Iterable[KernelType], target: object = None, workers: int | None = None
    ) -> dict[KernelType, Kernel]:
        """Load all specs, compiling in parallel; after it `strict = True` guards against late compilation."""
        return self.modules.warmup(specs, target, workers)

    # order --------------------------------------------------------------------------------------------------------
    def stream(self, foreign: object = None) -> Stream:
        """A new stream; or a foreign one (`__cuda_stream__`, torch, CuPy, an int handle) as ours."""
        self.check()
        return self._new_stream() if foreign is None else self._foreign_stream(foreign)

    def graph(self) -> Graph:
        """An empty graph: `with` captures into it, `add` appends explicit nodes."""
        self.check()
        return self._new_graph()

    @abstractmethod
    def _new_graph(self) -> Graph: ...
