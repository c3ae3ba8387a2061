"""Faults between a client and `moto`: refusals by action and parameters, answers that are lost after the work."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import msgspec


class FaultAnswer(NamedTuple):
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Rule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What happens to calls of this action, all of them if it is empty. Actions of EC2 and Systems Manager have
    Amazon's names; those of S3 are `S3.GET`, `S3.PUT` …"""

    action: str = ""
    # A zone that must occur among the parameters.
    zone: str = ""
    code: str = ""
    status: int = 400
    # So many times; 0 is for ever. Every nth call of each action only.
    times: int = 0
    every: int = 1
    # The work is done first, and only the answer is lost.
    after: bool = False
    # The answer is good, and right after it every instance vanishes.
    vanish: bool = False
    seen: dict[str, int] = {}

    def answer(self, action: str) -> FaultAnswer:
        if self.code == "InsufficientInstanceCapacity" and action == "CreateFleet":
            return _empty_fleet(self.code)
        return refusal(self.code, "put in by a rule of the bridge", status=self.status)

    def answer_json(self) -> FaultAnswer:
        why = {"__type": self.code, "message": "put in by a rule of the bridge"}
        return FaultAnswer(self.status, json.dumps(why).encode(), (("Content-Type", "application/x-amz-json-1.1"),))

    def answer_s3(self) -> FaultAnswer:
        text = f"<Error><Code>{self.code}</Code><Message>put in by a rule of the bridge</Message></Error>"
        return FaultAnswer(self.status, text.encode(), (("Content-Type", "application/xml"),))


class FaultRules:
    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def replace(self, rules: Any) -> None:
        self._rules = msgspec.convert(rules, list[Rule])

    def match(self, action: str, asked: dict[str, str]) -> Rule | None:
        for rule in self._rules:
            if rule.action not in ("", action) or (rule.zone and rule.zone not in asked.values()):
                continue
            seen = rule.seen[action] = rule.seen.get(action, 0) + 1
            if seen % rule.every == 0 and (not rule.times or seen // rule.every <= rule.times):
                return rule
        return None


def refusal(code: str, message: str, *, status: int = 400) -> FaultAnswer:
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors>"
        f"<RequestID>{random.getrandbits(48):012x}</RequestID></Response>"
    )
    return FaultAnswer(status, text.encode(), (("Content-Type", "text/xml"),))


def _empty_fleet(code: str) -> FaultAnswer:
    """As EC2 does it: the answer says 200."""
    error = f"<item><errorCode>{code}</errorCode><errorMessage>no capacity here</errorMessage></item>"
    text = (
        '<CreateFleetResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>'
        f"<fleetId>fleet-empty</fleetId><errorSet>{error}</errorSet><fleetInstanceSet/></CreateFleetResponse>"
    )
    return FaultAnswer(200, text.encode(), (("Content-Type", "text/xml"),))
