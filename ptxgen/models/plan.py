"""Which kernels a model needs: those of its Programs, with the layers that they serve. No kernel code, no choice of its
own: attention alone is what `attention.py` says, a whole step what `step/decode.py` says.

Layers that differ in window or RoPE get kernels of their own; equal specs are one kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ptxgen.dtypes import dtype
from ptxgen.errors import SpecError
from ptxgen.kernel import KernelType, find_kernel_type, supports
from ptxgen.models.attention import Attention, program_of
from ptxgen.models.caches import CacheForm
from ptxgen.models.config.shape import LayerKind, ModelShape
from ptxgen.models.program import Program
from ptxgen.models.spec import ModelSpec
from ptxgen.models.step.decode import STEPS, step_program
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target

# Rows of the steps that stand for all of their kind: a prompt's are few, or many, which have other kernels.
ROWS = {"decode": (1,), "batch": (2,), "prefill": (2, 512)}
# Specs do not depend on capacities: those of one token of one sequence.
_ONE = {"rows": 1, "batch": 1, "n_tokens": 1, "pages": 1}


@dataclass(frozen=True)
class Step:
    """A kernel of a model on a target: what it does (`role`, of the first op that it is), the steps in which it runs,
    the layers that it serves, and those in whose decode step of one sequence it runs."""

    role: str
    steps: tuple[str, ...]
    layers: tuple[int, ...]
    spec: KernelType
    target: Target
    step_layers: tuple[int, ...] = ()

    @property
    def in_step(self) -> bool:
        """Whether it runs in the decode step of one sequence, in a layer or outside of them."""
        return "decode" in self.steps


@dataclass(frozen=True)
class Use:
    """A Program in which kernels run; `layers` are those of its ops that name none."""

    step: str
    layers: tuple[int, ...]
    program: Program


def plan(
    shape: ModelShape, target: str | Target, kv_dtype: str | None = None, form: CacheForm | None = None
) -> tuple[Step, ...]:
    """Every attention and KV-cache kernel of a model for a target; `kv_dtype` replaces the model's own element type in
    the cache, `form` says of pages and rings.

    Raises `SpecError` with every reason when one of them cannot be had.
    """
    form = form or CacheForm()
    uses = (use for kind in shape.kinds for use in attention_uses(shape, kind, kv_dtype or shape.dtype, form))
    return _kernels(uses, parse_target(target))


def attention_uses(shape: ModelShape, kind: LayerKind, kv_dtype: object, form: CacheForm) -> Iterator[Use]:
    """The Programs of attention alone, of layers of a kind; with scales where the model's cache has them, and is kept
    in its own type."""
    scaled = shape.kv_scheme is not None and dtype(kv_dtype).name == shape.kv_scheme.dtype
    attention = Attention.of(shape, kind, shape.dtype, kv_dtype, ring=form.ring(shape, kind), head_scales=scaled)
    role, kernel = attention.append
    choose = ("choose", find_kernel_type("arg_max")(n=shape.vocab, dtype="f32"))  # type: ignore[call-arg]

    def of(step: str, *ops: tuple[str, KernelType]) -> Use:
        return Use(step, kind.layers, program_of(*ops, sizes=_ONE))

    def attend(**options: Any) -> tuple[tuple[str, KernelType], ...]:
        kernels = {role: kernel, "attention": "incremental_attention"}
        return tuple((name, attention.spec(of, **options)) for name, of in kernels.items())

    yield of("decode", *attend(indirect=True))
    yield of("decode", choose)
    yield of("batch", *attend(**form.batched))
    if not scaled:  # it takes no scales
        chunk, merge = (attention.spec(f"flash_decoding_{part}") for part in ("chunk", "reduce"))
        yield of("split", ("split attention", chunk), ("merge of splits", merge))
    yield of("prefill", ("attention", attention.spec("multi_head_attention", causal=True, indirect=True)))
    if form.page_size:
        yield of("prefill", ("attention", attention.spec("multi_head_attention", causal=True, **form.batched)))
    if attention.rope is not None:
        yield of("rotate", ("rotate", attention.spec("rope")))
    yield of("append", ("append", attention.spec("kv_cache_scatter", indirect=True)))
    for direction in ("to_slot", "from_slot"):
        rows = attention.ring or attention.max_len
        copy = attention.spec("kv_cache_gather", direction=direction, indirect=True, max_len=rows)
        yield of("copy", (f"copy {direction.replace('_', ' ')}", copy))


def whole_plan(
    model: ModelSpec, weights: str, target: str | Target, kv_dtype: str | None = None, form: CacheForm | None = None
) -> tuple[Step, ...]:
    """Every kernel of a model whose matrices are all in the format `weights`: what its Programs launch to decode one
    sequence, to decode several, and to take up a prompt, of `ROWS` rows. Activations are f32. `form` says of pages and
    rings: where batches keep pages, there is attention of prompts over these, too.

    Raises `SpecError` with every reason when one of them cannot be had.
    """
    where, form = parse_target(target), form or CacheForm()
    uses = [
        Use(step, (), whole_program(model, weights, where, kv_dtype, step, form, min(rows, model.shape.max_len)))
        for step in STEPS
        for rows in ROWS[step]
    ]
    if form.page_size:
        for kind in model.shape.kinds:
            attention = Attention.of(model.shape, kind, "f32", kv_dtype or model.shape.dtype)
            over_pages = attention.spec("multi_head_attention", causal=True, **form.batched)
            uses.append(Use("prefill", kind.layers, program_of(("attention", over_pages), sizes=_ONE)))
    return _kernels(uses, where)


def whole_program(
    model: ModelSpec,
    weights: str,
    target: str | Target,
    kv_dtype: str | None = None,
    step: str = "decode",
    form: CacheForm | None = None,
    rows: int = 1,
) -> Program:
    """A step of so many rows of a model whose matrices are all in the format `weights`, as `whole_plan` has it."""
    where, form = parse_target(target), form or CacheForm()
    paged = step == "batch" and form.page_size > 0
    pages: dict[str, Any] = {"page_size": form.page_size, "page_layout": form.page_layout, "pages": 1} if paged else {}
    return step_program(
        model, weights, step, rows=rows, kv_dtype=kv_dtype or model.shape.dtype,
        target=where.name, programmatic=where.includes_any(("sm_90",)),
        rings=0 if paged else form.rings, **pages,
    )  # fmt: skip


def _kernels(uses: Iterable[Use], where: Target) -> tuple[Step, ...]:
    """The kernels of Programs, each once, in the order of first use."""
    found: dict[KernelType, Step] = {}
    refused: dict[str, set[str]] = {}  # reason → kernel types
    for use in uses:
        for op in use.program.ops:
            layers = use.layers if op.layer < 0 else (op.layer,)
            known = found.get(op.spec)
            if known is None:
                known = Step(op.role, (), (), op.spec, where)
                for reason in supports(op.spec, where).reasons:
                    refused.setdefault(reason, set()).add(type(op.spec).__name__)
            found[op.spec] = dataclasses.replace(
                known,
                steps=tuple(dict.fromkeys((*known.steps, use.step))),
                layers=tuple(sorted({*known.layers, *layers})),
                step_layers=tuple(sorted({*known.step_layers, *(layers if use.step == "decode" else ())})),
            )
    if refused:
        lines = (".".join((*of, reason)) if len(of) == 1 else reason for reason, of in refused.items())
        raise SpecError("\n".join(lines))
    return tuple(found.values())
