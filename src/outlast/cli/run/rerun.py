"""`outlast rerun`: a new run from the recorded spec, code and image of another."""

from __future__ import annotations

import json
import os

import click
import msgspec

from outlast.cli.shared.command import RUN_CONTINUES, command
from outlast.cli.shared.options import clouds, json_option, run_argument, workspace_option
from outlast.cli.shared.project import parse_assignment, typed
from outlast.cli.shared.terminal import find_workspace, note
from outlast.code.record import CodeRecord
from outlast.errors import UsageError
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
    from outlast.submit.run import resubmit

    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    request = workspace.request(run)
    spec = msgspec.structs.replace(request.spec, params={**request.spec.params, **_parsed(params, request.spec.params)})
    submitted = resubmit(workspace, clouds(workspace), spec, request.code, what=run, environment=os.environ)
    if not quiet:
        image = f", image {spec.machine.image}" if spec.machine.image else ""
        note(f"outlast: {submitted.run} repeats {run}: {code_text(request.code)}{image}")
    if leave:
        start_supervisor(workspace)
        click.echo(json.dumps({"run": submitted.run, "workspace": workspace.url}) if as_json else submitted.run)
        return 0
    return follow_to_end(workspace, submitted, pull=not no_pull, quiet=quiet)


def _parsed(params: tuple[str, ...], known: dict[str, ParamValue]) -> dict[str, ParamValue]:
    found: dict[str, ParamValue] = {}
    for text in params:
        name, value = parse_assignment(text, option="--param")
        if name not in known:
            hint = f"it has: {', '.join(known)}" if known else "it has none"
            raise UsageError(f"--param: the run has no parameter `{name}`; {hint}")
        found[name] = typed(value)
    return found


def code_text(code: CodeRecord) -> str:
    """Describe the code briefly."""
    if code.kind == "none":
        return "no code"
    if code.kind == "git":
        return f"code {code.url} {(code.commit or code.ref)[:12]}"
    commit = f", commit {code.commit[:12]}" + (" with changes" if code.dirty else "") if code.commit else ""
    return f"code {code.sha256[:12]}{commit}"
