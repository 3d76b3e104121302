"""A driver for Triton without a GPU: `@triton.jit` kernels are compiled by Triton and run by the CPU executor.

`install(mode="check")`, or `PTXGEN_TRITON=check` in the environment of pytest. Tensors are torch's on the CPU, NumPy
arrays, or anything with `data_ptr()`, `dtype` and host memory. They are used in place; in check mode the kernel runs
on copies, which are copied back, so that races between its programs are found.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from ptxgen.errors import SpecError
from ptxgen.testing.triton_compile import architecture, described, ptx_stage

MODES = ("fast", "random", "check")
ENVIRONMENT = "PTXGEN_TRITON"
# Triton keeps what it has compiled and loaded by the device's number, so each driver has one that no other has
_NUMBERS = count(-1, -1)


class Array:
    """A NumPy array as Triton wants tensors: with an address."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.shape = array, array.dtype, array.shape

    def data_ptr(self) -> int:
        """The address of its first element."""
        return int(self.array.ctypes.data)

    def stride(self, axis: int) -> int:
        """Elements from one index of an axis to the next."""
        return int(self.array.strides[axis] // self.array.itemsize)

    def numel(self) -> int:
        """The number of elements."""
        return int(self.array.size)


class _Utils:
    """What Triton asks of a driver's native part: kernels are loaded here."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        """(a module, the entry, registers, spills, threads): the `binary` is PTX (`ptx_stage`)."""
        text = kernel.decode()
        return text, _Loaded(self.driver, text, name), 0, 0, 1024

    def unload_module(self, module: object) -> None:
        """Modules go with the device."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """As the target's GPU would have them."""
        from ptxgen.targets import target

        limit = target(self.driver.target).shared_limit
        return {"max_shared_mem": limit, "max_num_regs": 65536, "multiprocessor_count": 1, "warpSize": 32,
                "sm_clock_rate": 1_000_000, "mem_clock_rate": 1_000_000, "mem_bus_width": 4096}  # fmt: skip


class Driver:
    """Triton's driver interface on a CPU device of `ptxgen.runtime`; `device` is that, `launches` counts."""

    def __init__(self, mode: str, target: str, **options: Any) -> None:
        from ptxgen.runtime import open_device

        if mode not in MODES:
            raise SpecError(f"mode: must be one of {', '.join(MODES)} (got {mode!r})")
        self.target, self.mode, self.number = target, mode, next(_NUMBERS)
        self.device = open_device("cpu", mode=mode, **options)
        self.utils = _Utils(self)
        self.launches = 0
        self.visible: list[Any] = []
        self.launcher_cls = lambda source, metadata: _Launcher(self, source, metadata)

    @staticmethod
    def is_active() -> bool:
        """It needs no GPU."""
        return True

    def get_current_target(self) -> Any:
        """The target that kernels are compiled for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", architecture(self.target), 32)

    def get_current_device(self) -> int:
        """This driver's number, which no GPU has and no driver of before."""
        return self.number

    def set_current_device(self, device: int) -> None:
        """There is one device."""

    def get_current_stream(self, device: object = None) -> int:
        """Work runs at once."""
        return 0

    def get_device_capability(self, device: object = None) -> tuple[int, int]:
        """Of the target."""
        return divmod(architecture(self.target), 10)

    def get_active_torch_device(self) -> Any:
        """Tensors live on the CPU."""
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        """torch's, of the CPU."""
        import torch

        return torch.cpu

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Nothing is generated in C."""
        return ty

    def get_benchmarker(self) -> Any:
        """One run of each configuration: an executor's times say nothing about a GPU's."""

        def once(call: Any, *args: object, quantiles: Any = None, **kwargs: object) -> Any:
            call()
            return [1.0] * len(quantiles) if quantiles else 1.0

        return once

    def get_empty_cache_for_benchmark(self) -> Any:
        """No cache is modelled."""
        return np.zeros(1, np.int32)

    def clear_cache(self, cache: object) -> None:
        """No cache is modelled."""

    def allocate_default_profile_scratch(self, size: int, alignment: int, stream: object) -> Any:
        """Memory for a profiler's instrumentation."""
        return self.device.zeros((size,), "u8")

    @contextmanager
    def seen(self, *tensors: Any) -> Iterator[None]:
        """Lets kernels reach tensors that they have by address only: through an array of pointers, say."""
        before = len(self.visible)
        self.visible += tensors
        try:
            yield
        finally:
            del self.visible[before:]


class _Loaded:
    """A kernel's PTX, and its entry on the device, loaded at the first launch."""

    def __init__(self, driver: Driver, ptx: str, name: str) -> None:
        self.driver, self.ptx, self.name = driver, ptx, name
        self._entry: Any = None

    @property
    def entry(self) -> Any:
        """The loaded entry."""
        if self._entry is None:
            self._entry = self.driver.device.module(self.ptx)[self.name]
        return self._entry


class _Launcher:
    """Launches of one compiled kernel."""

    def __init__(self, driver: Driver, source: Any, metadata: Any) -> None:
        self.driver, self.metadata = driver, metadata
        self.signature = tuple(source.signature.values())
        self.maps = list(getattr(metadata, "tensordesc_meta", None) or [])

    def __call__(self, grid_x: int, grid_y: int, grid_z: int, stream: object, function: _Loaded, packed: object,
                 launch_metadata: object, enter: Any, leave: Any, *args: Any) -> None:  # fmt: skip
        driver, metadata = self.driver, self.metadata
        if not grid_x * grid_y * grid_z:
            return
        if enter is not None:
            enter(launch_metadata)
        made, entry = described(function.ptx, metadata), function.entry
        slots = entry.function.slots
        scratch = made.scratch * grid_x * grid_y * grid_z * made.ctas
        profile = int(getattr(metadata, "profile_scratch_size", 0) or 0) * grid_x * grid_y * grid_z * made.ctas
        kept = [driver.device.zeros((size,), "u8") if size else None for size in (scratch, profile)]
        with _Memory(driver, args) as memory:
            values = list(self._values(self.signature, args, iter(self.maps), memory))
            values += [("i64", each.pointer if each is not None else 0) for each in kept][: len(slots) - len(values)]
            given = [_packed(kind, value, slot.size) for (kind, value), slot in zip(values, slots, strict=True)]
            cluster = (made.ctas, 1, 1) if made.ctas > 1 else None
            entry.launch((grid_x * made.ctas, grid_y, grid_z), 32 * made.warps, given, shared=metadata.shared,
                         cluster=cluster, programmatic=bool(getattr(metadata, "launch_pdl", False)))  # fmt: skip
        driver.launches += 1
        if leave is not None:
            leave(launch_metadata)

    def _values(self, kinds: Any, args: Any, maps: Iterator[Any], memory: _Memory) -> Iterator[tuple[str, Any]]:
        """(type, value) of every parameter, tuples and descriptors taken apart."""
        for kind, arg in zip(kinds, args, strict=True):
            if isinstance(kind, tuple):
                yield from self._values(kind, arg, maps, memory)
            elif kind.startswith("tensordesc"):
                yield from self._described(arg, next(maps, None), memory)
            elif kind[:1] == "*":
                yield "i64", memory.at(_address(arg))
            elif kind != "constexpr":
                yield kind, arg

    def _described(self, arg: Any, meta: Any, memory: _Memory) -> Iterator[tuple[str, Any]]:
        if meta is None:
            yield "i64", memory.at(_address(arg.base))
            yield from (("i64", n) for n in (*arg.shape, *arg.strides))
            yield "i1", arg.padding == "nan"
            yield "i1", getattr(arg, "round_f32_to_tf32", False)
        else:
            yield "map", _tensor_map(self.driver, arg, meta, memory)
        yield from (("i32", n) for n in arg.shape)
        yield from (("i64", n) for n in arg.strides)


def _tensor_map(driver: Driver, arg: Any, meta: Any, memory: _Memory) -> bytes:
    """The 128 bytes of a host descriptor."""
    from ptxgen.dtypes import dtype
    from ptxgen.runtime.arrays.tensormap import tiling

    swizzle = {0: 0, 1: 32, 2: 64, 3: 128}[meta["swizzle"]]
    floats = arg.padding == "nan"
    names = {2: "f16", 4: "f32", 8: "f64"} if floats else {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
    strides = [n * meta["elem_size"] for n in arg.strides[:-1]]
    kind, box = dtype(names[meta["elem_size"]]), meta["block_size"]
    made = tiling(memory.at(_address(arg.base)), arg.shape, kind, box, strides=strides,
                  swizzle=swizzle, oob_fill="nan" if floats else "zero")  # fmt: skip
    return bytes(driver.device._encode(made))


def _address(tensor: Any) -> int:
    if tensor is None or isinstance(tensor, int):
        return tensor or 0
    return int(_array(tensor).data_ptr())


def _packed(kind: str, value: Any, size: int) -> bytes:
    """A parameter's bytes."""
    if kind == "map":
        return bytes(value)
    if kind in ("fp16", "fp32", "f32", "fp64", "bf16"):
        number = np.float64(value)
        if kind == "bf16":
            bits = int(np.float32(number).view(np.uint32))
            return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")
        return bytes(number.astype({"fp16": "<f2", "fp64": "<f8"}.get(kind, "<f4")).tobytes())
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _region(tensor: Any) -> tuple[int, int, bool] | None:
    """(address, bytes, read only) of the memory that a tensor is part of; None where it is none."""
    if isinstance(tensor, Array):
        owner = tensor.array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return int(owner.ctypes.data), int(owner.nbytes), not tensor.array.flags.writeable
    if hasattr(tensor, "untyped_storage"):
        storage = tensor.untyped_storage()
        return int(storage.data_ptr()), int(storage.nbytes()), False
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "nbytes"):
        return int(tensor.data_ptr()), int(tensor.nbytes), False
    return None


def _tensors(values: Any) -> Iterator[Any]:
    """All that may be tensors: in tuples and in descriptors, too."""
    for value in values:
        if isinstance(value, tuple):
            yield from _tensors(value)
        elif isinstance(value, np.ndarray):
            yield Array(value)
        else:
            inner = getattr(value, "base", None)  # of a descriptor, and of a tensor seen as another type
            yield _array(inner if hasattr(inner, "untyped_storage") or isinstance(inner, Array) else value)


class _Memory:
    """The memory of a launch's tensors, while it runs: in place, or (check mode) copies whose accesses are followed."""

    def __init__(self, driver: Driver, tensors: Any) -> None:
        found = (_region(tensor) for tensor in _tensors(tensors))
        words = ((at, -(-size // 4) * 4, fixed) for at, size, fixed in filter(None, found) if size)
        self.regions = sorted(set(words))  # atomics on two bytes go through the four around them
        self.outside = {each for each in map(_region, _tensors(driver.visible)) if each is not None and each[1]}
        self.memory = driver.device.bytes
        self.copies: list[tuple[int, int, bool, int]] = []  # region, and where its copy is
        self.copied = driver.mode == "check"

    def __enter__(self) -> _Memory:
        for begin, size, read_only in self.outside if self.copied else {*self.regions, *self.outside}:
            self.memory.adopt(begin, size, read_only=read_only)
        for begin, size, read_only in self.regions if self.copied else ():
            shift = begin % 16  # what Triton knows of an address holds for the copy's
            there = self.memory.allocate(size + shift) + shift
            ctypes.memmove(there, begin, size)
            self.memory.written(there, size)
            self.copies.append((begin, size, read_only, there))
        return self

    def __exit__(self, *failed: object) -> None:
        for begin, size, read_only in self.outside if self.copied else {*self.regions, *self.outside}:
            self.memory.disown(begin, size, read_only=read_only)
        for begin, size, read_only, there in self.copies:
            if not read_only:
                ctypes.memmove(begin, there, size)
            self.memory.free(there - begin % 16)

    def at(self, address: int) -> int:
        """What the kernel gets for an address."""
        for begin, size, _, there in self.copies:
            if begin <= address < begin + size:
                return there + address - begin
        return address


def _array(value: Any) -> Any:
    return Array(value) if isinstance(value, np.ndarray) else value


_INSTALLED: dict[str, Any] = {}


def install(mode: str = "check", target: str = "sm_80", **options: Any) -> Driver:
    """Make `@triton.jit` kernels run on the CPU executor from now on; the driver, whose `device` has run them.

    `target` is what Triton compiles for (`sm_75` …), `options` are `open_device`'s (`seed`, `threads`, `time_limit`).
    Findings are raised as `ExecutionError` by the launch. Raises `SpecError` for another mode or target, `ImportError`
    with the extra to install where triton is missing.
    """
    try:
        from triton import knobs
        from triton.runtime import driver as config
        from triton.runtime.jit import JITFunction
    except ImportError as missing:
        raise ImportError(f"ptxgen.testing.triton.install: {missing}: pip install 'ptxgen[triton]'") from missing
    uninstall()
    driver = Driver(mode, target, **options)
    _INSTALLED.update(driver=driver, hook=knobs.runtime.add_stages_inspection_hook, run=JITFunction.run)
    knobs.runtime.add_stages_inspection_hook = ptx_stage
    config.set_active(driver)
    original = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *map(_array, args), **{name: _array(value) for name, value in kwargs.items()})

    JITFunction.run = run
    return driver


def uninstall() -> None:
    """Triton as it was; nothing where the driver is not installed."""
    if not _INSTALLED:
        return
    from triton import knobs
    from triton.runtime import driver as config
    from triton.runtime.jit import JITFunction

    knobs.runtime.add_stages_inspection_hook = _INSTALLED["hook"]
    JITFunction.run = _INSTALLED["run"]
    config._active = None
    _INSTALLED.clear()


def install_from_environment() -> Driver | None:
    """`install` as `PTXGEN_TRITON` (a mode), `PTXGEN_TRITON_TARGET` (sm_80) and `PTXGEN_TRITON_SEED` say, if set."""
    mode = os.environ.get(ENVIRONMENT, "")
    if not mode:
        return None
    target, seed = os.environ.get(f"{ENVIRONMENT}_TARGET", "sm_80"), os.environ.get(f"{ENVIRONMENT}_SEED", "0")
    if not (seed.isascii() and seed.isdigit()):
        raise SpecError(f"{ENVIRONMENT}_SEED: must be an integer ≥ 0 (got {seed!r})")
    return install(mode, target, seed=int(seed))


__all__ = ["Array", "Driver", "install", "install_from_environment", "uninstall"]
