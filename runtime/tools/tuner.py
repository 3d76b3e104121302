"""Times the choices of a tuning job on a GPU: graph nodes back to back, over so many caches that none stays in the L2.

Owns the measurement; which choices there are is `ptxgen.tuning_jobs.attention`'.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.errors import PtxgenError, SpecError
from ptxgen.generator import Ptx
from ptxgen.launch import Param, evaluate
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.core.launches.bound import BoundKernel
from ptxgen.runtime.core.launches.kernel import Kernel
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.tools.choice_kernels import ChoiceKernels
from ptxgen.targets import Target
from ptxgen.tuning import Choice
from ptxgen.tuning_jobs.attention import Job

L2_BYTES = 400e6  # caches in rotation: several times any L2
MOST_SETS = 400
LEAST_CALLS, MOST_CALLS = 8, 1600  # of a graph
REPLAYS = 7
WARM_UP = 0.01  # seconds
LIMIT = 2e-2  # ‖difference‖ / ‖result‖ of two choices on the same inputs
_BLOCK = 1 << 22  # values of noise made on the host, and repeated on the device


class Timer(ChoiceKernels[Choice]):
    """Measures choices for one job. `sets` limits how many caches are rotated among (default: as many as it takes)."""

    def __init__(self, device: Device, job: Job, target: Target, sets: int | None = None) -> None:
        super().__init__(device, job.spec, target)
        self.job = job
        self.launches = [Launches(device, job, batch, sets) for batch in job.sizes]

    def us(self, choice: Choice) -> float:
        """Microseconds of a launch: median of replays, geometric mean over batches and fills.

        Raises `PtxgenError` when a choice computes something else than the first one did.
        """
        kernel = self.kernel(choice)
        times = [us for launches in self.launches for us in launches.times(kernel, choice)]
        return math.exp(sum(map(math.log, times)) / len(times))


class Launches:
    """The arguments of one batch size: caches in rotation, a buffer of lengths for each fill, the first result.

    A cache that is not full is used several times over: moved on by as many positions as are read, it reads others.
    """

    def __init__(self, device: Device, job: Job, batch: int, sets: int | None = None) -> None:
        self.device, self.batch = device, batch
        self.stream = device.stream()
        params = {p.name: p for p in job.spec.params()}
        one = job.bytes(batch)
        self.sets = sets or max(1, min(MOST_SETS, math.ceil(L2_BYTES / one)))
        free = device.memory().free
        if (self.sets + 1) * one > 0.8 * free:
            raise SpecError(
                f"tune: {job.label()}: needs {(self.sets + 1) * one / 1e9:.1f} GB of caches on {device.name} "
                f"({free / 1e9:.1f} GB are free)"
            )
        self.params = [p for name, p in params.items() if name.endswith(("_cache", "_scales"))]
        self.pools = {p.name: self._noise(p, self.sets + any(fill < 1 for fill in job.fills)) for p in self.params}
        self.q, self.out = (self._view(params[name], self._noise(params[name], 1), 0) for name in ("q", "out"))
        name = "seq_lens" if "seq_lens" in params else "seq_len"
        self.filled = [max(1, round(job.capacity * fill)) for fill in job.fills]
        self.lengths = [{name: device.array(np.full(batch, n, np.int32))} for n in self.filled]
        self.moves = [self._moves(job.capacity, n, one) for n in self.filled]
        self.expected: list[np.ndarray] = []

    def _moves(self, capacity: int, length: int, one: int) -> int:
        """How often a cache can be moved on by that length, as far as the rotation needs it."""
        needed = math.ceil(L2_BYTES / (self.sets * one * length / capacity))
        return max(1, min(capacity // _step(length), needed, MOST_CALLS // self.sets))

    def _caches(self, index: int) -> list[dict[str, Buffer]]:
        """The caches of a fill, in rotation."""
        moves, step = self.moves[index], _step(self.filled[index])
        return [
            {p.name: self._view(p, self.pools[p.name], i, move * step * _row_bytes(p)) for p in self.params}
            for move in range(moves)
            for i in range(self.sets)
        ]

    def times(self, kernel: Kernel, choice: Choice) -> list[float]:
        """Microseconds of a launch for each fill."""
        workspaces = {p.name: self._workspace(p) for p in kernel.params if p.access == "workspace"}
        found = []
        for index, lengths in enumerate(self.lengths):
            fixed_arguments: dict[str, Any] = {"q": self.q, "out": self.out, **lengths, **workspaces}
            bound = [kernel.bind(**fixed_arguments, **caches) for caches in self._caches(index)]
            self._compare(bound[0], index, kernel.ptx, choice)
            found.append(graph_us(self.device, self.stream, bound * math.ceil(LEAST_CALLS / len(bound))))
        return found

    def _compare(self, bound: BoundKernel, index: int, ptx: Ptx, choice: Choice) -> None:
        """The result on the first caches against that of the first choice."""
        bound.launch(self.stream)
        self.stream.synchronize()
        result = _floats(self.out)
        if index == len(self.expected):
            self.expected.append(result)
        wanted = self.expected[index]
        error = np.linalg.norm(result - wanted) / max(float(np.linalg.norm(wanted)), 1e-30)
        if not error <= LIMIT:
            raise PtxgenError(f"tune: {ptx.spec!r} with {choice}: another result than before (difference {error:.1e})")

    def _noise(self, param: Param, count: int) -> Buffer:
        """Memory for `count` buffers of the parameter, with values as a cache has them."""
        pool = self.device.empty(self._stride(param) * count, "u8")
        block = _values(param.dtype, min(_BLOCK, pool.nbytes // param.dtype.bytes))
        pool.view(block.size).copy_from(block)
        done = block.size
        while done < pool.nbytes:  # copies of what is there already
            more = min(done, pool.nbytes - done)
            pool.view(more, offset=done).copy_from(pool.view(more))
            done += more
        return pool

    def _view(self, param: Param, pool: Buffer, index: int, offset: int = 0) -> Buffer:
        return pool.view(self._shape(param), param.dtype, offset=index * self._stride(param) + offset)

    def _shape(self, param: Param) -> tuple[int, ...]:
        return tuple(evaluate(extent, {"batch": self.batch}) for extent in param.shape)

    def _stride(self, param: Param) -> int:
        """Bytes from one buffer to the next."""
        return -(-math.prod(self._shape(param)) * param.dtype.bytes // 256) * 256

    def _workspace(self, param: Param) -> Buffer:
        return (self.device.zeros if param.zeroed else self.device.empty)(self._shape(param), param.dtype)


def graph_us(device: Device, stream: Stream, calls: Sequence[BoundKernel]) -> float:
    """Microseconds of a launch: the median over replays of a graph of these calls, back to back."""
    graph = device.graph()
    with graph:
        for call in calls:
            call.launch(graph.stream)
    begun = time.perf_counter()
    while time.perf_counter() - begun < WARM_UP:  # while kernels were compiled, the clocks have come down
        graph.launch(stream)
        stream.synchronize()
    times = []
    for _ in range(REPLAYS):
        start = stream.record()
        graph.launch(stream)
        end = stream.record()
        end.synchronize()
        times.append(end.elapsed_us(start) / len(calls))
    return statistics.median(times)


def _step(length: int) -> int:
    """Positions by which a cache is moved on: aligned as a kernel wants its buffers."""
    return -(-length // 16) * 16


def _row_bytes(param: Param) -> int:
    """Bytes of one position of one KV head."""
    return evaluate(param.shape[-1], {}) * param.dtype.bytes


def _values(dtype: DType, count: int) -> np.ndarray:
    """Bytes of random elements; none is large, infinite or NaN."""
    rng = np.random.default_rng(0)
    if dtype.name in ("s8", "e4m3"):  # e4m3: below 2, of either sign
        most = 127 if dtype.name == "s8" else 63
        signs: np.ndarray = rng.integers(0, 2, count, np.uint8) << 7
        made: np.ndarray = rng.integers(0, most, count, np.uint8) | signs  # as int8: from -128 on
        return made
    values = rng.standard_normal(count, np.float32) / 8
    stored: np.ndarray = values.astype(np.float16 if dtype.name == "f16" else np.float32)
    if dtype.name == "bf16":
        stored = (values.view(np.uint32) >> 16).astype(np.uint16)
    as_bytes: np.ndarray = stored.view(np.uint8)
    return as_bytes


def _floats(buffer: Buffer) -> np.ndarray:
    """The elements as f32."""
    raw = buffer.view(buffer.nbytes, "u8").numpy()
    if buffer.dtype.name == "bf16":
        raw = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.uint8)
    values: np.ndarray = raw.view(np.float16 if buffer.dtype.name == "f16" else np.float32).astype(np.float32)
    return values
