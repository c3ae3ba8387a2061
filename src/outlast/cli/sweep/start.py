"""`outlast sweep start`, `resume` and `stop`: a sweep driven to its end."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from outlast.app.sweeps import find_sweep, new_driver, new_sweep, reopen_sweep, state_of, stop_sweep
from outlast.cli.run.choice import Wanted, confirm_choice, yes_option
from outlast.cli.run.embedded_supervisor import Detached, embedded_supervisor
from outlast.cli.run.options import option_names, overrides_from, spec_options
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import clouds, json_option, workspace_option
from outlast.cli.shared.progress import working
from outlast.cli.shared.project import (
    Project,
    blaming_options,
    load_project,
    parse_assignment,
    report_source,
    spec_of,
)
from outlast.cli.shared.terminal import find_workspace, note
from outlast.cli.sweep.table import Narrator, sweep_argument, trials_text
from outlast.errors import RunFailed, UsageError
from outlast.spec.spec import Spec

if TYPE_CHECKING:
    from outlast.app.types import Sweep, Workspace

_CLOSE_S = 30.0
# Option → field of `[sweep]`.
_FIELDS = ("trials", "parallel", "per_machine", "sampler", "pruner", "min_steps", "seed", "failures", "metrics")


@command(interrupt="running trials continue; `outlast sweep resume` resumes the sweep", json="SubmitResult")
@spec_options
@click.option("--goal", "goals", multiple=True, metavar="min:METRIC", help="Objective; may be repeated.")
@click.option("--trials", metavar="N", type=click.IntRange(1), help="Number of trials (20, or the whole grid).")
@click.option("--parallel", metavar="N", type=click.IntRange(1), help="Trials at a time (2).")
@click.option("--per-machine", metavar="N", type=click.IntRange(1), help="Trials at a time on one machine (1).")
@click.option("--sampler", metavar="NAME", help="Sampler: tpe, random, grid or nsga2.")
@click.option("--pruner", metavar="NAME", help="Pruner: none, asha, hyperband or median.")
@click.option("--min-steps", metavar="N", type=click.IntRange(1), help="Steps before a trial can be pruned (1).")
@click.option("--seed", metavar="N", type=int, help="Seed of the sampler (0).")
@click.option("--failures", metavar="N", type=click.IntRange(1), help="Failed trials in a row that stop the sweep (3).")
@click.option("--metrics", metavar="WHERE", help="Source of the metric: auto, log, output or file:PATH.")
@click.option("--flags/--no-flags", default=None, help="Append searched parameters to the command as flags.")
@click.option("--detach", "leave", is_flag=True, help="Continue in the background, and print its name.")
@yes_option
@json_option
@workspace_option
def start(workspace_url: str, path: str, command: tuple[str, ...], leave: bool, as_json: bool, **options: Any) -> int:
    """Start a sweep and run it to its end.

    A `--param` with a range or several values is searched (`lr=log(1e-4..1e-1)`, `depth=3..10`, `opt=adam,sgd`); one
    with a single value is the same for all trials. Ctrl-C moves the sweep to the background.
    """
    project = load_project(path)
    workspace = find_workspace(workspace_url, project)
    made = _open(workspace, project, command, options)
    if leave:
        from outlast.app.background import start_driver

        start_driver(workspace, made.name)
        click.echo(json.dumps({"sweep": made.name, "workspace": workspace.url}) if as_json else made.name)
        if not as_json:
            note(f"see `outlast sweep show {made.name}`; end it with `outlast sweep stop {made.name}`")
        return 0
    return drive(workspace, made, as_json=as_json)


def _open(workspace: Workspace, project: Project, command: tuple[str, ...], options: dict[str, Any]) -> Sweep:
    searched, fixed = _split_params(options["params"])
    overrides = overrides_from({**options, "params": fixed})
    section = {field: options[field] for field in _FIELDS if options[field] is not None}
    if options["goals"]:
        section["goal"] = list(options["goals"])
    if options["flags"] is not None:
        section["flags"] = options["flags"]
    if searched:
        section["params"] = searched
    project.table = _without_fixed(project.table, overrides)
    report_source(project)
    with blaming_options(overrides, option_names()):
        spec = spec_of(project, {**overrides, **({"sweep": section} if section else {})}, command)
    confirm_choice(clouds(workspace), [Wanted(spec=spec, count=_machines(spec))], url=workspace.url, yes=options["yes"])
    if spec.image is not None:
        from outlast.cli.image.build import with_image

        spec = with_image(workspace, spec, project)
    with working("sending the code"):
        return new_sweep(workspace, spec, source=project.source, report=note)


def _machines(spec: Spec) -> int:
    """Return how many machines the sweep uses at a time."""
    search = spec.sweep
    return -(-search.parallel // search.per_machine) if search is not None else 1


def _split_params(params: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split parameters into searched and fixed ones."""
    from outlast.spec.sweep import looks_searched

    pairs = [parse_assignment(text, option="--param") for text in params]
    searched = {name: value for name, value in pairs if looks_searched(value)}
    return searched, tuple(f"{name}={value}" for name, value in pairs if not looks_searched(value))


