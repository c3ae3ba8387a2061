"""A training in separate processes that receives SIGTERM, then is killed, then finishes; and an undisturbed one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# The start of each script. `hold` waits at the step that the test names.
PREAMBLE = """
import json, os, random, sys, time
import outlast

with open(f"pids-{os.environ['OUTLAST_ATTEMPT']}.txt", "a") as file:
    file.write(f"{os.getpid()}\\n")

def hold(run, step):
    if step == int(os.environ.get("HOLD_AT", "-1")) and run.environment.rank == 0:
        run._saver.wait()
        print("holding", flush=True)
        while not run.stop_requested:
            time.sleep(0.005)

def result(run, **values):
    with open(os.path.join(run.outputs, "result.json"), "w") as file:
        json.dump(values, file)
    run.done()

def began(step):
    with open("resumed.txt", "a") as file:
        file.write(f"{step}\\n")

def digest(*arrays):
    import hashlib
    import numpy
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(numpy.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()
"""


# Importing a framework takes long on a busy machine.
_TIMEOUT_S = 300.0


class Trial:
    """One training over several processes, with the variables that a machine would set."""

    def __init__(self, root: Path, script: str, *, launcher: list[str] | None = None) -> None:
        self.root = root
        root.mkdir()
        self.script = root / "train.py"
        self.script.write_text(PREAMBLE + script)
        self.launcher = launcher or [sys.executable]
        self.attempt = 0

    def start(self, hold_at: int = -1) -> subprocess.Popen[str]:
        self.attempt += 1
        environment = {
            **os.environ,
            "HOLD_AT": str(hold_at),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "OUTLAST_RUN": "trial",
            "OUTLAST_ATTEMPT": str(self.attempt),
            "OUTLAST_CHECKPOINT_DIR": str(self.root / "checkpoints"),
            "OUTLAST_OUTPUT_DIR": str(self.root / "outputs"),
            "OUTLAST_METRICS_FILE": str(self.root / "metrics.jsonl"),
            "OUTLAST_NOTICE_FILE": str(self.root / f"notice-{self.attempt}.json"),
            "OUTLAST_DONE_FILE": str(self.root / "done.json"),
        }
        with open(self.root / f"errors-{self.attempt}.txt", "w") as errors:
            return subprocess.Popen(
                [*self.launcher, str(self.script)],
                cwd=self.root,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def until_held(self, step: int) -> subprocess.Popen[str]:
        """Start, and return when the training waits at this step."""
        process = self.start(hold_at=step)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "holding":
                return process
        raise AssertionError(f"it exited with {process.wait()} before step {step}:\n{self.errors}")

    def notice(self, step: int) -> None:
        """Send SIGTERM at this step: the training must save and exit, and must not declare itself complete."""
        process = self.until_held(step)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=_TIMEOUT_S)
        # A launcher such as torchrun passes the signal on, waits, and exits with 1.
        assert process.returncode == 0 or self.launcher != [sys.executable], f"{output}\n{self.errors}"
        assert not self.is_done
        assert not (self.root / "outputs" / "result.json").exists()

    def kill(self, step: int) -> None:
        """Kill the training at this step without notice."""
        process = self.until_held(step)
        os.killpg(process.pid, signal.SIGKILL)
        # Ranks are in separate sessions; a machine that vanishes kills them, too.
        for pid in (self.root / f"pids-{self.attempt}.txt").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        process.communicate(timeout=_TIMEOUT_S)
        assert not self.is_done

    def finish(self) -> dict[str, Any]:
        process = self.start()
        output, _ = process.communicate(timeout=_TIMEOUT_S)
        assert process.returncode == 0, f"exit {process.returncode}: {output}\n{self.errors}"
        assert self.is_done, f"{output}\n{self.errors}"
        result: dict[str, Any] = json.loads((self.root / "outputs" / "result.json").read_text())
        return result

    @property
    def is_done(self) -> bool:
        return (self.root / "done.json").exists()

    @property
    def errors(self) -> str:
        return (self.root / f"errors-{self.attempt}.txt").read_text()[-4000:]

    @property
    def resumed_at(self) -> list[int]:
        """The first step of each attempt, as it reported."""
        path = self.root / "resumed.txt"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def disturbed(tmp_path: Path) -> Any:
    """Return the script's result after SIGTERM at a step and a kill at another; and the trial."""

    def run(script: str, *, notice: int, kill: int, launcher: list[str] | None = None) -> tuple[dict[str, Any], Trial]:
        trial = Trial(tmp_path / "disturbed", script, launcher=launcher)
        trial.notice(notice)
        trial.kill(kill)
        return trial.finish(), trial

    return run


@pytest.fixture
def undisturbed(tmp_path: Path) -> Any:
    def run(script: str, *, launcher: list[str] | None = None) -> dict[str, Any]:
        return Trial(tmp_path / "undisturbed", script, launcher=launcher).finish()

    return run
