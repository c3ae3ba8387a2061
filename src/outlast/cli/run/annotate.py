"""`outlast note`: the note and the tags of a run."""

from __future__ import annotations

import json

import click

from outlast.app.notes import RunNote, annotate
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import json_option, run_argument, workspace_option
from outlast.cli.shared.project import naming_options
from outlast.cli.shared.terminal import find_workspace


@command(section="runs", progress="reading the run", interrupt=UNCERTAIN, json="NoteShown")
@run_argument
@click.argument("text", required=False, metavar="[TEXT]")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Add a tag; may be repeated.")
@click.option("--untag", multiple=True, metavar="TAG", help="Remove a tag; may be repeated.")
@json_option
@workspace_option
def note(
    run_name: str, text: str | None, tags: tuple[str, ...], untag: tuple[str, ...], as_json: bool, workspace_url: str
) -> int:
    """Print or change the note and the tags of a run.

    TEXT replaces the note; an empty one removes it. Notes can be changed after the end of the run.
    """
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    with naming_options({"tag": "--tag", "text": "TEXT"}):
        found = annotate(workspace, run, text=text, tags=tags, untag=untag)
    click.echo(json.dumps({"run": run, **_full(found)}) if as_json else _text(found))
    return 0


def _full(note: RunNote) -> dict[str, object]:
    return {"tags": list(note.tags), "text": note.text, "by": note.by, "at": note.at}


def _text(note: RunNote) -> str:
    lines = [f"tags  {' '.join(note.tags)}"] if note.tags else []
    lines += [f"note  {note.text}"] if note.text else []
    return "\n".join(lines) or "no note and no tags"
