"""Ctrl-C: a sentence on what goes on, never a traceback; and every command has one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from outlast.cli.app import app
from outlast.cli.interrupt_text import LEAVES, command_of
from tests.integration.cli.console import OUTLAST, Console


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*path, name))


COMMANDS = sorted(leaves(app))


def test_every_command_says_what_an_interruption_leaves_and_no_other_does() -> None:
    assert sorted(LEAVES) == COMMANDS


@pytest.mark.parametrize("command", sorted(LEAVES))
def test_the_sentence_names_only_commands_that_exist(command: str) -> None:
    for said in re.findall(r"`outlast ([^`]+)`", LEAVES[command]):
        assert command_of(app, said.split()) in COMMANDS, said


@pytest.mark.parametrize("argv", ["machine create box --spot", "ps --all", "sweep show x --json"])
def test_the_command_is_found_among_its_words(argv: str) -> None:
    assert argv.startswith(command_of(app, argv.split()) + " ")
    assert command_of(app, argv.split()) in COMMANDS


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path)


def test_a_command_that_is_interrupted_says_so_and_ends_with_130(console: Console) -> None:
    pipe = console.folder / "capacity.json"
    os.mkfifo(pipe)
    argv = [OUTLAST, "simulate", "--work", "10h", "--deadline", "20h", "--trace", str(pipe)]
    process = subprocess.Popen(argv, cwd=console.folder, env=console.variables, stderr=subprocess.PIPE, text=True)
    # Whoever opens the other end of a pipe goes on as soon as the command has opened its own: it is at work then.
    with open(pipe, "w", encoding="utf-8"):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "stopped; nothing was changed"


def test_who_presses_it_again_and_again_sees_no_traceback(console: Console) -> None:
    pipe = console.folder / "capacity.json"
    os.mkfifo(pipe)
    argv = [OUTLAST, "simulate", "--work", "10h", "--deadline", "20h", "--trace", str(pipe)]
    for _ in range(5):
        process = subprocess.Popen(argv, cwd=console.folder, env=console.variables, stderr=subprocess.PIPE, text=True)
        with open(pipe, "w"):
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
        assert (process.returncode, told.strip()) == (130, "stopped; nothing was changed")


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


def test_pressed_while_the_command_is_loaded_nothing_was_done(console: Console) -> None:
    argv = [sys.executable, "-c", PRESSED_WHILE_LOADING]
    answer = subprocess.run(argv, env=console.variables, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "\nstopped; nothing was done\n")
