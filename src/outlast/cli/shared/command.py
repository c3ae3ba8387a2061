"""The decorators of commands: help section, progress text, interrupt text and JSON schema of a command in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import click

from outlast.cli.shared.progress import working

Section = Literal["start", "runs", "machines", "costs", "admin"]

# With these options a command shows its progress itself.
_FOLLOWS = {"--watch", "--follow", "-f", "--wait"}
_QUIET = "outlast.quiet"

# Interrupt texts that several commands share.
UNCHANGED = "stopped; nothing was changed"
READ_ONLY = "stopped reading; runs and machines are not affected"
RESUMABLE = "stopped halfway; repeat the command to continue"
UNCERTAIN = "the change may or may not have been made; repeat the command to complete it"
STILL_BILLED = f"{UNCERTAIN}; until then it is billed"
RUN_CONTINUES = (
    "a submitted run continues: `outlast ps` lists it, `outlast logs -f last` follows it, `outlast cancel last` ends it"
)


class OutlastCommand(click.Command):
    """A command with its declarations.

    `interrupt` is the message after Ctrl-C. `progress` is printed while the command is silent; empty if the command
    shows its own progress or is always short. `json` names the type in `json_schema` that `--json` prints; `json_text`
    describes output that has no such type.
    """

    def __init__(
        self,
        *args: Any,
        interrupt: str,
        progress: str = "",
        json: str = "",
        json_text: str = "",
        section: Section | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.interrupt = interrupt
        self.progress = progress
        self.json = json
        self.json_text = json_text
        self.section = section

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Arguments after `--` belong to the user's command.
        own = args[: args.index("--")] if "--" in args else args
        ctx.meta[_QUIET] = bool(_FOLLOWS & set(own))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        shown = self.progress and not ctx.meta.get(_QUIET)
        with working(self.progress) if shown else nullcontext():
            return super().invoke(ctx)


class OutlastGroup(click.Group):
    """Commands under one noun, such as `outlast machine`."""

    section: Section | None = None


def command(
    name: str | None = None,
    *,
    interrupt: str,
    progress: str = "",
    json: str = "",
    json_text: str = "",
    section: Section | None = None,
    cls: type[OutlastCommand] = OutlastCommand,
    **settings: Any,
) -> Callable[[Callable[..., Any]], OutlastCommand]:
    """Declare a command. Only commands at the top level have a section; `cli/main.py` lists them."""
    return click.command(
        name,
        cls=cls,
        interrupt=interrupt,
        progress=progress,
        json=json,
        json_text=json_text,
        section=section,
        **settings,
    )


def command_group(
    section: Section, commands: Sequence[click.Command], *, cls: type[OutlastGroup] = OutlastGroup
) -> Callable[[Callable[..., Any]], OutlastGroup]:
    """Declare a group with its commands."""

    def declare(function: Callable[..., Any]) -> OutlastGroup:
        group = click.group(cls=cls)(function)
        group.section = section
        for one in commands:
            group.add_command(one)
        return group

    return declare
