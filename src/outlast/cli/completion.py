"""Shell completion: the names that it offers, and the command that prints its script.

Names come from records and from this computer; completion never queries a cloud.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from outlast.app.clouds import known_clouds
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import complete_run
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_run_or_machine(ctx: click.Context, param: click.Parameter, beginning: str) -> list[str]:
    from outlast.cli.machine.find import complete_machine

    return [*complete_run(ctx, param, beginning), *complete_machine(ctx, param, beginning)]


def complete_path_on_machine(ctx: click.Context, param: click.Parameter, beginning: str) -> list[CompletionItem]:
    """Offer `NAME:` of machines and runs, and local files; paths on a machine are not completed."""
    from click.shell_completion import CompletionItem

    names = [] if ":" in beginning else complete_run_or_machine(ctx, param, beginning)
    # With an item of this type the shell adds its own file completion.
    files = CompletionItem(beginning, type="file")
    return [*(CompletionItem(f"{name}:") for name in names if name != "last"), files]


def complete_volume_or_folder(ctx: click.Context, param: click.Parameter, beginning: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from outlast.cli.shared.resources import names_of

    names = names_of(ctx, "volume")
    folders = CompletionItem(beginning, type="dir")
    return [*(CompletionItem(name) for name in names if name.startswith(beginning)), folders]


def complete_image(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    """Offer images and families."""
    found = {name for pair in _images(ctx) for name in pair if name}
    return sorted(name for name in found if name.startswith(beginning))


def complete_family(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    return sorted({family for _, family in _images(ctx) if family and family.startswith(beginning)})


def complete_cloud(_ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    return [name for name in known_clouds() if name.startswith(beginning)]


def _images(ctx: click.Context) -> list[tuple[str, str]]:
    """Return image and family of local images, and of all images built from this workspace."""
    from outlast.app.images import images_known_here

    return images_known_here(lambda: find_workspace(ctx.params.get("workspace_url") or ""))


VARIABLE = "_OUTLAST_COMPLETE"
# Shell → the command that installs its completion permanently.
_INSTALL = {
    "bash": "echo 'eval \"$(outlast completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(outlast completion zsh)\"' >> ~/.zshrc",
    "fish": "mkdir -p ~/.config/fish/completions && outlast completion fish > ~/.config/fish/completions/outlast.fish",
}


@command(section="admin", interrupt=UNCHANGED)
@click.argument("shell", required=False, type=click.Choice(list(_INSTALL)))
def completion(shell: str | None) -> int:
    """Print the completion script for bash, zsh or fish.

    Without SHELL it is the script for $SHELL.
    """
    from click.shell_completion import get_completion_class

    from outlast.cli.app import app

    shell = shell or _shell_of(os.environ.get("SHELL", ""))
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "outlast", VARIABLE).source())
    if sys.stdout.isatty():
        # Only on a terminal: a start-up file of the shell evaluates the output.
        note(f"to install it, run this once and open a new shell: {_INSTALL[shell]}")
    return 0


def _shell_of(path: str) -> str:
    shell = os.path.basename(path)
    if shell not in _INSTALL:
        why = f"no completion for `{shell}`" if shell else "the variable SHELL is not set"
        raise UsageError(why, hint=f"name one: `outlast completion {'|'.join(_INSTALL)}`")
    return shell
