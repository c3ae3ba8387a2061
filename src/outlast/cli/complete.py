"""What the tab key finds: names from records and from this computer. Never asks a cloud: a key must answer at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from outlast.cli.options import complete_run
from outlast.cli.terminal import find_workspace
from outlast.errors import OutlastError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

CLOUDS = ("local", "gcp", "aws")


def complete_run_or_machine(ctx: click.Context, param: click.Parameter, beginning: str) -> list[str]:
    from outlast.cli.machine_find import complete_machine

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

    from outlast.cli.store_find import names_of

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
