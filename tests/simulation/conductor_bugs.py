"""Planted bugs in the order of effects of an attempt."""

from __future__ import annotations

from typing import Any

from outlast.agent.conductor import Conductor
from outlast.agent.effects import Effect, OutputsReport, Script
from outlast.testing.simagent import SimAgent


class Filtered(Conductor):
    """The conductor with one of its effects answered without being performed."""

    def answer(self, effect: Effect) -> tuple[object, ...]:
        """The answer to give instead of performing the effect; empty to perform it."""
        return ()

    def changed(self, effect: Effect, answer: Any) -> Any:
        """The answer that the script gets for an effect that was performed."""
        return answer

    def conduct(self) -> Script[None]:
        script, answer, failure = super().conduct(), None, None
        while True:
            try:
                effect = script.send(answer) if failure is None else script.throw(failure)
            except StopIteration:
                return
            answer, failure = None, None
            if planted := self.answer(effect):
                answer = planted[0]
                continue
            try:
                answer = self.changed(effect, (yield effect))
            except Exception as problem:  # noqa: BLE001  passed on to the script
                failure = problem


class DoesNotRestoreAgain(Filtered):
    """Starts with what it had restored before `Started`, which fenced a predecessor that committed until then."""

    started: tuple[object, ...] = ()

    def answer(self, effect: Effect) -> tuple[object, ...]:
        if effect.name == "append_started":
            self.started = effect.arguments[:1]
        return self.started if effect.name == "restore" else ()


class DoesNotRestoreAgainAgent(SimAgent):
    conductor_type = DoesNotRestoreAgain


class ForgivesMissingOutputs(Filtered):
    """Takes outputs that could not be copied for copied."""

    def changed(self, effect: Effect, answer: Any) -> Any:
        return OutputsReport(sent=answer.sent) if effect.name == "send_outputs" else answer


class ForgivingAgent(SimAgent):
    conductor_type = ForgivesMissingOutputs
