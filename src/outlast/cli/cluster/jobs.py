"""`outlast cluster submit`, `matrix`, `jobs`, `logs` and `stop`: jobs of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from outlast.cli.cluster.connect import ClusterCommand, command_argument, needs_name, with_interpreter
from outlast.cli.cluster.find import cluster_argument, connect
from outlast.cli.shared.command import READ_ONLY, UNCERTAIN, command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.project import parse_assignment
from outlast.cli.shared.terminal import note, table
from outlast.spec.quantity import describe_s

F = TypeVar("F", bound=Callable[..., Any])
_POLL_S = 2.0


def _job_options(command: F) -> F:
    for option in (
        click.option("--job", "job_name", default="job", metavar="NAME", help="Prefix of the job id."),
        click.option("--dir", "folder", default=".", metavar="FOLDER", help="Working directory to upload."),
        click.option(
            "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Environment variable; may be repeated."
        ),
    ):
        command = option(command)
    return command


@command(
    progress="submitting",
    interrupt="a submitted job continues: `outlast cluster jobs` lists it, `outlast cluster logs -f` follows it",
    cls=ClusterCommand,
)
@click.option("--wait", is_flag=True, help="Follow the output, and exit with the exit code of the job.")
@_job_options
@workspace_option
@needs_name
@command_argument
def submit(
    name: str,
    command: tuple[str, ...],
    workspace_url: str,
    wait: bool,
    job_name: str,
    folder: str,
    variables: tuple[str, ...],
) -> int:
    """Run COMMAND on the cluster NAME, in a copy of the local folder. Prints the id of the job."""
    from outlast.app.clusters import follow_job, submit_jobs, wait_for_job

    command = with_interpreter(command, folder)
    where = connect(workspace_url, name)
    env = dict(parse_assignment(text, option="--env") for text in variables)
    [(job_id, _)] = submit_jobs(where, [({}, command)], name=job_name, folder=folder, env=env, report=note)
    click.echo(job_id)
    if not wait:
        return 0
    with interruptible():
        follow_job(where, job_id)
    return wait_for_job(where, job_id)


@command(
    progress="submitting",
    interrupt="submitted jobs continue: `outlast cluster jobs`",
    json_text="a list of the submitted jobs: `id`, and the value of each axis",
    cls=ClusterCommand,
)
@click.option("--axis", "axes", multiple=True, metavar="NAME=V1,V2", help="One axis of the grid; may be repeated.")
@_job_options
@json_option
@workspace_option
@needs_name
@command_argument
def matrix(
    name: str,
    command: tuple[str, ...],
    workspace_url: str,
    axes: tuple[str, ...],
    job_name: str,
    folder: str,
    variables: tuple[str, ...],
    as_json: bool,
) -> int:
    """Submit COMMAND for every point of a grid: `{NAME}` is replaced by the value, else `--NAME=VALUE` is appended."""
    import json

    from outlast.app.clusters import grid_of, submit_jobs

    command = with_interpreter(command, folder)
    given = dict(parse_assignment(text, option="--axis") for text in axes)
    points = grid_of({axis: values.split(",") for axis, values in given.items()}, command)
    where = connect(workspace_url, name)
    env = dict(parse_assignment(text, option="--env") for text in variables)
    made = []
    for job_id, point in submit_jobs(where, points, name=job_name, folder=folder, env=env, report=note):
        made.append({"id": job_id, **point})
        if not as_json:
            click.echo(f"{job_id}  {' '.join(f'{axis}={value}' for axis, value in point.items())}")
    if as_json:
        click.echo(json.dumps(made, indent=2))
    return 0


@command(
    progress="querying the head",
    interrupt=READ_ONLY,
    json_text="a list of jobs: `id`, `command`, `who`, `matrix`, `status`, and the fields that Ray reports",
)
@cluster_argument
@json_option
@workspace_option
def jobs(name: str, workspace_url: str, as_json: bool) -> int:
    """List the jobs of a cluster, the newest last. Jobs whose head was lost are marked as lost."""
    import json

    from outlast.app.clusters import jobs_of

    found_jobs = jobs_of(connect(workspace_url, name))
    if as_json:
        click.echo(json.dumps(found_jobs, indent=2))
        return 0
    if not found_jobs:
        click.echo("no jobs")
        return 0
    rows = [
        [
            str(job["id"]),
            str(job["status"]),
            _took(job),
            str(job.get("matrix", "")),
            str(job["command"]),
            "" if job["status"] == "SUCCEEDED" else _remark(job),
        ]
        for job in found_jobs
    ]
    click.echo(table(rows, header=["JOB", "STATUS", "TOOK", "POINT", "COMMAND", "REMARKS"]))
    return 0


def _remark(job: dict[str, Any]) -> str:
    """Return the message of Ray without the output that it repeats."""
    return str(job.get("message", "")).partition("\n")[0].partition(", last available logs")[0]


def _took(job: dict[str, Any]) -> str:
    if not job.get("started_at"):
        return "-"
    return describe_s(max(0.0, (job.get("ended_at") or time.time()) - job["started_at"]))


@command(interrupt="stopped reading; the job and the cluster continue")
@needs_name
@click.argument("job", metavar="JOB")
@click.option("--follow", "-f", is_flag=True, help="Follow until it ends.")
@workspace_option
def logs(name: str, job: str, workspace_url: str, follow: bool) -> int:
    """Print the output of JOB of the cluster NAME. JOB is an id, a prefix of one, or `last`."""
    from outlast.app.clusters import follow_job, live_job

    where = connect(workspace_url, name)
    job_id = live_job(where, job)
    with interruptible():
        follow_job(where, job_id, follow=follow)
    return 0


@command(progress="stopping the job", interrupt=UNCERTAIN)
@needs_name
@click.argument("job", metavar="JOB")
@workspace_option
def stop(name: str, job: str, workspace_url: str) -> int:
    """Stop JOB of the cluster NAME. The cluster continues."""
    from outlast.app.clusters import live_job, stop_job

    where = connect(workspace_url, name)
    job_id = live_job(where, job)
    ran, status = stop_job(where, job_id)
    note(f"{job_id} is {status}" if ran else f"{job_id} had already ended: {status}")
    return 0
