"""`outlast cluster submit`, `matrix`, `jobs`, `logs`, `stop`, `attach`, `exec`, `dashboard`: work on a cluster."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.cluster_find import cluster_argument, complete_cluster, find_cluster
from outlast.cli.machine_find import workshop
from outlast.cli.options import json_option, workspace_option
from outlast.cli.project import parse_assignment
from outlast.cli.terminal import find_workspace, note, table
from outlast.errors import RunFailed, UsageError
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.clouds.cloud import Workshop
    from outlast.cluster.record import Cluster, Clusters

F = TypeVar("F", bound=Callable[..., Any])
_POLL_S = 2.0


def _reach(workspace_url: str, name: str) -> tuple[Clusters, Workshop, Cluster]:
    from outlast.cluster.record import Clusters

    clusters = Clusters(find_workspace(workspace_url))
    found = find_cluster(clusters, name)
    if found.phase == "deleting":
        raise UsageError(f"`{found.name}` is being taken down", hint=f"repeat `outlast cluster down {found.name}`")
    return clusters, workshop(found.cloud), found


def _needs_name(command: F) -> F:
    return click.argument("name", metavar="NAME", shell_complete=complete_cluster)(command)


def _job_options(command: F) -> F:
    for option in (
        click.option("--job", "job_name", default="job", metavar="NAME", help="What its id begins with."),
        click.option("--dir", "folder", default=".", metavar="FOLDER", help="The working directory to upload."),
        click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable; may be repeated."),
    ):
        command = option(command)
    return command


_words = click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="COMMAND...")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--wait", is_flag=True, help="Follow its output, and exit as it ends.")
@_job_options
@workspace_option
@_needs_name
@_words
def submit(
    name: str,
    command: tuple[str, ...],
    workspace_url: str,
    wait: bool,
    job_name: str,
    folder: str,
    variables: tuple[str, ...],
) -> int:
    """Run COMMAND on the cluster NAME, with the working directory of here. Prints the id of the job."""
    from outlast.cluster import jobs as work
    from outlast.supervisor.submit import who_am_i

    command, wait = _after(command, wait)
    clusters, cloud, found = _reach(workspace_url, name)
    env = dict(parse_assignment(text, option="--env") for text in variables)
    code = work.upload(clusters, folder, note)
    job_id = work.submit(clusters, cloud, found, name=job_name, command=command, code=code, env=env, who=who_am_i())
    click.echo(job_id)
    return _follow(clusters, cloud, found, job_id) if wait else 0


def _after(command: tuple[str, ...], wait: bool) -> tuple[tuple[str, ...], bool]:
    """The words after `--`; `--wait` may also stand before it, after the name."""
    words = list(command)
    if words[:1] == ["--wait"]:
        words, wait = words[1:], True
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise UsageError("there is nothing to run", hint="give the command after `--`")
    return tuple(words), wait


def _follow(clusters: Clusters, cloud: Workshop, found: Cluster, job_id: str) -> int:
    """The output of the job until it ends; its own exit code."""
    from outlast.cluster import jobs as work
    from outlast.cluster.look import is_over
    from outlast.cluster.look import jobs as all_jobs

    work.follow(cloud, found, job_id, follow=True)
    while True:
        job = work.find(all_jobs(clusters, cloud, found), job_id)
        if is_over(str(job["status"])):
            break
        time.sleep(_POLL_S)
    if job["status"] == "SUCCEEDED":
        return 0
    if job.get("exit_code"):
        return int(job["exit_code"])
    raise RunFailed(f"{job_id} is {job['status']}: {job.get('message') or 'Ray says no more'}")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--axis", "axes", multiple=True, metavar="NAME=V1,V2", help="One axis of the grid; may be repeated.")
@_job_options
@json_option
@workspace_option
@_needs_name
@_words
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
    """Submit COMMAND once for every point of a grid: `{NAME}` in it is the value, else `--NAME=VALUE` is appended."""
    import json

    from outlast.cluster import jobs as work
    from outlast.supervisor.submit import who_am_i

    command, _ = _after(command, False)
    given = dict(parse_assignment(text, option="--axis") for text in axes)
    points = work.grid({axis: values.split(",") for axis, values in given.items()}, command)
    clusters, cloud, found = _reach(workspace_url, name)
    env = dict(parse_assignment(text, option="--env") for text in variables)
    code = work.upload(clusters, folder, note)
    made = []
    for point, words in points:
        label = " ".join(f"{axis}={value}" for axis, value in point.items())
        job_id = work.submit(
            clusters, cloud, found, name=job_name, command=words, code=code, env=env, who=who_am_i(), matrix=label
        )
        made.append({"id": job_id, **point})
        if not as_json:
            click.echo(f"{job_id}  {label}")
    if as_json:
        click.echo(json.dumps(made, indent=2))
    return 0


@click.command()
@cluster_argument
@json_option
@workspace_option
def jobs(name: str, workspace_url: str, as_json: bool) -> int:
    """List the jobs of a cluster, the newest last. Those whose head was lost are told as lost."""
    import json

    from outlast.cluster.look import jobs as all_jobs

    clusters, cloud, found = _reach(workspace_url, name)
    told = all_jobs(clusters, cloud, found)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return 0
    if not told:
        click.echo("no jobs")
        return 0
    rows = [
        [
            str(job["id"]),
            str(job["status"]),
            _took(job),
            str(job.get("matrix", "")),
            str(job["command"]),
            "" if job["status"] == "SUCCEEDED" else str(job.get("message", "")).partition("\n")[0],
        ]
        for job in told
    ]
    click.echo(table(rows, header=["JOB", "STATUS", "TOOK", "POINT", "COMMAND", "REMARKS"]))
    return 0


def _took(job: dict[str, Any]) -> str:
    if not job.get("started_at"):
        return "-"
    return describe_s(max(0.0, (job.get("ended_at") or time.time()) - job["started_at"]))


def _job(workspace_url: str, name: str, text: str) -> tuple[Workshop, Cluster, str]:
    from outlast.cluster import jobs as work
    from outlast.cluster.look import jobs as all_jobs

    clusters, cloud, found = _reach(workspace_url, name)
    job = work.find(all_jobs(clusters, cloud, found), text)
    if job["status"] in ("LOST", "UNSENT"):
        raise RunFailed(f"{job['id']} is {job['status']}: {job.get('message')}")
    return cloud, found, str(job["id"])


@click.command()
@_needs_name
@click.argument("job", metavar="JOB")
@click.option("--follow", "-f", is_flag=True, help="Until it ends.")
@workspace_option
def logs(name: str, job: str, workspace_url: str, follow: bool) -> int:
    """Print the output of JOB of the cluster NAME. JOB is an id, the beginning of one, or `last`."""
    from outlast.cluster import jobs as work

    cloud, found, job_id = _job(workspace_url, name, job)
    work.follow(cloud, found, job_id, follow=follow)
    return 0


@click.command()
@_needs_name
@click.argument("job", metavar="JOB")
@workspace_option
def stop(name: str, job: str, workspace_url: str) -> int:
    """Stop JOB of the cluster NAME. The cluster goes on."""
    from outlast.cluster import jobs as work

    cloud, found, job_id = _job(workspace_url, name, job)
    note(f"{job_id} is stopped" if work.stop(cloud, found, job_id) else f"{job_id} was over already")
    return 0


@click.command()
@cluster_argument
@workspace_option
def attach(name: str, workspace_url: str) -> int:
    """Open a terminal on the head, in tmux: leave it with Ctrl-b d, and come back to it with the same words."""
    from outlast.machines.ssh import Link

    _, cloud, found = _reach(workspace_url, name)
    keep = "command -v tmux >/dev/null && exec tmux new-session -A -s outlast; exec bash -l"
    _become([*Link(cloud, found.head).words(tty=True), "--", _as_root(keep)])
    return 0


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@workspace_option
@_needs_name
@_words
def exec_command(name: str, command: tuple[str, ...], workspace_url: str) -> int:
    """Run COMMAND on the head of the cluster NAME, with Ray's variables, and exit with its code."""
    from outlast.machines.ssh import Link

    words, _ = _after(command, False)
    _, cloud, found = _reach(workspace_url, name)
    line = words[0] if len(words) == 1 else shlex.join(words)
    _become([*Link(cloud, found.head).words(), "--", _as_root(line)])
    return 0


