"""`outlast run` submits a run and follows it; `outlast submit` submits and detaches."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.run.choice import Wanted, confirm_choice, next_commands, yes_option
from outlast.cli.run.embedded_supervisor import ensure_supervised
from outlast.cli.run.foreground import _follow_supervised, follow_to_end
from outlast.cli.run.group import GroupFollower, GroupOptions, submit_group
from outlast.cli.run.options import group_options, option_names, overrides_from, spec_options
from outlast.cli.shared.command import RUN_CONTINUES, command
from outlast.cli.shared.options import clouds, json_option, print_price_note, workspace_option
from outlast.cli.shared.progress import working
from outlast.cli.shared.project import Project, blaming_options, load_project, report_source, spec_of
from outlast.cli.shared.terminal import find_workspace, note

if TYPE_CHECKING:
    from outlast.app.types import RunRequest, Workspace


def submit_spec(
    workspace: Workspace,
    project: Project,
    options: dict[str, Any],
    command: tuple[str, ...],
    *,
    yes: bool,
    quiet: bool = False,
) -> RunRequest:
    """Check, confirm and submit a run; report files that were left out of the bundle."""
    from outlast.app.submission import submit_spec as submit_run

    overrides = overrides_from(options)
    if not quiet:
        report_source(project)
    with blaming_options(overrides, option_names()):
        spec = spec_of(project, overrides, command)
        confirm_choice(clouds(workspace), [Wanted(spec=spec)], url=workspace.url, yes=yes, quiet=quiet)
        if spec.image is not None:
            from outlast.cli.image.build import with_image

            spec = with_image(workspace, spec, project)
        known = clouds(workspace)
        with ensure_supervised(workspace):
            with working("sending the code"):
                request = submit_run(workspace, spec, source=project.source, report=note)
            print_price_note(known[spec.machine.cloud])
    return request


@command(section="runs", interrupt=RUN_CONTINUES)
@spec_options
@group_options
@click.option("--pull", "destination", default="", metavar="FOLDER", help="Folder for the outputs (outputs/RUN).")
@click.option("--no-pull", is_flag=True, help="Leave the outputs in the workspace.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the output of the command.")
@yes_option
@workspace_option
def run(workspace_url: str, path: str, command: tuple[str, ...], yes: bool, **options: Any) -> int:
    """Run a command on a preemptible machine and follow it to its end.

    Shows output and events live, fetches the outputs and exits with the exit code of the command. Ctrl-C asks whether
    to detach or to cancel.
    """
    destination, no_pull = options.pop("destination"), options.pop("no_pull")
    quiet = options.pop("quiet")
    group_options_given, project = GroupOptions(options), load_project(path)
    workspace = find_workspace(workspace_url, project)
    if group_options_given.check(project):
        with ensure_supervised(workspace):
            group, _ = submit_group(workspace, project, overrides_from(options), command, group_options_given, yes=yes)
        return _run_group(workspace, group, destination="" if no_pull else destination or "outputs", quiet=quiet)
    request = submit_spec(workspace, project, options, command, yes=yes, quiet=quiet)
    return follow_to_end(workspace, request, destination=destination, pull=not no_pull, quiet=quiet)


def _run_group(workspace: Workspace, group: str, *, destination: str, quiet: bool) -> int:
    follower = GroupFollower(workspace, group, quiet=quiet)
    if not _follow_supervised(workspace, group, follower):
        with contextlib.suppress(OSError):
            note(f"detached; `{group}` continues. See `outlast ps`; end it with `outlast cancel {group}`")
        return 130
    for run in follower.finished() if destination else ():
        from outlast.cli.run.pull import pull_outputs

        pull_outputs(workspace, run, os.path.join(destination, run), quiet=quiet)
    return follower.exit_code()


@command(section="runs", interrupt=RUN_CONTINUES, json="SubmitResult")
@spec_options
@group_options
@yes_option
@json_option
@workspace_option
def submit(workspace_url: str, path: str, command: tuple[str, ...], yes: bool, as_json: bool, **options: Any) -> int:
    """Submit a run and detach; a background supervisor takes over.

    Prints the name of the run.
    """
    from outlast.app.background import start_supervisor

    group_options_given, project = GroupOptions(options), load_project(path)
    workspace = find_workspace(workspace_url, project)
    if group_options_given.check(project):
        with ensure_supervised(workspace):
            group, runs = submit_group(
                workspace, project, overrides_from(options), command, group_options_given, yes=yes
            )
        start_supervisor(workspace)
        _print_group(workspace, group, runs, as_json=as_json)
        return 0
    request = submit_spec(workspace, project, options, command, yes=yes)
    start_supervisor(workspace)
    if as_json:
        import json

        click.echo(json.dumps({"run": request.run, "workspace": workspace.url}))
    else:
        click.echo(request.run)
        note(next_commands(request.run))
    return 0


def _print_group(workspace: Workspace, group: str, runs: list[str], *, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps({"group": group, "runs": runs, "workspace": workspace.url}))
        return
    click.echo(group)
    note(f"{', '.join(runs)}; see `outlast ps`, follow one with `outlast logs -f RUN`")
