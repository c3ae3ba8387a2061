"""However `outlast run` ends, a background supervisor takes over, and no traceback is printed."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from outlast.cli.run.embedded_supervisor import embedded_supervisor, ensure_supervised
from outlast.store.lease import Lease
from tests.e2e.test_adversary_programs import STUCK
from tests.support.home import COUNTER, OUTLAST, Home, processes_mentioning


def shell(home: Home, text: str) -> subprocess.CompletedProcess[str]:
    environment = {**home.environment, "PATH": f"{os.path.dirname(OUTLAST)}:{home.environment['PATH']}"}
    return subprocess.run(
        ["bash", "-c", text], cwd=home.project, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def assert_goes_on_without_us(home: Home, total: int) -> None:
    """Check that the run is supervised: it survives the loss of its machine, and ends."""
    home.until_counted(10)
    home.cloud.preempt(home.machines()[0].name, notice=False)
    home.until(lambda: home.state().closed, "the end", 60)
    assert home.state().ending == "finished"
    assert f"count {total}\n" in home.log()
    assert home.machines() == []


@pytest.mark.full
def test_a_run_continues_when_the_reader_of_its_output_exits(home: Home) -> None:
    home.write("count.py", STUCK)
    answer = shell(home, "outlast run -- python3 count.py 15 0.02 | head -n 2")
    assert answer.stdout == "resumed at 0\ncount 1\n"
    assert "Traceback" not in answer.stderr
    assert_goes_on_without_us(home, 15)


@pytest.mark.full
def test_a_run_continues_when_its_terminal_is_closed(home: Home) -> None:
    home.write("count.py", STUCK)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        # `setsid --ctty` gives the process the terminal as its session, like a login shell.
        ["setsid", "--ctty", OUTLAST, "run", "--", "python3", "count.py", "15", "0.02"],
        cwd=home.project,
        env=home.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    home.until_counted(2)
    os.close(ours)
    assert process.wait(timeout=600) == 130
    assert_goes_on_without_us(home, 15)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_runs_with_closed_streams(home: Home, closed: str) -> None:
    home.write("hello.py", "print('hello')\n")
    answer = shell(home, f"outlast run -- python3 hello.py {closed}")
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ("" if ">&- " in closed + " " and closed != "2>&-" else "hello\n")
    assert home.state().closed


def test_a_read_only_home_does_not_prevent_supervision(home: Home) -> None:
    home.write("count.py", COUNTER)
    Path(home.environment["HOME"]).write_text("a file, and no folder")
    answer = home.outlast("submit", "--", "python3", "count.py", "3", "0.01")
    assert answer.returncode == 0, answer.stderr
    home.until(lambda: home.state().closed, "the end")


@pytest.mark.full
def test_an_interrupted_submit_creates_no_run(home: Home) -> None:
    home.write("hello.py", "print('hello')\n")
    assert home.outlast("run", "--name", "hello", "--", "python3", "hello.py").returncode == 0
    # The objects that a submit writes before it is killed.
    body = home.workspace.bucket.get("runs/hello-1/spec.json")
    home.workspace.bucket.create("runs/hello-2/spec.json", body.replace(b"hello-1", b"hello-2"))
    home.workspace.wake("hello-2")
    assert "hello-1" in home.outlast("show", "last").stdout
    for argv in (["logs", "-f", "hello-2"], ["cancel", "hello-2"], ["show", "hello-2"]):
        answer = home.outlast(*argv)
        assert answer.returncode == 3, answer.stderr
        assert "never submitted" in answer.stderr
    assert home.supervise().returncode == 0


@pytest.mark.full
def test_damaged_hints_do_not_stop_commands(home: Home) -> None:
    home.write("wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    process = home.start("run", "--", "python3", "wait.py")
    home.until(lambda: home.workspace.runs() and "ready" in home.log(), "start")
    os.kill(process.pid, signal.SIGSTOP)
    lease = home.workspace.bucket.children("leases/supervisor/")
    for name in lease:
        home.workspace.bucket.put(f"leases/supervisor/{name}", b"{")
    home.workspace.bucket.put(f"wakeups/{home.only_run()}/odd", b"{")
    assert Lease(home.workspace.bucket, "supervisor", who="", ttl_s=6.0).holder() is None
    for argv in (["ps"], ["show", "last"], ["plan"], ["reap"]):
        home.workspace.bucket.put(f"heartbeats/{home.only_run()}", b"\xff{")
        answer = home.outlast(*argv)
        assert answer.returncode == 0, answer.stderr
    assert home.outlast("cancel", "last").returncode == 0
    home.until(lambda: home.state().closed, "the end")
    os.kill(process.pid, signal.SIGCONT)
    process.communicate(timeout=600)
    assert process.returncode == 7


@pytest.mark.full
def test_a_kept_machine_is_reported_with_the_reason_of_the_failure(home: Home) -> None:
    home.write("crash.py", "import sys\nsys.exit(3)\n")
    answer = home.outlast("run", "--crashes", "1", "--keep-on-failure", "2s", "--", "python3", "crash.py")
    assert answer.returncode == 3
    assert "exited with 3" in answer.stderr
    assert "kept for debugging" in answer.stderr
    assert "still being deleted" not in answer.stderr
    home.until(lambda: home.state().closed, "the end of the time limit")
    home.until(lambda: not processes_mentioning(str(home.root)), "end of every process")


@pytest.mark.full
def test_following_a_run_whose_workspace_was_deleted_ends_with_an_error(home: Home) -> None:
    home.write("wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    process = home.start("run", "--", "python3", "wait.py")
    home.until(lambda: home.workspace.runs() and "ready" in home.log(), "start")
    shutil.rmtree(home.root / "workspace", ignore_errors=True)
    output, _ = process.communicate(timeout=600)
    assert process.returncode in (3, 4), output
    assert "error:" in output
    assert "Traceback" not in output


def test_ctrl_c_during_the_start_of_the_supervisor_starts_a_background_supervisor(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, left = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name == "supervisor":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", start)
    with (
        pytest.raises(KeyboardInterrupt),
        embedded_supervisor(home.workspace, then=lambda: left.append("handed over")),
    ):
        left.append("followed")
    assert left == ["handed over"]
    assert not any(thread.name == "supervisor" for thread in threading.enumerate())


@pytest.mark.full
def test_ctrl_c_between_submission_and_supervision_starts_a_background_supervisor(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "OUTLAST_LOCAL_CLOUD"):
        monkeypatch.setenv(name, home.environment[name])

    def ask_and_be_interrupted() -> None:
        home.run("true")
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), ensure_supervised(home.workspace):
        ask_and_be_interrupted()
    home.until(lambda: home.state().closed, "the end")
    assert home.state().ending == "finished"
    home.until(lambda: home.machines() == [], "no machine")
