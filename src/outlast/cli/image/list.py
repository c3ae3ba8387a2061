"""`outlast image list` and `show`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from outlast.app.images import build_records, find_image, image_row, list_images
from outlast.cli.completion import complete_family, complete_image
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.terminal import find_workspace, money, note, table
from outlast.errors import UsageError
from outlast.formatting.quantities import size
from outlast.spec.quantity import describe_s


@command("list", progress="querying the clouds", interrupt=READ_ONLY, json="list[ImageRow]")
@click.option(
    "--family", default="", metavar="NAME", shell_complete=complete_family, help="Only the members of this family."
)
@json_option
def list_command(family: str, as_json: bool) -> int:
    """List the images of all clouds, the newest of each family first."""
    found = list_images(family)
    rows = [image_row(cloud, image, [i for c, i in found if c is cloud]) for cloud, image in found]
    if as_json:
        import json

        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        note(f"no such image family: `{family}`" if family else "no images")
    else:
        click.echo(table([_cells(row) for row in rows], header=["IMAGE", "FAMILY", "", "SIZE", "AGE", "CLOUD", "NOTE"]))
    return 0


def _cells(row: dict[str, Any]) -> list[str]:
    state = "retired" if row["retired"] else "current" if row["current"] else ""
    age = describe_s(max(0.0, time.time() - row["created_at"])) if row["created_at"] else ""
    return [row["image"], row["family"], state, size(row["bytes"]), age, row["cloud"], row["description"]]


@command(progress="querying the cloud", interrupt=READ_ONLY, json="ImageShown")
@click.argument("name", metavar="IMAGE", shell_complete=complete_image)
@click.option("--log", "with_log", is_flag=True, help="Print only the output of the build.")
@json_option
@workspace_option
def show(workspace_url: str, name: str, with_log: bool, as_json: bool) -> int:
    """Show an image, or the newest of a family: recipe, digest, size, builder, date, scrubbed paths."""
    import msgspec

    cloud, found = find_image(name)
    row = image_row(cloud, found, list(cloud.images()))
    recipe, result, text = build_records(find_workspace(workspace_url), str(row["digest"]))
    if with_log:
        if not text:
            raise UsageError(
                f"this workspace has no log of `{found.name}`", hint="it may have been built in another workspace"
            )
        click.echo(text, nl=False)
        return 0
    row["recipe"] = msgspec.to_builtins(recipe)
    row["result"] = msgspec.to_builtins(result)
    if as_json:
        import json

        click.echo(json.dumps(row, indent=2))
        return 0
    click.echo("\n".join(_lines(row, recipe, result)))
    return 0


def _lines(row: dict[str, Any], recipe: Any, result: Any) -> Iterator[str]:
    state = "retired" if row["retired"] else "current" if row["current"] else "older"
    yield f"{row['image']}  {state + ' of ' + row['family'] if row['family'] else ''}".rstrip()
    if row["created_at"]:
        yield f"  created {time.strftime('%Y-%m-%d %H:%M', time.localtime(row['created_at']))}, {size(row['bytes'])}"
    if row["description"]:
        yield f"  {row['description']}"
    if result is not None:
        took, cost = describe_s(result.seconds), money(result.cost_usd)
        yield f"  built by {result.who} in {took}, for {cost}; {len(result.scrubbed)} paths scrubbed"
    if recipe is None:
        yield "  created manually or in another workspace: no recipe"
        return
    spec = recipe.spec
    yield f"  digest {recipe.digest}, recipe {recipe.source}"
    yield f"  {'base':<12} {recipe.base}"
    for field in ("packages", "pip", "requirements", "lock", "files", "warm", "test", "keep"):
        value = getattr(spec, field)
        if value:
            shown = value if isinstance(value, str) else ", ".join(value)
            yield f"  {field:<12} {shown}"
    if recipe.script:
        from outlast.spec.image import script_file

        yield f"  {'script':<12} {script_file(spec.script)}".rstrip()
        yield from (f"    {number:3d}  {line}" for number, line in enumerate(recipe.script.splitlines(), 1))
