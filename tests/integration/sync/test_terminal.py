"""Terminals that are left and entered again, and ports of machines."""

from __future__ import annotations

import grp
import os
import shutil
import socket
import urllib.request

import pytest

from outlast.machines.keepalive import job
from tests.integration.sync.far import Far
from tests.integration.sync.keyboard import Keyboard
from tests.support.home import Home
from tests.support.ports import free_port
from tests.support.waiting import eventually

LEAVE = "\x02d"

DEBUGGED = """
import sys
print("a terminal:", sys.stdin.isatty(), flush=True)
answer = 41
breakpoint()
print("the answer is", answer + 1)
sys.exit(5)
"""


@pytest.fixture
def tmux() -> None:
    if shutil.which("tmux") is None:
        pytest.skip("`tmux` is not installed")
    if os.geteuid() != 0 and not _terminals_are_groups():
        pytest.skip("new terminals do not belong to the group `tty` here, so the sshd of an ordinary user opens none")


def _terminals_are_groups() -> bool:
    here, there = os.openpty()
    try:
        return os.fstat(there).st_gid == grp.getgrnam("tty").gr_gid
    finally:
        os.close(here)
        os.close(there)


@pytest.mark.full
def test_a_debugger_is_entered_left_and_entered_again(home: Home, tmux: None) -> None:
    home.write("train.py", DEBUGGED)
    argv = ("run", "--interactive", "--crashes", "1", "--", "python3", "train.py")
    first = Keyboard(home, *argv)
    first.until("(Pdb)")
    first.type("answer = 100\r")
    first.until("answer = 100")
    first.type(LEAVE)
    first.until("the command continues. Attach again")
    second = Keyboard(home, "attach", home.only_run())
    second.until("answer = 100")  # the screen is as it was left
    second.sleep_and_wake()
    second.until("was lost; connecting again")
    second.until("(Pdb)")
    second.type("c\r")
    assert first.wait() == 5
    assert second.wait() == 0
    log = home.log()
    assert "a terminal: True\n" in log
    assert "the answer is 101\n" in log
    assert "\r\n" not in log
    assert home.state().exit_code == 5


def test_without_a_terminal_it_runs_normally(home: Home) -> None:
    home.write("train.py", "import os\nprint('size', os.get_terminal_size().columns)\n")
    answer = home.outlast("run", "--interactive", "--", "python3", "train.py")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "size 120\n"


@pytest.mark.full
def test_a_notice_reaches_a_command_in_a_terminal(home: Home, tmux: None) -> None:
    home.write(
        "train.py",
        "import os, signal, sys, time\n"
        "def leave(*_):\n    print('asked to leave', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('attempt', os.environ['OUTLAST_ATTEMPT'], flush=True)\n"
        "while os.environ['OUTLAST_ATTEMPT'] == '1': time.sleep(0.05)\n",
    )
    running = home.start("run", "--interactive", "--checkpoint", "saved", "--", "python3", "train.py")
    home.until(lambda: home.workspace.runs() and "attempt 1\n" in home.log(), "the first attempt")
    home.outlast("preempt", home.only_run())
    assert running.wait(60.0) == 0
    assert "asked to leave\n" in home.log()
    assert [attempt.outcome for attempt in home.state().attempts] == ["preempted", "finished"]


@pytest.mark.full
def test_attaching_to_a_run_without_a_terminal_is_refused(home: Home, tmux: None) -> None:
    run = home.run("sleep", "1000")
    home.start("supervise")
    home.until(lambda: home.state(run).current, "a start")
    keyboard = Keyboard(home, "attach", run)
    assert keyboard.wait() == 2
    assert b"was not started with `--interactive`" in keyboard.seen
    answer = home.outlast("attach", run)
    assert answer.returncode == 2
    assert "needs a terminal" in answer.stderr


@pytest.mark.full
def test_a_machine_has_a_session_that_goes_on(home: Home, far: Far, tmux: None) -> None:
    first = Keyboard(home, "attach", "dev")
    first.until("outlast")
    first.type("echo left-$((40+2)) > mark; sleep 1000\r")
    eventually(lambda: far.has("mark", "left-42\n"), what="the command in the session")
    first.type(LEAVE)
    assert first.wait() == 0
    second = Keyboard(home, "attach", "dev")
    second.until("sleep 1000")
    second.type("\x03exit\r")
    assert second.wait() == 0


def test_the_command_of_a_kept_machine_is_entered(home: Home, far: Far, tmux: None) -> None:
    id = home.root.parent.name + home.root.name
    assert job.start(far.link, id, 1, "echo asked; read word; echo got-$word", boots=1) == "started"
    first = Keyboard(home, "attach", "dev")
    first.until("asked")
    first.type(LEAVE)
    assert first.wait() == 0
    second = Keyboard(home, "attach", "dev")
    second.until("asked")
    second.type("this\r")
    assert second.wait() == 0
    assert far.sh(f"cat .outlast/keep/{id}/run-1/output") == "asked\ngot-this\n"


def test_a_command_and_a_container_cannot_both_have_the_terminal(home: Home) -> None:
    answer = home.outlast("run", "--interactive", "--set", "machine.container=x:1", "--", "true")
    assert answer.returncode == 2
    assert "a command in a container has no terminal" in answer.stderr


@pytest.mark.full
def test_a_port_is_waited_for_and_then_reached(home: Home, far: Far) -> None:
    there, here = free_port(), free_port()
    tunnel = home.start("tunnel", "dev", f"{there}:{here}")
    assert tunnel.stdout is not None
    line = tunnel.stdout.readline()
    assert f"no program listens on port {there} of dev yet" in line
    far.write("www/x.txt", "through")
    far.sh(f"(cd www; exec setsid python3 -m http.server --bind 127.0.0.1 {there}) >/dev/null 2>&1 </dev/null &")
    assert f"http://localhost:{here}" in tunnel.stdout.readline()
    assert urllib.request.urlopen(f"http://127.0.0.1:{here}/x.txt", timeout=10).read() == b"through"
    tunnel.send_signal(2)
    assert tunnel.wait(10.0) == 0
    with socket.socket() as trial:
        assert trial.connect_ex(("127.0.0.1", here)) != 0


def test_a_used_or_invalid_port_is_refused(home: Home, far: Far) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = home.outlast("tunnel", "dev", f"6006:{port}")
    assert answer.returncode == 2
    assert f"local port {port} cannot be used" in answer.stderr
    for argv in ("x", "0", "70000", "6006:x"):
        answer = home.outlast("tunnel", "dev", argv)
        assert answer.returncode == 2
        assert "invalid port" in answer.stderr


@pytest.mark.full
def test_a_machine_that_closes_every_terminal_is_reported(home: Home, far: Far, tmux: None) -> None:
    if not home.cloud.machine("dev").address.startswith("10."):
        pytest.skip("this machine shares the computer's root file system")
    far.sh("printf '#!/bin/sh\\nexit 255\\n' > /usr/local/bin/tmux; chmod +x /usr/local/bin/tmux; hash -r")
    assert far.sh("command -v tmux") == "/usr/local/bin/tmux\n"
    keyboard = Keyboard(home, "attach", "dev")
    assert keyboard.wait(within_s=60.0) == 5
    assert "dev accepts the connection but closes every terminal at once" in keyboard.seen.decode()
