"""`[limits] idle_gpu`: a run whose GPUs compute nothing saves and stops. Only its own machine can observe that."""

from __future__ import annotations

from collections.abc import Callable

from outlast.agent.attempt import AttemptWriter
from outlast.errors import OutlastError
from outlast.runs.usage import Sample
from outlast.spec.quantity import describe_s

LIMIT = "idle_gpu"
# The part of the limit after which a warning is written.
_NEAR = 0.5
_POLL_S = 5.0


class IdleGpuGuard:
    """Appends a warning, and then the end of the run, while all GPUs are idle."""

    def __init__(self, attempt: AttemptWriter, *, limit_s: float, grace_s: float) -> None:
        self.attempt = attempt
        self.limit_s = limit_s
        self.grace_s = grace_s

    def watch(self, usage: Callable[[], Sample | None], pause: Callable[[float], bool]) -> None:
        """Check until `pause` returns True, or until the limit is reached."""
        while not pause(min(_POLL_S, self.limit_s / 4)):
            sample = usage()
            try:
                if sample is not None and self.check(sample.gpu_idle_s):
                    return
            except OutlastError:
                continue  # the store did not answer

    def check(self, idle_s: float) -> bool:
        """Append what follows from an idle time. Returns whether the limit is reached."""
        why = f"all GPUs have been idle for {describe_s(idle_s)}, and `idle_gpu` is {describe_s(self.limit_s)}"
        if idle_s >= self.limit_s:
            hint = "its checkpoints are kept; see `outlast logs` for what it waited for"
            self.attempt.reach_limit(LIMIT, why, hint=hint, grace_s=self.grace_s)
            return True
        if idle_s >= _NEAR * self.limit_s and LIMIT not in self.attempt.story.refresh().near:
            self.attempt.warn_of_limit(LIMIT, why)
        return False
