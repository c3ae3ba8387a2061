"""The machine's own view of itself on EC2: metadata (IMDSv2), two-minute notice, rebalance warning before it."""

from __future__ import annotations

import base64
import datetime
import json
import re
import subprocess
import time

from outlast.agent.instance import Notice
from outlast.code.bootstrap import Ec2

# Amazon recommends five seconds. A request is free, and each second is the program's.
_POLL_S = 1.0
_GRACE_S = 120.0
_ACTION = "meta-data/spot/instance-action"
_REGISTRY = re.compile(r"\d+\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_ECR_TOKEN = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
_REBALANCE = "meta-data/events/recommendations/rebalance"
_SCHEDULED = "meta-data/events/maintenance/scheduled"
# Announced days before.
_SCHEDULED_S = 60.0


class Ec2Instance:
    """A machine of EC2. It needs no permission to delete itself: machines of runs terminate on shutdown."""

    def __init__(self) -> None:
        self.machine = Ec2()
        self._warned = False
        self._planned = False
        self._scheduled_at = 0.0

    def attribute(self, name: str, default: str = "") -> str:
        return self.machine.attribute(name) or default

    def wait_for_notice(self, timeout_s: float) -> Notice | None:
        until = time.monotonic() + timeout_s
        while True:
            if notice := self._poll():
                return notice
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(_POLL_S, left_s))

    def _poll(self) -> Notice | None:
        action = self.machine.get(_ACTION)
        if action is not None:
            return Notice(why="preempted", grace_s=_left_s(action, time.time()))
        if not self._warned and self.machine.get(_REBALANCE) is not None:
            self._warned = True
            return Notice(
                why="EC2 recommends to move off this machine: it may be preempted soon", grace_s=0.0, early=True
            )
        if not self._planned and time.monotonic() >= self._scheduled_at:
            self._scheduled_at = time.monotonic() + _SCHEDULED_S
            if plan := _planned(self.machine.get(_SCHEDULED) or b"[]"):
                self._planned = True
                return Notice(why=plan, grace_s=0.0, early=True)
        return None

    def name(self) -> str:
        return self.machine.text("meta-data/tags/instance/outlast-machine")

    def address(self) -> str:
        return self.machine.text("meta-data/local-ipv4")

    def secrets(self, name: str) -> dict[str, str]:
        try:
            return self.machine.secrets(name)
        except (ValueError, KeyError) as problem:
            raise OSError(f"cannot read the secrets from Systems Manager: {problem!r}") from problem

    def registry_login(self, host: str) -> tuple[str, str] | None:
        found = _REGISTRY.fullmatch(host)
        if found is None:
            return None
        try:
            answer = self.machine.api("ecr", "api.ecr", _ECR_TOKEN, {}, region=found[1])
            user, _, password = base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).partition(b":")
        except (ValueError, KeyError, IndexError) as problem:
            raise OSError(f"cannot read the token of the registry: {problem!r}") from problem
        return user.decode(), password.decode()

    def delete_self(self) -> None:
        done = subprocess.run(["shutdown", "-h", "now"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"shutdown: {done.stderr.strip()}")


def _planned(body: bytes) -> str:
    """Return EC2's plan to stop, restart or retire the machine; empty if it has none."""
    try:
        plans = [one for one in json.loads(body) if one.get("State") == "active"]
        return f"EC2 plans `{plans[0]['Code']}` of this machine after {plans[0]['NotBefore']}" if plans else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _left_s(action: bytes, now: float) -> float:
    """Return the time left until the moment in the notice; half of the usual time if it cannot be parsed."""
    try:
        when = datetime.datetime.fromisoformat(json.loads(action)["time"].replace("Z", "+00:00")).timestamp()
    except (ValueError, KeyError, TypeError, AttributeError):
        return _GRACE_S / 2
    return min(_GRACE_S, max(0.0, when - now))
