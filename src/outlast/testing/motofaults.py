"""Faults between a client and `moto`: refusals by action and parameters, and lost responses."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import msgspec


class FaultAnswer(NamedTuple):
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class FaultRule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A fault for calls of this action; empty: all actions. EC2 and SSM use Amazon's names, S3 `S3.GET`, `S3.PUT` …"""

    action: str = ""
    # A zone that must occur among the parameters, or the region of the request.
    zone: str = ""
    code: str = ""
    status: int = 400
    # How many times (0: always), and for every nth call of each action.
    times: int = 0
    every: int = 1
    # The request is carried out, and only its response is lost.
    after: bool = False
    # The request succeeds, and right afterwards every instance vanishes.
    vanish: bool = False
    seen: dict[str, int] = {}

    def answer(self, action: str) -> FaultAnswer:
        if self.code == "InsufficientInstanceCapacity" and action == "CreateFleet":
            return empty_fleet(self.code, "no capacity here")
        return refusal(self.code, "injected by a rule", status=self.status)

    def answer_json(self) -> FaultAnswer:
        why = {"__type": self.code, "message": "injected by a rule"}
        return FaultAnswer(self.status, json.dumps(why).encode(), (("Content-Type", "application/x-amz-json-1.1"),))

    def answer_s3(self) -> FaultAnswer:
        text = f"<Error><Code>{self.code}</Code><Message>injected by a rule</Message></Error>"
        return FaultAnswer(self.status, text.encode(), (("Content-Type", "application/xml"),))


class FaultRules:
    def __init__(self) -> None:
        self._rules: list[FaultRule] = []

    def replace(self, rules: Any) -> None:
        self._rules = msgspec.convert(rules, list[FaultRule])

    def match(self, action: str, params: dict[str, str]) -> FaultRule | None:
        for rule in self._rules:
            if rule.action not in ("", action) or (rule.zone and rule.zone not in params.values()):
                continue
            seen = rule.seen[action] = rule.seen.get(action, 0) + 1
            if seen % rule.every == 0 and (not rule.times or seen // rule.every <= rule.times):
                return rule
        return None

    def full_zones(self, action: str, zones: Iterable[str]) -> set[str]:
        """Return those zones that have no capacity for this call: a fleet uses its other pools."""
        found = set()
        for zone in dict.fromkeys(zones):
            rule = self._next(action, zone)
            if rule is not None and self.match(action, {"zone": zone}) is rule:
                found.add(zone)
        return found

    def _next(self, action: str, zone: str) -> FaultRule | None:
        """Return the rule that applies to a zone, if it is a lack of capacity there."""
        fitting = (rule for rule in self._rules if rule.action in ("", action) and rule.zone in ("", zone))
        first = next(fitting, None)
        is_full = first is not None and first.zone and first.code == "InsufficientInstanceCapacity"
        return first if is_full else None


def refusal(code: str, message: str, *, status: int = 400) -> FaultAnswer:
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors>"
        f"<RequestID>{random.getrandbits(48):012x}</RequestID></Response>"
    )
    return FaultAnswer(status, text.encode(), (("Content-Type", "text/xml"),))


def empty_fleet(code: str, message: str) -> FaultAnswer:
    """Return a response without instances; like EC2, with status 200."""
    error = f"<item><errorCode>{code}</errorCode><errorMessage>{escape(message)}</errorMessage></item>"
    text = (
        '<CreateFleetResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>'
        f"<fleetId>fleet-empty</fleetId><errorSet>{error}</errorSet><fleetInstanceSet/></CreateFleetResponse>"
    )
    return FaultAnswer(200, text.encode(), (("Content-Type", "text/xml"),))
