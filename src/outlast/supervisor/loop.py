"""The loop observe → plan → apply. Any number of supervisors may run, and any may die at any time."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from outlast.clouds.cloud import Cloud
from outlast.clouds.traits import traits_of
from outlast.errors import CloudError, OutlastError, WorkspaceError
from outlast.records.machines import is_supervisor_vm, supervisor_name
from outlast.runs.ended import EndedRuns
from outlast.store import wake_file
from outlast.store.lease import process_name, supervisors
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.supervisor.apply import Applier
from outlast.supervisor.effects import Effects, in_thread
from outlast.supervisor.hindrances import Hindrances
from outlast.supervisor.notifier import Notifier
from outlast.supervisor.observe import Observer, anywhere
from outlast.supervisor.plan import plan
from outlast.supervisor.upkeep import Upkeep
from outlast.supervisor.world import Reap, Step, World, describe
from outlast.workspace import Workspace

# Pauses between rounds: short while steps are planned, longer otherwise. Buckets bill every request and are polled
# less.
_QUICK_S, _CALM_S = 0.05, 0.3
_REMOTE_S, _REMOTE_CALM_S, _REMOTE_STANDBY_S = 1.5, 5.0, 10.0
# How often the end of a slow effect, and the file for wakeups of this computer, are polled between rounds.
_POLL_S = 0.05
# In a longer pause the wakeups of a bucket are listed once in between.
_LISTEN_S = 2.0
# A lease counts as held for this part of its time to live after a renewal: rounds that follow each other renew once.
_FRESH_PART = 3 / 8
# How long a supervisor that exits waits for its effects in flight; shorter than its lease.
_LEAVE_S = 3.0
# Rounds without a pause, while each of them plans steps, and the pause after them where requests are billed.
_BURST, _REMOTE_BURST_S = 4, 1.0


def on_this_computer(cloud: str) -> bool:
    return not traits_of(cloud).remote


def on_clouds(cloud: str) -> bool:
    """Return the scope of a supervisor machine: it cannot reach the local cloud of a user's computer."""
    return traits_of(cloud).remote


