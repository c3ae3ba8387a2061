"""`outlast cluster`: the group."""

from __future__ import annotations

from outlast.cli.cluster.connect import attach, dashboard, exec_command
from outlast.cli.cluster.jobs import jobs, logs, matrix, stop, submit
from outlast.cli.cluster.show import list_command, status
from outlast.cli.cluster.up import down, up
from outlast.cli.shared.command import command_group

_COMMANDS = (submit, matrix, jobs, logs, stop, attach, exec_command, dashboard, up, down, list_command, status)


@command_group("machines", _COMMANDS)
def cluster() -> None:
    """Run Ray clusters: up, submit, status, down."""
