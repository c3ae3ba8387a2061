"""What the tab key finds: names from records and from this computer. Never asks a cloud: a key must answer at once."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import complete_run
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import OutlastError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

CLOUDS = ("local", "gcp", "aws")


def complete_run_or_machine(ctx: click.Context, param: click.Parameter, beginning: str) -> list[str]:
    from outlast.cli.machine.find import complete_machine

    return [*complete_run(ctx, param, beginning), *complete_machine(ctx, param, beginning)]


def complete_path_on_machine(ctx: click.Context, param: click.Parameter, beginning: str) -> list[CompletionItem]:
    """`NAME:` of machines and runs, besides files of here. What is on a machine is not looked up."""
    from click.shell_completion import CompletionItem

    names = [] if ":" in beginning else complete_run_or_machine(ctx, param, beginning)
    # The shell's own files come along with this kind of item.
    files = CompletionItem(beginning, type="file")
    return [*(CompletionItem(f"{name}:") for name in names if name != "last"), files]


def complete_volume_or_folder(ctx: click.Context, param: click.Parameter, beginning: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from outlast.cli.shared.resources import names_of

    names = names_of(ctx, "volume")
    folders = CompletionItem(beginning, type="dir")
    return [*(CompletionItem(name) for name in names if name.startswith(beginning)), folders]


def complete_image(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    """Images and families."""
    found = {name for pair in _images(ctx) for name in pair if name}
    return sorted(name for name in found if name.startswith(beginning))


def complete_family(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    return sorted({family for _, family in _images(ctx) if family and family.startswith(beginning)})


def complete_cloud(_ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    return [name for name in CLOUDS if name.startswith(beginning)]


def _images(ctx: click.Context) -> list[tuple[str, str]]:
    """Image and family, of this computer and of what was built from this workspace, on whichever cloud."""
    from outlast.clouds.local.cloud import LocalCloud
    from outlast.images.records import ImageRecords

    found: list[tuple[str, str]] = []
    with contextlib.suppress(OutlastError):
        found += [(image.name, image.family) for image in LocalCloud().images()]
    with contextlib.suppress(OutlastError):
        records = ImageRecords(find_workspace(ctx.params.get("workspace_url") or ""))
        for digest in records.digests():
            recipe, result = records.recipe(digest), records.result(digest)
            if recipe is not None and result is not None:
                found.append((result.image, recipe.spec.name))
    return found


VARIABLE = "_OUTLAST_COMPLETE"
# Shell → how its completion is installed for good.
_INSTALL = {
    "bash": "echo 'eval \"$(outlast completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(outlast completion zsh)\"' >> ~/.zshrc",
    "fish": "mkdir -p ~/.config/fish/completions && outlast completion fish > ~/.config/fish/completions/outlast.fish",
}


@command(section="admin", interrupt=UNCHANGED)
@click.argument("shell", required=False, type=click.Choice(list(_INSTALL)))
def completion(shell: str | None) -> int:
    """Print the completion script for bash, zsh or fish."""
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
