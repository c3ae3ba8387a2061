"""Weights & Biases: the values that `run.log` logs, in one run over all attempts."""

from __future__ import annotations

from collections.abc import Mapping

import wandb

from outlast.trainer.environment import Environment


class WandbTracker:
    """The run of this process: the one that the program began, or a new one with the variables of the agent."""

    def __init__(self, environment: Environment, _begin: int = 0) -> None:
        self._own = wandb.run is None
        self._run = wandb.run or wandb.init(config=dict(environment.params))
        # The server knows the last step. Offline, the agent passes it.
        self._after = environment.logged_step if self._run.offline else self._run.starting_step - 1

    def send(self, rows: list[tuple[int, float, Mapping[str, float]]]) -> None:
        for step, _, values in rows:
            if step > self._after:
                self._run.log(dict(values), step=step)

    def finish(self, *, complete: bool) -> None:
        if not self._own:
            return  # the program ends its run
        if not complete:
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if complete else 1)
