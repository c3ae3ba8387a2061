"""What counts as a sign of life of the command, and for how long there may be none."""

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
    """Output, files and metrics are signs; where nobody said how long silence is normal, processor time is, too."""
    signs: Callable[[], tuple[object, ...]] = lambda: (pump.last_output_at, checkpointer.last_change_at, metrics.sign())  # noqa: E731
    if spec.limits.hang_after_s:
        watch.watch_for_hang(signs, after_s=spec.limits.hang_after_s)
    elif sys.platform == "linux" and not spec.interactive:
        # A program that still computes is not taken for a hung one, and neither is one that may wait for what
        # somebody types.
        watch.watch_for_hang(lambda: (*signs(), round(command.processor_s())), after_s=_IDLE_S)