class Supervisor:
    """One supervisor of one workspace."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        *,
        who: str = "",
        supervisor_vm: str = "",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        ids: Callable[[], str] = lambda: secrets.token_hex(8),
        report: Callable[[str], None] = lambda _: None,
        each: ParallelMap = in_parallel,
        effects: Effects | None = None,
    ) -> None:
        self.workspace = workspace
        self.clock = clock
        self.report = report
        self.each = each
        who = who or process_name()
        self.supervisor_vm = supervisor_vm
        self.observer = Observer(workspace, clouds, monotonic=monotonic, each=each, supervisor_vm=supervisor_vm)
        self.applier = Applier(workspace, clouds, self.observer, who=who, clock=clock, ids=ids)
        self.hindrances = Hindrances(workspace.bucket, console=self.applier.console_tail, monotonic=monotonic)
        self.lease = supervisors(workspace.bucket, workspace.url, "supervisor", who=who, monotonic=monotonic)
        self.local_lease = supervisors(workspace.bucket, workspace.url, "this-computer", who=who, monotonic=monotonic)
        self.standby_lease = supervisors(workspace.bucket, workspace.url, "standby", who=who, monotonic=monotonic)
        self.world = World(now=clock(), workspace_id=workspace.id)
        # `round` applies its effects inline; `run` applies them in threads beside the rounds.
        self._inline = effects is None
        self.effects = effects or Effects()
        self.notifier = Notifier(workspace, report=report)
        self.upkeep = Upkeep(workspace, report=report, monotonic=monotonic)
        # Whether the index of ended runs is known to be complete.
        self._indexed = False

    def round(self) -> tuple[Step, ...]:
        """Observe, plan and apply once; return the steps applied or begun. The next round plans failed steps again."""
        if not self._indexed:
            EndedRuns(self.workspace, each=self.each).rebuild()
            self._indexed = True
        self.record_effects()
        self.world = self.observer.observe(self.clock())
        self.hindrances.update(self.world)
        by_run: dict[str, list[Step]] = {}
        for step in self.decide(self.world):
            by_run.setdefault(step.machine if isinstance(step, Reap) else step.run, []).append(step)
        done = self.each(self._apply_all, list(by_run.values()))
        self.record_effects()
        return tuple(step for steps in done for step in steps)

    def decide(self, world: World) -> tuple[Step, ...]:
        return plan(world)

    def record_effects(self) -> None:
        """Record the effects that have ended since the last call."""
        for result in self.effects.collect():
            try:
                self.applier.record(result)
            except (CloudError, WorkspaceError) as problem:
                self.report(f"could not {describe(result.step)}: {problem.message}")

    def _apply_all(self, steps: list[Step]) -> list[Step]:
        """Apply the quick steps and begin the slow ones; return those that were not already in flight."""
        return [step for step in steps if self._apply(step)]

    def _apply(self, step: Step) -> bool:
        effect = self.applier.slow(step)
        if effect is not None:
            begun = self.effects.begin(effect)
            if begun:
                self.report(describe(step))
            return begun
        self.report(describe(step))
        try:
            self.applier.apply(step)
        except (CloudError, WorkspaceError) as problem:
            self.report(f"could not {describe(step)}: {problem.message}")
        return True

    def idle(self) -> bool:
        """Return whether no run is alive and no machine of a run exists."""
        return (
            not self.observer.watched
            and not self.effects.busy
            and not any("outlast-run" in machine.labels for machine in self.world.machines.values())
        )

    def has_cloud_supervisor(self) -> bool:
        """Return whether a supervisor machine is at work. It handles runs on clouds; local runs remain ours."""
        if self.supervisor_vm or self._local:
            return False
        holder = self.lease.other or self.lease.holder()
        if holder is None or not is_supervisor_vm(holder.who):
            return False
        # A supervisor machine that is about to exit may not see a run that was submitted just now.
        machine_record = self.observer.machine_records.find(supervisor_name(self.workspace))
        return machine_record is not None and machine_record.phase != "deleting"

    def hold_lease(self) -> bool:
        """Take or renew the lease of the workspace's supervisor; return whether this process holds it."""
        return self.lease.hold(fresh_s=self.lease.ttl_s * _FRESH_PART)

    def _acquire_scope(self, holds_lease: bool) -> bool:
        """Set the scope of this supervisor; return whether it has work to do."""
        local = not holds_lease and self.has_cloud_supervisor() and self.local_lease.hold()
        self.observer.set_scope(on_this_computer if local else on_clouds if self.supervisor_vm else anywhere)
        return holds_lease or local

    def run(
        self,
        *,
        stop: threading.Event,
        until_idle: bool = False,
        surplus_leaves: bool = False,
        should_exit: Callable[[bool], bool] = lambda _: False,
    ) -> bool:
        """Run rounds until `stop` is set, until idle (`until_idle`), or until two others run (`surplus_leaves`).

        Returns whether nothing is left to do. After every round without steps, `should_exit` is called with whether
        this supervisor is working.
        """
        wait_s, burst, far_s = _QUICK_S, 0, _REMOTE_S
        if self._inline:
            self._inline, self.effects = False, Effects(in_thread)
        self.notifier.start()
        try:
            while not stop.is_set():
                try:
                    holds_lease = self.hold_lease()
                    if not holds_lease and surplus_leaves and not self.standby_lease.hold():
                        return False  # one supervisor works and one stands by: enough
                    working = self.notifier.active = self._acquire_scope(holds_lease)
                    self.record_effects()
                    steps = self.round() if working else ()
                    if holds_lease and not steps:
                        self.upkeep.begin_if_due()
                    if not steps and ((until_idle and working and self.idle()) or should_exit(working)):
                        return True
                except OutlastError as problem:
                    self.report(f"{problem.message}; trying again")
                    holds_lease, steps = False, ()
                except Exception:  # noqa: BLE001
                    # A bug in one round must not leave all runs unsupervised: report it, and start the next round
                    # without caches.
                    import traceback

                    self.report(f"bug: {traceback.format_exc()}")
                    self.observer.watched.clear()
                    holds_lease, steps, wait_s = False, (), _CALM_S
                # MarkLost, PlaceAttempt and Launch follow each other without a pause, but repeated failures must not
                # spin.
                burst = (burst + 1) % _BURST if steps else 0
                calmer_s = _QUICK_S if steps else min(_CALM_S, max(_QUICK_S, wait_s * 1.3))
                wait_s = 0.0 if burst else calmer_s
                if not self._local:
                    calm_s = _REMOTE_CALM_S if self.notifier.active else _REMOTE_STANDBY_S
                    far_s = _REMOTE_S if steps else min(calm_s, far_s * 1.2)
                    wait_s = far_s if not steps else 0.0 if burst else _REMOTE_BURST_S
                self._pause(stop, wait_s)
            return False
        finally:
            self._leave()

    def _leave(self) -> None:
        """Record the effects that end soon; another supervisor repeats the others."""
        self.effects.wait(_LEAVE_S)
        held = self.lease.epoch
        for act in (self.record_effects, self.lease.release, self.local_lease.release, self.standby_lease.release):
            # Leases expire by themselves.
            with suppress(OutlastError):
                act()
        if held and not self._local:
            wake_file.touch(self.workspace.url)  # one that stands by on this computer takes over at once
        # Last: another supervisor may work meanwhile.
        self.notifier.finish()

    def _pause(self, stop: threading.Event, wait_s: float) -> None:
        """Wait for the next round, a successful slow effect, or a new wakeup."""
        until, before = time.monotonic() + wait_s, self._pending_wakeups()
        listen_at = until - wait_s / 2 if wait_s > _LISTEN_S and not self._local and self.lease.epoch else math.inf
        while (left_s := until - time.monotonic()) > 0 and self._pending_wakeups() == before:
            if self.effects.succeeded or stop.wait(min(_POLL_S, left_s)):
                return
            if time.monotonic() > listen_at:
                listen_at = math.inf
                if self._has_new_wakeups():
                    return

    def _pending_wakeups(self) -> Sequence[str] | int:
        """Return a value that changes with a wakeup, where reading it is free: in a folder, or from this computer."""
        try:
            if self._local:
                return self.workspace.bucket.children("wakeups/")
            return wake_file.touched_at(self.workspace.url)
        except OutlastError:
            return ()  # the next round reports it

    def _has_new_wakeups(self) -> bool:
        try:
            listed = self.workspace.wakeups()
        except OutlastError:
            return False  # the next round reports it
        return any(entry.key not in self.observer.wakeups_seen for entries in listed.values() for entry in entries)

    @property
    def _local(self) -> bool:
        return not self.workspace.store.remote
