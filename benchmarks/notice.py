"""Idle time at a preemption notice: how long no machine trains, if the program saves at once and if it works on.

    python benchmarks/notice.py [--boot 20] [--json]

The real supervisor, conductor and checkpoint code run in a simulated world without faults, where every machine boots in
the same time. The training steps every half second; a save takes up to 0.6 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil

from outlast.agent import handoff
from outlast.agent.instance import Notice
from outlast.testing import simagent, simcloud
from outlast.testing.faults import NONE
from outlast.testing.simulate import Simulation

_PACE_S = 0.5
_PREEMPT_AT_S = 120.0
_RUN_S = 400.0


class BenchmarkAgent(simagent.SimAgent):
    """An agent that boots in a fixed time, whose program's saves were measured or were not."""

    boot_s = 20.0
    works_on = False

    def boot(self) -> None:
        self.scheduler.spawn(self.actor, self._live, after_s=self.boot_s)

    def saving_s(self, notice: Notice) -> float | None:
        if not self.works_on:
            return None
        self.scheduler.spawn(self.actor, self._watch_successor)
        measured = handoff.SavingMeasured(step_s=_PACE_S, save_s=0.6)
        rule = self.request.spec.checkpoint
        return handoff.needed_s(rule, measured, commit_s=self.checkpointer.commit_s, grace_s=notice.grace_s)


def idle_s(*, seed: int, grace_s: float, boot_s: float, works_on: bool) -> float:
    """Return the longest pause between two steps of a training whose machine is preempted once."""
    simcloud.GRACE_S = simagent.GRACE_S = grace_s
    BenchmarkAgent.boot_s, BenchmarkAgent.works_on = boot_s, works_on
    world = Simulation(seed, faults=NONE)
    world.agent_type = BenchmarkAgent
    steps: list[float] = []
    world.cloud.worked = lambda run: steps.append(world.scheduler.now)  # type: ignore[method-assign]
    start = world.scheduler.now
    try:
        world.add_user(steps=int(_RUN_S / _PACE_S), pace_s=_PACE_S, at_s=0.0)
        world.add_supervisor()
        world.scheduler.run(lambda: world.scheduler.now >= start + _PREEMPT_AT_S, limit_s=_PREEMPT_AT_S + 1)
        world.cloud.preempt(world.running()[0], notice=True)
        world.scheduler.run(lambda: world.scheduler.now >= start + _RUN_S, limit_s=_RUN_S + 1)
    finally:
        shutil.rmtree(world.root, ignore_errors=True)
    return max(after - before for before, after in itertools.pairwise(steps)) - _PACE_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boot", type=float, default=20.0, help="seconds from the launch to a machine that is ready")
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    for grace_s, works_on in itertools.product((30.0, 120.0), (False, True)):
        times = sorted(
            idle_s(seed=seed, grace_s=grace_s, boot_s=options.boot, works_on=works_on) for seed in range(options.seeds)
        )
        how = "work-on" if works_on else "save-now"
        found.append({"notice_s": grace_s, "on_notice": how, "median_s": times[len(times) // 2], "worst_s": times[-1]})
    if options.json:
        print(json.dumps(found))
        return
    print(f"idle time at a notice, boot {options.boot:g} s, {options.seeds} times")
    for row in found:
        print(
            f"  notice {row['notice_s']:5.0f} s  {row['on_notice']:8}"
            f"  median {row['median_s']:5.1f} s  worst {row['worst_s']:5.1f} s"
        )


if __name__ == "__main__":
    main()
