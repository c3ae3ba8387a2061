"""Carries out steps: one idempotent effect each, recorded as it turned out. Decides nothing; answers may be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import assert_never

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.errors import (
    BadRequest,
    CloudError,
    CloudUnreachable,
    Damaged,
    Denied,
    Missing,
    NoCapacity,
    NotFound,
    OverQuota,
    Throttled,
)
from outlast.supervisor.boot import boot, drop_secrets, labels
from outlast.supervisor.choose import region_key
from outlast.supervisor.observe import Observer
from outlast.supervisor.world import (
    Dismiss,
    Fail,
    Forget,
    Halt,
    Hold,
    Launch,
    Lose,
    Move,
    Place,
    Reap,
    Release,
    Step,
    Warn,
)
from outlast.workspace import events as ev
from outlast.workspace.books import Books
from outlast.workspace.codec import decoded
from outlast.workspace.events import Event
from outlast.workspace.keep import collect
from outlast.workspace.story import event_key
from outlast.workspace.workspace import Workspace

# How long an offer rests after it was refused: doubled with each refusal.
_REST_S = 5.0
_REST_MAX_S = 300.0
_REST_QUOTA_S = 1800.0
# As much of a machine's console as goes into a story.
_CONSOLE_LINES, _CONSOLE_CHARACTERS = 3, 300


class Applier:
    """The hands of a supervisor. Steps of one run are applied one after the other."""

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
        """Raises StoreUnreachable, Throttled and CloudUnreachable: passing troubles; the next round plans it again."""
        match step:
            case Place():
                self._place(step)
            case Launch():
                self._launch(step)
            case Lose():
                why = step.why + self._last_words(step)
                self._append(
                    step.run, ev.Lost(attempt=step.attempt, why=why, preempted=step.preempted, at=self.clock())
                )
            case Release():
                self._release(step)
            case Reap():
                self._reap(step)
            case Fail():
                event_ = ev.Failed(why=step.why, hint=step.hint, exit_code=step.exit_code, at=self.clock())
                self._append(step.run, event_)
            case Hold():
                self._append(step.run, ev.Held(why=step.why, until=step.until, at=self.clock()))
            case Move():
                # The agent reads it with its next pulse, and treats it as a notice.
                notice = ev.Noticed(attempt=step.attempt, why=step.why, grace_s=step.grace_s, moves=True)
                self._append(step.run, msgspec.structs.replace(notice, at=self.clock()))
            case Warn():
                self._append(step.run, ev.Neared(limit=step.limit, why=step.why, at=self.clock()))
            case Halt():
                self._halt(step)
            case Dismiss():
                self._append(step.run, ev.Cancelled(why=step.why, at=self.clock()))
            case Forget():
                self._forget(step)
            case _:
                assert_never(step)

    def _halt(self, step: Halt) -> None:
        """The agent reads it with its next pulse, and treats it as a notice."""
        event = ev.Limited(limit=step.limit, why=step.why, hint=step.hint, grace_s=step.grace_s, at=self.clock())
        self._append(step.run, event)

    def _last_words(self, step: Lose) -> str:
        """What the console says of a machine that ended before its command began: it goes with the machine, and nothing
        else could tell why."""
        attempt = self.observer.state(step.run).attempts[step.attempt - 1]
        if attempt.started_at or step.preempted:
            return ""
        try:
            lines = [line.strip() for line in self.clouds[attempt.cloud].serial(attempt.machine).splitlines()]
        except (CloudError, KeyError):
            return ""  # a machine that vanished has none, and a cloud that is not ours to ask tells nothing
        told = " | ".join([line for line in lines if line][-_CONSOLE_LINES:])
        return f"; its console says last: {told[-_CONSOLE_CHARACTERS:]}" if told else ""

    def _append(self, run: str, event: Event) -> bool:
        story = self.observer.watched[run].story
        return story.append(msgspec.structs.replace(event, by=self.who), nonce=self.ids())

    def _place(self, step: Place) -> None:
        offer = step.offer
        self._append(
            step.run,
            ev.Placed(
                attempt=step.attempt,
                cloud=offer.cloud,
                region=offer.region,
                zone=offer.zone,
                type=offer.type,
                spot=offer.spot,
                price_usd_per_hour=offer.price_usd_per_hour,
                on_demand_usd_per_hour=offer.on_demand_usd_per_hour or offer.price_usd_per_hour,
                machine=self.workspace.machine_name(step.run, step.attempt),
                at=self.clock(),
            ),
        )

    def _launch(self, step: Launch) -> None:
        watched, cloud = self.observer.watched[step.run], step.offer.cloud
        name = self.workspace.machine_name(step.run, step.attempt)
        try:
            self.clouds[cloud].launch(
                step.offer,
                name,
                boot=boot(self.workspace, step.run, step.attempt, watched.spec, cloud, path=watched.path),
                labels=labels(self.workspace, step.run, step.attempt),
            )
            self.observer.seen |= {name}
        except (NoCapacity, OverQuota) as problem:
            self._refuse(step, problem)
        except (Throttled, CloudUnreachable) as problem:
            # It is planned again in the next round; meanwhile the run says what it waits for.
            self._hold(step.run, f"{cloud} does not answer a launch: {problem.message}")
            raise
        except (Denied, BadRequest, NotFound) as problem:
            # Permanent: told at once, and never tried in the next zone as if it were a lack of capacity.
            why = f"could not launch {name}: {problem.message}"
            self._append(step.run, ev.Failed(why=why, hint=problem.hint, at=self.clock()))

    def _hold(self, run: str, why: str) -> None:
        if self.observer.state(run).held != why:
            self._append(run, ev.Held(why=why, at=self.clock()))

    def _refuse(self, step: Launch, problem: CloudError) -> None:
        quota = isinstance(problem, OverQuota)
        rest_s = _REST_QUOTA_S if quota else min(_REST_MAX_S, _REST_S * 2 ** min(step.tries, 32))
        resting = (step.offer.key, region_key(step.offer)) if quota else (step.offer.key,)
        self._append(
            step.run,
            ev.Refused(
                attempt=step.attempt,
                why=problem.message,
                until=self.clock() + rest_s,
                resting=resting,
                at=self.clock(),
            ),
        )

    def _reap(self, step: Reap) -> None:
        hand = self.observer.hands.find(step.machine) if step.hand else None
        if hand is not None and hand.id == step.hand:
            try:
                machine = self.clouds[step.cloud].machine(step.machine)
                Books(self.workspace).close_machine(hand, machine)
            except NotFound:
                pass  # somebody was first
        self.clouds[step.cloud].delete(step.machine)
        if hand is not None and hand.id == step.hand:
            # The record goes last, so that one cut short is found again; and it goes: nobody else would take it away.
            self.observer.hands.take_back(hand)

    def _release(self, step: Release) -> None:
        seconds = self._ran_s(step)
        self.clouds[step.cloud].delete(step.machine)
        cost = seconds * step.price_usd_per_hour / 3600.0 + step.disk_usd
        event = ev.Released(
            attempt=step.attempt, cost_usd=cost, seconds=seconds, disk_usd=step.disk_usd, at=self.clock()
        )
        self._append(step.run, event)

    def _ran_s(self, step: Release) -> float:
        """How long the machine ran: its cloud knows, and it is noted before the machine is deleted, for whoever goes on
        if we die in between. If nobody noted it, from its start to its end by the store's clock: those of supervisor,
        agent and cloud may disagree."""
        note = f"runs/{step.run}/ran/{step.attempt}"
        try:
            ran_s = step.ran_s or self.clouds[step.cloud].machine(step.machine).ran_s
            self.workspace.bucket.put(note, msgspec.json.encode(ran_s))
            return ran_s
        except NotFound:
            with suppress(Missing, Damaged):
                return decoded(self.workspace.bucket.get(note), float, note)
            if not step.started_event:
                return 0.0  # nobody ever saw it: the run was over before the launch
        head = self.workspace.bucket.head
        started, over = (head(event_key(step.run, n)).modified_at for n in (step.started_event, step.over_event))
        return max(0.0, over - started)

    def _forget(self, step: Forget) -> None:
        # While the pulse is there, a collection that was cut short is taken up again.
        state = self.observer.watched[step.run].story.state
        collect(self.workspace.bucket, step.run, state)
        Books(self.workspace).close_run(step.run, state)
        for name in self.observer.watched[step.run].spec.machine.clouds:
            # One that this outlast does not know was given none by it.
            if (cloud := self.clouds.get(name)) is not None:
                drop_secrets(self.workspace, cloud, step.run)
        self.workspace.bucket.delete(f"pulse/{step.run}")
        self.observer.forget(step.run)
