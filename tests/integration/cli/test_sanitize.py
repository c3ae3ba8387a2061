"""Foreign text on a terminal: names, reasons and output cannot send control sequences to it."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
from typing import Any

import click
import pytest

from outlast.cli.shared.sanitize import plain
from tests.conventions.sources import ROOT
from tests.integration.cli.console import OUTLAST, Console

# Sets the title, clears the screen, requests an answer, reverses the direction, fakes a line.
EVIL = "a\x1b]0;owned\x07b\x1b[2Jc\x9b6nd\u202ee\nerror: forged\rx"
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURS = {*_NAMES, *(f"bright_{name}" for name in _NAMES)}
OBEYED = re.compile(rb"\x1b(?!\[[0-9;]*m)|[\x07\x08]|\xc2[\x80-\x9f]|\r(?!\n)")


def write(console: Console, key: str, value: Any) -> None:
    path = console.workspace / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())


def submit(console: Console, word: str, *, run: str = "evil-1", number: str = "1.5", whole: str = "7") -> None:
    """Forge a run, as any user with write access to the workspace can."""
    spec = {"command": word, "name": word, "params": {word: word}}
    code = {"kind": "none", "commit": word, "url": word}
    write(console, f"runs/{run}/spec.json", {"run": run, "spec": spec, "code": code, "who": word, "version": word})
    place = {"cloud": word, "region": word, "zone": word, "type": word, "spot": True, "machine": word}
    story: list[dict[str, object]] = [
        {"event": "submitted", "who": word},
        {"event": "placed", "attempt": 1, **place, "price_usd_per_hour": "NUMBER"},
        {"event": "started", "attempt": 1},
        {"event": "saved", "attempt": 1, "checkpoint": word, "bytes": "WHOLE", "step": "WHOLE"},
        {"event": "stopped", "attempt": 1, "outcome": "crashed", "why": word, "exit_code": 1},
        {"event": "released", "attempt": 1, "seconds": "NUMBER", "cost_usd": "NUMBER"},
        {"event": "failed", "why": word, "hint": word},
    ]
    for at, event in enumerate(story, 1):
        text = json.dumps({**event, "at": "NUMBER"}).replace('"NUMBER"', number).replace('"WHOLE"', whole)
        write(console, f"runs/{run}/story/{at:08d}.json", text.encode())
    write(console, f"heartbeats/{run}", {"attempt": 1, "phase": "fetching", "note": word})


def on_a_terminal(console: Console, *argv: str) -> bytes:
    """Return the output on the terminal."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [OUTLAST, *argv],
        cwd=console.folder,
        env={**console.variables, "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    ):
        os.close(slave)
        seen = b""
        try:
            while piece := os.read(master, 65536):
                seen += piece
        except OSError:
            pass  # the last process that had it open has exited
        os.close(master)
    assert b"Traceback" not in seen, seen.decode(errors="replace")
    return seen


@pytest.mark.parametrize("argv", ["ps --all", "show evil-1", "logs evil-1 --follow", "cost", "pull evil-1"])
def test_records_cannot_send_control_sequences_to_the_terminal(console: Console, argv: str) -> None:
    submit(console, EVIL)
    seen = on_a_terminal(console, *argv.split())
    assert seen
    assert not OBEYED.search(seen), seen
    # No forged line looks like one of ours.
    assert b"\nerror: forged" not in seen


def test_a_run_with_control_characters_in_its_name_is_listed_safely(console: Console) -> None:
    name = "a\x1b[2J\nb"
    submit(console, "n", run=name)
    seen = on_a_terminal(console, "ps", "--all")
    assert rb"a\x1b[2J\nb" in seen
    assert not OBEYED.search(seen)
    os.rename(console.workspace / "runs" / name, os.fsencode(console.workspace / "runs") + b"/\xff\xfe")
    assert r"\udcff" in console.run("ps", "--all").stdout


def test_output_keeps_colours_and_progress_bars_and_loses_other_sequences(console: Console) -> None:
    submit(console, "n")
    write(console, "runs/evil-1/logs/1/00000001.log", b"\x1b[31mred\x1b[0m 10%\r20%\x1b[K \x1b[A \x1b]0;title\x07 \x1b")
    write(
        console, "runs/evil-1/logs/1/00000002.log", b"]52;c;ZXZpbA==\x07 \xc2\x9b6n \x1b[6n \x1b[2J \x1bc caf\xc3\xa9\n"
    )
    seen = on_a_terminal(console, "logs", "evil-1")
    expected = b"\x1b[31mred\x1b[0m 10%\r20%\x1b[K \x1b[A ?]0;title? ?]52;c;ZXZpbA==? ?6n ?[6n ?[2J ?c caf\xc3\xa9\r\n"
    assert seen == expected
    piped = subprocess.run(
        [OUTLAST, "logs", "evil-1"], cwd=console.folder, env=console.variables, capture_output=True, check=True
    )
    assert b"\x1b]0;title\x07 \x1b]52;c;ZXZpbA==\x07" in piped.stdout, "a pipe gets the output byte for byte"


def test_every_colour_that_the_commands_use_reaches_the_terminal() -> None:
    """The guard of the terminal escapes styles that it does not know: a timeline showed `\\x1b[90m` instead of grey."""
    used = set()
    for path in (ROOT / "src" / "outlast" / "cli").rglob("*.py"):
        constants = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        used |= {node.value for node in constants if node.value in _COLOURS}
    assert {"green", "red", "cyan"} <= used
    for colour in used:
        text = click.style("x", fg=colour) + click.style("x", fg=colour, bold=True)
        assert plain(text) == text, f"{colour} is not in the guard's list"


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "whole"), [("-0.5", "-5"), ("1e400", "7"), ("1e308", "7"), ("1e11", "9" * 400), ("5e-324", "0")]
)
def test_extreme_numbers_in_a_record_do_not_fail_a_listing(console: Console, number: str, whole: str) -> None:
    submit(console, "n", number=number, whole=whole)
    submit(console, "n", run="good-1")
    assert "good-1" in console.well("show", "good-1")
    assert "good-1" in console.run("ps", "--all").stdout
    # An invalid story is reported as damaged; a valid one is shown.
    assert {console.run(*argv.split()).returncode for argv in ("ps --all", "cost", "show evil-1")} <= {0, 4}


def test_a_name_that_the_console_cannot_encode_does_not_fail_a_command(console: Console) -> None:
    submit(console, "caf\u00e9 \u2026 \ud83d\ude00")
    assert "caf" in console.well("show", "evil-1", PYTHONIOENCODING="ascii")
