"""Which kernels a model needs: its attention shape → specs, by role and by layers. A table; no kernel code.

A spec takes from the model every fact that its kernel type has a field for; a row of the table adds the options of the
role. Layers that differ in window or RoPE get kernels of their own; equal specs are one kernel.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ptxgen.errors import SpecError
from ptxgen.generator import generate
from ptxgen.golden import INDEX, golden_file
from ptxgen.kernel import KernelType, find_kernel_type, supports
from ptxgen.manifest import FORMAT, spec_fields
from ptxgen.models import LayerKind, ModelShape
from ptxgen.models.decode import STEPS, step_program
from ptxgen.models.spec import ModelSpec
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target


@dataclass(frozen=True)
class Role:
    """What a kernel does in a model. `step`: it runs in the decode step of one sequence; `unrotated`: there, too, in
    layers without RoPE. `rotates`: layers without RoPE do without it."""

    name: str
    kernel: str
    options: Mapping[str, object]
    step: bool = False
    unrotated: bool = False
    rotates: bool = False

    def serves(self, kind: LayerKind) -> bool:
        """Whether these layers need it."""
        return kind.rope is not None or not self.rotates

    def in_step(self, kind: LayerKind) -> bool:
        """Whether it runs in the decode step of these layers."""
        return self.step or (self.unrotated and kind.rope is None)


# In the order in which they run.
ROLES: tuple[Role, ...] = (
    Role("rotate q and k, append k and v", "rope_kv_append", {"indirect": True}, step=True, rotates=True),
    Role("decode attention", "incremental_attention", {"indirect": True}, step=True),
    Role("choose the token", "arg_max", {"dtype": "f32"}, step=True),
    Role("rotate q and k, append k and v, batched", "rope_kv_append", {"batched": True}, rotates=True),
    Role("decode attention, batched", "incremental_attention", {"batched": True}),
    Role("split decode attention", "flash_decoding_chunk", {}),
    Role("merge of splits", "flash_decoding_reduce", {}),
    Role("prefill attention", "multi_head_attention", {"causal": True, "indirect": True}),
    Role("rotate", "rope", {}, rotates=True),
    Role("append k and v", "kv_cache_scatter", {"indirect": True}, unrotated=True),
    Role("copy a cache to a slot", "kv_cache_gather", {"direction": "to_slot", "indirect": True}),
    Role("copy a slot to a cache", "kv_cache_gather", {"direction": "from_slot", "indirect": True}),
)


@dataclass(frozen=True)
class Step:
    """A kernel of a model on a target: the role it plays, the layers that it serves, and those in whose decode step of
    one sequence it runs."""

    role: Role
    layers: tuple[int, ...]
    spec: KernelType
    target: Target
    step_layers: tuple[int, ...] = ()

    @property
    def in_step(self) -> bool:
        """Whether it runs in the decode step of one sequence, in a layer or outside of them."""
        return self.role.step or bool(self.step_layers)


def plan(shape: ModelShape, target: str | Target, kv_dtype: str | None = None) -> tuple[Step, ...]:
    """Every kernel of a model for a target; `kv_dtype` replaces the model's own element type in the cache.

    Raises `SpecError` with every reason when one of them cannot be had.
    """
    where = parse_target(target)
    steps: dict[tuple[type, KernelType], Step] = {}
    refused: dict[str, set[str]] = {}  # reason → kernel types, none where the reason names its own
    for role in ROLES:
        for kind in filter(role.serves, shape.kinds):
            try:
                spec = _spec(role, shape, kind, kv_dtype or shape.dtype)
            except SpecError as wrong:
                refused.setdefault(str(wrong), set())
                continue
            for reason in supports(spec, where).reasons:
                refused.setdefault(reason, set()).add(type(spec).__name__)
            known = steps.get((type(spec), spec))
            layers = tuple(sorted({*(known.layers if known else ()), *kind.layers}))
            in_step = {*(known.step_layers if known else ()), *(kind.layers if role.in_step(kind) else ())}
            named = known.role if known else role
            steps[type(spec), spec] = Step(named, layers, spec, where, tuple(sorted(in_step)))
    if refused:
        lines = (".".join((*of, reason)) if len(of) == 1 else reason for reason, of in refused.items())
        raise SpecError("\n".join(lines))
    return tuple(steps.values())


def whole_plan(model: ModelSpec, weights: str, target: str | Target, kv_dtype: str | None = None) -> tuple[Step, ...]:
    """Every kernel of a model whose matrices are all in the format `weights`: what its Programs launch to decode one
    sequence, to decode several, and to take up a prompt. Activations are f32.

    Raises `SpecError` with the reason when one of them cannot be had.
    """
    where = parse_target(target)
    found: dict[KernelType, Step] = {}
    for step in STEPS:
        program = step_program(
            model, weights, step, rows=1 if step == "decode" else 2, kv_dtype=kv_dtype or model.shape.dtype,
            target=where.name, programmatic=where.includes_any(("sm_90",)),
        )  # fmt: skip
        for op in program.ops:
            if reasons := supports(op.spec, where).reasons:
                raise SpecError("\n".join(f"{type(op.spec).__name__}.{reason}" for reason in reasons))
            role = Role(op.role, op.spec.kernel_name, {}, step == "decode")
            known = found.get(op.spec, Step(role, (), op.spec, where))
            at = {op.layer} - {-1}
            layers, in_step = {*known.layers, *at}, {*known.step_layers, *(at if step == "decode" else ())}
            found[op.spec] = Step(known.role, tuple(sorted(layers)), op.spec, where, tuple(sorted(in_step)))
    return tuple(found.values())


def _spec(role: Role, shape: ModelShape, kind: LayerKind, kv_dtype: str) -> KernelType:
    cls = find_kernel_type(role.kernel)
    facts = {**_facts(shape, kind, kv_dtype), **role.options}
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    return cls(**{name: facts[name] for name in names if name in facts})


def _facts(shape: ModelShape, kind: LayerKind, kv_dtype: str) -> dict[str, Any]:
    """The model by the names of kernel types' fields."""
    rope = dataclasses.asdict(kind.rope) | {"style": shape.rope_style} if kind.rope else {}
    return rope | {
        "max_len": shape.max_len,
        "head_dim": shape.head_dim,
        "n_heads": shape.n_heads,
        "n_kv_heads": shape.n_kv_heads,
        "n": shape.vocab,
        "dtype": shape.dtype,
        "q_dtype": shape.dtype,
        "src_dtype": shape.dtype,
        "kv_dtype": kv_dtype,
        "scale": shape.scale,
        "soft_cap": shape.soft_cap,
        "window": kind.window,
        "sinks": shape.sinks,
    }


def bundle(shape: ModelShape, steps: Iterable[Step]) -> dict[str, str]:
    """Files by name: the PTX and the manifest of each step, and an index that says what each is for."""
    files: dict[str, str] = {}
    entries = []
    for step in steps:
        file = golden_file(step.spec, step.target)
        if file in files:
            raise SpecError(f"{file}: two kernels of the model have this name; {step.spec!r} is one of them")
        contract = file.removesuffix(".ptx") + ".json"
        ptx = generate(step.spec, step.target)
        files[file] = ptx.text
        files[contract] = json.dumps(ptx.manifest(), indent=2) + "\n"
        entries.append(
            {
                "role": step.role.name,
                "in_decode_step": step.in_step,
                "layers": list(step.layers),
                "kernel_type": step.spec.kernel_name,
                "spec": spec_fields(step.spec),
                "target": step.target.name,
                "file": file,
                "manifest": contract,
            }
        )
    index = {"format": FORMAT, "model": dataclasses.asdict(shape), "kernels": entries}
    files[INDEX] = json.dumps(index, indent=2) + "\n"
    return files
