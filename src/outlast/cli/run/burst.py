"""`outlast burst`: a command on one large machine, with outputs and checkpoint fetched into a new folder."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from typing import TYPE_CHECKING, Any

import click

from outlast.app.choice import with_largest_machine
from outlast.app.outputs import fetch_burst
from outlast.app.submission import submit_spec
from outlast.cli.run.choice import Wanted, confirm_choice, yes_option
from outlast.cli.run.embedded_supervisor import ensure_supervised
from outlast.cli.run.foreground import follow_to_end
from outlast.cli.run.options import option_names, overrides_from, spec_options
from outlast.cli.shared.command import RUN_CONTINUES, command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.progress import working
from outlast.cli.shared.project import blaming_options, load_project, report_source, spec_of
from outlast.cli.shared.terminal import find_workspace, money, note
from outlast.errors import OutlastError
from outlast.spec.command import argv_of
from outlast.spec.quantity import describe_s
from outlast.spec.spec import Spec

if TYPE_CHECKING:
    from outlast.app.types import Offer, RunRequest, Workspace

_USD_PER_HOUR_MAX = 5.0


@command(section="runs", interrupt=RUN_CONTINUES)
@spec_options
@click.option(
    "--most",
    type=click.FloatRange(min=0, min_open=True),
    default=_USD_PER_HOUR_MAX,
    metavar="USD",
    help="Maximum price of the machine per hour (5).",
)
@click.option("--pull", "destination", default="", metavar="FOLDER", help="Folder for the results (bursts/RUN-TIME).")
@click.option("--evaluate", is_flag=True, help="Then evaluate the stored model here: `--mode evaluate`.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the output of the command.")
@yes_option
@workspace_option
def burst(workspace_url: str, path: str, command: tuple[str, ...], yes: bool, **options: Any) -> int:
    """Run a command on one large machine, then fetch the results and delete it.

    The machine is the one with the most cores for the price. Outputs and the newest checkpoint go to a folder with the
    time in its name. `{cpus}` in the command is replaced by the number of cores.
    """
    most, destination = options.pop("most"), options.pop("destination")
    evaluate, quiet = options.pop("evaluate"), options.pop("quiet")
    project = load_project(path)
    workspace = find_workspace(workspace_url, project)
    available = clouds(workspace)
    overrides = overrides_from(options)
    if "{cpus}" in str(command or project.table.get("command", "")):
        overrides.setdefault("params", {}).setdefault("cpus", 1)  # until the machine is chosen
    if not quiet:
        report_source(project)
    with blaming_options(overrides, option_names()):
        spec = spec_of(project, overrides, command)
    if spec.image is not None:
        from outlast.cli.image.build import with_image

        spec = with_image(workspace, spec, project)
    spec, offer = with_largest_machine(spec, available, usd_per_hour_max=most, source=project.source)
    confirm_choice(available, [Wanted(spec=spec)], url=workspace.url, yes=yes, quiet=quiet)
    request = _submit(workspace, spec, project.source)
    kind = "spot" if offer.spot else "on demand"
    if not quiet:
        note(f"outlast: burst: {offer.type}, {offer.cpus:g} cores, {kind}, ${offer.price_usd_per_hour:.4f}/h")
    place = destination or os.path.join("bursts", f"{request.run}-{time.strftime('%Y%m%d-%H%M%S')}")
    code = follow_to_end(workspace, request, destination=place, quiet=quiet)
    if code == 130:
        return code
    _fetch_results(workspace, request, place, offer, quiet=quiet)
    if code == 0 and evaluate:
        return _evaluate(request.spec, place)
    return code


def _submit(workspace: Workspace, spec: Spec, source: str) -> RunRequest:
    with ensure_supervised(workspace), working("sending the code"):
        return submit_spec(workspace, spec, source=source, report=note)


def _fetch_results(workspace: Workspace, request: RunRequest, place: str, offer: Offer, *, quiet: bool) -> None:
    """Write the newest checkpoint and a summary of the run beside the outputs."""
    total = fetch_burst(workspace, request, place, offer, report=lambda text: note(f"outlast: {text}"))
    if not quiet:
        note(f"outlast: burst: {describe_s(total.wall_s)}, {money(total.cost_usd)}; results in {place}")


def _evaluate(spec: Spec, place: str) -> int:
    """Run the program here, on the fetched checkpoint."""
    argv = argv_of(spec.command, spec.params)
    more = ["--mode", "evaluate", "--job-dir", os.path.abspath(os.path.join(place, "checkpoint"))]
    if isinstance(spec.command, str):
        argv[-1] += " " + shlex.join(more)
    else:
        argv += more
    try:
        return subprocess.run(argv, cwd=spec.code.path, check=False).returncode
    except OSError as problem:
        raise OutlastError(f"cannot run `{argv[0]}` here: {problem.strerror}") from problem
