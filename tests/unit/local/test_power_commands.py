"""`shutdown`, `reboot` and their kin, and `sudo`, as programs: which signal they send, when, and as which user."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import eventually

from outlast.clouds.local import power_commands, sudo

# Stands in for a machine's init: it writes down the first signal and exits.
_INIT = """
trap 'echo off > {0}; exit' USR1
trap 'echo reboot > {0}; exit' HUP
echo > {0}.ready
while :; do sleep 0.05; done
"""


class Commands:
    """The power commands of a machine whose init is a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.received = folder, folder / "received"
        self.init = subprocess.Popen(["/bin/sh", "-c", _INIT.format(self.received)])
        eventually(lambda: Path(f"{self.received}.ready").exists())
        text = power_commands.script(init_pid=self.init.pid, state=str(folder))
        for name in power_commands.NAMES:
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        name, *options = command.split()
        return subprocess.run([str(self.folder / name), *options], capture_output=True, text=True, check=False)

    def close(self) -> None:
        self.run("shutdown -c")
        self.init.kill()
        self.init.wait()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    opened = Commands(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("shutdown -h now", "off"),
        ("shutdown -P +0 good night", "off"),
        ("shutdown -hP now", "off"),
        ("shutdown -r now", "reboot"),
        ("shutdown --reboot 0", "reboot"),
        ("poweroff", "off"),
        ("halt -p", "off"),
        ("reboot", "reboot"),
        ("reboot -f", "reboot"),
    ],
)
def test_a_command_signals_init_at_once(commands: Commands, command: str, expected: str) -> None:
    done = commands.run(command)
    assert (done.returncode, done.stderr) == (0, "")
    eventually(lambda: commands.received.exists() and commands.received.read_text() == f"{expected}\n")


@pytest.mark.parametrize("command", ["shutdown -h +5", "shutdown", "shutdown -r 23:59", "shutdown -h 7"])
def test_a_later_time_waits_and_can_be_cancelled(commands: Commands, command: str) -> None:
    done = commands.run(command)
    assert done.returncode == 0
    assert "scheduled for" in done.stderr
    pid = int((commands.folder / "shutdown.pid").read_text())
    assert commands.run("shutdown --show").returncode == 0
    assert commands.run("shutdown -c").returncode == 0
    eventually(lambda: not os.path.exists(f"/proc/{pid}") or _is_zombie(pid))
    assert commands.run("shutdown --show").stdout == "No scheduled shutdown.\n"
    assert not commands.received.exists()
    assert commands.init.poll() is None


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("command", ["shutdown -h soon", "shutdown -x", "shutdown --later", "shutdown -h +a"])
def test_a_wrong_option_or_time_is_refused(commands: Commands, command: str) -> None:
    done = commands.run(command)
    assert done.returncode == 1
    assert done.stderr.startswith("shutdown: ")
    assert commands.init.poll() is None


def _sudo(folder: Path, *argv: str, own_users: bool) -> subprocess.CompletedProcess[str]:
    program = folder / "sudo"
    # This computer's own sudo must not answer.
    program.write_text(sudo.program(own_users=own_users).replace("/usr/bin/sudo", "/nonexistent"), encoding="utf-8")
    program.chmod(0o755)
    return subprocess.run([str(program), *argv], capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("id", "-un"), "root"),
        (("-u", "daemon", "id", "-un"), "daemon"),
        (("-nu", "daemon", "id", "-un"), "daemon"),
        (("--user=daemon", "--", "id", "-un"), "daemon"),
        (("-EHu#0", "id", "-un"), "root"),
        (("-u", "daemon", "WORD=a b", "sh", "-c", 'echo "$WORD $USER"'), "a b daemon"),
        (("-s", "echo", "one"), "one"),
    ],
)
def test_sudo_runs_as_the_user(tmp_path: Path, argv: tuple[str, ...], expected: str) -> None:
    done = _sudo(tmp_path, *argv, own_users=True)
    assert (done.stdout.strip(), done.returncode) == (expected, 0), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_sudo_refuses_an_unknown_user(tmp_path: Path) -> None:
    done = _sudo(tmp_path, "-u", "no-such-user", "id", own_users=True)
    assert (done.returncode, done.stderr) == (1, "sudo: unknown user no-such-user\n")


def test_sudo_refuses_another_user_where_a_machine_has_one(tmp_path: Path) -> None:
    done = _sudo(tmp_path, "-u", "daemon", "id", own_users=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sudo: cannot run as daemon")
    assert _sudo(tmp_path, "A=b", "sh", "-c", "echo $A", own_users=False).stdout == "b\n"
