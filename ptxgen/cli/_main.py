"""The command line's frame: finds commands, runs one, makes exit codes and sentences of what comes back.

A command returns its exit code (None is 0): 0 fine, 1 a difference or a failed check. Wrong use is an exception,
which becomes exit code 2 and one sentence on stderr.
"""

from __future__ import annotations

import importlib
import pkgutil
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ptxgen import __version__
from ptxgen.cli._output import printable
from ptxgen.errors import CacheWarning, ConfigWarning, ExecutionError, PtxgenError, VersionWarning
from ptxgen.packages import KernelWarning

INTERRUPTED = 130  # the exit code
_PAGE = getattr(click.exceptions, "NoArgsIsHelpError", ())  # of click 8.2: its message is a page


class Commands(click.Group):
    """Imports a command's module when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
        return sorted(name.replace("_", "-") for name in names if not name.startswith("_"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            if ctx.resilient_parsing:  # a shell asks what completes it
                return None
            raise click.UsageError(f"{name}: no such command; there are {', '.join(self.list_commands(ctx))}")
        command: click.Command = importlib.import_module(f"ptxgen.cli.{name.replace('-', '_')}").command
        return command


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ptxgen")
@click.pass_context
def root(ctx: click.Context) -> None:
    """PTX for LLM decoding: generate kernels, check them, run them.

    Exit codes: 0 fine, 1 a difference or a failed check, 2 wrong use.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def deliver_interrupts() -> None:
    """From now on raise Ctrl-C again where it came while Python ran a callback of a weak reference or a `__del__`,
    which drop it."""
    others = sys.unraisablehook

    def dropped(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):  # raised here it would be dropped, too: a little later
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            others(lost)

    sys.unraisablehook = dropped


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name) and return its exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning(warnings.showwarning)
        warnings.simplefilter("always", ConfigWarning)
        return _invoked(arguments)


def _show_warning(others: Callable[..., None]) -> Callable[..., None]:
    """What packages, texts and configs hold that is not known: one sentence each; other warnings as ever."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, KernelWarning | VersionWarning):
            _complain(str(message), 0)
        elif issubclass(category, ConfigWarning | CacheWarning):
            _complain(f"warning: {message}", 0)
        else:
            others(message, category, *where, **more)

    return show


def _invoked(arguments: Sequence[str] | None) -> int:
    try:
        code = root.main(None if arguments is None else list(arguments), prog_name="ptxgen", standalone_mode=False)
    except _PAGE as wrong:
        return _complain(f"{_path(wrong)}: names no {_missing(wrong)}; --help shows what there is", 2)
    except click.ClickException as wrong:
        return _complain(wrong.format_message(), 2)
    except click.Abort:
        return _complain("interrupted", INTERRUPTED)
    except ExecutionError as found:
        print("\n\n".join(printable(f"ptxgen: {finding}") for finding in found.findings), file=sys.stderr)
        return 1
    except PtxgenError as wrong:
        return _complain(str(wrong), 2)
    except MemoryError as wrong:
        return _complain(f"not enough memory{f': {wrong}' if str(wrong) else ''}; ask for smaller sizes", 2)
    except OSError as wrong:
        where = f"{wrong.filename}: " if wrong.filename else ""
        return _complain(f"{where}{wrong.strerror or wrong}", 2)
    return code if isinstance(code, int) else 0


def _path(wrong: click.UsageError) -> str:
    return wrong.ctx.command_path if wrong.ctx is not None else "ptxgen"


def _missing(wrong: click.UsageError) -> str:
    """What a group was given none of."""
    from ptxgen.cli._kernels import KernelGroup

    group = wrong.ctx.command if wrong.ctx is not None else root
    if isinstance(group, KernelGroup) or wrong.ctx is None or not isinstance(group, click.Group):
        return "kernel"
    return f"command of {', '.join(group.list_commands(wrong.ctx))}"


def _complain(text: str, code: int) -> int:
    """One sentence on stderr; the lines of a message with several reasons are joined, those of a list as a list."""
    sentence = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    sentence = sentence.replace(":; ", ": ").replace(",; ", ", ")
    print(printable(f"ptxgen: {sentence}"), file=sys.stderr)
    return code
