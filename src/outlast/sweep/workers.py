"""Workers, the runs that execute several trials on one machine: their spec and the metrics of their trials."""

from __future__ import annotations

import shlex

import msgspec

from outlast.runs.metrics import attempts_with_metrics, read
from outlast.spec.requirements import Range
from outlast.spec.spec import CheckpointSpec, MachineSpec, Spec
from outlast.store.bucket import Bucket
from outlast.sweep.record import Sweep


def worker_spec(sweep: Sweep, workspace_url: str) -> Spec:
    """Return the spec of a worker: machine, data and setup of the trials, and a command that executes trials.

    The command needs only the agent's Python, not the image's.
    """
    argv = ["-P", "-m", "outlast.sweep.worker", shlex.quote(workspace_url), shlex.quote(sweep.name)]
    return msgspec.structs.replace(
        sweep.spec,
        command='PYTHONPATH="$OUTLAST_AGENT_PATH" exec "$OUTLAST_AGENT_PYTHON" ' + " ".join(argv),
        params={},
        sweep=None,
        machine=_machine(sweep),
        # Each trial has a separate folder inside the one that the agent commits.
        checkpoint=CheckpointSpec(every_s=sweep.spec.checkpoint.every_s),
        output_path="outputs",
    )


def _machine(sweep: Sweep) -> MachineSpec:
    """Return the machine, with a core per trial unless the spec sets the size."""
    machine = sweep.spec.machine
    if machine.type or machine.cpus != Range():
        return machine
    return msgspec.structs.replace(machine, cpus=Range(low=float(sweep.search.per_machine)))


def metric_of(trial: int, name: str) -> str:
    """Return the name of a trial's metric among the metrics of its worker."""
    return f"t{trial}.{name}"


def reports_of(bucket: Bucket, run: str, trial: int, name: str) -> dict[int, float]:
    """Return a trial's metric by step, over all attempts of its worker; the latest value of a step counts."""
    wanted = metric_of(trial, name)
    rows = [row for attempt in attempts_with_metrics(bucket, run) for row in read(bucket, run, attempt)]
    return {row.step: row.values[wanted] for row in rows if wanted in row.values}


def logged_by(bucket: Bucket, run: str, trial: int) -> dict[str, float]:
    """Return the last value of each metric of a trial that its worker has sent."""
    prefix = metric_of(trial, "")
    rows = [row for attempt in attempts_with_metrics(bucket, run) for row in read(bucket, run, attempt)]
    return {
        name.removeprefix(prefix): value
        for row in rows
        for name, value in row.values.items()
        if name.startswith(prefix)
    }
