"""One trial as processes of a worker's machine: its folders, its environment, its metrics. Decides nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from typing import IO

import msgspec

from outlast.runs.metrics import parsed
from outlast.runs.outputs import FINAL
from outlast.spec.command import argv_of, render_param
from outlast.store.bucket import Bucket
from outlast.sweep.objective import from_file, last_line
from outlast.sweep.record import Sweep
from outlast.sweep.state import Trial
from outlast.sweep.trial import trial_spec
from outlast.sweep.workers import logged_by, metric_of

# Of a trial's output this much is looked at for its last line of JSON, and its last words.
_TAIL_BYTES = 256 * 1024
_KILL_S = 5.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class TrialEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Where the worker is: what the agent told it."""

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
        environment.pop("PYTHONPATH", None)  # the worker's own
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
    """A trial under way. Its files are its own, so that trials on one machine do not see each other."""

    def __init__(self, sweep: Sweep, trial: Trial, around: TrialEnvironment) -> None:
        self.sweep = sweep
        self.trial = trial
        self.around = around
        self.spec = trial_spec(sweep, trial.params)
        name = f"t{trial.number}"
        self.home = os.path.join(os.path.dirname(around.checkpoints), "trials", name)
        self.checkpoints = os.path.join(around.checkpoints, name)
        self.outputs = os.path.join(around.outputs, name)
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
    def said_done(self) -> bool:
        return os.path.exists(self._path("done.json"))

    def _path(self, name: str) -> str:
        return os.path.join(self.home, name)

    def start(self) -> None:
        self._make()
        # Appended to: a trial that crashed and is tried again has said something before.
        with open(os.path.join(self.outputs, "log.txt"), "ab") as log:
            self._process = subprocess.Popen(
                argv_of(self.spec.command, self.spec.params),
                cwd=self._path("work"),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _make(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        for folder in (self.home, self.checkpoints, self.outputs):
            os.makedirs(folder, exist_ok=True)
        linked = {name.split("/")[0] for name in self.spec.data}
        own = {os.path.basename(self.around.outputs), self.spec.checkpoint.path.split("/")[0]} - {""}

        def left_out(folder: str, names: list[str]) -> set[str]:
            return (linked | own) & set(names) if folder == self.around.code else set()

        shutil.copytree(self.around.code, self._path("work"), symlinks=True, ignore=left_out)
        for name in linked:
            os.symlink(os.path.join(self.around.code, name), os.path.join(self._path("work"), name))
        for path, target in ((self.spec.checkpoint.path, self.checkpoints), (self.spec.output_path, self.outputs)):
            place = os.path.join(self._path("work"), path)
            if path and not os.path.lexists(place):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.symlink(target, place)

    def _environment(self) -> dict[str, str]:
        environment = dict(self.around.environment)
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

    # Leaving

    def ask_to_leave(self) -> None:
        """The notice, as the agent gives it: a file, then a signal to the leader alone."""
        notice = self.around.environment.get("OUTLAST_NOTICE_FILE", "")
        if notice and os.path.exists(notice):
            shutil.copyfile(notice, self._path("notice.json"))
        self._signal(signal.SIGTERM, group=False)

    def give_up(self) -> None:
        """Nobody wants it any more."""
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
            pass  # it ended by itself at this moment

    def clean(self) -> None:
        """Its results are told: what it needed to resume is not needed any more. Its outputs stay."""
        # Whatever it left running would use the cores of the next one.
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        for folder in (self.home, self.checkpoints):
            shutil.rmtree(folder, ignore_errors=True)

    def keep_outputs(self, bucket: Bucket) -> None:
        """Copy what it wrote to where no attempt writes: it is final, and this attempt may yet be lost."""
        prefix = f"{FINAL.format(run=self.around.run)}{os.path.basename(self.outputs)}/"
        for folder, _, names in os.walk(self.outputs):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    bucket.upload(prefix + os.path.relpath(path, self.outputs), path)

    # What it says

    def forward_metrics(self) -> None:
        """What it has logged since, into the worker's own metrics, under names of its own."""
        if self._rows is None:
            try:
                self._rows = open(self._path("metrics.jsonl"), "rb")  # noqa: SIM115 - read on until the trial ends
            except OSError:
                return
        lines = []
        while line := self._rows.readline():
            if not line.endswith(b"\n") and not self.ended:
                self._rows.seek(-len(line), os.SEEK_CUR)  # the rest of it is still to come
                break
            row = parsed(line)
            if row is not None:
                self._logged.update(row.values)
                named = {metric_of(self.trial.number, name): value for name, value in row.values.items()}
                lines.append(json.dumps({"step": row.step, "at": row.at, **named}))
        if lines:
            with open(self.around.metrics_file, "a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")

    def metrics(self, bucket: Bucket) -> dict[str, float]:
        """As `measure.measured`, from the files of this machine; what earlier attempts logged is in the workspace."""
        self.forward_metrics()
        source = self.sweep.search.metrics
        if source.startswith("file:"):
            try:
                with open(os.path.join(self.outputs, source.removeprefix("file:")), "rb") as file:
                    return from_file(file.read())
            except OSError:
                return {}
        printed = last_line(self._tail()) if source in ("auto", "output") else {}
        earlier = logged_by(bucket, self.around.run, self.trial.number) if self.around.attempt > 1 else {}
        return {**printed, **({**earlier, **self._logged} if source in ("auto", "log") else {})}

    def _tail(self) -> bytes:
        with open(os.path.join(self.outputs, "log.txt"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read()

    def last_words(self) -> str:
        lines = self._tail().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"
