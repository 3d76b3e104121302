"""Renders a kernel's skeleton around its fragments, and the module header around the entry. Owns the Jinja environment."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateNotFound
from jinja2 import TemplateError as JinjaError

from ptxgen.builder import Builder
from ptxgen.errors import TemplateError
from ptxgen.launch import Launch
from ptxgen.values import Not, Reg, RegArray, Table, immediate

TEMPLATES = Path(__file__).resolve().parent / "templates"
_WIDTH = 110


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The one environment: strict, no autoescape (PTX is not HTML), block lines vanish."""
    if not TEMPLATES.is_dir():  # a checkout without symbolic links
        folder = Path(__file__).resolve().parents[1] / "templates"
    else:
        folder = TEMPLATES
    env = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        auto_reload=False,
    )
    env.globals["guard"] = _guard
    env.globals["unless"] = _unless
    return env


def _predicate(value: object) -> Reg | Not:
    reg = value.reg if isinstance(value, Not) else value
    if not isinstance(reg, Reg) or reg.type != "pred":
        raise TemplateError(f"a branch needs a predicate register (got {value!r})")
    return value  # type: ignore[return-value]


def _guard(predicate: object) -> str:
    return f"@{_predicate(predicate)}"


def _unless(predicate: object) -> str:
    return f"@{~_predicate(predicate)}"


def render_entry(b: Builder, entry: str, template: str, launch: Launch) -> str:
    """The text of the `.entry` function. Raises `TemplateError` naming kernel, template and line."""
    clash = (b.fragments.keys() & b.registers.keys()) | (b.exposed.keys() & (b.fragments.keys() | b.registers.keys()))
    if clash:
        raise TemplateError(f"{entry}: a fragment, a register and an exposed value cannot share the name {min(clash)!r}")
    context: dict[str, Any] = {
        **b.registers,
        **b.arrays,
        **b.exposed,
        **b.fragments,
        "spec": b.spec,
        "target": b.target,
        "entry": entry,
        "launch": launch,
        "params": tuple(p.declaration for p in b.params.values()),
        "declarations": tuple(_declarations(b)),
        "tables": tuple(line for table in b.tables.values() for line in _table(table)),
        "dynamic_shared": tuple(
            f".extern .shared .align {v.align} .b8 {v.name}[];" for v in b.shared_variables.values() if v.dynamic
        ),
    }
    try:
        text = environment().get_template(f"{template}.ptx.j2").render(context)
    except TemplateNotFound as missing:
        raise TemplateError(f"{entry}: template {missing.name} does not exist") from None
    except (JinjaError, TemplateError, TypeError) as wrong:
        raise TemplateError(f"{entry}: {_template_line(wrong)}: {wrong}") from wrong
    unplaced = [name for name, fragment in b.fragments.items() if not fragment.placed]
    if unplaced:
        raise TemplateError(
            f"{entry}: fragment {', '.join(map(repr, unplaced))} is built but {template}.ptx.j2 does not place it"
        )
    return "\n".join(line for line in text.split("\n") if line.strip()) + "\n"


def render_module(*, first_line: str, version: str, target: str, body: str) -> str:
    """The whole text: the spec's line, `.version`, `.target`, `.address_size`, the entry."""
    return environment().get_template("module.ptx.j2").render(
        first_line=first_line, version=version, target=target, body=body
    )


def _declarations(b: Builder) -> Iterable[str]:
    """Register and shared-memory declarations, grouped by type in the order of first use."""
    by_type: dict[str, list[str]] = {}
    for reg in b.registers.values():
        by_type.setdefault(reg.type, []).append(str(reg))
    for array in b.arrays.values():
        by_type.setdefault(array.type, []).append(f"%{array.name}<{len(array)}>")
    for type, names in by_type.items():
        yield from _wrapped(f"    .reg .{type} ", names)
    for variable in b.shared_variables.values():
        if variable.dynamic:
            continue
        yield f"    .shared .align {variable.align} .b8 {variable.name}[{variable.bytes}];"


def _table(table: Table) -> Iterable[str]:
    """A table of constants; 64-bit integers are bit patterns, printed in hexadecimal."""
    yield f".global .align 16 .{table.type} {table.name}[{len(table.values)}] = {{"
    words = [f"0x{int(v):016X}" if table.type == "b64" else immediate(v, table.type) for v in table.values]
    per_line = 4
    for first in range(0, len(words), per_line):
        yield "    " + ", ".join(words[first : first + per_line]) + ("," if first + per_line < len(words) else "")
    yield "};"


def _wrapped(head: str, names: list[str]) -> Iterable[str]:
    line = head + names[0]
    for name in names[1:]:
        if len(line) + len(name) + 2 > _WIDTH:
            yield line + ";"
            line = head + name
        else:
            line += f", {name}"
    yield line + ";"


def _template_line(error: BaseException) -> str:
    """`file:line` of the innermost template frame of a traceback, or what the error itself knows."""
    name, line = getattr(error, "name", None), getattr(error, "lineno", None)
    if name and line:
        return f"{name}:{line}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(".j2")]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "template"


__all__ = ["RegArray", "environment", "render_entry", "render_module"]
