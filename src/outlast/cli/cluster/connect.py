"""`outlast cluster attach`, `exec` and `dashboard`: connections to the head of a cluster by ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.cluster.find import cluster_argument, complete_cluster, find_cluster
from outlast.cli.machine.find import interactive_cloud
from outlast.cli.shared.command import command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import BadRequest, CloudUnreachable, NotFound, UsageError

if TYPE_CHECKING:
    from outlast.clouds.cloud import InteractiveCloud
    from outlast.cluster.record import Cluster, Clusters
    from outlast.machines.ssh import Link
    from outlast.sync.target import Report

F = TypeVar("F", bound=Callable[..., Any])
_POLL_S = 1.0
# The session has Ray's variables, so that `ray status` works. The machine may not know the user's terminal type.
_SESSION = """infocmp "$TERM" >/dev/null 2>&1 || export TERM=xterm-256color
cd; command -v tmux >/dev/null && exec tmux -u -L outlast-cluster new-session -A -s outlast
echo "tmux is not installed on this machine: programs in this shell end with it"; exec bash -l"""

command_argument = click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="COMMAND...")


def needs_name(command: F) -> F:
    return click.argument("name", metavar="NAME", shell_complete=complete_cluster)(command)


def connect(workspace_url: str, name: str) -> tuple[Clusters, InteractiveCloud, Cluster]:
    from outlast.cluster.record import Clusters

    clusters = Clusters(find_workspace(workspace_url))
    found = find_cluster(clusters, name)
    if found.phase == "deleting":
        raise UsageError(f"`{found.name}` is being taken down", hint=f"repeat `outlast cluster down {found.name}`")
    return clusters, interactive_cloud(found.cloud), found


def command_after(command: tuple[str, ...], wait: bool) -> tuple[tuple[str, ...], bool]:
    """Return the command after `--`, and whether `--wait` precedes it."""
    argv = list(command)
    if argv[:1] == ["--wait"]:
        argv, wait = argv[1:], True
    if argv[:1] == ["--"]:
        argv = argv[1:]
    if not argv:
        raise UsageError("no command given", hint="write it after `--`")
    return tuple(argv), wait


@command(interrupt="left the head; programs there continue")
@cluster_argument
@workspace_option
def attach(name: str, workspace_url: str) -> int:
    """Open a terminal on the head, in tmux. Ctrl-b d detaches; the same command attaches again."""
    from outlast.cluster.status import SEPARATE_CONNECTION, SSH_LOST, connection_lost, head_link

    _, cloud, found = connect(workspace_url, name)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "`outlast cluster attach` needs a terminal",
            hint=f"without a terminal use `outlast cluster exec {found.name} -- COMMAND`",
        )
    argv = head_link(cloud, found).argv(tty=True, options=SEPARATE_CONNECTION)
    before = termios.tcgetattr(0)
    try:
        code = subprocess.call([*argv, "--", _as_root(_SESSION)])
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    if code == SSH_LOST:
        raise connection_lost(cloud, found)
    return code


@command(
    "exec",
    interrupt="left the head; the cluster continues, and costs: `outlast cluster down` ends it",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@workspace_option
@needs_name
@command_argument
def exec_command(name: str, command: tuple[str, ...], workspace_url: str) -> int:
    """Run COMMAND on the head of the cluster NAME, with Ray's variables, and exit with its code."""
    from outlast.cluster.status import SEPARATE_CONNECTION, head_link

    argv, _ = command_after(command, False)
    _, cloud, found = connect(workspace_url, name)
    line = argv[0] if len(argv) == 1 else shlex.join(argv)
    ssh = [*head_link(cloud, found).argv(options=SEPARATE_CONNECTION), "--", _as_root(line)]
    sys.stdout.flush()
    sys.stderr.flush()
    # Replace this process: signals and the exit code are those of ssh.
    os.execv(ssh[0], ssh)


def _as_root(line: str) -> str:
    from outlast.cluster.paths import FOLDER

    # The script enters the container, if the cluster has one, and sets Ray's variables.
    inner = shlex.quote(f"exec ~/{FOLDER}/shell {shlex.quote(line)}")
    return f'if [ "$(id -u)" = 0 ]; then bash -c {inner}; else sudo -n -H bash -c {inner}; fi'


@command(interrupt="closed the tunnel; the cluster continues, and costs: `outlast cluster down` ends it")
@cluster_argument
@click.option(
    "--port", metavar="N", default=0, type=click.IntRange(0, 65535), help="Local port (that of the dashboard)."
)
@workspace_option
def dashboard(name: str, workspace_url: str, port: int) -> int:
    """Forward Ray's dashboard to this computer through ssh, until interrupted.

    The dashboard asks for the token of the cluster. The tunnel follows the cluster to a new head.
    """
    from outlast.cluster.record import DASHBOARD_PORT
    from outlast.sync.tunnel import Tunnel, check_free

    clusters, cloud, found = connect(workspace_url, name)
    here = port or DASHBOARD_PORT
    try:
        check_free(here)
    except UsageError as problem:
        raise UsageError(problem.message, hint="choose another one with --port") from problem
    try:
        with interruptible():
            Tunnel(_Head(clusters, cloud, found.name), DASHBOARD_PORT, here, report=note).run()
    except KeyboardInterrupt:
        note("closed the tunnel; the cluster continues")
    return 0


class _Head:
    """The present head of a cluster, as the target of a tunnel."""

    base = ""

    def __init__(self, clusters: Clusters, cloud: InteractiveCloud, name: str) -> None:
        self.clusters = clusters
        self.cloud = cloud
        self.name = name

    def connect(self, *, report: Report, patient: bool) -> Link:
        from outlast.cluster.paths import FOLDER
        from outlast.cluster.status import head_link
        from outlast.sync.target import TargetEnded

        reported = ""
        while True:
            found = self.clusters.find(self.name)
            if found is None:
                raise TargetEnded(f"`{self.name}` is down", hint="start it with `outlast cluster up`")
            try:
                link = head_link(self.cloud, found)
                token = link.run(_as_root(f"cat ~/{FOLDER}/token")).stdout.decode().strip()
                report(f"token: {token}")
                return link
            except (NotFound, BadRequest, CloudUnreachable) as problem:
                if not patient:
                    raise
                why = f"{problem.message}; waiting for another head"
            if why != reported:
                report(why)
                reported = why
            time.sleep(_POLL_S)

    def moved(self, link: Link) -> bool:
        found = self.clusters.find(self.name)
        return found is not None and found.head != link.name
