"""Options that mean something only beside another, or that are given once, and numbers that are numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import click
from click.core import ParameterSource

from ptxgen.errors import PtxgenError, SpecError

_NAME = "must be letters, digits and _, a letter first"
_UNSAID = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


class IntRange(click.IntRange):
    """click's, which calls itself an integer: no word is "a valid integer range"."""

    name = "integer"


class FloatRange(click.FloatRange):
    """click's, without nan; it calls itself a number."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if isinstance(found, float) and math.isnan(found):
            self.fail(f"{value} is no number.", param, ctx)
        return found


class Command(click.Command):
    """click's, but an option that takes one value is refused two: click would take the last without a word. Lists of
    commands have its first sentence."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        written = list(args)  # click takes the words away
        rest = super().parse_args(ctx, args)
        written = written[: len(written) - len(rest)]  # of a group: without its command's
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and not param.multiple:
                words = list(dict.fromkeys(_words_of(param, written)))
                if len(words) > 1 and not ctx.resilient_parsing:
                    raise click.UsageError(f"{param.opts[-1]}: takes one value (got {' and '.join(words)})")
        return rest

    def get_short_help_str(self, limit: int = 45) -> str:
        """Its `short_help`, or its help up to the first full stop or colon: lists wrap that, where click's would end in
        dots."""
        paragraph = " ".join((self.help or "").partition("\n\n")[0].split())
        return self.short_help or re.split(r"[.:] ", paragraph)[0].rstrip(".")


class Group(Command, click.Group):
    """A group of such commands."""

    command_class = Command


def _words_of(option: click.Option, written: Sequence[str]) -> list[str]:
    """What the user wrote for an option: values, or the names of a flag."""
    names = [*option.opts, *option.secondary_opts]
    found = []
    for word, following in zip_longest(written, written[1:], fillvalue=""):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in names:
            found.append(name if option.is_flag else value if equals else following)
    return found


@contextmanager
def as_options(owner: str) -> Iterator[None]:
    """A `SpecError` about a field of `owner` names the option that gave it."""
    with _named(rf"{owner}\.(\w+)"):
        yield


@contextmanager
def given_by(*names: str) -> Iterator[None]:
    """A `SpecError` about one of these fields, of whatever owner, names the option that gave it."""
    with _named(rf"(?:\w+\.)?({'|'.join(names)})(?=:)"):
        yield


@contextmanager
def _named(field: str) -> Iterator[None]:
    try:
        yield
    except SpecError as wrong:
        text = re.sub(rf"^{field}", lambda found: "--" + found[1].replace("_", "-"), str(wrong))
        raise SpecError(text) from None


def given(*names: str) -> list[str]:
    """Of these parameters of the command that runs (without names: of all), the options that the user wrote."""
    context = click.get_current_context()
    return [
        param.opts[-1]
        for param in context.command.params
        if param.name and (not names or param.name in names) and context.get_parameter_source(param.name) not in _UNSAID
    ]


def goes_with(owner: str, *names: str) -> None:
    """Refuse what the user wrote of these without `owner`. Raises `UsageError`."""
    if found := given(*names):
        raise click.UsageError(f"{found[0]}: goes with {owner}")


def a_path(context: click.Context, param: click.Parameter, value: Any) -> Any:
    """A path, or several, that the user did name: an empty word is a variable that was not set (a callback)."""
    if value == "" or (isinstance(value, tuple) and "" in value):
        named = param.opts[-1] if isinstance(param, click.Option) else param.make_metavar(context).strip("[].")
        raise click.UsageError(f"{named}: must be a path (got '')")
    return value


def a_target(context: click.Context, param: click.Parameter, value: Any) -> Any:
    """The name of an architecture, or several (a callback of options)."""
    from ptxgen.targets import target

    return _each_is_known(param, value, target)


def a_format(context: click.Context, param: click.Parameter, value: Any) -> Any:
    """The name of a format of weights, or several (a callback of options)."""
    from ptxgen.weights import weight_format

    return _each_is_known(param, value, weight_format)


def _each_is_known(param: click.Parameter, value: Any, known: Callable[[str], object]) -> Any:
    """What the user wrote, unchanged; what `known` refuses, by the option's name."""
    for name in (value,) if isinstance(value, str) else value or ():
        try:
            known(name)
        except PtxgenError as wrong:
            raise click.UsageError(f"{param.opts[0]}:{str(wrong).partition(':')[2]}") from None
    return value


def a_device(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The name of a device (a callback of options)."""
    from ptxgen.runtime.opening import is_device_name

    if value is not None and not is_device_name(value):
        raise click.UsageError(f"{param.opts[-1]}: must be cpu, cuda or cuda:N (got {value!r})")
    return value


def not_stdout(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A place to write to that has a name (a callback of options)."""
    if value == "-":
        raise click.UsageError(f"{param.opts[0]}: must be a name, nothing of it goes to standard output (got '-')")
    return value


def begins_names(context: click.Context, param: click.Parameter, value: str) -> str:
    """What names can begin with (a callback)."""
    if value and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value):
        raise click.UsageError(f"{param.opts[-1]}: {_NAME} (got {value!r})")
    return value


def a_name(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A name of an entry, where one is given (a callback of options)."""
    if value == "":
        raise click.UsageError(f"{param.opts[-1]}: {_NAME} (got '')")
    return value if value is None else begins_names(context, param, value)
