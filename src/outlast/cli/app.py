"""The command line with click: finds the command, runs it, and turns every error into a message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from outlast.cli.main import COMMANDS, begin, end, root_help
from outlast.cli.shared import debug_log
from outlast.cli.shared.terminal import complain, note
from outlast.errors import InvalidTransition, OutlastError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Lazy(click.Group):
    """The root group: imports the module of a command only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _, _ = COMMANDS[name]
        command = getattr(importlib.import_module(f"outlast.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Resilient: a shell completes an unfinished line and must not get an error.
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "see `outlast --help`"
            raise click.UsageError(f"unknown command `{args[0]}`\nhint: {hint}")
        found = super().resolve_command(ctx, args)
        begin()
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete from the table: click would import every command for its help text."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name][3]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def get_help(self, ctx: click.Context) -> str:
        return root_help()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Experiments that outlast their machines."""


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name, groups before their commands."""
    context = click.Context(app)
    for name in COMMANDS:
        command = app.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", inner) for below, inner in command.commands.items())


def call(argv: list[str]) -> int:
    """Run the command and return its exit code. Only our own bugs print a traceback."""
    debug_log.start(argv)
    return debug_log.log_end(_call(argv))


def _call(argv: list[str]) -> int:
    try:
        result = app.main(argv, prog_name="outlast", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.UsageError as problem:
        where = problem.ctx.command_path if problem.ctx else "outlast"
        hint = "" if "hint:" in problem.message else f"see `{where} --help`"
        missing = problem.param if isinstance(problem, click.MissingParameter) else None
        if missing is not None and missing.name in ("run_name", "run_names"):
            hint = f"`{where} last` is the newest run; `outlast ps --all` lists them"
        complain(problem.format_message(), hint=hint)
        return 2
    except (click.Abort, KeyboardInterrupt):
        end()
        from outlast.cli.shared.interrupt_text import interrupt_text

        note(f"\n{interrupt_text(app, argv)}")
        return 130
    except BrokenPipeError:
        # The reader of our output has exited: discard the rest of the buffer, or its flush at exit would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OutlastError as problem:
        debug_log.log_error(problem)
        complain(problem.message, hint=problem.hint)
        if isinstance(problem, InvalidTransition):
            raise
        return problem.exit_code
    except BaseException as problem:  # a bug: its traceback is printed, and logged for the report
        debug_log.log_error(problem)
        raise
