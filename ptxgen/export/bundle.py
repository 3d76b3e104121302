"""A model's kernels for a host: a short name and an entry each, the layers that they serve, and a token's launches.

Owns names and order; which kernels a model needs is `ptxgen.models.plan`'s.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ptxgen.errors import SpecError
from ptxgen.export import Part
from ptxgen.generator import generate
from ptxgen.kernel import KernelType
from ptxgen.models import ModelShape
from ptxgen.models.plan import Step
from ptxgen.models.program import Program

OUTSIDE = "choose"  # the role that runs behind the layers of an attention-only bundle


def short_names(shape: ModelShape, steps: Sequence[Step]) -> list[str]:
    """A name for each step, its own among those of its target: what it does, then its kind of layers, then a number."""
    names = [_base(step) for step in steps]
    kinds = ["_".join(kind.name for kind in shape.kinds if set(kind.layers) & set(step.layers)) for step in steps]
    for more in (kinds, _numbers(names, kinds, steps)):
        often = Counter((name, step.target) for name, step in zip(names, steps, strict=True))
        names = [
            f"{name}_{extra}" if often[name, step.target] > 1 and extra else name
            for name, extra, step in zip(names, more, steps, strict=True)
        ]
    return names


def _base(step: Step) -> str:
    spec = step.spec
    name = spec.bundle_name(step.role)
    return f"{name}_batched" if getattr(spec, "batched", False) else name


def _numbers(names: Sequence[str], kinds: Sequence[str], steps: Sequence[Step]) -> list[str]:
    """Numbers from 2 on for steps that still have the name of one before."""
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for key in ((n, k, s.target.name) for n, k, s in zip(names, kinds, steps, strict=True)):
        seen[key] += 1
        found.append(str(seen[key]) if seen[key] > 1 else "")
    return found


def parts(shape: ModelShape, steps: Sequence[Step], prefix: str = "") -> Iterator[Part]:
    """The kernels with their names, entries of the same names, roles and layers; `prefix` begins every name."""
    for name, step in zip(short_names(shape, steps), steps, strict=True):
        full = f"{prefix}{name}"
        facts = {"role": step.role, "in_decode_step": step.in_step, "layers": list(step.layers)}
        yield Part(generate(step.spec, step.target, entry=full), full, facts)


def bundle_facts(
    shape: ModelShape, steps: Sequence[Step], prefix: str = "", programs: Mapping[str, Program] | None = None
) -> dict[str, Any]:
    """What the manifest of a model's kernels says of them all: the model, and by target a token's launches in order.

    `programs`: the decode step of a whole model by target; without it that of attention alone.
    """
    by_target: dict[str, list[Step]] = {}
    for step in steps:
        by_target.setdefault(step.target.name, []).append(step)
    targets = {
        name: {"decode_step": decode_step(shape, own, prefix, (programs or {}).get(name))}
        for name, own in by_target.items()
    }
    return {"model": dataclasses.asdict(shape), "targets": targets}


def decode_step(
    shape: ModelShape, steps: Sequence[Step], prefix: str = "", program: Program | None = None
) -> list[dict[str, Any]]:
    """The launches of a decode step of one sequence in order, as kernel names with their layers; of one target.

    Without a `program` they are those of attention: every layer's, then the choice of the token, which is None's.
    """
    names = {step.spec: f"{prefix}{name}" for step, name in zip(steps, short_names(shape, steps), strict=True)}
    if len(names) != len(steps):
        raise SpecError("decode_step: the steps must be of one target")
    found = _of_program(program) if program else _of_attention(shape, steps)
    return [{"layer": layer, "kernel": names[spec], "does": does} for layer, spec, does in found]


def _of_program(program: Program) -> Iterator[tuple[int | None, KernelType, str]]:
    for op in program.ops:
        yield (op.layer if op.layer >= 0 else None), op.spec, op.role


def _of_attention(shape: ModelShape, steps: Iterable[Step]) -> Iterator[tuple[int | None, KernelType, str]]:
    in_step = sorted((step for step in steps if step.in_step), key=lambda step: step.role == "attention")  # comes last
    for layer in range(shape.n_layers):
        for step in in_step:
            if layer in step.step_layers and step.role != OUTSIDE:
                yield layer, step.spec, step.role
    for step in in_step:
        if step.role == OUTSIDE:
            yield None, step.spec, step.role
