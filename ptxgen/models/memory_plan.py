"""What a model takes on a device, before anything is allocated: weights by format, cache, scratch memory, the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptxgen.kernel import spec_error, supports
from ptxgen.kernels.multi_head_attention import MultiHeadAttention
from ptxgen.models.arena import plan_arena
from ptxgen.models.packing import WeightSource, formats_of
from ptxgen.models.program import Program
from ptxgen.models.step.decode import step_program
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target

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
        """Bytes of all weights, matrices and vectors."""
        return sum(self.formats.values())

    @property
    def total(self) -> int:
        """Bytes of weights, cache, scratch memory and the rest together."""
        return self.weights + self.cache + self.scratch + self.other


def positions_at_once(chunk: int, max_len: int) -> int:
    """Positions of a prompt in one step: `chunk` if the context has so many, else a power of two."""
    return min(chunk, 1 << (max_len.bit_length() - 1))


def memory_plan(
    source: WeightSource, kv_dtype: object = "f16", target: str = "sm_90a", chunk: int = 512, rings: int = 0
) -> MemoryPlan:
    """What `Model` takes for a file on a `target`, whose products of several rows may need more scratch memory than
    another's, where prompts go in steps of `chunk`; `rings`: where layers with a window keep rings with room for
    appends of so many rows. Raises `SpecError` where the target has not got one of the kernels."""
    formats, where = formats_of(source), parse_target(target)
    overlaps = where.includes_any(("sm_90",))
    many = positions_at_once(chunk, source.spec.shape.max_len)
    decode, prefill = (
        step_program(
            source.spec, formats, step, rows=rows, kv_dtype=kv_dtype, target=target, programmatic=overlaps, rings=rings
        )
        for step, rows in (("decode", 1), ("prefill", many))
    )
    for spec in (*decode.specs(), *prefill.specs()):
        if not (support := supports(spec, where)):
            raise spec_error(type(spec).__name__, support.reasons)
    return plan_of(decode, prefill, more=scratch_of_fewer_rows(prefill, where, source.spec.shape.max_len))


def scratch_of_fewer_rows(chunk: Program, target: Target, max_len: int) -> int:
    """Bytes more than `chunk` has for what attention leaves in memory, in the steps of a prompt of fewer rows: parts of
    keys that CTAs share, or rows that are widened."""
    attends = {op.spec: op.sizes["n_tokens"] for op in chunk.ops if isinstance(op.spec, MultiHeadAttention)}
    own = max((spec.scratch_bytes for spec in attends), default=0)
    fewer = (spec.fastest(target, 1 << n, max_len) for spec, rows in attends.items() for n in range(rows.bit_length()))
    return max(0, max((spec.scratch_bytes for spec in fewer), default=0) - own)


def plan_of(decode: Program, *others: Program, more: int = 0) -> MemoryPlan:
    """What steps take that share weights, cache and scratch memory, and other steps `more` of the latter."""
    formats: dict[str, int] = {}
    for tensor in decode.of_kind("weight"):
        formats[tensor.format] = formats.get(tensor.format, 0) + tensor.nbytes
    kept = {
        t.name: t.nbytes for p in (decode, *others) for kind in ("state", "input", "output") for t in p.of_kind(kind)
    }
    cache = sum(nbytes for name, nbytes in kept.items() if name.endswith(CACHES))
    scratch = max(plan_arena(program).nbytes for program in (decode, *others)) + more
    return MemoryPlan(formats, cache, scratch, sum(kept.values()) - cache)
