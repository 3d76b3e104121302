"""`ptxgen list`: kernel types, their fields and defaults, and targets."""

from __future__ import annotations

import dataclasses

import click

from ptxgen.cli._given import Command
from ptxgen.cli._kernels import field_doc, summary
from ptxgen.cli._output import emit_json, json_option, table
from ptxgen.dtypes import DType
from ptxgen.kernel import KernelType, find_kernel_type, kernel_types
from ptxgen.targets import ALL_TARGETS


@click.command(name="list", cls=Command)
@click.argument("kernel", required=False)
@click.option("--targets", is_flag=True, help="List the targets instead.")
@json_option
def command(kernel: str | None, targets: bool, as_json: bool) -> None:
    """List kernel types; of one KERNEL, its fields."""
    if targets and kernel is not None:
        raise click.UsageError(f"list: KERNEL or --targets, not both (got {kernel})")
    if targets:
        _targets(as_json)
    elif kernel is not None:
        cls = find_kernel_type(kernel)
        if as_json:
            emit_json(_described(cls))
        else:
            lines = [(f["name"], f["type"], _shown(f), f["doc"]) for f in _fields(cls)]
            table(("field", "type", "default", "meaning"), lines, f"{cls.__name__}: {summary(cls)}")
    elif as_json:
        emit_json([_described(cls) for cls in kernel_types().values()])
    else:
        known = sorted(kernel_types().items())
        names = [" ".join(str(f["name"]) for f in _fields(cls)) for _, cls in known]
        rows = [(n.replace("_", "-"), summary(cls), fields) for (n, cls), fields in zip(known, names, strict=True)]
        table(("kernel type", "what it does", "fields"), rows)


def _fields(cls: type[KernelType]) -> list[dict[str, object]]:
    found = []
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        default = f.default.name if isinstance(f.default, DType) else f.default
        described: dict[str, object] = {"name": f.name, "type": str(f.type), "doc": field_doc(cls, f.name)}
        found.append(described if default is dataclasses.MISSING else described | {"default": default})
    return found


def _shown(field: dict[str, object]) -> str:
    return str(field["default"]) if "default" in field else "(required)"


def _described(cls: type[KernelType]) -> dict[str, object]:
    return {
        "name": cls.kernel_name,
        "class": cls.__name__,
        "summary": summary(cls),
        "lowest_target": cls.lowest_target,
        "fields": _fields(cls),
    }


def _targets(as_json: bool) -> None:
    described = [
        {"name": t.name, "lowest_ptx": ".".join(map(str, t.lowest_ptx)), "shared_limit": t.shared_limit}
        for t in ALL_TARGETS
    ]
    if as_json:
        emit_json(described)
    else:
        table(("target", "lowest PTX ISA", "shared memory of a CTA, bytes"), [tuple(d.values()) for d in described])
