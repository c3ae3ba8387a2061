"""`outlast rerun`: a new run from the recorded spec, code and image of another."""

from __future__ import annotations

import json

import click

from outlast.app.actions import rerun_run
from outlast.cli.shared.command import RUN_CONTINUES, command
from outlast.cli.shared.options import json_option, run_argument, workspace_option
from outlast.cli.shared.project import naming_options, parse_assignment, typed
from outlast.cli.shared.terminal import find_workspace, note
from outlast.formatting.code_text import code_text
from outlast.spec.spec import ParamValue


@command(section="runs", progress="submitting", interrupt=RUN_CONTINUES, json="SubmitResult")
@run_argument
@click.option(
    "--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="New value of a parameter; may be repeated."
)
@click.option("--detach", "leave", is_flag=True, help="Submit and print the name; do not follow.")
@click.option("--no-pull", is_flag=True, help="Leave the outputs in the workspace.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the output of the command.")
@json_option
@workspace_option
def rerun(
    run_name: str, params: tuple[str, ...], leave: bool, no_pull: bool, quiet: bool, as_json: bool, workspace_url: str
) -> int:
    """Repeat a run from its recorded spec, code and image.

    The new run starts from the beginning. If a recorded part no longer exists, it is reported and nothing is launched.
    """
    from outlast.app.background import start_supervisor
    from outlast.cli.run.foreground import follow_to_end

    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    with naming_options({"params": "--param"}):
        submitted = rerun_run(workspace, run, params=dict(map(_parsed, params)))
    if not quiet:
        used = submitted.spec.machine.image
        image = f", image {used}" if used else ""
        note(f"outlast: {submitted.run} repeats {run}: {code_text(submitted.code)}{image}")
    if leave:
        start_supervisor(workspace)
        click.echo(json.dumps({"run": submitted.run, "workspace": workspace.url}) if as_json else submitted.run)
        return 0
    return follow_to_end(workspace, submitted, pull=not no_pull, quiet=quiet)


def _parsed(text: str) -> tuple[str, ParamValue]:
    name, value = parse_assignment(text, option="--param")
    return name, typed(value)
