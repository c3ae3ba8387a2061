"""The effects of a supervisor: each step is one idempotent call, and its result becomes an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import assert_never

import msgspec

from outlast.billing.egress import rates
from outlast.billing.ledger_store import LedgerStore
from outlast.clouds.cloud import Cloud, LaunchesAny, LaunchesTogether, sized_key
from outlast.errors import (
    BadRequest,
    CloudError,
    CloudUnreachable,
    Damaged,
    Denied,
    Missing,
    NoCapacity,
    NoQuota,
    NotFound,
    OutlastError,
    OverQuota,
    StoreUnreachable,
    Throttled,
)
from outlast.runs import events as ev
from outlast.runs.ended import EndedRuns, record_of
from outlast.runs.events import Event
from outlast.runs.nodes import forget_nodes
from outlast.runs.retention import collect
from outlast.runs.state import Attempt
from outlast.runs.story import event_key
from outlast.store.codec import decoded
from outlast.supervisor.boot import boot, drop_secrets, labels
from outlast.supervisor.effects import EffectResult, SlowEffect
from outlast.supervisor.observe import Observer
from outlast.supervisor.watched import Watched
from outlast.supervisor.world import (
    Bill,
    Fail,
    Finalize,
    Launch,
    Locate,
    LoseNode,
    MarkLost,
    Move,
    PlaceAttempt,
    Reap,
    Release,
    ReleaseMember,
    RetireNodes,
    Step,
    StopAtLimit,
    Wait,
    Warn,
    describe,
    gpu_key,
    region_key,
)
from outlast.workspace import Workspace

# How long a refused offer is not requested again; doubled with each refusal.
_COOLDOWN_S = 5.0
_COOLDOWN_MAX_S = 300.0
_COOLDOWN_QUOTA_S = 1800.0
# The part of a machine's console that goes into a story.
_CONSOLE_LINES, _CONSOLE_CHARACTERS = 3, 300


class Applier:
    """Applies the steps of a supervisor. Only `SlowEffect.work` may run outside the thread of the rounds."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        observer: Observer,
        *,
        who: str,
        clock: Callable[[], float],
        ids: Callable[[], str],
    ) -> None:
        self.workspace = workspace
        self.clouds = clouds
        self.observer = observer
        self.who = who
        self.clock = clock
        self.ids = ids

    def apply(self, step: Step) -> None:
        """Apply the whole step in this thread, however long it takes.

        Raises StoreUnreachable, Throttled and CloudUnreachable, which are temporary: the next round plans it again.
        """
        effect = self.slow(step)
        if effect is None:
            self._append(_run_of(step), self._event(step))
            return
        try:
            event = effect.work()
        except CloudError as problem:
            self.record(EffectResult(step=step, problem=problem))
        else:
            self.record(EffectResult(step=step, event=event))

    def slow(self, step: Step) -> SlowEffect | None:
        """Return the effect of a step that calls a cloud or deletes many objects; None if it only appends an event."""
        match step:
            case Launch():
                name, watched = self.workspace.machine_name(step.run, step.attempt), self.observer.watched[step.run]
                target = f"attempt {step.attempt} of {step.run}" if step.members else name
                return SlowEffect(
                    step=step, target=target, cloud=step.offer.cloud, work=lambda: self._launch(step, name, watched)
                )
            case MarkLost():
                attempt = self.observer.state(step.run).attempts[step.attempt - 1]
                if attempt.started_at or step.preempted or step.nodes:
                    return None
                return SlowEffect(
                    step=step, target=attempt.machine, cloud=attempt.cloud, work=lambda: self._mark_lost(step, attempt)
                )
            case Release():
                nodes = self.observer.state(step.run).attempts[step.attempt - 1].nodes
                target = f"attempt {step.attempt} of {step.run}" if nodes > 1 else step.machine
                return SlowEffect(step=step, target=target, cloud=step.cloud, work=lambda: self._release(step))
            case Reap():
                return SlowEffect(step=step, target=step.machine, cloud=step.cloud, work=lambda: self._reap(step))
            case Finalize():
                watched = self.observer.watched[step.run]
                return SlowEffect(
                    step=step, target=f"run {step.run}", cloud=step.cloud, work=lambda: self._finalize(step, watched)
                )
            case _:
                return None

    def record(self, result: EffectResult) -> None:
        """Record the result of an effect. Raises its error, unless that error becomes an event."""
        step, problem = result.step, result.problem
        if problem is not None:
            if not isinstance(step, Launch):
                raise problem
            if not isinstance(problem, CloudError):
                if isinstance(problem, OutlastError) and not isinstance(problem, StoreUnreachable):
                    self._wait(step.run, f"could not prepare the launch: {problem.message}")
                raise problem
            self._record_refusal(step, problem)
        elif result.event is not None:
            self._append(_run_of(step), result.event)
        elif isinstance(step, Finalize):
            self.observer.forget(step.run)

    def _event(self, step: Step) -> Event:
        """Return the event of a step that has no slow effect."""
        match step:
            case PlaceAttempt():
                return self._placed(step)
            case Locate():
                return ev.Located(
                    attempt=step.attempt,
                    zone=step.pool.zone,
                    type=step.pool.type,
                    price_usd_per_hour=step.pool.usd,
                    on_demand_usd_per_hour=step.pool.on_demand_usd or step.pool.usd,
                    at=self.clock(),
                )
            case MarkLost():
                lost = ev.Lost(attempt=step.attempt, why=step.why, preempted=step.preempted, nodes=step.nodes)
                return msgspec.structs.replace(lost, at=self.clock())
            case LoseNode():
                # The agents read it at once, and treat it as a notice.
                lose = ev.Noticed(attempt=step.attempt, why=step.why, grace_s=step.grace_s, node=step.node)
                return msgspec.structs.replace(lose, at=self.clock())
            case RetireNodes():
                return ev.Retired(attempt=step.attempt, why=step.why, at=self.clock())
            case Fail():
                return ev.Failed(why=step.why, hint=step.hint, exit_code=step.exit_code, at=self.clock())
            case Wait():
                return ev.Waiting(why=step.why, until=step.until, at=self.clock())
            case Move():
                # The agent reads it with its next heartbeat, and treats it as a notice.
                notice = ev.Noticed(attempt=step.attempt, why=step.why, grace_s=step.grace_s, moves=True)
                return msgspec.structs.replace(notice, at=self.clock())
            case Warn():
                return ev.LimitNear(limit=step.limit, why=step.why, at=self.clock())
            case StopAtLimit():
                # The agent reads it with its next heartbeat, and treats it as a notice.
                return ev.LimitReached(
                    limit=step.limit, why=step.why, hint=step.hint, grace_s=step.grace_s, at=self.clock()
                )
            case ReleaseMember():
                return ev.Cancelled(why=step.why, at=self.clock())
            case Launch() | Release() | Reap() | Finalize():
                raise AssertionError(f"{describe(step)} is a slow step")
            case _:
                assert_never(step)

    # Effects, on any thread: they use only their arguments and do not change the observer.

    def _mark_lost(self, step: MarkLost, attempt: Attempt) -> Event:
        """Add the last lines of the console: they vanish with the machine, and may be the only reason on record."""
        why = step.why + self.console_tail(attempt)
        return ev.Lost(attempt=step.attempt, why=why, preempted=step.preempted, at=self.clock())

    def console_tail(self, attempt: Attempt) -> str:
        """Return the last lines of a machine's console, as an addition to a reason; empty if there are none."""
        try:
            lines = [line.strip() for line in self.clouds[attempt.cloud].serial(attempt.machine).splitlines()]
        except (CloudError, KeyError):
            return ""  # the machine is gone, or its cloud is not one of ours
        tail = " | ".join([line for line in lines if line][-_CONSOLE_LINES:])
        return f"; last lines of its console: {tail[-_CONSOLE_CHARACTERS:]}" if tail else ""

    def _launch(self, step: Launch, name: str, watched: Watched) -> None:
        cloud, spec = step.offer.cloud, watched.spec
        launcher, own = self.clouds[cloud], labels(self.workspace, step.run, step.attempt)
        start = boot(self.workspace, step.run, step.attempt, spec, cloud, path=watched.path)
        if step.others and isinstance(launcher, LaunchesAny):
            launcher.launch_any([step.offer, *step.others], name, boot=start, labels=own)
        elif not step.members:
            launcher.launch(step.offer, name, boot=start, labels=own)
        elif isinstance(launcher, LaunchesTogether):
            names = [machine for _, machine in sorted(step.members.items())]
            launcher.launch_all(step.offer, names, boot=start, labels=own)
        else:
            raise BadRequest(f"cloud `{cloud}` cannot launch the {spec.machine.nodes} nodes of a run together")

    def _reap(self, step: Reap) -> None:
        machine_record = self.observer.machine_records.find(step.machine) if step.machine_record else None
        if machine_record is not None and machine_record.id == step.machine_record:
            try:
                machine = self.clouds[step.cloud].machine(step.machine)
                LedgerStore(self.workspace).close_machine(machine_record, machine)
            except NotFound:
                pass  # already deleted
        self.clouds[step.cloud].delete(step.machine)
        if machine_record is not None and machine_record.id == step.machine_record:
            # Remove the record last: if we crash before, the next supervisor repeats the deletion.
            self.observer.machine_records.remove_own(machine_record)

    def _release(self, step: Release) -> Event:
        first = Bill(step.machine, step.price_usd_per_hour, step.ran_s, step.disk_usd, step.address_usd_per_hour)
        bills: tuple[Bill, ...] = (first, *step.others)
        bills = tuple(bill for bill in bills if bill.machine)
        done = self.observer.each(lambda number: self._release_one(step, bills[number], number), range(len(bills)))
        seconds, disk_usd = sum(done), sum(bill.disk_usd for bill in bills)
        address_usd = sum(ran_s * bill.address_usd_per_hour / 3600.0 for ran_s, bill in zip(done, bills, strict=True))
        ran_usd = sum(ran_s * bill.price_usd_per_hour / 3600.0 for ran_s, bill in zip(done, bills, strict=True))
        return ev.Released(
            attempt=step.attempt,
            cost_usd=ran_usd + disk_usd + address_usd + step.egress_usd,
            seconds=seconds,
            disk_usd=disk_usd,
            address_usd=address_usd,
            egress_usd=step.egress_usd,
            at=self.clock(),
        )

    def _release_one(self, step: Release, bill: Bill, number: int) -> float:
        note = f"runs/{step.run}/ran/{step.attempt}" + (f".{number}" if number else "")
        seconds = self._ran_s(step, bill, note)
        self.clouds[step.cloud].delete(bill.machine)
        return seconds

    def _ran_s(self, step: Release, bill: Bill, note: str) -> float:
        """Return how long a machine ran, as its cloud reports it.

        The figure is stored before the machine is deleted, for a supervisor that continues after a crash. Without it,
        the time between the events of start and end counts, by the store's clock: other clocks may disagree.
        """
        try:
            ran_s = bill.ran_s or self.clouds[step.cloud].machine(bill.machine).ran_s
            self.workspace.bucket.put(note, msgspec.json.encode(ran_s))
            return ran_s
        except NotFound:
            with suppress(Missing, Damaged):
                return decoded(self.workspace.bucket.get(note), float, note)
            if not step.started_event:
                return 0.0  # it was never launched: the run was over before
        head = self.workspace.bucket.head
        started, over = (head(event_key(step.run, n)).modified_at for n in (step.started_event, step.over_event))
        return max(0.0, over - started)

    def _finalize(self, step: Finalize, watched: Watched) -> None:
        # The heartbeat goes last: while it exists, the next supervisor repeats an interrupted collection.
        state = watched.story.state
        collect(self.workspace.bucket, step.run, state)
        if watched.spec.machine.nodes > 1:
            forget_nodes(self.workspace.bucket, step.run)
        # Write the record before the heartbeat is deleted: a run is listed by one or the other.
        heartbeat = self.workspace.heartbeat(step.run)
        record = record_of(step.run, state, spec=watched.spec, heartbeat=heartbeat)
        EndedRuns(self.workspace, each=self.workspace.each).add(record)
        for name in watched.spec.machine.clouds:
            # An unknown cloud has no secrets of ours.
            if (cloud := self.clouds.get(name)) is not None:
                drop_secrets(self.workspace, cloud, step.run)
        self.workspace.bucket.delete(f"heartbeats/{step.run}")

    # Records, on the thread of the rounds.

    def _append(self, run: str, event: Event) -> bool:
        """Append to the story if the run is still watched; return whether it was appended.

        A later round plans it again.
        """
        if (watched := self.observer.watched.get(run)) is None:
            return False
        return watched.story.append(msgspec.structs.replace(event, by=self.who), nonce=self.ids())

    def _placed(self, step: PlaceAttempt) -> Event:
        offer, name = step.offer, self.workspace.machine_name
        near = self.observer.watched[step.run].spec.machine.near if step.run in self.observer.watched else ""
        traffic = rates(self.workspace.url, near, offer.cloud, offer.region)
        members: tuple[str, ...] = (name(step.run, step.attempt),)
        if step.nodes > 1:
            # A survivor keeps its rank, and a replacement takes that of the machine that it replaces.
            members = tuple(step.kept.get(node) or name(step.run, step.attempt, node) for node in range(step.nodes))
        return ev.Placed(
            attempt=step.attempt,
            cloud=offer.cloud,
            region=offer.region,
            zone=offer.zone,
            type=offer.type,
            spot=offer.spot,
            price_usd_per_hour=offer.price_usd_per_hour,
            on_demand_usd_per_hour=offer.on_demand_usd_per_hour or offer.price_usd_per_hour,
            address_usd_per_hour=offer.address_usd_per_hour,
            gpu=offer.gpu,
            gpus=offer.gpus,
            pools=self._pools(step),
            sent_usd_per_gb=traffic.sent,
            received_usd_per_gb=traffic.received,
            machine=members[0],
            members=members if step.nodes > 1 else (),
            least=step.least,
            ahead=step.ahead,
            at=self.clock(),
        )

    def _pools(self, step: PlaceAttempt) -> tuple[ev.Pool, ...]:
        """Return the other pools of an attempt, if its cloud chooses among several."""
        if not step.others or not isinstance(self.clouds.get(step.offer.cloud), LaunchesAny):
            return ()
        return tuple(
            ev.Pool(one.zone, one.type, one.price_usd_per_hour, one.on_demand_usd_per_hour) for one in step.others
        )

    def _record_refusal(self, step: Launch, problem: CloudError) -> None:
        """Record why a launch failed, unless its attempt is over by now. Re-raises temporary errors."""
        watched = self.observer.watched.get(step.run)
        launching = watched.story.state.launching if watched else None
        if watched is None or launching is None or launching.number != step.attempt:
            return
        match problem:
            case NoQuota() if not (watched.spec.machine.other_clouds or watched.spec.machine.other_gpus):
                self._append(step.run, ev.Failed(why=problem.message, hint=problem.hint, at=self.clock()))
            case NoCapacity() | OverQuota():
                self._append(step.run, self._refused(step, problem))
            case Throttled() | CloudUnreachable():
                # The next round plans it again; meanwhile the story shows why the run waits.
                self._wait(step.run, f"{step.offer.cloud} does not answer launch requests: {problem.message}")
                raise problem
            case Denied() | BadRequest() | NotFound():
                # Permanent: another zone would refuse as well.
                why = f"could not launch {self.workspace.machine_name(step.run, step.attempt)}: {problem.message}"
                self._append(step.run, ev.Failed(why=why, hint=problem.hint, at=self.clock()))
            case _:
                raise problem

    def _wait(self, run: str, why: str) -> None:
        if self.observer.state(run).waiting != why:
            self._append(run, ev.Waiting(why=why, at=self.clock()))

    def _refused(self, step: Launch, problem: CloudError) -> Event:
        quota = isinstance(problem, OverQuota)
        cooldown_s = _COOLDOWN_QUOTA_S if quota else min(_COOLDOWN_MAX_S, _COOLDOWN_S * 2 ** min(step.tries, 32))
        nodes = self.observer.state(step.run).attempts[step.attempt - 1].nodes
        # A quota holds for the region; a zone without one GPU has none for its other machine types either.
        tried = (step.offer, *step.others)
        offers = dict.fromkeys(
            key for one in tried for key in (one.key, region_key(one) if quota else gpu_key(one)) if key
        )
        return ev.LaunchRefused(
            attempt=step.attempt,
            why=problem.message,
            until=self.clock() + cooldown_s,
            offers=tuple(sized_key(key, nodes) for key in offers),
            at=self.clock(),
        )


def _run_of(step: Step) -> str:
    return "" if isinstance(step, Reap) else step.run
