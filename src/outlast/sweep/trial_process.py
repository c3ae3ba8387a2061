"""One trial as a process on a worker's machine: its folders, environment and metrics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from typing import IO

import msgspec

from outlast.runs.folder_listing import newest_path
from outlast.runs.metrics import parsed
from outlast.runs.outputs import FINAL
from outlast.spec.command import argv_of, render_param
from outlast.store.bucket import Bucket
from outlast.sweep.objective import from_file, last_line
from outlast.sweep.record import Sweep
from outlast.sweep.state import Trial
from outlast.sweep.trial import trial_spec
from outlast.sweep.workers import logged_by, metric_of

# The end of a trial's output that is searched for the last JSON line and the last message.
_TAIL_BYTES = 256 * 1024
_KILL_S = 5.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class TrialEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of the worker, as set by the agent."""

    run: str
    attempt: int
    code: str
    checkpoints: str
    outputs: str
    metrics_file: str
    environment: dict[str, str]

    @staticmethod
    def here() -> TrialEnvironment:
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)  # set for the worker only
        return TrialEnvironment(
            run=environment["OUTLAST_RUN"],
            attempt=int(environment["OUTLAST_ATTEMPT"]),
            code=os.getcwd(),
            checkpoints=environment["OUTLAST_CHECKPOINT_DIR"],
            outputs=environment["OUTLAST_OUTPUT_DIR"],
            metrics_file=environment["OUTLAST_METRICS_FILE"],
            environment=environment,
        )


