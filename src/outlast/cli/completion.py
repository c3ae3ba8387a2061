"""`outlast completion`: the script that teaches a shell our commands, options and run names."""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import get_completion_class

from outlast.cli.terminal import note
from outlast.errors import UsageError

VARIABLE = "_OUTLAST_COMPLETE"

# Shell → how its completion is installed for good.
_INSTALL = {
    "bash": "echo 'eval \"$(outlast completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(outlast completion zsh)\"' >> ~/.zshrc",
    "fish": "mkdir -p ~/.config/fish/completions && outlast completion fish > ~/.config/fish/completions/outlast.fish",
}


@click.command()
@click.argument("shell", required=False, type=click.Choice(list(_INSTALL)))
def completion(shell: str | None) -> int:
    """Print the completion script for a shell (that of $SHELL, if none is given)."""
    from outlast.cli.app import app

    shell = shell or _shell_of(os.environ.get("SHELL", ""))
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "outlast", VARIABLE).source())
    if sys.stdout.isatty():
        # Quiet when a shell's start-up file evaluates it: nobody wants this line in every new terminal.
        note(f"to install it, run this once and open a new shell: {_INSTALL[shell]}")
    return 0


def _shell_of(path: str) -> str:
    shell = os.path.basename(path)
    if shell not in _INSTALL:
        what = f"there is no completion for `{shell}`" if shell else "the variable SHELL does not say which shell"
        raise UsageError(what, hint=f"name one: `outlast completion {'|'.join(_INSTALL)}`")
    return shell
