"""`outlast cluster attach`, `exec` and `dashboard`: connections to the head of a cluster by ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from outlast.cli.cluster.find import cluster_argument, complete_cluster, find_cluster
from outlast.cli.machine.find import interactive_cloud
from outlast.cli.shared.command import OutlastCommand, command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import BadRequest, CloudUnreachable, NotFound, UsageError

if TYPE_CHECKING:
    from outlast.app.types import Cluster, Clusters, InteractiveCloud, Link, Report

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


class ClusterCommand(OutlastCommand):
    """A command with the arguments `NAME [OPTIONS] [--] COMMAND...`: options may stand before and after the name.

    From the first word of COMMAND on, or from `--` on, every argument belongs to COMMAND. `--tmux` and `-y`, which
    users of Ray's launcher type, are accepted and explained.
    """

    _HABITS: ClassVar[dict[str, str]] = {
        "--tmux": "`--tmux` is not needed: the command runs on the head and continues without this terminal",
        "-y": "`-y` is not needed: nothing is asked",
        "--yes": "`--yes` is not needed: nothing is asked",
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, positional = self._split(args)
        for habit in (option for option in own if option in self._HABITS):
            note(self._HABITS[habit])
        own = [option for option in own if option not in self._HABITS]
        if len(positional) == 1 and not ctx.resilient_parsing and "--help" not in own and "-h" not in own:
            raise UsageError("no command given", hint=f"write it after the name: {ctx.command_path} NAME -- COMMAND")
        return super().parse_args(ctx, [*own, "--", *positional])

    def _split(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Return the options of this command with their values, and the name with the words of COMMAND."""
        takes_value = {
            text
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for text in option.opts
        }
        own: list[str] = []
        positional: list[str] = []
        rest = list(args)
        while rest and len(positional) < 2:
            word = rest.pop(0)
            if word == "--":
                return own, [*positional, *rest]
            if not word.startswith("-") or word == "-":
                positional.append(word)
                continue
            own.append(word)
            if word in takes_value and rest:
                own.append(rest.pop(0))
        # Ray's launcher separates a script from its arguments: `FILE script.py -- ARGUMENTS`.
        if rest[:1] == ["--"] and positional[-1].endswith(".py"):
            rest.pop(0)
        return own, [*positional, *rest]


def with_interpreter(command: tuple[str, ...], folder: str) -> tuple[str, ...]:
    """Return the command, with `python` before a Python file of the uploaded folder, as Ray's launcher does."""
    script = command[0]
    if not script.endswith(".py") or not os.path.isfile(os.path.join(folder, script)):
        return command
    note(f"`{script}` is a Python file: running `python {script}`")
    return ("python", *command)


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
    interrupt="left the head; the cluster keeps running and is billed: `outlast cluster down` ends it",
    cls=ClusterCommand,
)
@workspace_option
@needs_name
@command_argument
def exec_command(name: str, command: tuple[str, ...], workspace_url: str) -> int:
    """Run COMMAND on the head of the cluster NAME, with Ray's variables, and exit with its code."""
    from outlast.cluster.status import SEPARATE_CONNECTION, head_link

    _, cloud, found = connect(workspace_url, name)
    line = command[0] if len(command) == 1 else shlex.join(command)
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


@command(interrupt="closed the tunnel; the cluster keeps running and is billed: `outlast cluster down` ends it")
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

    def connect(self, *, report: Report, wait: bool) -> Link:
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
