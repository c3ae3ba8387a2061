"""Connections to the head of a cluster by ssh: a terminal, a command, and the port of Ray's dashboard."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.app.clusters import OpenCluster
from outlast.cluster.paths import FOLDER
from outlast.cluster.record import DASHBOARD_PORT as DASHBOARD_PORT
from outlast.cluster.status import SEPARATE_CONNECTION, connection_lost, head_link
from outlast.cluster.status import SSH_LOST as SSH_LOST
from outlast.errors import BadRequest, CloudUnreachable, NotFound, OutlastError
from outlast.sync.target import TargetEnded
from outlast.sync.tunnel import Tunnel
from outlast.sync.tunnel import check_free as check_free

if TYPE_CHECKING:
    from outlast.machines.ssh import Link

_POLL_S = 1.0
Report = Callable[[str], None]
# The session has Ray's variables, so that `ray status` works. The machine may not know the user's terminal type.
_SESSION = """infocmp "$TERM" >/dev/null 2>&1 || export TERM=xterm-256color
cd; command -v tmux >/dev/null && exec tmux -u -L outlast-cluster new-session -A -s outlast
echo "tmux is not installed on this machine: programs in this shell end with it"; exec bash -l"""


def terminal_argv(where: OpenCluster) -> list[str]:
    """Return the command line that opens a terminal on the head, in tmux."""
    argv = head_link(where.cloud, where.cluster).argv(tty=True, options=SEPARATE_CONNECTION)
    return [*argv, "--", _as_root(_SESSION)]


def command_argv(where: OpenCluster, command: tuple[str, ...]) -> list[str]:
    """Return the command line that runs a command on the head, with Ray's variables."""
    line = command[0] if len(command) == 1 else shlex.join(command)
    return [*head_link(where.cloud, where.cluster).argv(options=SEPARATE_CONNECTION), "--", _as_root(line)]


def lost_connection(where: OpenCluster) -> OutlastError:
    """Return why ssh has lost its connection: a preempted head, or the network."""
    return connection_lost(where.cloud, where.cluster)


def dashboard_tunnel(where: OpenCluster, here: int, *, report: Report) -> Tunnel:
    """Return a tunnel to Ray's dashboard that follows the cluster to a new head; its `run` forwards the port."""
    return Tunnel(_Head(where), DASHBOARD_PORT, here, report=report)


def _as_root(line: str) -> str:
    # The script enters the container, if the cluster has one, and sets Ray's variables.
    inner = shlex.quote(f"exec ~/{FOLDER}/shell {shlex.quote(line)}")
    return f'if [ "$(id -u)" = 0 ]; then bash -c {inner}; else sudo -n -H bash -c {inner}; fi'


class _Head:
    """The present head of a cluster, as the target of a tunnel."""

    base = ""

    def __init__(self, where: OpenCluster) -> None:
        self.clusters = where.clusters
        self.cloud = where.cloud
        self.name = where.cluster.name

    def connect(self, *, report: Report, wait: bool) -> Link:
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
                if not wait:
                    raise
                why = f"{problem.message}; waiting for another head"
            if why != reported:
                report(why)
                reported = why
            time.sleep(_POLL_S)

    def moved(self, link: Link) -> bool:
        found = self.clusters.find(self.name)
        return found is not None and found.head != link.name
