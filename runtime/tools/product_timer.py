"""Times the choices of a product's tuning job on a GPU: graph nodes back to back, over so many copies of the weights
that none stays in the L2. Owns the measurement; which choices there are is `ptxgen.tuning_jobs.products`'."""

from __future__ import annotations

import math

import numpy as np

from ptxgen.errors import PtxgenError, SpecError
from ptxgen.launch import evaluate
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.tools import tuner
from ptxgen.runtime.tools.choice_kernels import ChoiceKernels
from ptxgen.targets import Target
from ptxgen.tuning import ProductChoice
from ptxgen.tuning_jobs.products import ProductJob
from ptxgen.weights import weight_format

ROWS = 64  # of a matrix that are drawn; the others repeat them
LIMIT = 1e-5  # ‖difference‖ / ‖result‖ of two choices on the same inputs: sums are added in another order


class ProductTimer(ChoiceKernels[ProductChoice]):
    """Measures choices for one job, as `tuner.Timer` does."""

    def __init__(self, device: Device, job: ProductJob, target: Target, sets: int | None = None) -> None:
        super().__init__(device, job.spec, target)
        self.job = job
        self.stream = device.stream()
        count = sets or max(1, min(tuner.MOST_SETS, math.ceil(tuner.L2_BYTES / job.bytes)))
        free = device.memory().free
        if count * job.bytes > 0.8 * free:
            raise SpecError(
                f"tune: {job.label()}: needs {count * job.bytes / 1e9:.1f} GB of weights on {device.name} "
                f"({free / 1e9:.1f} GB are free)"
            )
        self.weights = [device.empty(job.bytes, "u8") for _ in range(count)]
        self._fill()
        x = np.random.default_rng(1).standard_normal((1, job.k), np.float32)
        self.x, self.out = device.array(x), device.empty((1, job.n), "f32")
        self._expected: np.ndarray | None = None

    def us(self, choice: ProductChoice) -> float:
        """Microseconds of a launch, the median of replays.

        Raises `PtxgenError` when a choice computes something else than the first one did.
        """
        kernel = self.kernel(choice)
        weight = next(p for p in kernel.params if p.name == "weight")
        shape = tuple(evaluate(extent, {}) for extent in weight.shape)
        calls = [kernel.bind(x=self.x, out=self.out, weight=each.view(shape)) for each in self.weights]
        calls[0].launch(self.stream)
        self.stream.synchronize()
        self._compare(self.out.numpy(), choice)
        return tuner.graph_us(self.device, self.stream, calls * math.ceil(tuner.LEAST_CALLS / len(calls)))

    def _compare(self, result: np.ndarray, choice: ProductChoice) -> None:
        if self._expected is None:
            self._expected = result
        error = np.linalg.norm(result - self._expected) / max(float(np.linalg.norm(self._expected)), 1e-30)
        if not error <= LIMIT:
            said = f"another result than before (difference {error:.1e})"
            raise PtxgenError(f"tune: {self.job.label()} with {choice}: {said}")

    def _fill(self) -> None:
        """Valid records: those of a few rows, over and over."""
        kind, k = weight_format(self.job.weights), self.job.k
        values = np.random.default_rng(0).standard_normal((ROWS, k), np.float32) * np.float32(k**-0.5)
        packed = kind.pack(kind.quantise(values), ROWS, k).reshape(-1).view(np.uint8)
        first, *others = self.weights
        first.copy_from(np.resize(packed, first.nbytes))
        for each in others:
            each.copy_from(first)
