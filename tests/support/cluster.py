"""A workspace, a local cloud whose machines have separate addresses, and the command line, with real Ray and ssh."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast.cluster import broker
from outlast.cluster.record import Clusters
from outlast.machines import sshfiles
from outlast.workspace import open_workspace

OUTLAST = str(Path(sys.executable).parent / "outlast")
FILE = """
[cluster]
name = "small"
idle = "10s"
orphan = "20s"
[cluster.head]
type = "local-1"
[cluster.workers.cpu]
type = "local-1"
max = 3
"""


TICKS = "import itertools, time\nfor n in itertools.count():\n    print('tick', n, flush=True)\n    time.sleep(0.5)\n"


class Bench:
    def __init__(self, root: Path, mode: str) -> None:
        self.root = root
        self.cloud = LocalCloud(str(root / "cloud"), mode=mode)
        self.project = root / "project"
        self.project.mkdir()
        (self.project / "outlast.toml").write_text(FILE)
        self.clusters = Clusters(open_workspace(str(root / "workspace")))
        self.environment = {
            **os.environ,
            "HOME": str(root / "home"),
            "OUTLAST_WORKSPACE": str(root / "workspace"),
            "OUTLAST_LOCAL_CLOUD": str(root / "cloud"),
            "OUTLAST_LOCAL_MODE": mode,
        }
        self._started: list[subprocess.Popen[str]] = []

    def outlast(self, *argv: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [OUTLAST, *argv],
            env=self.environment,
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def good(self, *argv: str) -> str:
        answer = self.outlast(*argv)
        assert answer.returncode == 0, answer.stderr + answer.stdout
        return answer.stdout

    def status(self) -> dict[str, Any]:
        found = json.loads(self.good("cluster", "status", "--json"))
        assert isinstance(found, dict)
        return found

    def start(self, *argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [OUTLAST, *argv],
            env=self.environment,
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def workers(self) -> list[str]:
        return [machine.name for machine in self.cloud.machines() if "-w-" in machine.name]

    def left(self) -> list[str]:
        """Return everything that a cluster may leave: machines, records, secrets, brokers, processes."""
        found = [machine.name for machine in self.cloud.machines()]
        for prefix in ("machines/", "clusters/"):
            found += [entry.key for entry in self.clusters.bucket.list(prefix)]
        for folder in ("secrets", "trash"):
            found += [path.name for path in (self.root / "cloud" / folder).glob("*")]
        return found + self.processes()

    def processes(self) -> list[str]:
        """Return the processes of this cloud and of its broker."""
        mark = str(self.root).encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if mark in line and b"ssh" not in line.split(b"\0")[0]:
                found.append(line.replace(b"\0", b" ").decode())
        return found

    def clean(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for cluster in self.clusters.all():
            broker.stop(cluster.id)
        for machine in self.cloud.machines():
            self.cloud.delete(machine.name)
        for name in sshfiles.machines_written():
            sshfiles.forget_machine(name)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read lines until that text and return them."""
    assert process.stdout is not None
    output = ""
    while text not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    return output


@contextmanager
def benched(root: Path) -> Iterator[Bench]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    if shutil.which("ssh") is None:
        pytest.skip("OpenSSH's client is not installed")
    reasons = {mode: why_not(mode, root=str(root)) for mode in ("root", "userns")}
    mode = next((mode for mode, why in reasons.items() if not why), "")
    if not mode:
        pytest.skip(f"machines have no network of their own here: {reasons}")
    (root / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root / "home"))
        bench = Bench(root, mode)
        yield bench
        bench.clean()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with benched(tmp_path) as bench:
        yield bench
