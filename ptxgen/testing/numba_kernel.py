"""Kernels of numba-cuda without a GPU: compiled to PTX by its own compiler, launched on a device of the runtime."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import SpecError

if TYPE_CHECKING:
    from ptxgen.runtime import Device


@dataclass(frozen=True, slots=True)
class NumbaText:
    """PTX that numba-cuda made of a function, and its entry."""

    ptx: str
    entry: str


def compile_numba(
    function: Callable[..., None], signature: Sequence[Any], target: str, *, name: str = "", line_info: bool = True
) -> NumbaText:
    """Compile a Python function as a kernel for a target (`sm_80`). `signature` has Numba's types of its arguments.

    `name` takes the place of the mangled name. Needs numba-cuda and its compiler's wheels; raises their errors, and
    `ImportError` with the extra to install where numba is missing.
    """
    cuda = _numba().cuda

    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", str(target))
    if found is None:
        raise SpecError(f"target: must be like sm_90 (got {target!r})")
    ptx, _ = cuda.compile_ptx(function, tuple(signature), cc=(int(found[1]), int(found[2])), lineinfo=line_info)
    entry = re.search(r"\.visible\s+\.entry\s+([\w$]+)", ptx)
    assert entry is not None, "a kernel has an entry"
    if not name:
        return NumbaText(ptx, entry[1])
    return NumbaText(ptx.replace(entry[1].removeprefix("_ZN"), name).replace(f"_ZN{name}", name), name)


def _numba() -> Any:
    """The package, with its `cuda`."""
    try:
        import numba.cuda
    except ImportError as missing:
        raise ImportError(f"ptxgen.testing.numba_kernel: {missing}: pip install 'ptxgen[numba]'") from missing
    return numba


def flattened(argument: Any) -> list[Any]:
    """What a kernel of Numba takes for an argument: of an array seven numbers and more, in its own layout."""
    if not isinstance(argument, np.ndarray):
        return [argument if isinstance(argument, np.generic) else _scalar(argument)]
    shape, strides = ([np.int64(n) for n in each] for each in (argument.shape, argument.strides))
    head = [np.int64(n) for n in (0, 0, argument.size, argument.itemsize)]
    plain = argument.view(np.uint8) if argument.dtype.kind not in "fiu" else argument  # records, complex numbers
    return [*head, plain, *shape, *strides]


def _scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return np.uint8(value)
    return np.int64(value) if isinstance(value, int) else np.float64(value)


class NumbaKernel:
    """A function that launches as `@cuda.jit` functions do: `kernel[grid, block]` is called with arrays and numbers.

    Arrays are NumPy's and are used in place. `device` runs it (default: the CPU executor in check mode), compiled for
    `target`; a signature is compiled when it is first met.
    """

    def __init__(self, function: Callable[..., None], target: str = "sm_80", device: Device | None = None) -> None:
        from ptxgen.runtime import open_device

        self.function, self.target = getattr(function, "py_func", function), target
        self.device = open_device("cpu", mode="check") if device is None else device
        self._made: dict[tuple[Any, ...], NumbaText] = {}

    def __getitem__(self, shape: tuple[Any, ...]) -> Callable[..., None]:
        grid, block, *rest = shape
        shared = int(rest[1]) if len(rest) > 1 else 0
        return lambda *args: self.launch(grid, block, args, shared)

    def text(self, *args: Any) -> NumbaText:
        """The PTX for arguments of these types."""
        signature = tuple(map(_numba().typeof, args))
        if signature not in self._made:
            self._made[signature] = compile_numba(self.function, signature, self.target)
        return self._made[signature]

    def launch(self, grid: Any, block: Any, args: Sequence[Any], shared: int = 0) -> None:
        """Compile where needed, and run to the end. Raises `ExecutionError` for a finding."""
        made = self.text(*args)
        flat = [part for arg in args for part in flattened(arg)]
        self.device.module(made.ptx)[made.entry].launch(grid, block, flat, shared=shared)


__all__ = ["NumbaKernel", "NumbaText", "compile_numba", "flattened"]
