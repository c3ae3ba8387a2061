"""MLflow: one run over all attempts, found by a tag, and the values that `run.log` logs.

MLflow creates the ids of its runs. `continue_run` finds the run of earlier attempts or creates it, and sets
MLFLOW_RUN_ID, so that `mlflow.start_run()` and the autologging of frameworks continue it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import mlflow
from mlflow.entities import Metric, Param

from outlast.trainer.environment import Environment, detect_environment

TAG = "outlast.run"
_VALUES_MAX = 1000
_PARAM_CHARACTERS = 500


def continue_run() -> str:
    """Return the id of the MLflow run of this training, the same in all attempts, and set MLFLOW_RUN_ID.

    On a laptop, and with an MLFLOW_RUN_ID of your own, it changes nothing and returns that id, or an empty text.
    """
    environment = detect_environment()
    if "MLFLOW_RUN_ID" not in os.environ and environment.run_id:
        client = mlflow.MlflowClient()
        os.environ["MLFLOW_RUN_ID"] = _found(client, environment) or _created(client, environment)
    return os.environ.get("MLFLOW_RUN_ID", "")


def _found(client: mlflow.MlflowClient, environment: Environment) -> str:
    wanted = f"tags.`{TAG}` = '{environment.run_id}'"
    # The oldest, if two processes once created one at the same time.
    found = client.search_runs([_experiment(client)], wanted, order_by=["attributes.start_time ASC"], max_results=1)
    return found[0].info.run_id if found else ""


def _created(client: mlflow.MlflowClient, environment: Environment) -> str:
    tags = {TAG: environment.run_id} if environment.run_id else {}
    made = client.create_run(_experiment(client), tags=tags, run_name=environment.run or None)
    params = [Param(name, str(value)[:_PARAM_CHARACTERS]) for name, value in environment.params.items()]
    if params:
        client.log_batch(made.info.run_id, params=params[:100])
    return str(made.info.run_id)


def _experiment(client: mlflow.MlflowClient) -> str:
    """Return the experiment that MLflow's variables name."""
    if found := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return found
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if not name:
        return "0"
    experiment = client.get_experiment_by_name(name)
    return str(experiment.experiment_id if experiment is not None else client.create_experiment(name))


class MlflowTracker:
    """The MLflow run of a training, with the last step of each metric that it has from earlier attempts."""

    def __init__(self, environment: Environment, _begin: int = 0) -> None:
        self._client = mlflow.MlflowClient()
        self._run = continue_run() or _created(self._client, environment)
        self._after: dict[str, int] = {}

    def send(self, rows: list[tuple[int, float, Mapping[str, float]]]) -> None:
        new = [
            Metric(name, value, int(at * 1000), step)
            for step, at, values in rows
            for name, value in values.items()
            if step > self._last(name)
        ]
        for begin in range(0, len(new), _VALUES_MAX):
            self._client.log_batch(self._run, metrics=new[begin : begin + _VALUES_MAX])

    def _last(self, name: str) -> int:
        if name not in self._after:
            history = self._client.get_metric_history(self._run, name)
            self._after[name] = max((metric.step for metric in history), default=-1)
        return self._after[name]

    def finish(self, *, complete: bool) -> None:
        if complete:
            self._client.set_terminated(self._run)