class TrialProcess:
    """A running trial, with folders that are separate from those of other trials on the machine."""

    def __init__(self, sweep: Sweep, trial: Trial, worker: TrialEnvironment) -> None:
        self.sweep = sweep
        self.trial = trial
        self.worker = worker
        self.spec = trial_spec(sweep, trial.params)
        name = f"t{trial.number}"
        self.home = os.path.join(os.path.dirname(worker.checkpoints), "trials", name)
        self.checkpoints = os.path.join(worker.checkpoints, name)
        self.outputs = os.path.join(worker.outputs, name)
        self.resumed = os.path.isdir(self.checkpoints) and bool(os.listdir(self.checkpoints))
        self.started_at = time.time()
        self._process: subprocess.Popen[bytes] | None = None
        self._rows: IO[bytes] | None = None
        self._logged: dict[str, float] = {}

    @property
    def code(self) -> int | None:
        return self._process.poll() if self._process else None

    @property
    def ended(self) -> bool:
        return self.code is not None

    @property
    def reported_done(self) -> bool:
        return os.path.exists(self._path("done.json"))

    def _path(self, name: str) -> str:
        return os.path.join(self.home, name)

    def _newest(self, pattern: str) -> str:
        return newest_path(pattern, root=self._path("work"), checkpoints=self.checkpoints)

    def start(self) -> None:
        self._create_folders()
        # Append: a crashed trial that runs again has printed output before.
        with open(os.path.join(self.outputs, "log.txt"), "ab") as log:
            self._process = subprocess.Popen(
                argv_of(self.spec.command, self.spec.params, newest=self._newest),
                cwd=self._path("work"),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _create_folders(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        for folder in (self.home, self.checkpoints, self.outputs):
            os.makedirs(folder, exist_ok=True)
        linked = {name.split("/")[0] for name in self.spec.data}
        own = {os.path.basename(self.worker.outputs), self.spec.checkpoint.path.split("/")[0]} - {""}

        def left_out(folder: str, names: list[str]) -> set[str]:
            return (linked | own) & set(names) if folder == self.worker.code else set()

        shutil.copytree(self.worker.code, self._path("work"), symlinks=True, ignore=left_out)
        for name in linked:
            os.symlink(os.path.join(self.worker.code, name), os.path.join(self._path("work"), name))
        for path, target in ((self.spec.checkpoint.path, self.checkpoints), (self.spec.output_path, self.outputs)):
            link = os.path.join(self._path("work"), path)
            if path and not os.path.lexists(link):
                os.makedirs(os.path.dirname(link), exist_ok=True)
                os.symlink(target, link)

    def _environment(self) -> dict[str, str]:
        environment = dict(self.worker.environment)
        cores = max(1, (os.cpu_count() or 1) // self.sweep.search.per_machine)
        for name in _THREADS:
            environment.setdefault(name, str(cores))
        environment.update(
            OUTLAST_RESUME="1" if self.resumed else "0",
            OUTLAST_CHECKPOINT_DIR=self.checkpoints,
            OUTLAST_OUTPUT_DIR=self.outputs,
            OUTLAST_NOTICE_FILE=self._path("notice.json"),
            OUTLAST_DONE_FILE=self._path("done.json"),
            OUTLAST_METRICS_FILE=self._path("metrics.jsonl"),
            OUTLAST_PARAMS=json.dumps(self.spec.params),
            OUTLAST_TRIAL=str(self.trial.number),
        )
        for name, value in self.spec.params.items():
            variable = "OUTLAST_PARAM_" + "".join(c if c.isalnum() else "_" for c in name).upper()
            environment[variable] = render_param(value)
        return environment

    # Stopping

    def request_stop(self) -> None:
        """Pass the agent's notice on: first the file, then a signal to the process alone."""
        notice = self.worker.environment.get("OUTLAST_NOTICE_FILE", "")
        if notice and os.path.exists(notice):
            shutil.copyfile(notice, self._path("notice.json"))
        self._signal(signal.SIGTERM, group=False)

    def kill(self) -> None:
        """Kill the trial and delete its files, except outputs."""
        self._signal(signal.SIGKILL, group=True)
        if self._process:
            self._process.wait(_KILL_S)
        self.clean()

    def _signal(self, number: signal.Signals, *, group: bool) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        try:
            (os.killpg if group else os.kill)(self._process.pid, number)
        except ProcessLookupError:
            pass  # it has just ended

    def clean(self) -> None:
        """Delete the files that an ended trial needed to resume. Its outputs stay."""
        # Processes that it left behind would use the cores of the next trial.
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        for folder in (self.home, self.checkpoints):
            shutil.rmtree(folder, ignore_errors=True)

    def keep_outputs(self, bucket: Bucket) -> None:
        """Upload the outputs to a prefix that no attempt writes: they are final, but this attempt may still be lost."""
        prefix = f"{FINAL.format(run=self.worker.run)}{os.path.basename(self.outputs)}/"
        for folder, _, names in os.walk(self.outputs):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    bucket.upload(prefix + os.path.relpath(path, self.outputs), path)

    # Output

    def forward_metrics(self) -> None:
        """Append new metrics of the trial to those of the worker, under prefixed names."""
        if self._rows is None:
            try:
                self._rows = open(self._path("metrics.jsonl"), "rb")  # noqa: SIM115 - read on until the trial ends
            except OSError:
                return
        lines = []
        while line := self._rows.readline():
            if not line.endswith(b"\n") and not self.ended:
                self._rows.seek(-len(line), os.SEEK_CUR)  # the line is incomplete
                break
            row = parsed(line)
            if row is not None:
                self._logged.update(row.values)
                named = {metric_of(self.trial.number, name): value for name, value in row.values.items()}
                lines.append(json.dumps({"step": row.step, "at": row.at, **named}))
        if lines:
            with open(self.worker.metrics_file, "a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")

    def metrics(self, bucket: Bucket) -> dict[str, float]:
        """Return the metrics as `objective.measured`, from local files and, for earlier attempts, the workspace."""
        self.forward_metrics()
        source = self.sweep.search.metrics
        if source.startswith("file:"):
            try:
                with open(os.path.join(self.outputs, source.removeprefix("file:")), "rb") as file:
                    return from_file(file.read())
            except OSError:
                return {}
        printed = last_line(self._tail()) if source in ("auto", "output") else {}
        earlier = logged_by(bucket, self.worker.run, self.trial.number) if self.worker.attempt > 1 else {}
        return {**printed, **({**earlier, **self._logged} if source in ("auto", "log") else {})}

    def _tail(self) -> bytes:
        with open(os.path.join(self.outputs, "log.txt"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read()

    def last_line(self) -> str:
        lines = self._tail().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "no output"
