"""Ctrl-C prints what continues and how to get back to it, never a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from outlast.cli.app import app
from outlast.cli.shared.command import OutlastCommand
from outlast.cli.shared.interrupt_text import find_command
from tests.integration.cli.console import OUTLAST, Console


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*path, name))


COMMANDS = dict(leaves(app))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_interrupt_text_that_names_existing_commands(name: str) -> None:
    command = COMMANDS[name]
    assert isinstance(command, OutlastCommand)
    assert command.interrupt
    for argv in re.findall(r"`outlast ([^`]+)`", command.interrupt):
        assert find_command(app, argv.split())[0] in COMMANDS, argv


@pytest.mark.parametrize("line", ["machine create box --spot", "ps --all", "sweep show x --json"])
def test_the_command_is_found_among_its_arguments(line: str) -> None:
    name, command = find_command(app, line.split())
    assert line.startswith(f"{name} ")
    assert command is COMMANDS[name]


def test_an_interrupted_command_prints_its_text_and_exits_with_130(console: Console) -> None:
    pipe = console.folder / "capacity.json"
    os.mkfifo(pipe)
    argv = [OUTLAST, "simulate", "--work", "10h", "--deadline", "20h", "--trace", str(pipe)]
    process = subprocess.Popen(argv, cwd=console.folder, env=console.variables, stderr=subprocess.PIPE, text=True)
    # `open` returns as soon as the command has opened its end of the pipe: the command is running then.
    with open(pipe, "w", encoding="utf-8"):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "stopped; nothing was changed"


def test_repeated_interrupts_print_no_traceback(console: Console) -> None:
    pipe = console.folder / "capacity.json"
    os.mkfifo(pipe)
    argv = [OUTLAST, "simulate", "--work", "10h", "--deadline", "20h", "--trace", str(pipe)]
    for _ in range(5):
        process = subprocess.Popen(argv, cwd=console.folder, env=console.variables, stderr=subprocess.PIPE, text=True)
        with open(pipe, "w"):
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=600)
        assert (process.returncode, errors.strip()) == (130, "stopped; nothing was changed")


PRESSED_WHILE_LOADING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["outlast", "doctor"]
from outlast.cli.main import main
main()
"""


def test_an_interrupt_while_the_command_is_imported_does_nothing(console: Console) -> None:
    argv = [sys.executable, "-c", PRESSED_WHILE_LOADING]
    answer = subprocess.run(argv, env=console.variables, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "\nstopped; nothing was done\n")
