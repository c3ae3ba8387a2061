"""Ctrl-C and other signals: the command that was interrupted, its message, and clean-up on every way out."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from outlast.cli.shared.command import UNCHANGED, OutlastCommand


def find_command(root: click.Command, argv: Sequence[str]) -> tuple[str, click.Command]:
    """Return the command that an argument vector calls, and its name without options: `machine create`."""
    names: list[str] = []
    found = root
    for word in argv:
        if not isinstance(found, click.Group):
            break
        if word.startswith("-"):
            continue
        below = found.get_command(click.Context(found), word)
        if below is None:
            break
        names.append(word)
        found = below
    return " ".join(names), found


def interrupt_text(root: click.Command, argv: Sequence[str]) -> str:
    """Return the message for a command that Ctrl-C ended."""
    _, found = find_command(root, argv)
    return found.interrupt if isinstance(found, OutlastCommand) else UNCHANGED


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM and SIGHUP as well, so that clean-up runs on every way out."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
