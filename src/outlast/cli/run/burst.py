"""`outlast burst`: one big machine for minutes; model and outputs back in a place of their own, machine gone."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from outlast.cli.run.embedded_supervisor import looked_after
from outlast.cli.run.foreground import see_through
from outlast.cli.run.options import overrides_from, spec_options
from outlast.cli.shared.command import RUN_CONTINUES, command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.progress import working
from outlast.cli.shared.project import load_project, spec_of
from outlast.cli.shared.terminal import find_workspace, money, note
from outlast.clouds.cloud import Cloud, Offer
from outlast.errors import OutlastError, SpecError
from outlast.formatting.run_summary import summarize
from outlast.runs.checkpoints import restore
from outlast.spec.command import argv_of, fills
from outlast.spec.quantity import describe_s
from outlast.spec.spec import Spec
from outlast.workspace import RunRequest, Workspace

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
    help="The most that the machine may cost an hour (5).",
)
@click.option("--pull", "destination", default="", metavar="FOLDER", help="Where results go (bursts/RUN-TIME).")
@click.option("--evaluate", is_flag=True, help="Afterwards score the stored model here: `--mode evaluate`.")
@click.option("--quiet", "-q", is_flag=True, help="Only the command's own output.")
@workspace_option
def burst(workspace_url: str, path: str, command: tuple[str, ...], **options: Any) -> int:
    """Run a command on one large machine, then fetch the results and delete it.

    Brings code and data there, fetches outputs and the newest checkpoint into a folder with the time in its name, and
    deletes the machine. `{cpus}` in the command is the number of its cores.
    """
    most, destination = options.pop("most"), options.pop("destination")
    evaluate, quiet = options.pop("evaluate"), options.pop("quiet")
    project = load_project(path)
    workspace = find_workspace(workspace_url, project)
    available = clouds(workspace)
    overrides = overrides_from(options)
    if "{cpus}" in str(command or project.table.get("command", "")):
        overrides.setdefault("params", {}).setdefault("cpus", 1)  # until the machine is chosen
    spec = spec_of(project, overrides, command)
    if spec.image is not None:
        from outlast.cli.image.build import with_image

        spec = with_image(workspace, spec, project)
    spec, offer = _enlarged(spec, available, most, project.source)
    request = _ask(workspace, available, spec, project.source)
    kind = "spot" if offer.spot else "on demand"
    if not quiet:
        note(f"outlast: burst: {offer.type}, {offer.cpus:g} cores, {kind}, ${offer.price_usd_per_hour:.4f}/h")
    place = destination or os.path.join("bursts", f"{request.run}-{time.strftime('%Y%m%d-%H%M%S')}")
    code = see_through(workspace, request, destination=place, quiet=quiet)
    if code == 130:
        return code
    _bring(workspace, request, place, offer, quiet=quiet)
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


def _enlarged(spec: Spec, available: Mapping[str, Cloud], most: float, source: str) -> tuple[Spec, Offer]:
    """The spec with the machine that was chosen, and what it costs."""
    machine = spec.machine
    cloud = available.get(machine.cloud)
    if cloud is None:
        raise SpecError([f"[machine] cloud: `{machine.cloud}` is not known"], source=source)
    offers = cloud.offers(machine.needs(spot=machine.spot))
    chosen = largest_offer(offers, usd_per_hour_max=most, gpu=bool(machine.gpus))
    if chosen is None:
        if not offers:
            raise SpecError([f"[machine]: no machine of `{machine.cloud}` fits; ask for less"], source=source)
        least = min(offer.price_usd_per_hour for offer in offers)
        raise OutlastError(
            f"every machine that fits costs more than ${most:g} an hour; the cheapest ${least:.2f}",
            hint="allow more with --most, or ask for less with --cpus",
        )
    params = {**spec.params, **({"cpus": int(chosen.cpus)} if fills(spec.command, "cpus") else {})}
    machine = msgspec.structs.replace(machine, type=chosen.type)
    return msgspec.structs.replace(spec, machine=machine, params=params), chosen


def _ask(workspace: Workspace, available: Mapping[str, Cloud], spec: Spec, source: str) -> RunRequest:
    from outlast.submit.run import submit

    with looked_after(workspace), working("sending the code"):
        return submit(workspace, available, spec, environment=os.environ, source=source, report=note)


def _bring(workspace: Workspace, request: RunRequest, place: str, offer: Offer, *, quiet: bool) -> None:
    """The newest checkpoint, and what there is to say of the run, beside the outputs."""
    state = workspace.story(request.run).refresh()
    if state.checkpoints:
        newest_first = tuple(reversed(state.checkpoints))
        _, problems = restore(workspace.bucket, request.run, newest_first, os.path.join(place, "checkpoint"))
        for problem in problems:
            note(f"outlast: {problem}")
    total = summarize(state, time.time())
    told = {
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
        json.dump(told, file, indent=2)
    if not quiet:
        note(f"outlast: burst: {describe_s(total.wall_s)}, {money(total.cost_usd)}; results in {place}")


def _evaluate(spec: Spec, place: str) -> int:
    """The program once more, here, on the checkpoint that was brought."""
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
