"""A separate home for every test: new workspace, cloud and home directory; no machine outlives the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.cloud import Machine
from outlast.clouds.local.cloud import LocalCloud
from outlast.runs.state import RunState
from outlast.workspace import Workspace, open_workspace
from tests.support.waiting import eventually, patience

OUTLAST = str(Path(sys.executable).parent / "outlast")

# Counts to a total, and keeps the count in its checkpoint folder; the whole of what a program need do.
COUNTER = """
import os, sys, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "count")
count = int(open(path).read()) if os.path.exists(path) else 0
print("resumed at", count, flush=True)
total, pause = int(sys.argv[1]), float(sys.argv[2])
while count < total:
    time.sleep(pause)
    count += 1
    open(path, "w").write(str(count))
    print("count", count, flush=True)
open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "total.txt"), "w").write(str(count))
"""
# The same, but its first attempt counts on until its machine is preempted: the test need not hurry.
UNHURRIED = COUNTER.replace("while count < total:", 'while count < total or os.environ["OUTLAST_ATTEMPT"] == "1":')


class Home:
    """A user's computer: a project folder, a workspace, a cloud."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.project.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(root / "home"),
            "OUTLAST_WORKSPACE": str(root / "workspace"),
            "OUTLAST_LOCAL_CLOUD": str(root / "cloud"),
        }
        for name in ("OUTLAST_LOCAL_MODE", "OUTLAST_KIT_CACHE"):
            if name in os.environ:
                self.environment[name] = os.environ[name]
        self.cloud = LocalCloud(str(root / "cloud"))
        self.workspace: Workspace = open_workspace(str(root / "workspace"))
        self._started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def outlast(self, *argv: str, timeout_s: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [OUTLAST, *argv],
            cwd=self.project,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience(timeout_s),
            check=False,
        )

    def start(self, *argv: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [OUTLAST, *argv],
            cwd=self.project,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, *argv: str) -> str:
        """Submit without a supervisor; return the name of the run."""
        from outlast.cli.shared.project import load_project, spec_of
        from outlast.submit.run import submit

        project = load_project(str(self.write("outlast.toml", "")))
        spec = spec_of(project, {"name": "run"}, argv)
        return submit(self.workspace, {"local": self.cloud}, spec, environment=self.environment).run

    def state(self, run: str = "") -> RunState:
        return self.workspace.story(run or self.only_run()).refresh()

    def only_run(self) -> str:
        runs = self.workspace.runs()
        assert len(runs) == 1, runs
        return runs[0]

    def machines(self) -> list[Machine]:
        return list(self.cloud.machines())

    def log(self, run: str = "") -> str:
        from outlast.runs.logs import LogReader, attempts_with_logs

        run = run or self.only_run()
        bodies = [
            body
            for attempt in attempts_with_logs(self.workspace.bucket, run)
            for body in LogReader(self.workspace.bucket, run, attempt).read()
        ]
        return b"".join(bodies).decode(errors="replace")

    def until(self, condition: Any, what: str, within_s: float = 30.0) -> None:
        eventually(condition, within_s=within_s, what=what)

    def until_counted(self, count: int) -> None:
        self.until(lambda: self.workspace.runs() and f"count {count}\n" in self.log(), f"count {count}")

    def preempt_when_ready(self, process: subprocess.Popen[str]) -> str:
        """Preempt the run once it has printed `ready`; return the output of the command, which must succeed."""
        self.until(lambda: self.workspace.runs() and "ready" in self.log(), "start")
        self.outlast("preempt", "last")
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        return output

    def supervise(self) -> subprocess.CompletedProcess[str]:
        return self.outlast("supervise", "--until-idle")

    def ps(self) -> list[dict[str, Any]]:
        answer = self.outlast("ps", "--all", "--json")
        assert answer.returncode in (0, 4), answer.stderr  # 4: a run is damaged, and listed as such
        found: list[dict[str, Any]] = json.loads(answer.stdout)
        return found

    def clean(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for pid in processes_mentioning(str(self.root)):
            if pid != os.getpid():
                kill_9(pid)
        for machine in self.cloud.machines():
            self.cloud.delete(machine.name)


def processes_mentioning(text: str) -> list[int]:
    """Every process whose command line or environment names this text."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if text.encode() in argv:
            found.append(int(name))
    return found


def kill_9(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.clean()
