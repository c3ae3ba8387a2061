"""`outlast burst`: a command on one large machine, with outputs and checkpoint fetched into a new folder."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from outlast.cli.run.choice import Wanted, confirm_choice, yes_option
from outlast.cli.run.embedded_supervisor import ensure_supervised
from outlast.cli.run.foreground import follow_to_end
from outlast.cli.run.options import option_names, overrides_from, spec_options
from outlast.cli.shared.command import RUN_CONTINUES, command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.progress import working
from outlast.cli.shared.project import blaming_options, load_project, report_source, spec_of
from outlast.cli.shared.terminal import find_workspace, money, note
from outlast.errors import OutlastError, SpecError
from outlast.formatting.run_summary import summarize
from outlast.runs.checkpoints import restore
from outlast.spec.command import argv_of, fills
from outlast.spec.quantity import describe_s
from outlast.spec.spec import Spec

if TYPE_CHECKING:
    from outlast.app.types import Cloud, Offer, RunRequest, Workspace

_USD_PER_HOUR_MAX = 5.0

# A machine whose cores cost more than this times the cheapest is large in something that a burst does not use.
_PRICE_PER_CORE_RATIO_MAX = 1.5


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
    spec, offer = _with_largest_machine(spec, available, most, project.source)
    confirm_choice(available, [Wanted(spec=spec)], url=workspace.url, yes=yes, quiet=quiet)
    request = _submit(workspace, available, spec, project.source)
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


def largest_offer(offers: Sequence[Offer], *, usd_per_hour_max: float, gpu: bool = False) -> Offer | None:
    """Return the offer with the most cores within the price, of equals the cheapest; None if all cost too much.

    Offers with GPUs count only if `gpu` is set, and offers that cost much more per core than others do not count.
    """
    fitting = [o for o in offers if (gpu or not o.gpus) and 0 < o.price_usd_per_hour <= usd_per_hour_max and o.cpus]
    if not fitting:
        return None
    cheapest = min(o.price_usd_per_hour / o.cpus for o in fitting)
    sensible = [o for o in fitting if o.price_usd_per_hour / o.cpus <= cheapest * _PRICE_PER_CORE_RATIO_MAX]
    return max(sensible, key=lambda o: (o.cpus, -o.price_usd_per_hour))


def _with_largest_machine(spec: Spec, available: Mapping[str, Cloud], most: float, source: str) -> tuple[Spec, Offer]:
    """Choose the machine; return the spec with its type, and the offer."""
    machine = spec.machine
    cloud = available.get(machine.cloud)
    if cloud is None:
        raise SpecError([f"[machine] cloud: unknown cloud `{machine.cloud}`"], source=source)
    offers = cloud.offers(machine.needs(spot=machine.spot))
    chosen = largest_offer(offers, usd_per_hour_max=most, gpu=bool(machine.gpus))
    if chosen is None:
        if not offers:
            raise SpecError(
                [f"[machine]: no machine of `{machine.cloud}` matches; reduce the requirements"], source=source
            )
        least = min(offer.price_usd_per_hour for offer in offers)
        raise OutlastError(
            f"every matching machine costs more than ${most:g}/h; the cheapest costs ${least:.2f}/h",
            hint="raise --most, or reduce --cpus",
        )
    params = {**spec.params, **({"cpus": int(chosen.cpus)} if fills(spec.command, "cpus") else {})}
    machine = msgspec.structs.replace(machine, type=chosen.type)
    return msgspec.structs.replace(spec, machine=machine, params=params), chosen


def _submit(workspace: Workspace, available: Mapping[str, Cloud], spec: Spec, source: str) -> RunRequest:
    from outlast.submit.run import submit

    with ensure_supervised(workspace), working("sending the code"):
        return submit(workspace, available, spec, environment=os.environ, source=source, report=note)


def _fetch_results(workspace: Workspace, request: RunRequest, place: str, offer: Offer, *, quiet: bool) -> None:
    """Write the newest checkpoint and a summary of the run beside the outputs."""
    state = workspace.story(request.run).refresh()
    if state.checkpoints:
        newest_first = tuple(reversed(state.checkpoints))
        _, problems = restore(workspace.bucket, request.run, newest_first, os.path.join(place, "checkpoint"))
        for problem in problems:
            note(f"outlast: {problem}")
    total = summarize(state, time.time())
    summary = {
        "run": request.run,
        "ending": state.ending,
        "command": request.spec.command,
        "params": request.spec.params,
        "machine": {"cloud": offer.cloud, "type": offer.type, "cpus": offer.cpus, "spot": offer.spot},
        "seconds": total.wall_s,
        "cost_usd": total.cost_usd,
        "preemptions": total.preemptions,
    }
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "burst.json"), "w", encoding="utf-8") as file:
        json.dump(summary, file, indent=2)
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
