"""All the reading: workspace and clouds into a World. Decides nothing; what cannot be read is said to be unknown.

One listing of heartbeats, one of wakeups and one of each cloud a round, however many runs there are; a story is read again
only when somebody rang, when its heartbeat fell silent, or when this supervisor wrote to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.cloud import LABEL_MACHINE, LABEL_RUN, LABEL_WORKSPACE, Cloud, Machine, Offer
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
from outlast.runs.story import Story
from outlast.spec.spec import Spec
from outlast.store.bucket import Entry
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.supervisor.boot import drop_secrets
from outlast.supervisor.budget_reader import BudgetReader
from outlast.supervisor.deadline import look_s
from outlast.supervisor.group_reader import GroupReader
from outlast.supervisor.world import RunView, World
from outlast.workspace import Heartbeat, Workspace

# A wakeup for a run that has no story yet is from a submit that is still writing, or that died; it is kept this long.
_STRAY_WAKEUP_S = 600.0
_WORRY_S = 3.0

Minds = Callable[[str], bool]


def anywhere(_cloud: str) -> bool:
    return True


class Watched(msgspec.Struct, kw_only=True):
    """What this supervisor remembers of a run between rounds. Losing it loses nothing."""

    story: Story
    spec: Spec
    # Where its submitter finds programs.
    path: str = ""
    heartbeat_at: float = 0.0
    since: float = 0.0
    read_at: float = 0.0
    # How many attempts there are, and whether the last one has started.
    phase: tuple[int, bool] = (0, False)
    limited_since: float = 0.0


class Observer:
    """The memory of one supervisor between rounds: caches only."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        *,
        monotonic: Callable[[], float],
        each: ParallelMap = in_parallel,
        read_only: bool = False,
        station: str = "",
    ) -> None:
        self.workspace = workspace
        self.machine_records = MachineRecords(workspace)
        self.roster = GroupReader(workspace)
        # Only look: leave wakeups hanging and heartbeats as they are, for `plan` and `ps`.
        self.read_only = read_only
        self.clouds = clouds
        self.station = station
        # How long workers of a cluster may wait for another head, whatever they themselves would.
        self.patience_s = float("inf")
        # The clouds whose runs and machines are this supervisor's business, and the runs that are not.
        self.minds: Minds = anywhere
        self.others: set[str] = set()
        self.monotonic = monotonic
        self.each = each
        # When the heartbeats were last listed. Silence is what lies between two looks, not what a slow round adds to it.
        self.looked_at = monotonic()
        self.watched: dict[str, Watched] = {}
        self.damaged: dict[str, str] = {}
        self.purse = BudgetReader(workspace, each=each)

    def observe(self, now: float) -> World:
        self.looked_at = self.monotonic()
        heartbeats = self.workspace.heartbeats()
        wakeups = self.workspace.wakeups()
        self._listen(heartbeats, wakeups)
        unreachable: dict[str, str] = {}
        machines: dict[str, Machine] = {}
        for name, cloud in self.clouds.items():
            if not self.minds(name):
                continue
            try:
                found = cloud.machines({LABEL_WORKSPACE: self.workspace.id})
                machines.update({machine.name: machine for machine in found})
                self._read_before_launch(name, machines)
                machines.update(self._confirm(name, cloud, machines))
            except CloudError as problem:
                unreachable[name] = problem.message
        self._ask_whose(machines)
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
            unreachable=unreachable,
            cooldowns=cooldowns,
            # The machines of runs that are somebody else's business are that one's, too.
            damaged=frozenset(self.damaged) | self.others,
            machine_records=self._hands(machines),
            station=self.station,
            budgets=self.purse.budgets(now, looked_at=self.looked_at, open_runs=self.watched, others=self.others),
        )

    def mind(self, minds: Minds) -> None:
        """From now on see only to the runs of these clouds."""
        if minds is not self.minds:
            self.minds = minds
            self.watched.clear()
            self.others.clear()

    def state(self, run: str) -> RunState:
        return self.watched[run].story.state

    def forget(self, run: str) -> None:
        self.watched.pop(run, None)
        self.purse.forgot()

    def _listen(self, heartbeats: Mapping[str, Entry], wakeups: Mapping[str, list[Entry]]) -> None:
        """Refresh the stories of the runs that are new, that rang, or that fell silent."""
        for run in [run for run in self.watched if run not in heartbeats and run not in wakeups]:
            if self._read(run) and self.watched[run].story.state.closed:
                self.forget(run)  # another supervisor saw it to its end
        self.others &= heartbeats.keys() | wakeups.keys()
        everyone = [run for run in {**dict.fromkeys(self.watched), **heartbeats, **wakeups} if run not in self.others]
        self.each(self._meet, [run for run in everyone if run not in self.watched])
        for run in everyone:
            if (watched := self.watched.get(run)) is not None:
                self._feel(watched, heartbeats[run].modified_at if run in heartbeats else 0.0)
        due = [run for run in everyone if run in self.watched and (run in wakeups or self._worried(self.watched[run]))]
        unread = {run for run, read in zip(due, self.each(self._read, due), strict=True) if not read}
        for run in everyone:
            watched = self.watched.get(run)
            if watched is None:
                # The wakeup of one that cannot be read stays, for a supervisor that can.
                if run not in self.others and run not in unread:
                    self._forget_stray(run, wakeups.get(run, []))
            elif not self.read_only:
                self._answer(run, watched, heartbeats, wakeups.get(run, []))

    def _feel(self, watched: Watched, heartbeat_at: float) -> None:
        """Since when the heartbeat stands still. The silence of a new attempt begins with it, and that of its command with
        `Started`: the heartbeats may have been listed just before the agent's first one."""
        state = watched.story.state
        phase = (len(state.attempts), state.last is not None and state.last.phase != "placed")
        if (watched.heartbeat_at, watched.phase) != (heartbeat_at, phase):
            watched.heartbeat_at, watched.phase, watched.since = heartbeat_at, phase, self.looked_at

    def _answer(self, run: str, watched: Watched, heartbeats: Mapping[str, Entry], wakeups: list[Entry]) -> None:
        if run not in heartbeats and (wakeups or watched.story.state.alive):
            # Heartbeats are the list of runs that need care: it must name this one before its wakeup is taken down. One that
            # was cancelled before any supervisor saw it has secrets and a bill to close, too.
            self.workspace.write_heartbeat(run, Heartbeat(length=watched.story.state.length), durable=True)
        for entry in wakeups:
            self.workspace.bucket.delete(entry.key)

    def _read(self, run: str) -> bool:
        """Read what is new in a story. One that nobody can read must not stop the supervision of the others."""
        try:
            self.watched[run].story.refresh()
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            self.damaged[run] = problem.message
            self.forget(run)
            return False
        self._feel(self.watched[run], self.watched[run].heartbeat_at)
        return True

    def _ask_whose(self, machines: Mapping[str, Machine]) -> None:
        """Read the stories of machines that we would take for orphans. Their stories were read before the machines
        were listed, and another supervisor may have placed and launched an attempt meanwhile."""
        for machine in machines.values():
            run = machine.labels.get(LABEL_RUN, "")
            watched = self.watched.get(run)
            if not run or (watched and any(a.machine == machine.name for a in watched.story.state.attempts)):
                continue
            if watched:
                self._read(run)
            else:
                self._meet(run)

    def _hands(self, machines: Mapping[str, Machine]) -> dict[str, MachineRecordView | None]:
        """The records of machines that no run owns. Read after the machines were listed: a record is written first."""
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
                # Nobody can tell whose it is, so it is nobody's to delete.
                self.machine_records.damaged[machine.name] = problem.message
        return found

    def _headless(self, name: str, cloud: str, machines: Mapping[str, Machine]) -> bool:
        """Whether the head of the cluster is gone, and its workers have waited for another for as long as they may.

        Its cloud is asked by name: listings lag. Nobody is taken for gone who says something: its word is in the store.
        """
        cluster = self.machine_records.cluster(name)
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

    def _worried(self, watched: Watched) -> bool:
        """An attempt is under way and says nothing: read its story before believing the worst, but not every round.
        So it is with one whose hours or saves are counted: nobody rings when it starts or saves."""
        last = watched.story.state.last
        if last is None or last.phase == "over":
            return False
        due, often_s = watched.spec.uses_policy, _WORRY_S
        counted = due or (watched.spec.limits.max_s > 0 and last.phase == "placed")
        if self.looked_at - watched.since < _WORRY_S:
            if not counted:
                return False
            often_s = max(often_s, look_s(last.cloud)) if due and last.phase != "placed" else often_s
        if self.looked_at - watched.read_at < often_s:
            return False
        watched.read_at = self.looked_at
        return True

    def _meet(self, run: str) -> Watched | None:
        try:
            request = self.workspace.request(run)
            story = self.workspace.story(run)
            exists = story.refresh().exists
        except NoSuchRun as problem:
            if any(True for _ in self.workspace.bucket.list(f"runs/{run}/story/")):
                # Its request is lost and its story is not: its machine may be at work, and is no orphan.
                self.damaged[run] = problem.message
            return None
        except StoreUnreachable:
            raise  # passing: nothing is known about this run, and nothing may be decided about it
        except WorkspaceError as problem:
            # One story that nobody can read must not stop the supervision of the others.
            self.damaged[run] = problem.message
            return None
        self.damaged.pop(run, None)
        if not exists:
            return None
        if not all(self.minds(name) for name in request.spec.machine.clouds):
            self.others.add(run)
            return None
        # From now on the machines of these clouds are listed, too.
        for name in request.spec.machine.clouds:
            self.clouds.get(name)
        watched = Watched(story=story, spec=request.spec, path=request.path, since=self.looked_at)
        self.watched[run] = watched
        return watched

    def _forget_stray(self, run: str, wakeups: list[Entry]) -> None:
        if run in self.damaged or not wakeups or self.read_only:
            return
        now = self.workspace.bucket.put("clock", b"").modified_at
        if all(now - entry.modified_at < _STRAY_WAKEUP_S for entry in wakeups):
            return
        for cloud in self.clouds.values():
            drop_secrets(self.workspace, cloud, run)
        for entry in wakeups:
            self.workspace.bucket.delete(entry.key)

    def _read_before_launch(self, name: str, machines: Mapping[str, Machine]) -> None:
        """Read the stories of attempts that would be launched now. Such an attempt may have started since, and its
        machine be gone: then it is lost, or the run is finished. The wakeup that would tell may have failed to ring."""
        for run, watched in list(self.watched.items()):
            last = watched.story.state.last
            if last is not None and last.cloud == name and last.phase == "placed" and last.machine not in machines:
                self._read(run)

    def _confirm(self, name: str, cloud: Cloud, machines: Mapping[str, Machine]) -> dict[str, Machine]:
        """Ask by name for machines that ought to be there and are not in the listing: listings lag."""
        found: dict[str, Machine] = {}
        for watched in self.watched.values():
            for attempt in watched.story.state.attempts:
                if attempt.cloud != name or attempt.machine in machines or attempt.phase not in ("started", "noticed"):
                    continue
                try:
                    found[attempt.machine] = cloud.machine(attempt.machine)
                except NotFound:
                    continue
        return found

    def _view(self, run: str, watched: Watched, unreachable: Mapping[str, str]) -> RunView:
        state, spec = watched.story.state, watched.spec
        if state.limit is not None and not watched.limited_since:
            watched.limited_since = self.looked_at
        limited_s = self.looked_at - watched.limited_since if watched.limited_since else 0.0
        view = RunView(run=run, spec=spec, state=state, silent_s=self.looked_at - watched.since, limited_s=limited_s)
        view = self.roster.complete(view, self.watched, self.looked_at)
        last = state.last
        waits = state.alive and (last is None or last.phase != "started")
        # A run with a deadline may leave the machine that it works on for a better one.
        asks = waits or (state.alive and spec.uses_policy)
        seen = [name for name in spec.machine.clouds if name not in unreachable] if asks else []
        return self._offered(view, spec, seen) if seen else view

    def _offered(self, view: RunView, spec: Spec, names: list[str]) -> RunView:
        """With what these clouds offer. One that cannot say, or has nothing, does not keep the others from it."""
        machine = spec.machine
        spot: list[Offer] = []
        on_demand: list[Offer] = []
        impossible, hint, unsure = "", "", ""
        for name in names:
            cloud = self.clouds.get(name)
            if cloud is None:
                impossible = f"this outlast does not know the cloud `{name}`"
                continue
            try:
                spot += cloud.offers(machine.needs_on(name, spot=True)) if machine.spot else ()
                on_demand += cloud.offers(machine.needs_on(name, spot=False)) if spec.uses_on_demand else ()
            except (BadRequest, NotFound, Denied) as problem:
                impossible, hint = problem.message, problem.hint
            except CloudError as problem:
                # The listing worked and the prices did not: nothing is known about offers, so nothing is placed.
                unsure = problem.message
        if spot or on_demand:
            impossible, hint, unsure = "", "", ""
        return msgspec.structs.replace(
            view,
            spot_offers=tuple(spot),
            on_demand_offers=tuple(on_demand),
            impossible="" if unsure else impossible,
            hint=hint,
            unsure=unsure,
        )
