"""The loop observe → plan → apply. Any number of supervisors may run it; losing one loses nothing."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from outlast.clouds.cloud import Cloud
from outlast.errors import CloudError, OutlastError, WorkspaceError
from outlast.records.machines import is_supervisor_vm, supervisor_name
from outlast.runs.ended import EndedRuns
from outlast.store.lease import process_name, supervisors
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.supervisor.apply import Applier
from outlast.supervisor.effects import Effects, in_thread
from outlast.supervisor.observe import Observer, anywhere
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Reap, Step, World, describe
from outlast.workspace import Workspace

# Between rounds: short while things happen, longer when nothing does; a bucket far away, which bills for every look,
# is asked less often.
_QUICK_S, _CALM_S = 0.05, 0.3
_REMOTE_S, _REMOTE_CALM_S = 1.5, 5.0
# How often the end of a slow effect is looked for between rounds.
_LOOK_S = 0.25
# How long a supervisor that leaves waits for its effects in flight: less than its lease lives.
_LEAVE_S = 3.0
# Rounds without a pause while each of them does something.
_HURRY = 4


def on_this_computer(cloud: str) -> bool:
    return cloud == "local"


def on_clouds(cloud: str) -> bool:
    """What a machine of a cloud sees to: another computer's own cloud is not its to touch."""
    return cloud != "local"


class Supervisor:
    """One supervisor of one workspace."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        *,
        who: str = "",
        station: str = "",
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
        self.station = station
        self.observer = Observer(workspace, clouds, monotonic=monotonic, each=each, station=station)
        self.applier = Applier(workspace, clouds, self.observer, who=who, clock=clock, ids=ids)
        self.lease = supervisors(workspace.bucket, workspace.url, "supervisor", who=who, monotonic=monotonic)
        self.near = supervisors(workspace.bucket, workspace.url, "near", who=who, monotonic=monotonic)
        self.spare = supervisors(workspace.bucket, workspace.url, "spare", who=who, monotonic=monotonic)
        self.world = World(now=clock(), workspace_id=workspace.id)
        # A round that is called alone does its effects inline; `run` does them beside the rounds.
        self._alone = effects is None
        self.effects = effects or Effects()
        # Whether the index of ended runs is known to be complete.
        self._indexed = False

    def round(self) -> tuple[Step, ...]:
        """Observe, plan, apply, once; the steps that were done or begun. The next round plans failed steps again."""
        if not self._indexed:
            EndedRuns(self.workspace, each=self.each).rebuild()
            self._indexed = True
        self.record_effects()
        self.world = self.observer.observe(self.clock())
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
        """Apply the quick steps, begin the slow ones; without those that are in flight already."""
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
        """Nothing lives and nothing costs: the supervisor may go home."""
        return (
            not self.observer.watched
            and not self.effects.busy
            and not any("outlast-run" in machine.labels for machine in self.world.machines.values())
        )

    def beside(self) -> bool:
        """Whether a machine of a cloud supervises. It sees to the runs on clouds; those on this computer are ours."""
        if self.station or self._local:
            return False
        holder = self.lease.holder()
        if holder is None or not is_supervisor_vm(holder.who):
            return False
        # One that is about to leave may not have heard of what was submitted just now.
        machine_record = self.observer.machine_records.find(supervisor_name(self.workspace))
        return machine_record is not None and machine_record.phase != "deleting"

    def _part(self, holds_lease: bool) -> bool:
        """Take our part of the work; whether we have one."""
        near = not holds_lease and self.beside() and self.near.hold()
        self.observer.mind(on_this_computer if near else on_clouds if self.station else anywhere)
        return holds_lease or near

    def run(
        self,
        *,
        stop: threading.Event,
        until_idle: bool = False,
        surplus_leaves: bool = False,
        relieved: Callable[[bool], bool] = lambda _: False,
    ) -> None:
        """Rounds until told to stop, or until there is nothing left to do, or until two others are at it.

        `relieved` is asked after every round that did nothing: whether to leave, all the same.
        """
        wait_s, hurry, far_s = _QUICK_S, 0, _REMOTE_S
        if self._alone:
            self._alone, self.effects = False, Effects(in_thread)
        try:
            while not stop.is_set():
                try:
                    holds_lease = self.lease.hold()
                    if not holds_lease and surplus_leaves and not self.spare.hold():
                        return  # one supervises and one stands by: enough
                    working = self._part(holds_lease)
                    self.record_effects()
                    steps = self.round() if working else ()
                    if not steps and ((until_idle and working and self.idle()) or relieved(working)):
                        return
                except OutlastError as problem:
                    self.report(f"{problem.message}; trying again")
                    holds_lease, steps = False, ()
                except Exception:  # noqa: BLE001
                    # A bug of ours in one round must not leave every run unattended; it is loud, and the next round
                    # begins with fresh eyes.
                    import traceback

                    self.report(f"bug: {traceback.format_exc()}")
                    self.observer.watched.clear()
                    holds_lease, steps, wait_s = False, (), _CALM_S
                # A loss, a place and a launch follow each other at once; what goes on failing does not make us spin.
                hurry = (hurry + 1) % _HURRY if steps else 0
                calmer_s = _QUICK_S if steps else min(_CALM_S, max(_QUICK_S, wait_s * 1.3))
                wait_s = 0.0 if hurry else calmer_s
                if not self._local:
                    far_s = _REMOTE_S if steps else min(_REMOTE_CALM_S, far_s * 1.2)
                    wait_s = max(wait_s, far_s if not steps else 0.2)
                self._rest(stop, wait_s)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Record the effects that end soon, and leave the others to a successor, which repeats them."""
        self.effects.wait(_LEAVE_S)
        for act in (self.record_effects, self.lease.release, self.near.release, self.spare.release):
            # Leases expire by themselves.
            with suppress(OutlastError):
                act()

    def _rest(self, stop: threading.Event, wait_s: float) -> None:
        """Wait until the next round is due, a slow effect has succeeded, or a wakeup rings: where looking for wakeups costs
        one small listing, a notice need not wait for the round."""
        until, look_s = time.monotonic() + wait_s, _QUICK_S if self._local else _LOOK_S
        hanging = self._bells()
        while (left_s := until - time.monotonic()) > 0 and self._bells() == hanging and not self.effects.succeeded:
            if stop.wait(min(look_s, left_s)):
                return

    def _bells(self) -> Sequence[str]:
        try:
            return self.workspace.bucket.children("wakeups/") if self._local else ()
        except OutlastError:
            return ()  # the round will say it

    @property
    def _local(self) -> bool:
        return "://" not in self.workspace.url
