"""Commands that take longer than two seconds report their progress on stderr while they print nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from outlast.cli.app import call
from outlast.cli.shared import terminal
from outlast.cli.shared.command import OutlastCommand
from outlast.cli.shared.progress import working
from tests.conventions.test_documented import ALL_COMMANDS
from tests.integration.cli.console import OUTLAST, Console
from tests.support.waiting import eventually

# Commands without a progress text, by reason.
FOLLOW = ["demo", "logs", "drill", "sweep start", "sweep resume", "machine keep", "cluster logs", "sync", "supervise"]
FOLLOW += ["run", "submit", "burst", "verify", "wait", "ui", "tunnel", "cluster dashboard", "local serve"]
HANDED_OVER = ["machine ssh", "db shell", "cluster attach", "cluster exec", "attach"]
SHORT = ["init", "ps", "config", "show", "limits", "sweep list", "machine serial", "machine ssh-config", "completion"]
SHORT += ["local env", "local machines", "local serial", "local set", "local zones"]


def test_every_command_has_a_progress_text_or_a_reason_to_have_none() -> None:
    silent = {name for name, one in ALL_COMMANDS.items() if isinstance(one, OutlastCommand) and not one.progress}
    assert silent == {*FOLLOW, *HANDED_OVER, *SHORT}


def test_progress_is_repeated_and_only_printed_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []

    def printed(count: int) -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return len(lines) >= count

    with working("copying", pauses_s=(0.01, 0.02)):
        eventually(lambda: printed(3), within_s=30.0)
    assert all(line.startswith("copying … ") for line in lines)
    with working("deleting", pauses_s=(30.0,)):
        terminal.note("one is gone")
    assert "deleting" not in capsys.readouterr().err


@pytest.mark.parametrize("argv", ["cluster status --watch", "pull last --watch", "machine delete --help"])
def test_a_command_that_follows_or_prints_help_starts_no_progress(argv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr("outlast.cli.shared.command.working", lambda text: started.append(text))
    call(argv.split())
    assert not started


@pytest.mark.full
def test_a_waiting_command_reports_on_stderr_only(tmp_path: Path) -> None:
    console = Console(tmp_path)
    pipe = console.folder / "capacity.json"
    os.mkfifo(pipe)
    argv = [OUTLAST, "simulate", "--work", "10h", "--deadline", "20h", "--trace", str(pipe), "--json"]
    process = subprocess.Popen(
        argv, cwd=console.folder, env=console.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    # The command blocks on the pipe, into which this test writes only after the first progress line.
    first = process.stderr.readline()
    with open(pipe, "w", encoding="utf-8") as file:
        file.write("{")
    printed, _ = process.communicate(timeout=600)
    assert first.startswith("simulating … ")
    assert printed == ""
    assert process.returncode == 2
