"""Results of the steps of a verification, and the report for people and as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

StepState = Literal["ok", "FAIL", "skipped"]

STEPS = (
    "identity",
    "rights",
    "network",
    "bucket",
    "prices and quotas",
    "launch",
    "machine",
    "run",
    "preemption",
    "sudden end",
    "boot failure",
    "secrets",
    "no supervisor",
    "ssh",
    "clean-up",
)
# The steps that create nothing that costs money.
DRY = STEPS[:5]


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """One step: its state, the observation, the next step after a failure, and the cloud's last request id."""

    step: str
    state: StepState
    text: str
    fix: str = ""
    request: str = ""
    seconds: float = 0.0


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole verification."""

    id: str
    cloud: str
    region: str
    version: str
    steps: list[VerifyResult]
    cost_usd: float

    @property
    def failed(self) -> bool:
        return any(one.state == "FAIL" for one in self.steps)


class VerifyStepFailed(Exception):
    """A step found a problem."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.fix = fix


class VerifyStepSkipped(Exception):
    """A step cannot run here."""
