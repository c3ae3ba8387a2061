"""The machines that a run will get, on a terminal: shown with their prices, and confirmed above a price."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.gcp.cloud import GcpCloud
from tests.integration.gcp.home import at_home
from tests.support.gcp import ZONE, Rehearsal
from tests.support.home import OUTLAST, Home
from tests.support.waiting import patience


@pytest.fixture
def home(rehearsal: Rehearsal, gcp: GcpCloud, tmp_path: Path) -> Iterator[Home]:
    with at_home(tmp_path, rehearsal, gcp) as own:
        own.write("train.py", "print('trained')\n")
        yield own


def typed(home: Home, *argv: str, answer: str, above_usd: str) -> tuple[int, str]:
    """Run a command on a terminal and type an answer; return its exit code and the screen."""
    ours, theirs = pty.openpty()
    environment = {**home.environment, "OUTLAST_ASK_ABOVE_USD": above_usd, "TERM": "dumb", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [OUTLAST, *argv], cwd=home.project, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    screen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the last process has closed the terminal
            break
        if not piece:
            break
        screen += piece
    os.close(ours)
    return process.wait(patience(60)), screen.decode().replace("\r\n", "\n")


@pytest.mark.full
def test_the_choice_is_shown_and_confirmed_before_a_machine_is_launched(home: Home, gcp: GcpCloud) -> None:
    argv = ["submit", "--name", "dear", "--cloud", "gcp", "--gpu", "T4", "--zone", ZONE, "--", "python3", "train.py"]
    code, screen = typed(home, *argv, answer="n\n", above_usd="0.01")
    assert code == 2, screen
    header, first = (line for line in screen.splitlines() if "ZONE" in line or "first choice" in line)
    assert header.split()[:5] == ["USD/HOUR", "KIND", "ZONE", "TYPE", "CPUS"]
    assert first.split()[2].startswith("$0."), "a narrow terminal shows the price, too"
    assert f"spot       gcp {ZONE}" in first
    assert "for comparison" in screen
    assert "Start for $0." in screen
    assert "no checkpoint path: after a preemption the command starts again" in screen
    assert "declined; nothing was launched" in screen
    assert gcp.machines() == []
    assert home.workspace.story("dear-1").refresh().submitted_at == 0
    cheap = ["submit", "--name", "cheap", "--cloud", "gcp", "--type", "e2-standard-2", "--zone", ZONE, "--", "true"]
    code, screen = typed(home, *cheap, answer="", above_usd="5")
    assert code == 0, screen
    assert "first choice" in screen
    assert "Start for" not in screen
    assert "follow it with `outlast logs -f cheap-1`" in screen
    assert home.outlast("cancel", "cheap-1").returncode == 0
    code, screen = typed(home, *cheap, answer="y\n", above_usd="0.001")
    assert code == 0, screen
    assert "Start for $0." in screen
    assert home.outlast("cancel", "cheap-2").returncode == 0


@pytest.mark.full
def test_packages_of_this_computer_are_refused_where_machines_do_not_have_them(home: Home, gcp: GcpCloud) -> None:
    answer = home.outlast("submit", "--cloud", "gcp", "--zone", ZONE, "--environment", "host", "--", "true")
    assert answer.returncode == 2, answer.stderr
    assert "machines of `gcp` do not have the packages of this computer" in answer.stderr
    assert gcp.machines() == []


def test_the_price_of_a_volume_is_shown_and_confirmed_before_it_is_created(home: Home, gcp: GcpCloud) -> None:
    argv = ["volume", "create", "demos", "--size", "10GB", "--cloud", "gcp"]
    code, screen = typed(home, *argv, answer="n\n", above_usd="5")
    assert code == 2, screen
    # Google bills its smallest size.
    assert "the volume will cost $163.84 a month, from now until you delete it" in screen
    assert "declined; nothing was created" in screen
    assert gcp.volumes.list_all() == []
    code, screen = typed(home, *argv, answer="y\n", above_usd="5")
    assert code == 0, screen
    assert [volume.size_gb > 1000 for volume in gcp.volumes.list_all()] == [True]
    assert home.outlast("volume", "delete", "demos", "--yes").returncode == 0
