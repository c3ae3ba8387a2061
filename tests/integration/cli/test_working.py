"""Whatever takes longer than two seconds says what it is at: on stderr, in words, where nothing else speaks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from outlast.cli import terminal
from outlast.cli.interrupt_text import LEAVES
from outlast.cli.progress import WORKS, at_work, working
from tests.integration.cli.console import OUTLAST, Console
from tests.support.waiting import eventually

# Why these are not in the table.
FOLLOW = ["demo", "logs", "drill", "sweep start", "sweep resume", "machine keep", "cluster logs", "sync", "supervise"]
FOLLOW += ["run", "submit", "burst", "ui", "tunnel", "cluster dashboard", "local serve"]
HANDED_OVER = ["machine ssh", "db shell", "cluster attach", "cluster exec", "attach"]
SHORT = ["init", "ps", "show", "limits", "sweep list", "machine serial", "machine ssh-config", "completion"]
SHORT += ["local env", "local machines", "local serial", "local set", "local zones"]


def test_every_command_says_what_it_is_at_or_has_a_reason_not_to() -> None:
    assert sorted([*WORKS, *FOLLOW, *HANDED_OVER, *SHORT]) == sorted(LEAVES)


def test_it_is_told_again_and_again_and_only_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def told(count: int) -> bool:
        said.extend(capsys.readouterr().err.splitlines())
        return len(said) >= count

    with working("copying", pauses_s=(0.01, 0.02)):
        eventually(lambda: told(3), within_s=30.0)
    assert all(line.startswith("copying … ") for line in said)
    with working("deleting", pauses_s=(30.0,)):
        terminal.note("one is gone")
    assert "deleting" not in capsys.readouterr().err


@pytest.mark.parametrize("argv", ["cluster status --watch", "pull last --watch", "ssh box", "machine delete --help"])
def test_what_shows_itself_is_left_alone(argv: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = terminal.said_at
    with at_work(argv.split()):
        assert terminal.said_at == before


def test_a_command_that_waits_says_so_on_stderr_alone(tmp_path: Path) -> None:
    console = Console(tmp_path)
    pipe = console.folder / "capacity.json"
    os.mkfifo(pipe)
    argv = [OUTLAST, "simulate", "--work", "10h", "--deadline", "20h", "--trace", str(pipe), "--json"]
    process = subprocess.Popen(
        argv, cwd=console.folder, env=console.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    # It waits for somebody to write into the pipe, which nobody does before it has spoken.
    first = process.stderr.readline()
    with open(pipe, "w", encoding="utf-8") as file:
        file.write("{")
    printed, _ = process.communicate(timeout=30)
    assert first.startswith("playing … ")
    assert printed == ""
    assert process.returncode == 2
