"""What a model takes on a device, before anything is allocated: weights by format, cache, scratch memory, the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptxgen.models.arena import plan_arena
from ptxgen.models.decode import step_program
from ptxgen.models.packing import WeightSource, formats_of
from ptxgen.models.program import Program

CACHES = ("k_cache", "v_cache", "k_scales", "v_scales")


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes. `formats`: of the weights by format ("": vectors in f32). `other`: tokens, logits, workspaces and such."""

    formats: Mapping[str, int]
    cache: int
    scratch: int
    other: int

    @property
    def weights(self) -> int:
        """All weights."""
        return sum(self.formats.values())

    @property
    def total(self) -> int:
        """Everything."""
        return self.weights + self.cache + self.scratch + self.other


def memory_plan(
    source: WeightSource, kv_dtype: object = "f16", target: str = "sm_75", chunk: int = 512, programmatic: bool = False,
    rings: int = 0,
) -> MemoryPlan:  # fmt: skip
    """What `Model` takes for a file whose prompts go in chunks of `chunk`; `rings`: where layers with a window keep
    rings with room for appends of so many rows."""
    formats = formats_of(source)
    decode, prefill = (
        step_program(
            source.spec,
            formats,
            step,
            rows=rows,
            kv_dtype=kv_dtype,
            target=target,
            programmatic=programmatic,
            rings=rings,
        )
        for step, rows in (("decode", 1), ("prefill", chunk))
    )
    return plan_of(decode, prefill)


def plan_of(decode: Program, *others: Program) -> MemoryPlan:
    """What steps take that share weights, cache and scratch memory."""
    formats: dict[str, int] = {}
    for tensor in decode.of_kind("weight"):
        formats[tensor.format] = formats.get(tensor.format, 0) + tensor.nbytes
    kept = {
        t.name: t.nbytes for p in (decode, *others) for kind in ("state", "input", "output") for t in p.of_kind(kind)
    }
    cache = sum(nbytes for name, nbytes in kept.items() if name.endswith(CACHES))
    scratch = max(plan_arena(program).nbytes for program in (decode, *others))
    return MemoryPlan(formats, cache, scratch, sum(kept.values()) - cache)
