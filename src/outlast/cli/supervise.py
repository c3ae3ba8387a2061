"""`outlast supervise`, `outlast plan` and `outlast reap`: the supervisor, its thoughts, its broom."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.options import clouds, complete_run, json_option, workspace_option
from outlast.cli.terminal import complain, find_workspace, note, tell_damaged
from outlast.errors import OutlastError, UsageError
from outlast.front.look import look, onlooker
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Place, Reap, Release, Step, describe
from outlast.workspace.transfer import words

if TYPE_CHECKING:
    from outlast.cluster.record import Cluster, Clusters
    from outlast.workspace.hand import Hand

# Whoever reaps by hand does not wait as long for another head of a cluster as its workers do; heads speak every 10 s.
_HEAD_S = 30.0
_BY = {"making": "up", "deleting": "down"}


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
def supervise(workspace_url: str, until_idle: bool, background: bool, stationed: str, **words: Any) -> int:
    """Keep the runs of a workspace alive: observe, plan, apply, again and again.

    Any number of supervisors may run; losing one loses nothing. With --on a small machine of a cloud does it, until
    --off, or with --until-idle until the last run's end: this computer may sleep.
    """
    workspace = find_workspace(workspace_url)
    if words["off"] or words["cloud"] or stationed:
        from outlast.cli import station

        if stationed:
            return station.serve(workspace, stationed, say=_log)
        if words["off"]:
            return station.take_down(workspace)
        return station.put_up(workspace, until_idle=until_idle, **words)
    stray = next((name for name in ("zones", "type_name", "no_wait") if words[name]), "")
    if stray:
        raise UsageError(f"--{stray.removesuffix('s').replace('_name', '').replace('_', '-')} goes with --on CLOUD")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    supervisor = Supervisor(workspace, clouds(workspace), say=_log)
    holder = supervisor.lease.holder()
    if holder is not None:
        note(f"{holder.who} supervises {workspace.url} already; standing by")
    else:
        note(f"supervising {workspace.url}; Ctrl-C stops the supervisor, never the runs")
    supervisor.run(stop=stop, until_idle=until_idle, surplus_leaves=background)
    if stop.is_set() and workspace.pulses():
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
            crossing = words(url, step.offer.cloud) if isinstance(step, Place) else ""
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
        from outlast.cli.reasons import tell_reasons

        return tell_reasons(workspace, run_name, as_json=as_json)
    world, steps = look(workspace)
    for cloud, why in world.blind.items():
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
    from outlast.cluster.down import abandoned
    from outlast.cluster.record import Clusters
    from outlast.front.clouds import workshops
    from outlast.machines import care

    workspace = find_workspace(workspace_url)
    observer = onlooker(workspace)
    observer.patience_s = _HEAD_S
    steps = plan(observer.observe(time.time()))
    doomed: list[Step] = [step for step in steps if isinstance(step, Reap | Release)]
    clusters = Clusters(workspace)
    left = abandoned(clusters)
    stale = care.left_over(observer.hands, workshops(workspace))
    _print_doomed(doomed, left, stale, as_json=as_json)
    code = tell_damaged(observer.damaged, observer.hands.damaged, clusters.damaged, so="; its machines are left alone")
    if doomed and not dry_run:
        supervisor = Supervisor(workspace, clouds(workspace))
        supervisor.observer.hands_off = True  # the bells are for somebody who does more than reap
        supervisor.observer.observe(time.time())
        code = _carry_out(supervisor, doomed) or code
    if left and not dry_run:
        code = _take_down(clusters, left) or code
    for hand in stale if not dry_run else ():
        care.drop(observer.hands, hand)
    return code


def _print_doomed(doomed: list[Step], left: list[Cluster], stale: list[Hand], *, as_json: bool) -> None:
    told = {cluster.name: f"take down {cluster.name}: its `{_BY[cluster.phase]}` was killed" for cluster in left}
    dropped = {hand.name: f"forget {hand.name}: no such machine is there, and nobody is making one" for hand in stale}
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
            take_down(clusters, {cluster.cloud: workshop(cluster.cloud)}, cluster, say=note)
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
