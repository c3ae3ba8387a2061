"""What the supervisor would do now: its steps, the choice for one run, and machines without an owner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from outlast.app.clouds import clouds
from outlast.app.dry_run import dry_run, read_only_observer
from outlast.app.machines import interactive_cloud, interactive_clouds
from outlast.app.supervision import new_supervisor
from outlast.billing.egress import egress_text
from outlast.clouds.location import bucket_location
from outlast.clouds.traits import traits_of
from outlast.errors import OutlastError
from outlast.policy.explain import Explanation, explain
from outlast.supervisor.deadline import forecast, policy_view
from outlast.supervisor.plan import plan
from outlast.supervisor.world import PlaceAttempt, Reap, Release, RunView, Step
from outlast.supervisor.world import describe as describe
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.cluster.record import Cluster, Clusters
    from outlast.records.machines import MachineRecord, MachineRecords

# A cluster without a head for this long is abandoned; heads report every 10 s. Its workers wait longer.
_HEAD_S = 30.0


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The choice for one run: its steps, the policy's reasons if it has a deadline, and the state of its packages."""

    view: RunView
    steps: list[Step]
    explanation: Explanation | None
    forecast: str
    environment: str
    unreachable: dict[str, str]


def plan_of(workspace: Workspace, name: str) -> RunPlan:
    """Return the choice for a live run and its reasons. Raises OutlastError for one that has ended."""
    run = workspace.find(name)
    state = workspace.story(run).refresh()
    if state.ending:
        why = f"{run} has ended ({state.ending}), so nothing is planned for it"
        raise OutlastError(why, hint=f"see `outlast show {run}`")
    world, steps = dry_run(workspace)
    view = next((view for view in world.runs if view.run == run), None)
    if view is None:
        raise OutlastError(f"{run} cannot be read now", hint="try again, or see `outlast doctor`")
    seen = policy_view(world, view)
    expected = forecast(view.spec, view.state, world.now) if view.spec.uses_policy else None
    return RunPlan(
        view=view,
        steps=[step for step in steps if getattr(step, "run", "") == run],
        explanation=explain(seen) if seen is not None else None,
        forecast=expected.describe() if expected is not None else "",
        environment=_environment(workspace, run),
        unreachable=dict(world.unreachable),
    )


def _environment(workspace: Workspace, run: str) -> str:
    """Describe the run's packages, and where machines find them; empty without an environment."""
    request = workspace.request(run)
    record = request.code.environment
    if record is None or not record.packages:
        return record.describe() if record else ""
    if all(traits_of(cloud).shares_host_files for cloud in request.spec.machine.clouds):
        return f"{record.describe()}: built on this computer"
    packed = any(name.endswith(".json") for name in workspace.bucket.children(f"environments/{record.digest}/"))
    return f"{record.describe()}: " + ("cached in the workspace" if packed else "the first machine builds it")


def traffic_text(url: str, step: Step) -> str:
    """Describe the price of data between a machine to be launched and the workspace; empty if it is free."""
    if not isinstance(step, PlaceAttempt):
        return ""
    return egress_text(url, bucket_location(url, clouds()), step.offer.cloud, step.offer.region)


class Leftovers(msgspec.Struct, frozen=True, kw_only=True):
    """Machines without an owner, clusters whose `up` or `down` was killed, records of machines that do not exist."""

    steps: list[Step]
    clusters: list[Cluster]
    records: list[MachineRecord]
    # Records that could not be read: their machines are left alone.
    damaged: list[dict[str, str]]
    all_clusters: Clusters
    machine_records: MachineRecords


def find_leftovers(workspace: Workspace) -> Leftovers:
    """Return everything that no live run owns; change nothing."""
    from outlast.cluster.down import abandoned
    from outlast.cluster.record import Clusters
    from outlast.machines import lifecycle

    observer = read_only_observer(workspace)
    observer.patience_s = _HEAD_S
    steps = plan(observer.observe(time.time()))
    clusters, records = Clusters(workspace), observer.machine_records
    left = list(abandoned(clusters))
    stale = list(lifecycle.left_over(records, interactive_clouds(workspace)))
    return Leftovers(
        steps=[step for step in steps if isinstance(step, Reap | Release)],
        clusters=left,
        records=stale,
        damaged=[dict(observer.damaged), dict(records.damaged), dict(clusters.damaged)],
        all_clusters=clusters,
        machine_records=records,
    )


def delete_leftovers(
    workspace: Workspace, left: Leftovers, *, report: Callable[[str], None]
) -> list[tuple[str, OutlastError]]:
    """Delete leftovers, also after a failure; return the actions that failed."""
    from outlast.cluster.down import take_down
    from outlast.machines import lifecycle

    failed: list[tuple[str, OutlastError]] = []
    if left.steps:
        supervisor = new_supervisor(workspace)
        supervisor.observer.read_only = True  # wakeups are for a supervisor
        supervisor.observer.observe(time.time())
        for step in left.steps:
            try:
                supervisor.applier.apply(step)
            except OutlastError as problem:
                failed.append((describe(step), problem))
    for cluster in left.clusters:
        # Its token, its record and late machines; the other machines are already deleted.
        try:
            take_down(left.all_clusters, {cluster.cloud: interactive_cloud(cluster.cloud)}, cluster, report=report)
        except OutlastError as problem:
            failed.append((f"take down {cluster.name}", problem))
    for record in left.records:
        lifecycle.drop(left.machine_records, record)
    return failed
