"""Detection of a hung command: the signs of progress, and how long none may come."""

from __future__ import annotations

import sys
from collections.abc import Callable

from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.metrics import MetricsPump
from outlast.agent.output import OutputPump
from outlast.agent.process import Command
from outlast.agent.watch import AgentWatch
from outlast.spec.spec import Spec

_IDLE_S = 3600.0


def watch_for_hang(
    watch: AgentWatch,
    spec: Spec,
    *,
    command: Command,
    pump: OutputPump,
    checkpointer: Checkpointer,
    metrics: MetricsPump,
) -> None:
    """Watch output, files and metrics; without `limits.hang_after`, also processor time, with a long timeout."""
    signs: Callable[[], tuple[object, ...]] = lambda: (pump.last_output_at, checkpointer.last_change_at, metrics.sign())  # noqa: E731
    if spec.limits.hang_after_s:
        watch.watch_for_hang(signs, after_s=spec.limits.hang_after_s)
    elif sys.platform == "linux" and not spec.interactive:
        # A program that still computes is not hung, and an interactive one may wait for its user.
        watch.watch_for_hang(lambda: (*signs(), round(command.processor_s())), after_s=_IDLE_S)
