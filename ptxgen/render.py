"""Renders a kernel's skeleton around its fragments, and the module header around it. Owns the Jinja environment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache, partial
from types import CodeType
from typing import Any

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    FunctionLoader,
    StrictUndefined,
    TemplateNotFound,
    Undefined,
    pass_context,
)
from jinja2 import TemplateError as JinjaError
from jinja2.runtime import Context

from ptxgen.builder import MARK, Builder, Fragment
from ptxgen.builder.values import Not, Reg, RegArray, Table, immediate
from ptxgen.errors import TemplateError
from ptxgen.launch import Launch
from ptxgen.lines import marks
from ptxgen.lines.bytecode import kept
from ptxgen.lines.macros import MacroFile
from ptxgen.lines.marks import LineMarks, marked_lines
from ptxgen.lines.placement import placement
from ptxgen.lines.sources import Placed, Run
from ptxgen.lines.words import counted
from ptxgen.packages import OURS, package_of, template_folders, templates_folder
from ptxgen.places import shown_path

TEMPLATES = templates_folder()
_WIDTH = 110
_SHARED = ("entry.ptx.j2", "module.ptx.j2")
_FLOW = "flow.ptx.j2"
_OFTEN = ("when", "loop", "wait")  # macros


def _beside_a_module(name: str) -> tuple[str, str, None] | None:
    """A template of another package, as a loader of Jinja returns it."""
    found = next((folder / name for folder in template_folders() if (folder / name).is_file()), None)
    return (found.read_text(encoding="utf-8"), str(found), None) if found else None


class _Environment(Environment):
    """Jinja's, which keeps compiled templates, and compiles the macros of flow.ptx.j2 one by one."""

    flow: MacroFile | None = None

    def compile(self, source: Any, name: Any = None, filename: Any = None, raw: Any = False, *more: Any) -> Any:
        if raw or not name or not filename:
            return super().compile(source, name, filename, raw, *more)
        return self.compile_part(source, name, filename)

    def compile_part(self, source: str, name: str, file: str, part: str = "") -> CodeType:
        """The code of a template, or of a part of it that has a name of its own."""
        marks.is_file_of(name, file)
        compiled = partial(super().compile, source, name, file)
        return kept(source, name, file, part, (__file__, marks.__file__), compiled)

    def get_template(self, name: Any, parent: str | None = None, globals: Any = None) -> Any:
        if name != _FLOW:
            return super().get_template(name, parent, globals)
        if self.flow is None:
            self.flow = MacroFile(self, name, lambda: super(_Environment, self).get_template(name))
        return self.flow


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The one environment: strict, no autoescape (PTX is not HTML), block lines vanish."""
    env = _Environment(
        loader=ChoiceLoader([FileSystemLoader(TEMPLATES), FunctionLoader(_beside_a_module)]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # templates leave no arithmetic to fold, and looking for it takes a tenth of their compilation
        auto_reload=False,
        cache_size=-1,  # all of them, without a lock, which a fork could find held
        finalize=_place,
        extensions=[LineMarks],  # type: ignore[list-item]
    )
    env.filters["counted"] = counted
    env.globals["guard"] = _guard
    env.globals["unless"] = _unless
    env.globals["body_of"] = _body_of
    return env


def prepare() -> None:
    """Compile the templates that every kernel has, which the first `generate` of a process would have to."""
    for name in _SHARED:
        environment().get_template(name)
    flow = environment().get_template(_FLOW).module
    for macro in _OFTEN:
        getattr(flow, macro)


def _place(value: object) -> object:
    """What an expression of a skeleton prints."""
    return value.place() if isinstance(value, Fragment) else value


@pass_context
def _body_of(context: Context, template: str, prefix: str) -> str:
    """The body of another skeleton, or a part, around the builder's body of that prefix; labels begin with it, too."""
    env = environment()
    found, flow = env.get_template(template), env.get_template(_FLOW).module
    assert env.loader
    imports = re.findall(r'{% from "flow\.ptx\.j2" import ([\w, ]+) %}', env.loader.get_source(env, template)[0])
    macros = {name: getattr(flow, name) for each in imports for name in each.split(", ")}
    if prefix not in context["bodies"]:
        there = ", ".join(map(repr, context["bodies"])) or "none"
        raise TemplateError(f"body_of: a body that build() opens (got {prefix!r}; there are {there})")
    names = found.new_context({**context.get_all(), **macros, **context["bodies"][prefix]})
    lines = found.blocks.get("body", found.root_render_func)(names)
    return re.sub(r"\$(?=\w)", f"${prefix}_", "".join(lines))


def _predicate(value: object) -> Reg | Not:
    reg = value.reg if isinstance(value, Not) else value
    if isinstance(reg, Undefined):
        str(reg)  # raises, with the name
    if not isinstance(reg, Reg) or reg.type != "pred":
        raise TemplateError(f"a branch needs a predicate register (got {value!r})")
    return value  # type: ignore[return-value]


