"""A file of macros whose macros are compiled one by one, when they are first used: a text needs few of them.

Every line keeps its number, so that messages and source maps name the file's own lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptxgen.errors import TemplateError, near

if TYPE_CHECKING:
    from jinja2 import Template

_BEGIN, _END = "{% macro ", "{% endmacro %}"


class MacroFile:
    """What `{% import %}` and `{% from … import … %}` take for the template; everything else is the template's own."""

    def __init__(self, env: Any, name: str, whole: Any) -> None:
        self._module = Macros(env, name)
        self._whole = whole  # compiles all of it

    @property
    def module(self) -> Macros:
        """The macros as attributes."""
        return self._module

    def _get_default_module(self, context: object = None) -> _Imported:
        return _Imported(self._module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole(), name)


class _Imported:
    """The macros as an import finds them: one that does not exist is refused there, and not where it is called."""

    def __init__(self, macros: Macros) -> None:
        self._macros = macros

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name not in self._macros:
            raise TemplateError(f"{name!r} is no macro of {self._macros.__name__}; {self._macros.nearest(name)}")
        return getattr(self._macros, name)


class Macros:
    """Attributes are the file's macros; iteration gives their names."""

    def __init__(self, env: Any, name: str) -> None:  # the environment of render.py
        source, self._file, _ = env.loader.get_source(env, name)
        self._env, self.__name__ = env, name
        self._lines = source.split("\n")
        self._spans: dict[str, range] = {}
        for first, line in enumerate(self._lines):
            if line.startswith(_BEGIN):
                last = next(n for n in range(first, len(self._lines)) if _END in self._lines[n])
                self._spans[line[len(_BEGIN) : line.index("(")]] = range(first, last + 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._spans:
            raise AttributeError(f"{self.__name__} has no macro {name!r}")
        macro = getattr(self._compiled(name).module, name)
        setattr(self, name, macro)
        return macro

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __contains__(self, name: object) -> bool:
        return name in self._spans

    def nearest(self, name: str) -> str:
        """The macro whose name resembles this one, in words; where none does, all of them."""
        close = near(name, self._spans)
        return f"nearest macro: {close}" if close else f"{self.__name__} has {', '.join(sorted(self._spans))}"

    def at(self, line: int) -> str:
        """The macro that this line of the file, counted from 1, belongs to; empty between macros."""
        return next((name for name, span in self._spans.items() if line - 1 in span), "")

    def signature(self, name: str) -> str:
        """A macro as its definition has it: `loop(name, again, enter=none)`."""
        line: str = self._lines[self._spans[name].start]
        return line.removeprefix(_BEGIN).partition(" %}")[0]

    def _compiled(self, name: str) -> Template:
        """The file with this macro alone, its other lines empty; those that it calls are names that it is given."""
        span, env = self._spans[name], self._env
        body = "\n".join(self._lines[span.start : span.stop])
        called = {other for other in re.findall(r"\b(\w+)\(", body) if other in self._spans and other != name}
        code = env.compile_part("\n" * span.start + body, self.__name__, self._file, name.replace("_", ""))
        alone: Template = env.template_class.from_code(
            env, code, env.make_globals({other: getattr(self, other) for other in called})
        )
        return alone
