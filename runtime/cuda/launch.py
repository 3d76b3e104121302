"""The launch path: cuLaunchKernelEx with everything prepared. Owns the C structures it takes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.core.backend import FirstUse, Function, Geometry
from ptxgen.runtime.core.param_block import ParamBlock
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.cuda.load import CudaFunction
from ptxgen.runtime.cuda.prepared import word
from ptxgen.targets import STATIC_SHARED_LIMIT

if TYPE_CHECKING:
    from ptxgen.runtime.cuda.gpu import Gpu

_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6  # CUlaunchAttributeID
_PORTABLE_CLUSTER = 8
_CONTEXT_CODES = frozenset({201, 400})  # no, or another device's, context is current in this thread
_REMEMBERED_STREAMS = 64


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes at offset 8."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class Config(ctypes.Structure):
    """The driver's CUlaunchConfig, as cuLaunchKernelEx takes it."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


def config(geometry: Geometry, stream: int) -> Config:
    """The C structure for a launch on a stream."""
    attributes = []
    if geometry.cluster != (1, 1, 1):
        attributes.append(Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint32 * 16)(*geometry.cluster)))
    if geometry.programmatic:
        attributes.append(Attribute(_PROGRAMMATIC_SERIALIZATION, 0, (ctypes.c_uint32 * 16)(1)))
    array = (Attribute * max(len(attributes), 1))(*attributes)
    uint3 = ctypes.c_uint * 3
    grid, block = uint3(*geometry.grid), uint3(*geometry.block)
    return Config(grid, block, geometry.shared, stream, array, len(attributes))


class CudaLauncher:
    """One prepared launch. The first launch on a stream prepares it; later ones are a look-up and one native call.

    There is one C structure per stream, so that threads may launch on streams of their own (not a kernel with a
    workspace: its launches would share it).
    """

    __slots__ = (
        "__weakref__", "_block", "_calls", "_closed", "_configs", "_device", "_first_use", "_function", "_geometry",
    )  # fmt: skip

    def __init__(
        self, device: Gpu, function: Function, geometry: Geometry, block: ParamBlock, first_use: FirstUse
    ) -> None:
        device.check()
        assert isinstance(function, CudaFunction)
        check_geometry(device, function, geometry)
        self._device = device
        self._function = function
        self._geometry = geometry
        self._block = block
        self._first_use = first_use
        self._closed: str | None = None
        self._calls: dict[object, Callable[[], int]] = {}
        self._configs: list[Config] = []

    def launch(self, stream: Stream | int | None = None) -> None:
        """Submit to a stream, a foreign stream's address, or (None) the device's default stream."""
        call = self._calls.get(stream)
        if call is None:
            self._first(stream)
        elif code := call():
            self._failed(stream, code, call)

    def close(self, reason: str) -> None:
        """Forget the prepared calls: the next launch takes the slow path, and raises."""
        self._closed = reason
        self._calls = {}

    def _first(self, stream: Stream | int | None) -> None:
        """Prepare for a stream that was not seen before, and launch."""
        if self._closed is not None:
            raise CudaError(f"launch: {self._closed}")
        self._device.check()
        where = self._resolve(stream)
        self._first_use(where)
        if not where.capturing:
            self._function.code.used_on(where)
        made = config(self._geometry, where.handle)
        call = partial(
            self._device.native_launch,
            ctypes.byref(made),
            word(self._function.handle),
            word(self._block.pointers),
            None,
        )
        if not where.capturing:
            if len(self._calls) >= _REMEMBERED_STREAMS:
                self._calls, self._configs = {}, []
            self._configs.append(made)
            self._calls[stream] = call
        if code := call():
            self._failed(stream, code, call)

    def _resolve(self, stream: object) -> Stream:
        return self._device.default_stream if stream is None else self._device._foreign_stream(stream)

    def _failed(self, stream: object, code: int, call: Callable[[], int]) -> None:
        """A launch failed. Where our context was not the current one, launch again in it; else raise."""
        self._device.check()
        if code not in _CONTEXT_CODES:
            raise self._error(code)
        self._elsewhere(stream, call)

    def _elsewhere(self, stream: object, call: Callable[[], int]) -> int:
        """Launch where another context may be current. Where one is, this becomes the prepared call, which asks before
        it launches, until it finds ours; raises what the launch fails with."""
        ours = self._device.take_thread()
        if stream in self._calls:
            self._calls[stream] = call if ours else partial(self._elsewhere, stream, call)
        if code := call() if ours else self._device.in_context(call):
            raise self._error(code)
        return 0

    def _error(self, code: int) -> CudaError:
        return self._device.failed(f"cuLaunchKernelEx({self._function.name})", code)


def check_geometry(device: Gpu, function: CudaFunction, geometry: Geometry) -> None:
    """What this function on this device can be launched with; sets the attributes that larger launches need."""
    resources = function.resources
    if geometry.threads > resources.max_threads:
        raise SpecError(
            f"Geometry.block: {function.name} uses {resources.registers} registers and can have at most "
            f"{resources.max_threads} threads on {device.name} (got {geometry.threads})"
        )
    attribute = device.api.CUfunction_attribute
    needs_more = geometry.shared + resources.static_shared > STATIC_SHARED_LIMIT
    if needs_more and geometry.shared > function.dynamic_shared:
        name = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        code, _ = device.ask("cuFuncSetAttribute", function.raw, name, geometry.shared)
        if code:
            had = f"{geometry.shared} dynamic and {resources.static_shared} static bytes"
            limit = f"{device.shared_limit} bytes, static and dynamic together, on {device.name}"
            said = device.failed("cuFuncSetAttribute", code)
            raise SpecError(f"Geometry.shared: at most {limit} (got {had}; {said})")
        function.dynamic_shared = geometry.shared
    ctas = geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2]
    if ctas > 1 and device.capability < (9, 0):
        raise SpecError(f"Geometry.cluster: needs compute capability 9.0 (got {geometry.cluster} on {device.name})")
    if ctas > _PORTABLE_CLUSTER:
        name = attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        device.call("cuFuncSetAttribute", function.raw, name, 1)
    if geometry.together:
        _check_together(device, function, geometry)


def _check_together(device: Gpu, function: CudaFunction, geometry: Geometry) -> None:
    """Ask the driver how many CTAs a multiprocessor holds: CTAs that wait for others need all of them on the device."""
    name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    held = int(device.call(name, function.raw, geometry.threads, geometry.shared)) * device.multiprocessors
    ctas = geometry.grid[0] * geometry.grid[1] * geometry.grid[2]
    if held < ctas:
        raise SpecError(
            f"Geometry.grid: CTAs of {function.name} wait for each other, so all must run at once: at most {held} on "
            f"{device.name} (got {ctas})"
        )