def _guard(predicate: object) -> str:
    return f"@{_predicate(predicate)}"


def _unless(predicate: object) -> str:
    return f"@{~_predicate(predicate)}"


def render_entry(b: Builder, entry: str, template: str, launch: Launch) -> tuple[str, list[Run]]:
    """The text of the `.entry` function, and where its lines come from.

    Raises `TemplateError` naming kernel, template and line.
    """
    ours = package_of(type(b.spec)) == OURS
    about = f"kernel {entry} ({'templates/' if ours else ''}{template}.ptx.j2)"
    context: dict[str, Any] = {
        "spec": b.spec,
        **b.registers,
        **b.arrays,
        **b.exposed,
        **b.fragments,
        **b.absent,
        "bodies": b.bodies,
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
    except TemplateNotFound as wrong:
        from ptxgen.lines.template_errors import missing

        names = [path.relative_to(TEMPLATES).as_posix() for path in TEMPLATES.rglob("*.j2")]
        places = "" if ours else f" beside {type(b.spec).__module__}, nor in a folder templates there"
        raise TemplateError(f"{about}: {missing(wrong, places, names)}") from None
    except (JinjaError, TemplateError, TypeError) as wrong:
        from ptxgen.lines.template_errors import explained

        flow: Any = environment().get_template(_FLOW).module
        raise TemplateError(f"{about}: {explained(wrong, context, flow)}") from wrong
    if not re.search(r"^\.visible \.entry ", text, re.MULTILINE):
        raise TemplateError(
            f'{about}: {template}.ptx.j2:1: makes no entry; it begins with {{% extends "entry.ptx.j2" %}}'
        )
    lines, runs = _with_fragments(b, about, template, text)
    return "\n".join(lines) + "\n", runs


def _with_fragments(b: Builder, about: str, template: str, text: str) -> tuple[list[str], list[Run]]:
    """The lines of a rendered skeleton and where they come from, with fragments' lines where they are placed."""
    placed = dict.fromkeys(b.fragments, 0)
    lines: list[str] = []
    runs: list[Run] = []
    for line, placed_by in marked_lines(text):
        if MARK in line:
            name = line.strip().strip(MARK)
            if name not in placed:  # part of a line, or changed by a filter
                shown = line.strip().replace(MARK, "")
                where = _shown(placed_by, template)
                raise TemplateError(f"{about}: {where}: a fragment stands on a line of its own (got {shown!r})")
            placed[name] += 1
            fragment = b.fragments[name]
            heading = fragment.heading()
            if heading and (fragment.what or not (lines and lines[-1].lstrip().startswith("//"))):
                lines.append(heading)
                runs.append((placed_by, name, (fragment.opened,)))
            if fragment.lines:
                lines += fragment.lines
                runs.append((placed_by, name, fragment.sites))
        elif "/*" in line:
            where = _shown(placed_by, template)
            raise TemplateError(f"{about}: {where}: comments are // lines (got {line.strip()!r})")
        elif line.strip():
            lines.append(line)
            runs.append((placed_by, "", ()))
    lost = [f for f in b.fragments.values() if placed[f.name] < f.placed]
    if lost:
        names = ", ".join(f"{f.name!r} ({f.built_at}; {placement(template, f.name)})" for f in lost)
        raise TemplateError(f"{about}: placed, but its text is thrown away: fragment {names}")
    unplaced = [f for f in b.fragments.values() if not placed[f.name]]
    if unplaced:
        listed = ", ".join(f"{f.name!r} ({f.built_at})" for f in unplaced)
        forms = ", ".join(dict.fromkeys(f.form for f in unplaced if f.form))
        remedy = f"; place {forms}" if forms else ""
        raise TemplateError(f"{about}: built, but not placed by {template}.ptx.j2: fragment {listed}{remedy}")
    return lines, runs


def _shown(placed: Placed, template: str) -> str:
    return " → ".join(f"{shown_path(file)}:{line}" for file, line in placed) or f"{template}.ptx.j2"


def render_module(*, first_line: str, version: str, target: str, body: str, runs: list[Run]) -> tuple[str, list[Run]]:
    """The whole text: the spec's line, `.version`, `.target`, `.address_size`, the entry; where its lines come from."""
    text = (
        environment()
        .get_template("module.ptx.j2")
        .render(first_line=first_line, version=version, target=target, body=body)
    )
    head, _, tail = text.partition(body)
    before, after = (list(marked_lines(part)) for part in (head, tail))
    lines = [line for line, _ in before[:-1]]
    marks: list[Run] = [(placed, "", ()) for _, placed in before[:-1]]
    ends: list[Run] = [(placed, "", ()) for _, placed in after[:-1]]
    return "\n".join([*lines, body + "\n".join(line for line, _ in after)]), [*marks, *runs, *ends]


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
    if table.room:
        yield f".global .align 128 .{table.type} {table.name}[{table.room}];"
        return
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


__all__ = ["RegArray", "environment", "prepare", "render_entry", "render_module"]
