"""Several trials on one machine: the run that is a worker, and how its trials' metrics are told apart."""

from __future__ import annotations

import shlex

import msgspec

from outlast.runs.metrics import attempts_with_metrics, read
from outlast.spec.requirements import Range
from outlast.spec.spec import CheckpointSpec, MachineSpec, Spec
from outlast.store.bucket import Bucket
from outlast.sweep.record import Sweep


def worker_spec(sweep: Sweep, workspace_url: str) -> Spec:
    """The run of a worker: the machine, data and set-up of the trials, and a command that takes trials from the story.
    It needs nothing of the image but what the agent brings."""
    argv = ["-P", "-m", "outlast.sweep.worker", shlex.quote(workspace_url), shlex.quote(sweep.name)]
    return msgspec.structs.replace(
        sweep.spec,
        command='PYTHONPATH="$OUTLAST_AGENT_PATH" exec "$OUTLAST_AGENT_PYTHON" ' + " ".join(argv),
        params={},
        sweep=None,
        machine=_machine(sweep),
        # Each trial has a folder of its own in the one that the agent commits.
        checkpoint=CheckpointSpec(every_s=sweep.spec.checkpoint.every_s),
        output_path="outputs",
    )


def _machine(sweep: Sweep) -> MachineSpec:
    """A core for each of its trials, unless something else was asked for."""
    machine = sweep.spec.machine
    if machine.type or machine.cpus != Range():
        return machine
    return msgspec.structs.replace(machine, cpus=Range(low=float(sweep.search.per_machine)))


def metric_of(trial: int, name: str) -> str:
    """What a metric of a trial is called among those of its worker."""
    return f"t{trial}.{name}"


def reports_of(bucket: Bucket, run: str, trial: int, name: str) -> dict[int, float]:
    """The values of a trial's metric by step, over all attempts of its worker; what was done again counts."""
    wanted = metric_of(trial, name)
    rows = [row for attempt in attempts_with_metrics(bucket, run) for row in read(bucket, run, attempt)]
    return {row.step: row.values[wanted] for row in rows if wanted in row.values}


def logged_by(bucket: Bucket, run: str, trial: int) -> dict[str, float]:
    """The last value of each metric of a trial that its worker has sent."""
    prefix = metric_of(trial, "")
    rows = [row for attempt in attempts_with_metrics(bucket, run) for row in read(bucket, run, attempt)]
    return {
        name.removeprefix(prefix): value
        for row in rows
        for name, value in row.values.items()
        if name.startswith(prefix)
    }
