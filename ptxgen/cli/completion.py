"""`ptxgen completion`: what a shell needs to complete commands, kernel types and fields."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ptxgen.cli._given import Command

_FILES = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/ptxgen.fish"}


@click.command(name="completion", cls=Command)
@click.argument("shell", type=click.Choice(list(_FILES)))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(ptxgen completion bash)"                                    in ~/.bashrc
    zsh:   eval "$(ptxgen completion zsh)"                                     in ~/.zshrc
    fish:  ptxgen completion fish > ~/.config/fish/completions/ptxgen.fish
    """
    from ptxgen.cli._main import root

    script = get_completion_class(shell)
    if script is None:  # pragma: no cover: click has all three
        raise click.UsageError(f"completion: {shell} is not known to click")
    click.echo(script(root, {}, "ptxgen", "_PTXGEN_COMPLETE").source())
