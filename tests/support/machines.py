"""A temporary home, a real sshd on loopback whose keys and address a test may change, and a local cloud."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from outlast.clouds.cloud import Boot, InteractiveCloud, Machine, Requirements, SshAccess
from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import BadRequest, NotFound
from outlast.machines import sshfiles
from outlast.machines.create import MachineRequest, create_machine, finish
from outlast.records.machines import MachineRecords
from outlast.workspace import open_workspace
from tests.support.waiting import eventually

OUTLAST = str(Path(sys.executable).parent / "outlast")
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("OUTLAST_SSH_DIR", raising=False)
    return home


def _sshds_below(parent: int) -> list[int]:
    """Those of the sessions. For an ordinary user there are two each, and either keeps the connection."""
    children = [int(pid) for path in Path(f"/proc/{parent}/task").glob("*/children") for pid in _read(path).split()]
    sshds = [pid for pid in children if _read(Path(f"/proc/{pid}/comm")).startswith("sshd")]
    return [*sshds, *(below for pid in sshds for below in _sshds_below(pid))]


def _read(path: Path) -> str:
    """Nothing, of a process that ended meanwhile."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class SshServer:
    """The part of a cloud that ssh asks, with a real sshd behind it: one machine, `box`."""

    name = LocalCloud.name
    traits = LocalCloud.traits

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.there = True
        self.running = False
        self.process: subprocess.Popen[bytes] | None = None
        self.admitted = folder / "authorized_keys"
        self.port = 0
        self.reported_key = ""
        self.new_host_key()

    def new_host_key(self) -> None:
        key = self.folder / "host_key"
        key.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        self.reported_key = " ".join(key.with_suffix(".pub").read_text().split()[:2])

    def boot(self) -> None:
        assert SSHD is not None
        os.makedirs("/run/sshd", exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        settings = self.folder / "sshd_config"
        settings.write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {self.folder}/host_key\nPidFile none\nUsePAM no\n"
            f"StrictModes no\nAuthorizedKeysFile {self.admitted}\nPasswordAuthentication no\n"
        )
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(settings)], stderr=subprocess.DEVNULL)
        self.running = True

    def power_off(self) -> None:
        self.running = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def cut_connections(self) -> None:
        """End the sshd and its sessions, as a vanished machine does."""
        assert self.process is not None
        for pid in _sshds_below(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def machine(self, name: str) -> Machine:
        self._known(name)
        return Machine(
            name=name,
            cloud=self.name,
            zone="here",
            type="small",
            spot=False,
            status="running" if self.running else "stopped",
            labels={},
            created_at=0.0,
            price_usd_per_hour=0.0,
        )

    def access(self, name: str) -> SshAccess:
        self._known(name)
        if not self.running:
            raise BadRequest(f"{name} is not running")
        return SshAccess(host="127.0.0.1", user=getpass.getuser(), port=self.port, host_keys=(self.reported_key,))

    def admit(self, name: str, ssh_key: str) -> None:
        self._known(name)
        self.admitted.write_text(ssh_key + "\n")

    def _known(self, name: str) -> None:
        if not self.there or name != "box":
            raise NotFound(f"no machine `{name}`")

    def as_cloud(self) -> InteractiveCloud:
        return cast(InteractiveCloud, self)


@pytest.fixture
def ssh_server(tmp_path: Path, home: Path) -> Iterator[SshServer]:
    needs_ssh()
    folder = tmp_path / "ssh_server"
    folder.mkdir()
    ssh_server = SshServer(folder)
    ssh_server.boot()
    yield ssh_server
    if ssh_server.process is not None:
        ssh_server.cut_connections()
    ssh_server.power_off()
    close_connections()


def close_connections() -> None:
    """What commands leave open for those after them must not outlive the test."""
    for name in sshfiles.machines_written():
        sshfiles.forget_machine(name)


def needs_ssh() -> None:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("OpenSSH's client and server are not both installed")


class Bench:
    """A workspace, a local cloud and the command line, all in one folder."""

    def __init__(self, root: Path, home: Path) -> None:
        self.root = root
        self.home = home
        self.cloud = LocalCloud(str(root / "cloud"))
        self.machine_records = MachineRecords(open_workspace(str(root / "workspace")))
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "OUTLAST_WORKSPACE": str(root / "workspace"),
            "OUTLAST_LOCAL_CLOUD": str(root / "cloud"),
        }
        self.started: list[subprocess.Popen[str]] = []

    def machine(self, name: str = "box", *, spot: bool = True, zones: tuple[str, ...] = ()) -> Machine:
        """A machine made by hand, ready for use."""
        needs = Requirements(type="local-1", spot=spot, zones=zones)
        made, machine_record = create_machine(
            self.cloud, self.machine_records, MachineRequest(name=name, needs=needs, boot=Boot())
        )
        finish(self.machine_records, machine_record)
        eventually(lambda: self.cloud.machine(name).status == "running", what=f"{name} running")
        return made

    def outlast(self, *argv: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [OUTLAST, *argv],
            env=self.environment,
            cwd=self.root,
            input=typed,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def start(self, *argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [OUTLAST, *argv],
            env=self.environment,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def clean(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for machine in self.cloud.machines():
            self.cloud.delete(machine.name)
        close_connections()


@pytest.fixture
def bench(tmp_path: Path, home: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, home)
    yield bench
    bench.clean()
