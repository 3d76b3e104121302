"""Commands that take a kernel type: `ptxgen COMMAND KERNEL --field value …`, with options made from its fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from ptxgen.cli._complete import choices_of
from ptxgen.cli._given import Command, Group
from ptxgen.errors import SpecError
from ptxgen.kernel import KernelType, find_kernel_type, kernel_types, make_spec
from ptxgen.spec.fields import SHARED, doc_beside
from ptxgen.spec.legality import choices

# How a docstring says what a field means: "`field`: …", "`field`, `other`: …", "`field` "value": …" or "`field` (…)".
_SAYINGS = (r"`{}`(?:, `\w+`)*: (.+?)(?:\.(?: |$)|; (?=`)|$)", r'`{}` (".+?)(?:\.(?: |$)|$)', r"`{}` (\(.+)")
_METAVARS = {"tuple[float,...]": "X,Y,…"}


def field_doc(cls: type[KernelType], name: str) -> str:
    """What a field means: what stands beside it, else what the class docstring says of it, else the shared words."""
    if beside := doc_beside(cls, name):
        return beside
    doc = re.sub(r"\s+", " ", cls.__doc__ or "")
    said = (re.search(pattern.format(name), doc) for pattern in _SAYINGS)
    return next((_inside(match[1]) for match in said if match), SHARED.get(name, {}).get("doc", ""))


def _inside(text: str) -> str:
    """What stands in the parenthesis that a text opens with, others inside it included; else the text itself."""
    depth = 0
    for index, char in enumerate(text if text.startswith("(") else ""):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:index]
    return text


def summary(cls: type[KernelType]) -> str:
    """The first sentence of a kernel type's docstring."""
    paragraph = re.sub(r"\s+", " ", (cls.__doc__ or "").strip().partition("\n\n")[0])
    return re.split(r"[.;] ", paragraph)[0].rstrip(".")


def _option(cls: type[KernelType], field: dataclasses.Field[Any]) -> click.Option:
    flag = "--" + field.name.rstrip("_").replace("_", "-")
    kind = str(field.type).replace(" ", "").removesuffix("|None")
    needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    note = "[required]" if needed else "" if field.default is None else f"[default: {field.default}]"
    text = "  ".join(filter(None, (field_doc(cls, field.name), note)))
    if kind == "bool":
        return click.Option([f"{flag}/--no-{flag[2:]}", field.name], default=None, help=text)
    listed = "|".join(choices(cls, field.name)) if kind in ("DType", "str") else ""
    return click.Option(
        [flag, field.name],
        metavar=f"[{listed}]" if listed else _METAVARS.get(kind, kind.upper()),
        callback=_PARSERS.get(kind),
        shell_complete=choices_of(cls, field.name),
        help=text,
    )


def _number(python: type) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """A number, or the text as it is: the spec says what is wrong with it, beside what else is wrong."""

    def parse(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else python(value)
        except ValueError:
            return value

    return parse


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """`1,2.5` as ("1", "2.5"): the spec makes numbers of them, or says what is wrong."""
    return None if value is None else tuple(value.split(","))


_PARSERS = {"int": _number(int), "float": _number(float), "tuple[float,...]": _numbers}


def _named_targets(ctx: click.Context) -> Sequence[str]:
    """The targets that the options of a kernel's command, or of its group, name."""
    for given in (ctx.params, ctx.parent.params if ctx.parent else {}):
        named = given.get("targets") or given.get("target")
        if named:
            return [named] if isinstance(named, str) else list(named)
    return []


class KernelCommand(Command):
    """The command of a kernel type; options that it has not, and its group has, are said to be the group's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            group = ctx.parent.command.params if ctx.parent else []
            if any(wrong.option_name in param.opts for param in group):
                raise click.UsageError(self._of_the_group(wrong.option_name)) from None
            raise

    def _of_the_group(self, option: str) -> str:
        if option in ("--config", "--model"):
            return f"{option}: a kernel type or a whole model, not both (got {self.name})"
        field = option.strip("-").replace("-", "_")
        return f"{option}: {self.name} has no field {field}; the option is of a whole model, beside --config"


class KernelGroup(Group):
    """A group with one command per kernel type. `act(spec, **options)` is called with the spec of the fields given.

    `options` are added to every kernel's command; `group` is what the group itself takes (and does without a kernel).
    """

    def __init__(
        self,
        name: str,
        act: Callable[..., int | None],
        options: Callable[[], Sequence[click.Option]],
        **group: Any,
    ) -> None:
        super().__init__(name, subcommand_metavar="[KERNEL [FIELDS]...]", **group)
        self._act = act
        self._options = options

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name.replace("_", "-") for name in sorted(kernel_types())]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        try:
            cls = find_kernel_type(name)
        except SpecError:
            if ctx.resilient_parsing:  # a shell asks what completes it
                return None
            raise
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]

        def callback(**values: Any) -> int | None:
            given = {f.name: values.pop(f.name) for f in fields}
            fields_given = {name: value for name, value in given.items() if value is not None}
            spec = make_spec(cls.kernel_name, fields_given, _named_targets(click.get_current_context()))
            return self._act(spec, **values)

        return KernelCommand(
            cls.kernel_name.replace("_", "-"),
            callback=callback,
            params=[*(_option(cls, f) for f in fields), *self._options()],
            help=cls.__doc__ or "",
            short_help=summary(cls),
        )