def _without_fixed(table: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Remove searched parameters that the command line sets to one value."""
    section = table.get("sweep")
    if not isinstance(section, dict) or not isinstance(section.get("params"), dict):
        return table
    kept = {name: value for name, value in section["params"].items() if name not in overrides.get("params", {})}
    return {**table, "sweep": {**section, "params": kept}}


def drive(workspace: Workspace, made: Sweep, *, quiet: bool = False, as_json: bool = False) -> int:
    """Drive and supervise a sweep until it is over; after an interrupt a background process continues it."""
    narrator = Narrator(made, quiet=quiet)
    narrator.begin(state_of(workspace, made))
    driver = new_driver(workspace, made, report=narrator.report, watch=narrator.report_trials)
    over = False
    try:
        with embedded_supervisor(workspace, then=lambda: _leave(workspace, made, over=over)) as stop:
            state = driver.run(stop=stop)
            over = True
            _wait_closed(workspace, made)
    except (KeyboardInterrupt, Detached):
        note(
            f"detached; `{made.name}` continues. See `outlast sweep show {made.name}`; end it with `outlast sweep stop`"
        )
        return 130
    if not quiet:
        click.echo(trials_text(workspace, made, state, as_json=as_json, most=10))
    if state.stopped and not state.complete:
        raise RunFailed(f"{made.name} was stopped: {state.why}", hint=f"see `outlast sweep show {made.name}`")
    return 0


def _wait_closed(workspace: Workspace, made: Sweep) -> None:
    """Wait until its machines are deleted, up to a limit."""
    deadline = time.monotonic() + _CLOSE_S
    while any(run.startswith(f"{made.name}-") for run in workspace.heartbeats()) and time.monotonic() < deadline:
        time.sleep(0.05)


def _leave(workspace: Workspace, made: Sweep, *, over: bool) -> None:
    """Start a background process for running trials, or for machines that a killed driver left."""
    from outlast.app.background import start_driver, start_supervisor

    if over:
        start_supervisor(workspace)
    else:
        start_driver(workspace, made.name)


@command(interrupt="running trials continue; `outlast sweep resume` resumes the sweep")
@sweep_argument
@click.option("--trials", default="", metavar="+N", help="Additional trials.")
@click.option("--detach", "leave", is_flag=True, help="Continue in the background.")
@click.option("--background", is_flag=True, hidden=True)
@workspace_option
def resume(sweep_name: str, trials: str, leave: bool, background: bool, workspace_url: str) -> int:
    """Resume a sweep whose driver died, that was stopped, or that needs more trials.

    Every user of the workspace may do it, from any computer. Two drivers at once do no work twice.
    """
    workspace = find_workspace(workspace_url)
    found, _ = find_sweep(workspace, sweep_name)
    reopen_sweep(workspace, found, more=_more(trials), only_if_needed=background)
    if leave:
        from outlast.app.background import start_driver

        start_driver(workspace, found.name)
        return 0
    if background:
        from outlast.app.background import log_path
        from outlast.app.process_logs import bound_own_log

        bound_own_log(log_path())
    return drive(workspace, found, quiet=background)


def _more(trials: str) -> int:
    if not trials:
        return 0
    if not trials.startswith("+") or not trials[1:].isdigit() or not int(trials[1:]):
        raise UsageError(f"--trials: invalid `{trials}`: expected a number of additional trials such as `+50`")
    return int(trials[1:])


@command(progress="stopping trials", interrupt=UNCERTAIN)
@sweep_argument
@click.option("--now", is_flag=True, help="Also cancel running trials.")
@workspace_option
def stop(sweep_name: str, now: bool, workspace_url: str) -> int:
    """Start no more trials. Running ones continue, unless --now is given."""
    workspace = find_workspace(workspace_url)
    found, _ = find_sweep(workspace, sweep_name)
    if not stop_sweep(workspace, found, now=now):
        note(f"{found.name} is already stopped")
        return 0
    click.echo(f"stopped {found.name}")
    return 0
