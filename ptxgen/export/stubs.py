"""C and Rust text from a manifest: names, types and formulas in the words of each language; the layout is a template's.

Capacities are signed 64-bit integers there, so that a formula means what it means in Python.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from ptxgen.kernel import find_kernel_type
from ptxgen.launch import Extent, capacities_of, formula_tree
from ptxgen.render import environment
from ptxgen.views.manifest import plain

_C_TYPES = {
    "u8": "uint8_t", "s8": "int8_t", "u16": "uint16_t", "s16": "int16_t", "b16": "uint16_t", "u32": "uint32_t",
    "s32": "int32_t", "u64": "uint64_t", "s64": "int64_t", "f32": "float", "f64": "double",
}  # fmt: skip
_RUST_TYPES = {
    "u8": "u8", "s8": "i8", "u16": "u16", "s16": "i16", "b16": "u16", "u32": "u32", "s32": "i32", "u64": "u64",
    "s64": "i64", "f32": "f32", "f64": "f64",
}  # fmt: skip
_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def formula(extent: Extent, call: Callable[[str], str]) -> str:
    """An extent in C-like syntax; `call` names the functions `min`, `max`, `ceil_div` and `floor_div`."""
    if isinstance(extent, int):
        return str(extent)
    return _expression(formula_tree(extent).body, call, outermost=True)


def _expression(node: ast.expr, call: Callable[[str], str], *, outermost: bool = False) -> str:
    if isinstance(node, ast.BinOp):
        left, right = _expression(node.left, call), _expression(node.right, call)
        if isinstance(node.op, ast.FloorDiv):
            return f"{call('floor_div')}({left}, {right})"
        text = f"{left} {_OPERATORS[type(node.op)]} {right}"
        return text if outermost else f"({text})"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        *rest, last = [_expression(argument, call, outermost=True) for argument in node.args]
        for argument in reversed(rest):  # min and max take two there
            last = f"{call(node.func.id)}({argument}, {last})"
        return last
    return ast.unparse(node)


def shared_c_header() -> str:
    """What the headers of kernels include, one folder above them."""
    return environment().get_template("export/ptxgen.h.j2").render()


def c_header(contract: Mapping[str, Any]) -> str:
    """A header that C11 and C++11 compilers take: the parameter block, constants, geometry and sizes.

    Its names begin with the contract's `name`, where it has one, and the target.
    """
    return _render("export/kernel.h.j2", contract, _C_TYPES, lambda name: f"ptxgen_{name}", {})


def rust_module(contract: Mapping[str, Any], ptx_file: str) -> str:
    """A module without dependencies that works under `no_std`; it includes the PTX that lies beside it."""
    return _render("export/kernel.rs.j2", contract, _RUST_TYPES, lambda name: name, {"ptx_file": ptx_file})


def _said(contract: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the spec that are not its kernel type's defaults."""
    fields = dataclasses.fields(find_kernel_type(contract["kernel_type"]))  # type: ignore[arg-type]
    defaults = {f.name: plain(f.default) for f in fields}
    return {name: value for name, value in contract["spec"].items() if value != defaults[name]}


def _render(
    template: str,
    contract: Mapping[str, Any],
    types: Mapping[str, str],
    call: Callable[[str], str],
    more: Mapping[str, object],
) -> str:
    stem = contract.get("name") or f"{contract['kernel_type']}_{contract['slug']}"
    name = re.sub(r"\W", "_", f"{stem}_{contract['target']}")
    buffers = [p for p in contract["parameters"] if p["kind"] != "scalar"]
    return (
        environment()
        .get_template(template)
        .render(
            contract=contract,
            name=name,
            fields=textwrap.wrap(", ".join(f"{k}={v}" for k, v in _said(contract).items()), 112),
            role=contract.get("role", ""),
            parameters=[{"zeroed": False, **p, "host_type": types[p["type"]]} for p in contract["parameters"]],
            buffers=[
                {**b, "formula": formula(b["bytes"], call), "needs": sorted(capacities_of(b["bytes"]))} for b in buffers
            ],
            grid=[formula(extent, call) for extent in contract["launch"]["grid"]],
            grid_needs=sorted(frozenset().union(*(capacities_of(e) for e in contract["launch"]["grid"]))),
            workspace=formula(contract["workspace"]["bytes"], call),
            workspace_needs=sorted(capacities_of(contract["workspace"]["bytes"])),
            **more,
        )
    )
