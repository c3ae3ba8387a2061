"""The loop observe → plan → apply. Any number of supervisors may run it; losing one loses nothing."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from outlast.clouds.cloud import Cloud
from outlast.errors import CloudError, OutlastError, WorkspaceError
from outlast.supervisor.apply import Applier
from outlast.supervisor.observe import Observer, anywhere
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Reap, Step, World, describe
from outlast.workspace.each import Each, in_parallel
from outlast.workspace.hand import is_stationed, name_of_this_process, supervisor_name
from outlast.workspace.lease import supervisors
from outlast.workspace.workspace import Workspace

# Between rounds: short while things happen, longer when nothing does; a bucket far away, which bills for every look,
# is asked less often.
_QUICK_S, _CALM_S = 0.05, 0.3
_REMOTE_S, _REMOTE_CALM_S = 1.5, 5.0
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
        say: Callable[[str], None] = lambda _: None,
        each: Each = in_parallel,
    ) -> None:
        self.workspace = workspace
        self.clock = clock
        self.say = say
        self.each = each
        who = who or name_of_this_process()
        self.station = station
        self.observer = Observer(workspace, clouds, monotonic=monotonic, each=each, station=station)
        self.applier = Applier(workspace, clouds, self.observer, who=who, clock=clock, ids=ids)
        self.lease = supervisors(workspace.bucket, workspace.url, "supervisor", who=who)
        self.near = supervisors(workspace.bucket, workspace.url, "near", who=who)
        self.spare = supervisors(workspace.bucket, workspace.url, "spare", who=who)
        self.world = World(now=clock(), workspace_id=workspace.id)

    def round(self) -> tuple[Step, ...]:
        """Observe, plan, apply, once; what was done. Passing troubles are said and planned again next time."""
        self.world = self.observer.observe(self.clock())
        steps = plan(self.world)
        by_run: dict[str, list[Step]] = {}
        for step in steps:
            by_run.setdefault(step.machine if isinstance(step, Reap) else step.run, []).append(step)
        self.each(self._apply_all, list(by_run.values()))
        return steps

    def _apply_all(self, steps: list[Step]) -> None:
        for step in steps:
            self.say(describe(step))
            try:
                self.applier.apply(step)
            except (CloudError, WorkspaceError) as problem:
                self.say(f"could not {describe(step)}: {problem.message}")

    def idle(self) -> bool:
        """Nothing lives and nothing costs: the supervisor may go home."""
        return not self.observer.watched and not any(
            "outlast-run" in machine.labels for machine in self.world.machines.values()
        )

    def beside(self) -> bool:
        """Whether a machine of a cloud supervises. It sees to the runs on clouds; those on this computer are ours."""
        if self.station or self._local:
            return False
        holder = self.lease.holder()
        if holder is None or not is_stationed(holder.who):
            return False
        # One that is about to leave may not have heard of what was submitted just now.
        hand = self.observer.hands.find(supervisor_name(self.workspace))
        return hand is not None and hand.phase != "deleting"

    def _part(self, holding: bool) -> bool:
        """Take our part of the work; whether we have one."""
        near = not holding and self.beside() and self.near.hold()
        self.observer.mind(on_this_computer if near else on_clouds if self.station else anywhere)
        return holding or near

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
        try:
            while not stop.is_set():
                try:
                    holding = self.lease.hold()
                    if not holding and surplus_leaves and not self.spare.hold():
                        return  # one supervises and one stands by: enough
                    working = self._part(holding)
                    steps = self.round() if working else ()
                    if not steps and ((until_idle and working and self.idle()) or relieved(working)):
                        return
                except OutlastError as problem:
                    self.say(f"{problem.message}; trying again")
                    holding, steps = False, ()
                except Exception:  # noqa: BLE001
                    # A bug of ours in one round must not leave every run unattended; it is loud, and the next round
                    # begins with fresh eyes.
                    import traceback

                    self.say(f"bug: {traceback.format_exc()}")
                    self.observer.watched.clear()
                    holding, steps, wait_s = False, (), _CALM_S
                # A loss, a place and a launch follow each other at once; what goes on failing does not make us spin.
                hurry = (hurry + 1) % _HURRY if steps else 0
                calmer_s = _QUICK_S if steps else min(_CALM_S, max(_QUICK_S, wait_s * 1.3))
                wait_s = 0.0 if hurry else calmer_s
                if not self._local:
                    far_s = _REMOTE_S if steps else min(_REMOTE_CALM_S, far_s * 1.2)
                    wait_s = max(wait_s, far_s if not steps else 0.2)
                self._rest(stop, wait_s)
        finally:
            try:
                self.lease.release()
                self.near.release()
                self.spare.release()
            except OutlastError:
                pass  # they expire by themselves

    def _rest(self, stop: threading.Event, wait_s: float) -> None:
        """Until it is time for the next round, or until somebody rings: where that costs one small listing, a notice
        need not wait for the round."""
        until, look_s = time.monotonic() + wait_s, _QUICK_S if self._local else wait_s
        hanging = self._bells()
        while (left_s := until - time.monotonic()) > 0 and self._bells() == hanging:
            if stop.wait(min(look_s, left_s)):
                return

    def _bells(self) -> Sequence[str]:
        try:
            return self.workspace.bucket.children("bell/") if self._local else ()
        except OutlastError:
            return ()  # the round will say it

    @property
    def _local(self) -> bool:
        return "://" not in self.workspace.url
