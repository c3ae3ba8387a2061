"""`outlast cluster attach`, `exec` and `dashboard`: connections to the head of a cluster by ssh."""

from __future__ import annotations

import os
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import click

from outlast.cli.cluster.find import cluster_argument, complete_cluster, connect
from outlast.cli.shared.command import OutlastCommand, command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import note
from outlast.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
command_argument = click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="COMMAND...")


def needs_name(command: F) -> F:
    return click.argument("name", metavar="NAME", shell_complete=complete_cluster)(command)


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
    from outlast.app.cluster_connections import SSH_LOST, lost_connection, terminal_argv

    where = connect(workspace_url, name)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "`outlast cluster attach` needs a terminal",
            hint=f"without a terminal use `outlast cluster exec {where.cluster.name} -- COMMAND`",
        )
    argv = terminal_argv(where)
    before = termios.tcgetattr(0)
    try:
        code = subprocess.call(argv)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    if code == SSH_LOST:
        raise lost_connection(where)
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
    from outlast.app.cluster_connections import command_argv

    ssh = command_argv(connect(workspace_url, name), command)
    sys.stdout.flush()
    sys.stderr.flush()
    # Replace this process: signals and the exit code are those of ssh.
    os.execv(ssh[0], ssh)


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
    from outlast.app.cluster_connections import DASHBOARD_PORT, check_free, dashboard_tunnel

    where = connect(workspace_url, name)
    here = port or DASHBOARD_PORT
    try:
        check_free(here)
    except UsageError as problem:
        raise UsageError(problem.message, hint="choose another one with --port") from problem
    try:
        with interruptible():
            dashboard_tunnel(where, here, report=note).run()
    except KeyboardInterrupt:
        note("closed the tunnel; the cluster continues")
    return 0
