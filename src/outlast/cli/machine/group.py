"""`outlast machine`: the group."""

from __future__ import annotations

from outlast.cli.machine.change import resize, set_command, snapshot
from outlast.cli.machine.create import create
from outlast.cli.machine.delete import delete
from outlast.cli.machine.keep import keep
from outlast.cli.machine.list import list_command
from outlast.cli.machine.power import serial, start, stop
from outlast.cli.machine.show import show
from outlast.cli.machine.ssh import cp, ssh, ssh_config
from outlast.cli.shared.command import command_group

_COMMANDS = (
    create,
    list_command,
    show,
    ssh,
    cp,
    start,
    stop,
    delete,
    resize,
    serial,
    set_command,
    snapshot,
    keep,
    ssh_config,
)


@command_group("machines", _COMMANDS)
def machine() -> None:
    """Create machines, log in, keep them alive, delete them."""
