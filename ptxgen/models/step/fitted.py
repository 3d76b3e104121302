"""A step for a device with fewer multiprocessors than the tables of products are for. One pure function."""

from __future__ import annotations

from dataclasses import fields, replace

from ptxgen.kernels.packed_gemm import PackedGemm
from ptxgen.models.program import Op, Program
from ptxgen.models.step.products import TILE
from ptxgen.products.wgmma.tiling.shape import PROCESSORS


def fitted(program: Program, multiprocessors: int | None) -> Program:
    """The same step for a device with so many multiprocessors: products whose CTAs wait for each other are only used if
    all of these CTAs are resident at once. None: a device without multiprocessors, which runs CTAs as needed."""
    if multiprocessors is None or multiprocessors >= PROCESSORS:
        return program
    ops = tuple(map(_alone, program.ops))
    used = {ref.tensor for op in ops for _, ref in op.buffers()}
    return Program({name: tensor for name, tensor in program.tensors.items() if name in used}, ops)


def _alone(op: Op) -> Op:
    """An op whose CTAs wait for no others but those of their cluster."""
    spec = op.spec
    if not (isinstance(spec, PackedGemm) and (spec.stream or spec.by_memory or spec.last_split)):
        return op
    given = {each.name: getattr(spec, each.name) for each in fields(spec) if each.name not in TILE}
    spec = PackedGemm.best(op.sizes["rows"], **given, stream=False, by_memory=False, last_split=0)
    params = spec.params()
    names = {param.name for param in params}
    tensors = {name: ref for name, ref in op.tensors.items() if name in names}
    return replace(op, spec=spec, tensors=tensors, params=params)
