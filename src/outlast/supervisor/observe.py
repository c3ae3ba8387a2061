"""The observer: reads workspace and clouds into a World.

A round lists heartbeats, wakeups and the machines of each cloud once, for any number of runs. A story is read again
only after a wakeup, when its heartbeat stops, or when this supervisor wrote to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.cloud import LABEL_MACHINE, LABEL_RUN, Cloud, Machine, Offer
from outlast.clouds.registry import enable
from outlast.errors import (
    BadRequest,
    CloudError,
    Damaged,
    Denied,
    NoSuchRun,
    NotFound,
    StoreUnreachable,
    WorkspaceError,
)
from outlast.records.machines import MachineRecords, MachineRecordView
from outlast.runs.state import RunState
from outlast.spec.spec import Spec
from outlast.store.bucket import Entry
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.supervisor.boot import drop_secrets
from outlast.supervisor.budget_reader import BudgetReader
from outlast.supervisor.deadline import decision_interval_s
from outlast.supervisor.group_reader import GroupReader
from outlast.supervisor.machine_listing import list_machines, query_missing
from outlast.supervisor.watched import Watched
from outlast.supervisor.world import RunView, World
from outlast.workspace import Heartbeat, Workspace

# A wakeup without a story belongs to a submission that is still writing, or that crashed; it is kept this long.
_STRAY_WAKEUP_S = 600.0
_SILENCE_S = 3.0

Scope = Callable[[str], bool]


def anywhere(_cloud: str) -> bool:
    return True


class Observer:
    """The observer of one supervisor. It keeps only caches between rounds."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        *,
        monotonic: Callable[[], float],
        each: ParallelMap = in_parallel,
        read_only: bool = False,
        supervisor_vm: str = "",
    ) -> None:
        self.workspace = workspace
        self.machine_records = MachineRecords(workspace)
        self.group_reader = GroupReader(workspace)
        # Write nothing: for `outlast plan` and `outlast ps`.
        self.read_only = read_only
        self.clouds = clouds
        self.supervisor_vm = supervisor_vm
        # An upper bound on how long workers of a cluster wait for another head.
        self.patience_s = float("inf")
        # The clouds that this supervisor handles, and the runs that it leaves to others.
        self.scope: Scope = anywhere
        self.others: set[str] = set()
        self.monotonic = monotonic
        self.each = each
        # When the heartbeats were last listed. Silence is measured between listings, so a slow round does not add to
        # it.
        self.observed_at = monotonic()
        self.watched: dict[str, Watched] = {}
        # The keys of the wakeups in the last listing.
        self.wakeups_seen: frozenset[str] = frozenset()
        self.damaged: dict[str, str] = {}
        # Machines of placed attempts in earlier listings: one that is missing has ended while it booted.
        self._seen: frozenset[str] = frozenset()
        self.budget_reader = BudgetReader(workspace, each=each)

    def observe(self, now: float) -> World:
        self.observed_at = self.monotonic()
        heartbeats = self.workspace.heartbeats()
        wakeups = self.workspace.wakeups()
        self.wakeups_seen = frozenset(entry.key for entries in wakeups.values() for entry in entries)
        self._refresh_runs(heartbeats, wakeups)
        unreachable: dict[str, str] = {}
        machines: dict[str, Machine] = {}
        for name, cloud in self.clouds.items():
            if not self.scope(name):
                continue
            try:
                found, silent = list_machines(name, cloud, self.workspace.id)
                machines.update(found)
                unreachable |= silent
                self._read_before_launch(name, machines)
                states = (watched.story.state for watched in self.watched.values())
                machines.update(query_missing(name, cloud, states, machines, silent, seen=self._seen))
            except CloudError as problem:
                unreachable[name] = problem.message
        self._seen = self._placed() & (self._seen | machines.keys())
        self._read_owners(machines)
        views = tuple(self._view(run, watched, unreachable) for run, watched in self.watched.items())
        cooldowns: dict[str, float] = {}
        for watched in self.watched.values():
            for key, until in watched.story.state.cooldowns.items():
                cooldowns[key] = max(until, cooldowns.get(key, 0.0))
        return World(
            now=now,
            workspace_id=self.workspace.id,
            workspace_url=self.workspace.url,
            runs=views,
            machines=machines,
            seen=self._seen,
            unreachable=unreachable,
            cooldowns=cooldowns,
            # Leave the machines of other supervisors' runs alone, too.
            damaged=frozenset(self.damaged) | self.others,
            machine_records=self._read_machine_records(machines),
            supervisor_vm=self.supervisor_vm,
            budgets=self.budget_reader.budgets(
                now, observed_at=self.observed_at, open_runs=self.watched, others=self.others
            ),
        )

    def _placed(self) -> frozenset[str]:
        """Return the machines of placed attempts."""
        states = (watched.story.state for watched in self.watched.values())
        return frozenset(one.machine for state in states for one in state.attempts if one.phase == "placed")

    def set_scope(self, scope: Scope) -> None:
        """Handle only the runs of these clouds from now on."""
        if scope is not self.scope:
            self.scope = scope
            self.watched.clear()
            self.others.clear()

    def state(self, run: str) -> RunState:
        return self.watched[run].story.state

    def forget(self, run: str) -> None:
        self.watched.pop(run, None)
        self.budget_reader.mark_stale()

    def _refresh_runs(self, heartbeats: Mapping[str, Entry], wakeups: Mapping[str, list[Entry]]) -> None:
        """Refresh the stories of runs that are new, have a wakeup, or whose heartbeat stopped."""
        for run in [run for run in self.watched if run not in heartbeats and run not in wakeups]:
            if self._read(run) and self.watched[run].story.state.closed:
                self.forget(run)  # another supervisor finalized it
        self.others &= heartbeats.keys() | wakeups.keys()
        known = [run for run in {**dict.fromkeys(self.watched), **heartbeats, **wakeups} if run not in self.others]
        watched_before = set(self.watched)
        self.each(self._load_run, [run for run in known if run not in self.watched])
        for run in known:
            if (watched := self.watched.get(run)) is not None:
                self._update_silence(watched, heartbeats[run].modified_at if run in heartbeats else 0.0)
        # The supervisor deletes wakeups, so an observer beside it does not see all of them.
        kept = watched_before if self.read_only else ()
        due = [
            run
            for run in known
            if run in self.watched and (run in wakeups or run in kept or self._should_reread(self.watched[run]))
        ]
        unread = {run for run, read in zip(due, self.each(self._read, due), strict=True) if not read}
        for run in known:
            # Keep the wakeup of an unreadable run, for a supervisor that can read it.
            if run not in self.watched and run not in self.others and run not in unread:
                self._drop_stray_wakeups(run, wakeups.get(run, []))
        if not self.read_only:
            unknown = [run for run in known if run in self.watched and (run in wakeups or run not in heartbeats)]
            self.each(lambda run: self._acknowledge(run, heartbeats, wakeups.get(run, [])), unknown)

    def _update_silence(self, watched: Watched, heartbeat_at: float) -> None:
        """Restart the measurement of silence if heartbeat or phase changed.

        The phase counts because the heartbeats may have been listed just before the agent's first one.
        """
        state = watched.story.state
        last = state.last
        phase = (last.number, last.phase != "placed") if last is not None else (0, False)
        if (watched.heartbeat_at, watched.phase) != (heartbeat_at, phase):
            watched.heartbeat_at, watched.phase, watched.since = heartbeat_at, phase, self.observed_at

    def _acknowledge(self, run: str, heartbeats: Mapping[str, Entry], wakeups: list[Entry]) -> None:
        watched = self.watched[run]
        if run not in heartbeats and (wakeups or watched.story.state.alive):
            # A run without a heartbeat or a wakeup is lost to supervisors, so write one before the wakeup is deleted.
            # A run that was cancelled before any supervisor saw it also needs to be finalized.
            self.workspace.write_heartbeat(run, Heartbeat(length=watched.story.state.length), durable=True)
        for entry in wakeups:
            self.workspace.bucket.delete(entry.key)

    def _read(self, run: str) -> bool:
        """Read new events of a story. An unreadable story must not stop the supervision of other runs."""
        try:
            self.watched[run].story.refresh()
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            self.damaged[run] = problem.message
            self.forget(run)
            return False
        self._update_silence(self.watched[run], self.watched[run].heartbeat_at)
        return True

    def _read_owners(self, machines: Mapping[str, Machine]) -> None:
        """Read the stories of machines that look like orphans.

        Another supervisor may have placed and launched an attempt between our reading and our listing.
        """
        for machine in machines.values():
            run = machine.labels.get(LABEL_RUN, "")
            watched = self.watched.get(run)
            if not run or (watched and any(machine.name in a.machines for a in watched.story.state.attempts)):
                continue
            if watched:
                self._read(run)
            else:
                self._load_run(run)

    def _read_machine_records(self, machines: Mapping[str, Machine]) -> dict[str, MachineRecordView | None]:
        """Read the records of machines that no run owns, after the listing: a record is written before its machine."""
        found: dict[str, MachineRecordView | None] = {}
        headless: dict[str, bool] = {}
        for machine in machines.values():
            if LABEL_MACHINE not in machine.labels:
                continue
            try:
                view = self.machine_records.view(machine.name)
                if view is not None and view.cluster and view.phase == "ready":
                    if view.cluster not in headless:
                        headless[view.cluster] = self._headless(view.cluster, machine.cloud, machines)
                    view = msgspec.structs.replace(view, headless=headless[view.cluster])
                found[machine.name] = view
            except Damaged as problem:
                # Its owner is unknown, so leave the machine alone.
                self.machine_records.damaged[machine.name] = problem.message
        return found

    def _headless(self, name: str, cloud: str, machines: Mapping[str, Machine]) -> bool:
        """Return whether the cluster's head is gone, and its workers have waited long enough for another.

        Listings lag, so the cloud is queried by name. A head that writes its state to the store is not gone.
        """
        cluster = self.machine_records.clusters.find(name)
        if cluster is None or cluster.phase != "ready" or not cluster.head:
            return False
        limit_s = min(cluster.spec.orphan_s, self.patience_s)
        if machines.get(cluster.head) is not None and machines[cluster.head].status in ("pending", "running"):
            return False
        if self.machine_records.head_silent_s(name, cluster.head) <= limit_s:
            return False
        try:
            return self.clouds[cloud].machine(cluster.head).status not in ("pending", "running")
        except NotFound:
            return True
        except CloudError:
            return False

    def _should_reread(self, watched: Watched) -> bool:
        """Return whether to read a story without a wakeup, at a limited rate.

        This applies to attempts whose heartbeat stopped, and to runs whose hours or checkpoints count: their agents
        write no wakeup when they start or save.
        """
        last = watched.story.state.last
        if last is None or last.phase == "over":
            return False
        due, often_s = watched.spec.uses_policy, _SILENCE_S
        counted = due or (watched.spec.limits.max_s > 0 and last.phase == "placed")
        if self.observed_at - watched.since < _SILENCE_S:
            if not counted:
                return False
            often_s = max(often_s, decision_interval_s(last.cloud)) if due and last.phase != "placed" else often_s
        if self.observed_at - watched.read_at < often_s:
            return False
        watched.read_at = self.observed_at
        return True

    def _load_run(self, run: str) -> Watched | None:
        try:
            request = self.workspace.request(run)
            story = self.workspace.story(run)
            exists = story.refresh().exists
        except NoSuchRun as problem:
            if any(True for _ in self.workspace.bucket.list(f"runs/{run}/story/")):
                # The request is lost but not the story: its machine may be at work and must not be reaped.
                self.damaged[run] = problem.message
            return None
        except StoreUnreachable:
            raise  # temporary: decide nothing about this run
        except WorkspaceError as problem:
            # An unreadable story must not stop the supervision of other runs.
            self.damaged[run] = problem.message
            return None
        self.damaged.pop(run, None)
        if not exists:
            return None
        if not all(self.scope(name) for name in request.spec.machine.clouds):
            self.others.add(run)
            return None
        # From now on the machines of these clouds are listed, too.
        for name in request.spec.machine.clouds:
            enable(self.clouds, name)
        watched = Watched(story=story, spec=request.spec, path=request.path, since=self.observed_at)
        self.watched[run] = watched
        return watched

    def _drop_stray_wakeups(self, run: str, wakeups: list[Entry]) -> None:
        if run in self.damaged or not wakeups or self.read_only:
            return
        now = self.workspace.bucket.now("clock")
        if all(now - entry.modified_at < _STRAY_WAKEUP_S for entry in wakeups):
            return
        for cloud in self.clouds.values():
            drop_secrets(self.workspace, cloud, run)
        for entry in wakeups:
            self.workspace.bucket.delete(entry.key)

    def _read_before_launch(self, name: str, machines: Mapping[str, Machine]) -> None:
        """Read the stories of attempts that would be launched now.

        Such an attempt may have started and lost its machine since, or the run may be over, and its wakeup may have
        failed.
        """

        def would_launch(watched: Watched) -> bool:
            launching = watched.story.state.launching
            if launching is None or launching.cloud != name:
                return False
            return any(member not in machines for member in launching.machines)

        self.each(self._read, [run for run, watched in self.watched.items() if would_launch(watched)])

    def _view(self, run: str, watched: Watched, unreachable: Mapping[str, str]) -> RunView:
        state, spec = watched.story.state, watched.spec
        if state.limit is not None and not watched.limited_since:
            watched.limited_since = self.observed_at
        limited_s = self.observed_at - watched.limited_since if watched.limited_since else 0.0
        view = RunView(run=run, spec=spec, state=state, silent_s=self.observed_at - watched.since, limited_s=limited_s)
        view = self.group_reader.complete(view, self.watched, self.observed_at)
        last = state.last
        waits = state.alive and (last is None or last.phase != "started")
        # A run with a deadline may move to a better machine.
        needs_offers = waits or (state.alive and spec.uses_policy)
        reachable = [name for name in spec.machine.clouds if name not in unreachable] if needs_offers else []
        return self._with_offers(view, spec, reachable) if reachable else view

    def _with_offers(self, view: RunView, spec: Spec, names: list[str]) -> RunView:
        """Return the view with the offers of these clouds.

        An error of one cloud matters only if no other has offers.
        """
        machine = spec.machine
        spot: list[Offer] = []
        on_demand: list[Offer] = []
        impossible, hint, offers_error = "", "", ""
        for name in names:
            cloud = self.clouds.get(name)
            if cloud is None:
                impossible = f"cloud `{name}` is unknown to this version of outlast"
                continue
            try:
                spot += cloud.offers(machine.needs_on(name, spot=True)) if machine.spot else ()
                on_demand += cloud.offers(machine.needs_on(name, spot=False)) if spec.uses_on_demand else ()
            except (BadRequest, NotFound, Denied) as problem:
                impossible, hint = problem.message, problem.hint
            except CloudError as problem:
                # Temporary: place nothing while offers are unknown.
                offers_error = problem.message
        if spot or on_demand:
            impossible, hint, offers_error = "", "", ""
        return msgspec.structs.replace(
            view,
            spot_offers=tuple(spot),
            on_demand_offers=tuple(on_demand),
            impossible="" if offers_error else impossible,
            hint=hint,
            offers_error=offers_error,
        )