def _as_root(line: str) -> str:
    from outlast.cluster.place import FOLDER

    # Where Ray is, with its variables: in the container, if the cluster has one.
    inner = shlex.quote(f"exec ~/{FOLDER}/shell {shlex.quote(line)}")
    return f'if [ "$(id -u)" = 0 ]; then bash -c {inner}; else sudo -n -H bash -c {inner}; fi'


def _become(words: list[str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # In our place: signals, the terminal and the exit code are then ssh's own.
    os.execv(words[0], words)


@click.command()
@cluster_argument
@click.option(
    "--port", metavar="N", default=0, type=click.IntRange(0, 65535), help="Here; the same number as there if not said."
)
@workspace_option
def dashboard(name: str, workspace_url: str, port: int) -> int:
    """Bring Ray's own dashboard to this computer, through ssh, until interrupted. It asks for the cluster's token."""
    from outlast.cli.options import clouds
    from outlast.cluster.place import FOLDER
    from outlast.cluster.record import DASHBOARD_PORT
    from outlast.machines.ssh import Link
    from outlast.sync.target import find_target
    from outlast.sync.tunnel import Tunnel

    _, cloud, found = _reach(workspace_url, name)
    token = Link(cloud, found.head).run(_as_root(f"cat ~/{FOLDER}/token")).stdout.decode().strip()
    target = find_target(found.head, clouds(), lambda: find_workspace(workspace_url))
    note(f"the token that it asks for: {token}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        Tunnel(target, DASHBOARD_PORT, port or DASHBOARD_PORT, say=note).run()
    except KeyboardInterrupt:
        note("the tunnel is closed; the cluster goes on")
    return 0
