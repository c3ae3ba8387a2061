"""`outlast supervise`, `outlast plan` and `outlast reap`: the supervisor, its thoughts, its broom."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from outlast.app.background import log_path
from outlast.app.dry_run import dry_run, read_only_observer
from outlast.app.process_logs import bound_own_log
from outlast.billing.egress import egress_text
from outlast.cli.options import clouds, complete_run, json_option, workspace_option
from outlast.cli.terminal import complain, find_workspace, note, tell_damaged
from outlast.errors import OutlastError, UsageError
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import plan
from outlast.supervisor.world import PlaceAttempt, Reap, Release, Step, describe

if TYPE_CHECKING:
    from outlast.cluster.record import Cluster, Clusters
    from outlast.records.machines import MachineRecord

# Whoever reaps by hand does not wait as long for another head of a cluster as its workers do; heads speak every 10 s.
_HEAD_S = 30.0
_BY = {"creating": "up", "deleting": "down"}


@click.command()
@click.option("--until-idle", is_flag=True, help="Leave when nothing lives and nothing costs.")
@click.option("--on", "cloud", default="", metavar="CLOUD", help="On a small machine there (gcp or aws), not here.")
@click.option("--off", is_flag=True, help="Take that machine down.")
@click.option("--zone", "zones", multiple=True, metavar="ZONE", help="With --on: only in this zone or region.")
@click.option("--type", "type_name", default="", metavar="NAME", help="With --on: another machine than the smallest.")
@click.option("--no-wait", is_flag=True, help="With --on: leave before it supervises.")
@click.option("--background", is_flag=True, hidden=True)
@click.option("--stationed", default="", hidden=True)
@workspace_option
def supervise(workspace_url: str, until_idle: bool, background: bool, stationed: str, **argv: Any) -> int:
    """Keep the runs of a workspace alive: observe, plan, apply, again and again.

    Any number of supervisors may run; losing one loses nothing. With --on a small machine of a cloud does it, until
    --off, or with --until-idle until the last run's end: this computer may sleep.
    """
    workspace = find_workspace(workspace_url)
    if argv["off"] or argv["cloud"] or stationed:
        from outlast.cli import supervisor_vm

        if stationed:
            return supervisor_vm.serve(workspace, stationed, report=_log)
        if argv["off"]:
            return supervisor_vm.take_down(workspace)
        return supervisor_vm.put_up(workspace, until_idle=until_idle, **argv)
    stray = next((name for name in ("zones", "type_name", "no_wait") if argv[name]), "")
    if stray:
        raise UsageError(f"--{stray.removesuffix('s').replace('_name', '').replace('_', '-')} goes with --on CLOUD")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    supervisor = Supervisor(workspace, clouds(workspace), report=_log)
    holder = supervisor.lease.holder()
    if holder is not None:
        note(f"{holder.who} supervises {workspace.url} already; standing by")
    else:
        note(f"supervising {workspace.url}; Ctrl-C stops the supervisor, never the runs")
    bound_own_log(log_path())
    supervisor.run(stop=stop, until_idle=until_idle, surplus_leaves=background)
    if stop.is_set() and workspace.heartbeats():
        note("stopped; the runs go on, and nobody revives them until the next `outlast supervise`")
    return 0


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk or a closed terminal is no reason to desert the runs
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def _as_data(step: Step) -> dict[str, object]:
    import msgspec

    data = msgspec.to_builtins(step)
    assert isinstance(data, dict)
    return {"step": data.pop("type").lower(), **data, "text": describe(step)}


def _print_steps(steps: tuple[Step, ...] | list[Step], *, as_json: bool, nothing: str, url: str = "") -> None:
    if as_json:
        import json

        click.echo(json.dumps([_as_data(step) for step in steps], indent=2))
    elif not steps:
        click.echo(nothing)
    else:
        for step in steps:
            crossing = egress_text(url, step.offer.cloud) if isinstance(step, PlaceAttempt) else ""
            click.echo(describe(step) + (f"; {crossing}" if crossing else ""))


@click.command("plan")
@click.argument("run_name", metavar="RUN", required=False, default="", shell_complete=complete_run)
@json_option
@workspace_option
def plan_command(workspace_url: str, run_name: str, as_json: bool) -> int:
    """Print what the supervisor would do now. Changes nothing.

    With RUN: what is chosen for it and why, with every option that there is.
    """
    workspace = find_workspace(workspace_url)
    if run_name:
        from outlast.cli.explain import tell_reasons

        return tell_reasons(workspace, run_name, as_json=as_json)
    world, steps = dry_run(workspace)
    for cloud, why in world.unreachable.items():
        note(f"{cloud} cannot be seen: {why}")
    _print_steps(steps, as_json=as_json, nothing="nothing to do", url=workspace.url)
    return 0


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be deleted; delete nothing.")
@json_option
@workspace_option
def reap(workspace_url: str, dry_run: bool, as_json: bool) -> int:
    """Delete every machine of this workspace that no live run owns: running, stopped or half created.

    What is left of a cluster whose `up` or `down` was killed is taken down, and records of machines that never came
    are dropped.
    """
    from outlast.clouds.registry import interactive_clouds
    from outlast.cluster.down import abandoned
    from outlast.cluster.record import Clusters
    from outlast.machines import lifecycle

    workspace = find_workspace(workspace_url)
    observer = read_only_observer(workspace)
    observer.patience_s = _HEAD_S
    steps = plan(observer.observe(time.time()))
    doomed: list[Step] = [step for step in steps if isinstance(step, Reap | Release)]
    clusters = Clusters(workspace)
    left = abandoned(clusters)
    stale = lifecycle.left_over(observer.machine_records, interactive_clouds(workspace))
    _print_doomed(doomed, left, stale, as_json=as_json)
    code = tell_damaged(
        observer.damaged, observer.machine_records.damaged, clusters.damaged, so="; its machines are left alone"
    )
    if doomed and not dry_run:
        supervisor = Supervisor(workspace, clouds(workspace))
        supervisor.observer.read_only = True  # the wakeups are for somebody who does more than reap
        supervisor.observer.observe(time.time())
        code = _carry_out(supervisor, doomed) or code
    if left and not dry_run:
        code = _take_down(clusters, left) or code
    for machine_record in stale if not dry_run else ():
        lifecycle.drop(observer.machine_records, machine_record)
    return code


def _print_doomed(doomed: list[Step], left: list[Cluster], stale: list[MachineRecord], *, as_json: bool) -> None:
    told = {cluster.name: f"take down {cluster.name}: its `{_BY[cluster.phase]}` was killed" for cluster in left}
    dropped = {
        machine_record.name: f"forget {machine_record.name}: no such machine is there, and nobody is making one"
        for machine_record in stale
    }
    if as_json:
        import json

        forgotten = [{"step": "takedown", "cluster": name, "text": text} for name, text in told.items()]
        forgotten += [{"step": "forgetmachine", "machine": name, "text": text} for name, text in dropped.items()]
        click.echo(json.dumps([*map(_as_data, doomed), *forgotten], indent=2))
    else:
        lines = [*map(describe, doomed), *told.values(), *dropped.values()]
        click.echo("\n".join(lines) or "no machine is left over")


def _take_down(clusters: Clusters, left: list[Cluster]) -> int:
    """The machines are gone by now; this takes the token and the record, and whatever came late."""
    from outlast.cli.machine_find import workshop
    from outlast.cluster.down import take_down

    code = 0
    for cluster in left:
        try:
            take_down(clusters, {cluster.cloud: workshop(cluster.cloud)}, cluster, report=note)
        except OutlastError as problem:
            complain(f"could not take down {cluster.name}: {problem.message}", hint=problem.hint)
            code = problem.exit_code
    return code


def _carry_out(supervisor: Supervisor, doomed: list[Step]) -> int:
    """One machine that cannot be deleted leaves none of the others billing. The code of the last failure."""
    code = 0
    for step in doomed:
        try:
            supervisor.applier.apply(step)
        except OutlastError as problem:
            complain(f"could not {describe(step)}: {problem.message}", hint=problem.hint)
            code = problem.exit_code
    return code
