"""`outlast machine`: the group. Its commands are in `machine_make.py`, `machine_use.py`, `machine_keep.py`."""

from __future__ import annotations

import click

from outlast.cli.machine_keep import keep
from outlast.cli.machine_make import create, delete, list_command, show, snapshot
from outlast.cli.machine_use import cp, resize, serial, set_command, ssh, ssh_config, start, stop


@click.group()
def machine() -> None:
    """Machines for work by hand: make them, log in, keep them alive, throw them away."""


for _command in (create, list_command, show, ssh, cp, start, stop, delete, resize):
    machine.add_command(_command)
for _command in (serial, set_command, snapshot, keep, ssh_config):
    machine.add_command(_command)
