"""The launch contract as plain data (JSON): what a host in any language needs to load and launch a generated kernel.

Offsets, sizes, block and cluster are read from the PTX text; shapes and the grid are formulas of capacities, in the
notation of `ptxgen.launch`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import DType
from ptxgen.errors import IsaError
from ptxgen.launch import Extent, Param, capacities_of
from ptxgen.nodes.sizes import variable_bytes
from ptxgen.targets import driver_for_ptx

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType
    from ptxgen.nodes import Function
    from ptxgen.views.generated_kernel import GeneratedKernel

FORMAT = 1


def manifest(ptx: GeneratedKernel) -> dict[str, Any]:
    """The contract of a generated kernel. Its layout is stable within one `format`."""
    function = ptx.module.entries[ptx.entry]
    layout, total = parameter_layout(function)
    major, minor = ptx.module.version
    return {
        "format": FORMAT,
        "kernel_type": ptx.spec.kernel_name,
        "spec": spec_fields(ptx.spec),
        "slug": ptx.spec.slug,
        "entry": ptx.entry,
        "target": ptx.target.name,
        "digest": f"sha256:{ptx.digest}",
        "parameters": [_parameter(p, *place) for p, place in zip(ptx.params, layout, strict=True)],
        "parameter_bytes": total,
        "launch": _launch(ptx, function),
        "workspace": _workspace(ptx.params),
        "requires": {
            "ptx": f"{major}.{minor}",
            "sm": ptx.target.name,
            "driver": driver_text(driver_for_ptx(ptx.module.version)),
            "because": [{"line": line, "word": word, "demand": demand} for line, word, demand in ptx.requires.because],
        },
    }


def spec_fields(spec: KernelType) -> dict[str, Any]:
    """The fields of a spec as JSON values; `make_spec` takes them back."""
    values = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}  # type: ignore[arg-type]
    return {name: plain(value) for name, value in values.items()}


def plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, DType):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def parameter_layout(function: Function) -> tuple[list[tuple[int, int, str]], int]:
    """(offset, size, PTX type) of each parameter, and the size of the whole block in bytes.

    Each parameter stands at the next multiple of its own alignment (PTX ISA, "Kernel Function Parameters").
    """
    places, end = [], 0
    for variable in function.params:
        size = variable_bytes(variable)
        align = max(variable.align, size // max(1, math.prod(variable.dims)))
        offset = -(-end // align) * align
        places.append((offset, size, variable.type))
        end = offset + size
    return places, end


def driver_text(driver: int | None) -> str | None:
    """`12.8` for 12080."""
    return None if driver is None else f"{driver // 1000}.{driver % 1000 // 10}"


def product(extents: Sequence[Extent]) -> Extent:
    """The product of extents: an integer, or a formula with the integer factor last."""
    factor, formulas = 1, []
    for extent in extents:
        if isinstance(extent, int):
            factor *= extent
        else:
            formulas.append(extent if extent.isidentifier() else f"({extent})")
    if not formulas:
        return factor
    return " * ".join([*formulas, *([str(factor)] if factor != 1 else [])])


def total(extents: Sequence[Extent]) -> Extent:
    """The sum of extents: an integer, or a formula with the integer part last."""
    constant = sum(e for e in extents if isinstance(e, int))
    formulas = [e for e in extents if isinstance(e, str)]
    if not formulas:
        return constant
    return " + ".join([*formulas, *([str(constant)] if constant else [])])


def bytes_of(param: Param) -> Extent:
    """Size of a buffer in bytes, as an extent."""
    return product([*param.shape, 8 if param.kind == "pointers" else param.dtype.bytes])


def workspace_of(params: Sequence[Param]) -> Extent:
    """Size of all workspace buffers together in bytes, as an extent."""
    return total([bytes_of(p) for p in params if p.access == "workspace"])


def _parameter(param: Param, offset: int, size: int, ptx_type: str) -> dict[str, Any]:
    if ptx_type != param.ptx_type:
        raise IsaError(f"{param.name}: declared as .{param.ptx_type} by the kernel type, as .{ptx_type} in the text")
    described: dict[str, Any] = {
        "name": param.name,
        "offset": offset,
        "size": size,
        "type": ptx_type,
        "kind": param.kind,
        "access": param.access,
        "dtype": param.dtype.name,
    }
    if param.kind != "scalar":
        described |= {"shape": list(param.shape), "bytes": bytes_of(param), "align": param.align}
    if param.access == "workspace":
        described["zeroed"] = param.zeroed
    return described | ({"doc": param.doc} if param.doc else {})


def _launch(ptx: GeneratedKernel, function: Function) -> dict[str, Any]:
    block = function.performance.get("reqntid", ptx.launch.block)
    cluster = function.performance.get("reqnctapercluster", (1, 1, 1))
    capacities = ptx.launch.capacities.union(*(capacities_of(extent) for p in ptx.params for extent in p.shape))
    return {
        "grid": list(ptx.launch.grid),
        "block": list(block),
        "cluster": list(cluster),
        "shared_bytes": ptx.launch.shared,
        "programmatic": ptx.launch.programmatic,
        "together": ptx.launch.together,
        "capacities": sorted(capacities),
    }


def _workspace(params: Sequence[Param]) -> dict[str, Any]:
    return {"bytes": workspace_of(params), "buffers": [p.name for p in params if p.access == "workspace"]}
