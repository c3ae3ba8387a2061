"""A sync survives lost connections, moved machines and kills, and leaves complete files."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from outlast.machines.ssh import Link
from tests.integration.sync.far import Far, Syncing, left_behind
from tests.support.home import Home
from tests.support.waiting import eventually


@pytest.mark.full
def test_a_machine_that_stops_and_comes_back_is_followed(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    syncing = Syncing(home, "dev:project", "--delete")
    syncing.until("copied")
    home.cloud.stop("dev")
    syncing.until("waiting")
    home.write("b.py", "while it was away")
    (home.project / "a.py").unlink()
    home.cloud.start("dev")
    syncing.until("connected", within_s=60.0)
    syncing.until("copied")
    home.write("c.py", "after")
    syncing.until("arrived", path="c.py")
    far.link.refresh()
    assert far.files("project") == {"b.py", "c.py"}
    assert syncing.stop()[0] == 0
    assert not left_behind(home)


@pytest.mark.full
def test_a_lost_connection_is_made_again(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    syncing = Syncing(home, "dev:project")
    syncing.until("copied")
    pids = subprocess.run(
        ["pgrep", "-f", f"{home.root}/.*ControlPath=none"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    assert pids
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)
    syncing.until("lost")
    syncing.until("copied")
    home.write("b.py", "b")
    syncing.until("arrived", path="b.py")
    assert far.files("project") == {"a.py", "b.py"}


def test_a_run_is_followed_to_its_next_machine(home: Home) -> None:
    home.write("code.py", "first")
    run = home.run("sleep", "1000")
    home.start("supervise")
    syncing = Syncing(home, f"{run}:.")
    first = syncing.until("connected")["machine"]
    syncing.until("copied")
    home.cloud.preempt(first, notice=False)
    second = syncing.until("connected", within_s=60.0)["machine"]
    assert second != first
    syncing.until("copied")
    home.write("code.py", "second")
    syncing.until("arrived", path="code.py")
    link = Link(home.cloud, second)
    assert link.run(["cat", "work/code.py"]).stdout == b"second"
    home.outlast("cancel", run)
    assert syncing.process.wait(60.0) == 0
    assert not left_behind(home)


@pytest.mark.full
def test_a_run_without_a_machine_is_waited_for(home: Home) -> None:
    home.write("code.py", "x")
    run = home.run("sleep", "1000")
    syncing = Syncing(home, f"{run}:.")
    assert "has no machine now" in syncing.until("waiting")["why"]
    home.start("supervise")
    syncing.until("connected")
    assert syncing.stop()[0] in (0, 130)


@pytest.mark.full
def test_a_machine_that_is_deleted_ends_it_with_an_error(home: Home, far: Far) -> None:
    home.write("a.py", "a")
    syncing = Syncing(home, "dev:project")
    syncing.until("copied")
    home.cloud.delete("dev")
    assert syncing.process.wait(90.0) == 5
    assert "machine `dev` no longer exists" in syncing.stderr_text()
    assert not left_behind(home)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_a_sync_that_is_cut_short_leaves_no_half_file_and_no_process(home: Home, far: Far, number: int) -> None:
    size = 400 << 20
    with open(home.project / "big.bin", "wb") as file:
        file.truncate(size)
    home.write("a.py", "a")
    syncing = Syncing(home, "dev:project")
    syncing.until("connected")
    scratch = "find project/.outlast-sync/tmp-* -type f 2>/dev/null | head -1; true"
    eventually(lambda: far.sh(scratch), what="a transfer")
    syncing.process.send_signal(number)
    syncing.process.wait(20.0)
    eventually(lambda: not left_behind(home), within_s=20.0, what="the end of every process")
    assert far.sh("stat -c %s project/big.bin 2>/dev/null || true") in ("", f"{size}\n")
    assert far.sh("ls project/.outlast-sync | grep tmp- || true") == ""
    os.truncate(home.project / "big.bin", 1000)
    assert home.outlast("sync", "dev:project").returncode == 0
    assert far.sh("stat -c %s project/big.bin") == "1000\n"
    assert far.files("project") == {"a.py", "big.bin"}
