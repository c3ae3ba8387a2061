"""`outlast sweep`: the group."""

from __future__ import annotations

import click

from outlast.cli.shared.command import OutlastGroup, command_group
from outlast.cli.sweep.export import export
from outlast.cli.sweep.plot import plot
from outlast.cli.sweep.show import best, list_command, show
from outlast.cli.sweep.start import resume, start, stop

_COMMANDS = (start, resume, stop, list_command, show, best, export, plot)


class _StartsByDefault(OutlastGroup):
    """`outlast sweep --param …` is short for `outlast sweep start --param …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "-h")):
            args = ["start", *args]
        return super().parse_args(ctx, args)


@command_group("runs", _COMMANDS, cls=_StartsByDefault)
def sweep() -> None:
    """Search hyperparameters: many trials on preemptible machines.

    `outlast sweep --param lr=log(1e-4..1e-1) --goal min:loss -- python train.py` is short for `outlast sweep start …`.
    """
