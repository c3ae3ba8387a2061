"""Complete runs with faults of EC2: each finishes with one machine per attempt and leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.cloud import LABEL_RUN, Requirements
from outlast.runs.state import RunState
from tests.integration.aws.home import RUN, AwsHome, at_home, left
from tests.support.aws import Bridge
from tests.support.waiting import eventually


@pytest.fixture
def home(bridge: Bridge, cloud: AwsCloud, tmp_path: Path) -> Iterator[AwsHome]:
    bridge.grace(3.0)
    with at_home(tmp_path, bridge, cloud) as own:
        yield own


class Story:
    """A run in progress, and checks of its end."""

    def __init__(self, home: AwsHome, cloud: AwsCloud, count: int = 15) -> None:
        self.home, self.cloud, self.count = home, cloud, count
        self.before = self._instances()
        self.runner = home.start(*RUN, "--", "python3", "count.py", str(count), "0.2")

    @property
    def state(self) -> RunState:
        return self.home.workspace.story("count-1").refresh()

    def _instances(self) -> int:
        """Return the number of instances, terminated ones included: moto keeps them."""
        wanted = [{"Name": "tag-key", "Values": [LABEL_RUN]}]
        pages = self.cloud.client.pages("ec2", "describe_instances", "Reservations", Filters=wanted)
        return sum(len(one["Instances"]) for one in pages)

    def machine(self) -> str:
        def running() -> bool:
            return [machine.status for machine in self.cloud.machines()] == ["running"]

        eventually(running, within_s=90, what="a machine")
        return self.cloud.machines()[0].name

    def ends_right(self, bridge: Bridge, *, machines: int = 0) -> RunState:
        """Expect one machine per attempt that was not refused, or the given number."""
        output, _ = self.runner.communicate(timeout=600)
        assert self.runner.returncode == 0, output
        assert f"count {self.count}" in output
        bridge.rules()
        state = self.state
        assert state.ending == "finished"
        launched = sum(one.outcome != "refused" for one in state.attempts)
        assert self._instances() - self.before == (machines or launched)
        assert left(self.cloud.client) == {}
        return state


@pytest.mark.full
def test_two_zones_without_capacity_are_skipped(home: AwsHome, cloud: AwsCloud, bridge: Bridge) -> None:
    """The fleet has the pools of all zones, so that EC2 chooses one with capacity in the first launch."""
    full = [offer.zone for offer in cloud.offers(Requirements(type="c6i.large"))][:2]
    bridge.rules(*({"action": "CreateFleet", "zone": zone, "code": "InsufficientInstanceCapacity"} for zone in full))
    (attempt,) = Story(home, cloud).ends_right(bridge).attempts
    assert attempt.zone.startswith("us-east-1")
    assert attempt.zone not in full
    assert attempt.outcome == "finished"


@pytest.mark.soak
def test_throttling_of_every_second_call_of_any_kind_only_takes_time(
    home: AwsHome, cloud: AwsCloud, bridge: Bridge
) -> None:
    story = Story(home, cloud)
    # From the first call on, for submit, supervisor and machine.
    bridge.rules({"code": "RequestLimitExceeded", "status": 503, "every": 2})
    state = story.ends_right(bridge)
    assert [one.outcome for one in state.attempts] == ["finished"]


@pytest.mark.full
def test_an_answer_lost_after_the_launch_creates_no_second_machine(
    home: AwsHome, cloud: AwsCloud, bridge: Bridge
) -> None:
    bridge.rules({"action": "CreateFleet", "code": "InternalError", "status": 500, "times": 1, "after": True})
    state = Story(home, cloud).ends_right(bridge)
    assert [one.outcome for one in state.attempts] == ["finished"]


@pytest.mark.soak
def test_a_machine_that_disappears_between_two_calls_is_replaced(
    home: AwsHome, cloud: AwsCloud, bridge: Bridge
) -> None:
    story = Story(home, cloud, count=40)
    eventually(lambda: bool(story.state.checkpoints), within_s=90, what="a checkpoint")
    bridge.rules({"action": "DescribeInstances", "vanish": True, "times": 1})
    state = story.ends_right(bridge)
    assert [one.outcome for one in state.attempts] == ["lost", "finished"]
    assert state.attempts[1].resumed_from


@pytest.mark.soak
def test_an_interruption_in_the_first_minute_costs_no_more_than_that(
    home: AwsHome, cloud: AwsCloud, bridge: Bridge
) -> None:
    story = Story(home, cloud)
    cloud.preempt(story.machine())
    # The agent may not have started yet: then the first attempt is launched again.
    state = story.ends_right(bridge, machines=2)
    assert [one.preempted for one in state.attempts] in ([True, False], [False])
    assert state.attempts[-1].outcome == "finished"
