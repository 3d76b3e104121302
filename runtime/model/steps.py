"""`Steps`: the memory that the steps of a model share, and those that have been bound. Knows no sequence."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.dtypes import dtype, f32, s32
from ptxgen.errors import CapacityError, LogitsError
from ptxgen.models.arena import plan_arena
from ptxgen.models.memory_plan import MemoryPlan, plan_of, scratch_of_fewer_rows
from ptxgen.models.packing import WeightSource, formats_of
from ptxgen.models.program import Program
from ptxgen.models.step.decode import step_program
from ptxgen.models.step.fitted import fitted
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.step import Step
from ptxgen.runtime.kv.kvcache import KvCache
from ptxgen.runtime.model.sampling import Sampling, Settings, checked
from ptxgen.runtime.model.weights import Progress, load_weights, shared_weights

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.stream import Stream

NAN_TOKEN = 0  # what a step chooses where all logits are NaN: the first that is
SAMPLED, SAMPLE = 16, 1024  # tensors whose rows tell a model from others, and bytes of each row


class Steps:
    """Weights, the cache of one sequence, scratch memory, `counters` (position, length), `tokens` and `logits`.

    A prompt's steps have up to `chunk` rows. `overlaps`: kernels may start before the one ahead
    has ended, where the device can. `rings`: layers with a window keep rings that take `chunk` positions at a time.
    `persistent`: a greedy decode step is one launch (`resident.py`).
    """

    def __init__(
        self,
        device: Device,
        source: WeightSource,
        kv_dtype: object,
        chunk: int,
        overlaps: bool,
        progress: Progress | None,
        weights: Mapping[str, Buffer] | None = None,
        precision: str = "exact",
        rings: bool = False,
        persistent: bool = False,
    ) -> None:
        self.device, self.source, self.spec, self.precision = device, source, source.spec, precision
        self.kv_dtype, self.overlaps = dtype(kv_dtype), overlaps and device.target.includes_any(("sm_90",))
        self.rings, self.attention_scratch = chunk if rings else 0, True
        decode, prefill = self.program("decode"), self.program("prefill", chunk)
        if persistent:
            from ptxgen.runtime.model.resident import resident

            decode = resident(device, decode)
        if weights is None:
            if not _has_room(device, plan_of(decode, prefill, more=self._scratch_of_fewer(prefill))):
                self.attention_scratch = False  # it only saves time
                prefill = self.program("prefill", chunk)
            _fits(device, plan_of(decode, prefill, more=self._scratch_of_fewer(prefill)), self.spec.shape.max_len)
        if weights is None:
            self.weights = load_weights(device, decode, source, progress)
        else:
            self.weights = shared_weights(decode, weights)
        shape = self.spec.shape
        self.cache = KvCache(
            device, shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.max_len, self.kv_dtype,
            windows=shape.windows if rings else None, appended=chunk,
        )  # fmt: skip
        if getattr(device, "mode", "") == "check":
            self.cache.zero()  # attention loads rows past a length early, and uses none of them
        begins = self.program("prefill", chunk, choice="none")
        scratch = max(plan_arena(p).nbytes for p in (decode, prefill, begins))
        self.arena = device.empty(scratch + self._scratch_of_fewer(prefill), "u8")
        self.counters, self.tokens = device.zeros(2, s32), device.zeros(1, s32)
        self.logits = device.empty((1, shape.vocab), f32)
        self.decode = self._bind(decode)
        self._settings: Settings | None = None
        self._bound: dict[tuple[int, str], Step] = {(0, "greedy"): self.decode}

    def _scratch_of_fewer(self, chunk: Program) -> int:
        """Bytes more that attention leaves in memory in steps of fewer rows than a chunk."""
        return (
            scratch_of_fewer_rows(chunk, self.device.target, self.spec.shape.max_len) if self.attention_scratch else 0
        )

    @cached_property
    def identity(self) -> str:
        """What tells this model from others: a digest of its sizes and formats, and of rows of some of its tensors,
        whatever the cache's length is."""
        shape, spec, tensors = self.spec.shape, self.spec, self.source.tensors
        sizes = (shape.family, shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.vocab, spec.dim)
        formats = [(name, info.format) for name, info in sorted(tensors.items()) if info.rows > 1]
        digest = hashlib.sha256(repr((*sizes, spec.hidden, formats)).encode())
        stored = getattr(self.source, "stored", self.source.read)  # quantising 16 matrices once more would take seconds
        names = sorted(tensors, key=lambda name: hashlib.sha256(name.encode()).digest())  # no stride meets the layers'
        for name in names[:SAMPLED]:
            for part, array in sorted(stored(name).items()):
                digest.update(f"{name}.{part} {array.dtype} {array.shape}".encode())
                for row in sorted({0, len(array) // 3, 2 * len(array) // 3, len(array) - 1}):
                    digest.update(np.ascontiguousarray(array[row]).tobytes()[:SAMPLE])
        return digest.hexdigest()[:16]

    def refuse_nan(self, logits: np.ndarray, where: str) -> None:
        """`LogitsError` for logits of which one is NaN. Rows are asked for where a step has chosen `NAN_TOKEN`, which
        those that are numbers seldom have: other steps do not bring their logits to the host."""
        if not np.isnan(logits).any():
            return
        how = "weights may hold NaN or infinities"
        if self.kv_dtype.name not in ("f32", "bf16"):
            how += f", or keys and values not fit kv_dtype={self.kv_dtype.name}: try bf16"
        raise LogitsError(f"Model: logits {where} are NaN: {how}")

    def program(self, step: str = "decode", rows: int = 1, **options: Any) -> Program:
        """The Program of a step of this model on this device."""
        program = step_program(
            self.spec, formats_of(self.source), step, rows=rows, kv_dtype=self.kv_dtype,
            target=self.device.target.name, programmatic=self.overlaps, precision=self.precision,
            attention_scratch=self.attention_scratch, **{"rings": self.rings, **options},
        )  # fmt: skip
        return fitted(program, getattr(self.device, "multiprocessors", None))

    def step(self, rows: int, sampling: Sampling | None, stream: Stream, *, ends: bool = True) -> Step:
        """The step of a chunk of `rows` positions (0: the decode step) that draws so, its settings on the device, or,
        where the prompt does not end with it, chooses no token."""
        sampling = checked(sampling)
        choice = "greedy" if sampling is None else "penalise" if sampling.penalises else "sample"
        if not ends:
            choice = "none"
        if sampling is not None:
            self.settings.put(sampling, 0, stream)
        step = self._bound.get((rows, choice))
        if step is None:
            program = self.program("prefill" if rows else "decode", rows or 1, choice=choice)
            step = self._bound[rows, choice] = self._bind(program, self._settings)
        return step

    @property
    def settings(self) -> Settings:
        """How the sequence draws its tokens, made when first asked for."""
        if self._settings is None:
            self._settings = Settings(self.device, 1, self.spec.shape.max_len)
        return self._settings

    def _bind(self, program: Program, settings: Settings | None = None) -> Step:
        buffers = {**self.weights, **layer_buffers(self.cache), "tokens": self.tokens, "logits": self.logits}
        buffers |= {"position": self.counters[:1], "length": self.counters[1:]}
        if settings is not None:
            buffers |= settings.buffers
        self.device.warmup(program.specs())
        needed = plan_arena(program).nbytes
        if needed > self.arena.nbytes:  # fewer rows may share k, and leave sums that the longest chunk has not
            self.arena = self.device.empty(needed, "u8")
        return Step(self.device, program, buffers, self.arena)


def _has_room(device: Device, plan: MemoryPlan) -> bool:
    """Whether the device's free memory holds all, or is not known: a system that does not say is not asked."""
    free = device.memory().available
    return plan.total <= free or not free


def _fits(device: Device, plan: MemoryPlan, max_len: int) -> None:
    """Raise `CapacityError` for what the device's free memory does not hold, before anything is allocated."""
    if _has_room(device, plan):
        return
    free = device.memory().available
    parts = f"weights {plan.weights:,}, cache of {max_len} positions {plan.cache:,}, scratch {plan.scratch:,}"
    said = f"Model: needs {plan.total:,} bytes ({parts}), and {device.name} has {free:,} free"
    fitting = max_len * (free - plan.total + plan.cache) // plan.cache  # what else there is grows less
    raise CapacityError(
        f"{said}; {f'max_len={fitting} would fit' if fitting > 0 else 'without a cache it does not fit'}"
    )


def layer_buffers(cache: Any) -> dict[str, Buffer]:
    """The memory of a cache, single or batched, by the names that a Program gives it."""
    named = ((layer, cache.buffers(layer)) for layer in range(cache.n_layers))
    return {f"layers.{layer}.{name}": buffer for layer, held in named for name, buffer in held.items()}
