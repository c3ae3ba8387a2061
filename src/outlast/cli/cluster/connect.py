"""`outlast cluster attach`, `exec`, `dashboard`: the ways into a cluster's head, all of them by ssh."""

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
from outlast.cli.machine.find import workshop
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
_ASK_S = 1.0
# Ray's variables are in it, for whoever types `ray status`. A machine need not know the newest terminals.
_SESSION = """infocmp "$TERM" >/dev/null 2>&1 || export TERM=xterm-256color
cd; command -v tmux >/dev/null && exec tmux -u -L outlast-cluster new-session -A -s outlast
echo "there is no tmux on this machine: what runs in this shell ends with it"; exec bash -l"""

words_argument = click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="COMMAND...")


def needs_name(command: F) -> F:
    return click.argument("name", metavar="NAME", shell_complete=complete_cluster)(command)


def reach(workspace_url: str, name: str) -> tuple[Clusters, InteractiveCloud, Cluster]:
    from outlast.cluster.record import Clusters

    clusters = Clusters(find_workspace(workspace_url))
    found = find_cluster(clusters, name)
    if found.phase == "deleting":
        raise UsageError(f"`{found.name}` is being taken down", hint=f"repeat `outlast cluster down {found.name}`")
    return clusters, workshop(found.cloud), found


def after(command: tuple[str, ...], wait: bool) -> tuple[tuple[str, ...], bool]:
    """The words after `--`; `--wait` may also stand before it, after the name."""
    argv = list(command)
    if argv[:1] == ["--wait"]:
        argv, wait = argv[1:], True
    if argv[:1] == ["--"]:
        argv = argv[1:]
    if not argv:
        raise UsageError("there is nothing to run", hint="give the command after `--`")
    return tuple(argv), wait


@command(interrupt="left the head; programs there continue")
@cluster_argument
@workspace_option
def attach(name: str, workspace_url: str) -> int:
    """Open a terminal on the head, in tmux: leave it with Ctrl-b d, and come back to it with the same words."""
    from outlast.cluster.status import ALONE, SSH_LOST, head_link, lost

    _, cloud, found = reach(workspace_url, name)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "`outlast cluster attach` needs a terminal",
            hint=f"a command without one: `outlast cluster exec {found.name} -- COMMAND`",
        )
    argv = head_link(cloud, found).argv(tty=True, options=ALONE)
    before = termios.tcgetattr(0)
    try:
        code = subprocess.call([*argv, "--", _as_root(_SESSION)])
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    if code == SSH_LOST:
        raise lost(cloud, found)
    return code


@command(
    "exec",
    interrupt="left the head; the cluster continues, and costs: `outlast cluster down` ends it",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@workspace_option
@needs_name
@words_argument
def exec_command(name: str, command: tuple[str, ...], workspace_url: str) -> int:
    """Run COMMAND on the head of the cluster NAME, with Ray's variables, and exit with its code."""
    from outlast.cluster.status import ALONE, head_link

    argv, _ = after(command, False)
    _, cloud, found = reach(workspace_url, name)
    line = argv[0] if len(argv) == 1 else shlex.join(argv)
    ssh = [*head_link(cloud, found).argv(options=ALONE), "--", _as_root(line)]
    sys.stdout.flush()
    sys.stderr.flush()
    # In our place: signals and the exit code are then ssh's own.
    os.execv(ssh[0], ssh)


def _as_root(line: str) -> str:
    from outlast.cluster.paths import FOLDER

    # Where Ray is, with its variables: in the container, if the cluster has one.
    inner = shlex.quote(f"exec ~/{FOLDER}/shell {shlex.quote(line)}")
    return f'if [ "$(id -u)" = 0 ]; then bash -c {inner}; else sudo -n -H bash -c {inner}; fi'


@command(interrupt="closed the tunnel; the cluster continues, and costs: `outlast cluster down` ends it")
@cluster_argument
@click.option(
    "--port", metavar="N", default=0, type=click.IntRange(0, 65535), help="Here; the same number as there if not said."
)
@workspace_option
def dashboard(name: str, workspace_url: str, port: int) -> int:
    """Bring Ray's own dashboard to this computer, through ssh, until interrupted. It asks for the cluster's token.

    When the cluster gets another head, its dashboard is shown.
    """
    from outlast.cluster.record import DASHBOARD_PORT
    from outlast.sync.tunnel import Tunnel, check_free

    clusters, cloud, found = reach(workspace_url, name)
    here = port or DASHBOARD_PORT
    try:
        check_free(here)
    except UsageError as problem:
        raise UsageError(problem.message, hint="choose another one with --port") from problem
    try:
        with interruptible():
            Tunnel(_Head(clusters, cloud, found.name), DASHBOARD_PORT, here, report=note).run()
    except KeyboardInterrupt:
        note("the tunnel is closed; the cluster goes on")
    return 0


class _Head:
    """Whichever machine is the cluster's head; for a tunnel that follows it."""

    base = ""

    def __init__(self, clusters: Clusters, cloud: InteractiveCloud, name: str) -> None:
        self.clusters = clusters
        self.cloud = cloud
        self.name = name

    def connect(self, *, report: Report, patient: bool) -> Link:
        from outlast.cluster.paths import FOLDER
        from outlast.cluster.status import head_link
        from outlast.sync.target import TargetEnded

        told = ""
        while True:
            found = self.clusters.find(self.name)
            if found is None:
                raise TargetEnded(f"`{self.name}` is down", hint="`outlast cluster up` brings it up")
            try:
                link = head_link(self.cloud, found)
                token = link.run(_as_root(f"cat ~/{FOLDER}/token")).stdout.decode().strip()
                report(f"the token that it asks for: {token}")
                return link
            except (NotFound, BadRequest, CloudUnreachable) as problem:
                if not patient:
                    raise
                why = f"{problem.message}; waiting for another"
            if why != told:
                report(why)
                told = why
            time.sleep(_ASK_S)

    def moved(self, link: Link) -> bool:
        found = self.clusters.find(self.name)
        return found is not None and found.head != link.name
