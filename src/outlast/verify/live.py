"""The steps with machines: a counting run that is preempted and killed, a boot failure, secrets, no supervisor."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any, TypeVar

from outlast.clouds.cloud import LABEL_WORKSPACE, Boot, Cloud, Machine, Offer
from outlast.errors import CloudError, NotFound
from outlast.runs.events import Cancelled
from outlast.runs.logs import LogReader
from outlast.runs.state import Attempt, RunState
from outlast.spec.parse import parse
from outlast.submit.run import submit
from outlast.supervisor.loop import Supervisor
from outlast.verify.result import VerifyStepFailed, VerifyStepSkipped
from outlast.workspace import RunRequest, Workspace

T = TypeVar("T")

# Longest waits, in seconds: for a machine and its environment, for output, and for a machine to end by itself.
_START_S, _OUTPUT_S, _GONE_S = 900.0, 180.0, 300.0
_POLL_S = 0.5
# The cloud itself deletes every machine after this time.
LIFE_S = 1200.0
_FREE_GB_MIN, _CLOCK_S_MAX = 5.0, 120.0
_BROKEN = "outlast-verify: this boot script fails on purpose"


class LiveSteps:
    """The machines of one verification. Each step uses what the earlier ones left."""

    def __init__(
        self,
        cloud: Cloud,
        workspace: Workspace,
        offer: Offer,
        *,
        environment: Mapping[str, str],
        report: Callable[[str], None],
        spend: Callable[[], None],
    ) -> None:
        self.cloud = cloud
        self.workspace = workspace
        self.offer = offer
        self.report = report
        # Raises VerifyStepFailed once the limit of the cost is reached.
        self.spend = spend
        self._environment = environment
        self._secret = secrets.token_hex(16)
        self._clouds = {cloud.name: cloud}
        self.request: RunRequest | None = None

    # Supervision

    @contextlib.contextmanager
    def supervised(self) -> Iterator[None]:
        """Supervise the workspace in a thread during the block."""
        stop = threading.Event()
        supervisor = Supervisor(self.workspace, self._clouds)
        thread = threading.Thread(target=supervisor.run, kwargs={"stop": stop}, name="supervisor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(30.0)

    def submitted(self, name: str, steps: int) -> RunRequest:
        """Submit a counting run."""
        folder = tempfile.mkdtemp(prefix="outlast-verify-")
        try:
            source = resources.files("outlast.verify").joinpath("program.py").read_text(encoding="utf-8")
            with open(f"{folder}/program.py", "w", encoding="utf-8") as file:
                file.write(source)
            spec = parse(self._table(name, steps, folder))
            environment = {**self._environment, "VERIFY_SECRET": self._secret}
            return submit(self.workspace, self._clouds, spec, environment=environment, source="outlast verify")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _table(self, name: str, steps: int, folder: str) -> dict[str, Any]:
        offer = self.offer
        machine: dict[str, Any] = {"cloud": offer.cloud, "zones": [offer.region], "disk": "20GB"}
        if offer.gpu:
            machine |= {"gpu": f"{offer.gpu}:{offer.gpus}", "disk": "100GB"}
        else:
            machine["type"] = offer.type
        return {
            "name": name,
            "command": ["python", "program.py", str(steps)],
            "machine": machine,
            "code": {"path": folder},
            "checkpoint": {"path": "ckpt"},
            "secrets": ["VERIFY_SECRET"],
            "limits": {"max_hours": LIFE_S / 3600.0},
        }

    # Steps

    def launch(self) -> str:
        """Launch through the supervisor; the machine must be found by name and in the listing."""
        self.request = self.submitted("verify", 100_000)
        begun = time.monotonic()
        attempt = self._attempt(lambda one: one.phase == "started", 1, within_s=_START_S, what="the first machine")
        machine = self.cloud.machine(attempt.machine)
        listed = {one.name for one in self.cloud.machines({LABEL_WORKSPACE: self.workspace.id})}
        if machine.name not in listed:
            raise VerifyStepFailed(f"machine {machine.name} exists, and the listing by labels does not contain it")
        notice_s = self._granted_notice_s(machine)
        return (
            f"{machine.name} ({machine.type} in {machine.zone}) runs the command after "
            f"{time.monotonic() - begun:.0f} s; notice {notice_s}"
        )

    def _granted_notice_s(self, machine: Machine) -> str:
        granted = getattr(self.cloud, "granted_notice_s", None)
        return f"{granted(machine.name)} s" if granted is not None else "as the cloud documents"

    def machine(self) -> str:
        """Compare the facts that the program reports with the request."""
        text = self._log_line("verify: facts ", 1)
        facts = json.loads(text)
        problems = []
        if facts["free_gb"] < _FREE_GB_MIN:
            problems.append(f"{facts['free_gb']} GB of the disk are free")
        off_s = abs(time.time() - float(facts["at"]))
        if off_s > _CLOCK_S_MAX + _START_S:
            problems.append(f"its clock is {off_s:.0f} s off")
        if self.offer.gpus and facts.get("gpus") != self.offer.gpus:
            problems.append(f"nvidia-smi lists {facts.get('gpus', 'no')} GPUs instead of {self.offer.gpus}")
        if problems:
            raise VerifyStepFailed(f"on the machine: {'; '.join(problems)}", "choose another image with `[clouds]`")
        gpus = f", {facts['gpus']} GPUs" if "gpus" in facts else ""
        return f"Python {facts['python']}, {facts['free_gb']} GB free{gpus}"

    def run(self) -> str:
        """Wait for output and a committed checkpoint."""
        self._log_line("verify: step ", 1)
        state = self._state(lambda one: bool(one.checkpoints), within_s=_OUTPUT_S, what="a checkpoint")
        return f"output arrives; checkpoint {state.checkpoints[-1].id} of {state.checkpoints[-1].bytes} bytes"

    def preemption(self) -> str:
        """Preempt as the cloud does: the last step must be saved, and the successor resume there."""
        before = self._current()
        self.cloud.preempt(before.machine)
        noticed = self._state(
            lambda one: (
                one.attempts[before.number - 1].noticed_at > 0 or one.attempts[before.number - 1].phase == "over"
            ),
            within_s=_OUTPUT_S,
            what="the notice",
        ).attempts[before.number - 1]
        if not noticed.noticed_at:
            raise VerifyStepFailed(f"machine {before.machine} ended without a notice that the agent saw")
        after = self._attempt(
            lambda one: one.phase == "started", before.number + 1, within_s=_START_S, what="the successor"
        )
        counted = self._last_step(before.number)
        resumed = int(self._log_line("verify: resumed at ", after.number))
        if resumed < counted - 1:
            raise VerifyStepFailed(
                f"the successor resumed at step {resumed}, and step {counted} was done at the notice"
            )
        return f"notice seen; step {counted} was done, the successor in {after.zone} resumed at step {resumed}"

    def sudden_end(self) -> str:
        """Delete the machine without a notice: at most the steps since the last checkpoint are lost."""
        before = self._current()
        state = self._state(
            lambda one: any(point.attempt == before.number for point in one.checkpoints),
            within_s=_OUTPUT_S,
            what="a checkpoint of the second machine",
        )
        saved = state.checkpoints[-1].id
        self.cloud.delete(before.machine)
        after = self._attempt(
            lambda one: one.phase == "started", before.number + 1, within_s=_START_S, what="the next machine"
        )
        resumed = int(self._log_line("verify: resumed at ", after.number))
        if not after.resumed_from or after.resumed_from < saved:
            raise VerifyStepFailed(
                f"the next machine resumed from `{after.resumed_from or 'nothing'}`, not from {saved}"
            )
        self._cancel()
        return f"the next machine resumed from {after.resumed_from} at step {resumed}"

    def boot_failure(self) -> str:
        """Launch a machine whose script fails: its console must say why, and it must switch itself off."""
        name = f"verify-{self.workspace.id[:6]}-{secrets.token_hex(3)}"
        boot = Boot(script=f"#!/bin/bash\necho '{_BROKEN}'\nshutdown -h now\n", life_max_s=LIFE_S, disk_gb=20.0)
        self.cloud.launch(self.offer, name, boot=boot, labels={LABEL_WORKSPACE: self.workspace.id})

        def said() -> bool:
            try:
                return _BROKEN in self.cloud.serial(name)
            except CloudError:
                return False

        try:
            self._until(said, within_s=_GONE_S, what="the words of the boot script on the console")
        finally:
            self.cloud.delete(name)
        return "the console has the words of the boot script"

    def secrets(self) -> str:
        """The secret reached the program; its value must not be in the log, and is deleted with the run."""
        facts = json.loads(self._log_line("verify: facts ", 1))
        if facts["secret"] != hashlib.sha256(self._secret.encode()).hexdigest():
            raise VerifyStepFailed("the program did not get the secret that was submitted")
        assert self.request is not None
        for number in range(1, len(self.workspace.story(self.request.run).refresh().attempts) + 1):
            if self._secret in self._log(number):
                raise VerifyStepFailed(f"the value of the secret is in the log of attempt {number}")
        return "the program got the secret; the log does not contain it"

    def no_supervisor(self) -> str:
        """Stop supervising a run that has started: its machine must finish it and go away by itself."""
        with self.supervised():
            self.request = self.submitted("alone", 6)
            attempt = self._attempt(lambda one: bool(one.started_at), 1, within_s=_START_S, what="the machine")

        def gone() -> bool:
            try:
                return self.cloud.machine(attempt.machine).status in ("stopped", "stopping")
            except NotFound:
                return True

        begun = time.monotonic()
        self._until(gone, within_s=_GONE_S, what=f"{attempt.machine} to go away without a supervisor")
        return f"{attempt.machine} finished and went away by itself after {time.monotonic() - begun:.0f} s"

    def ssh(self) -> str:
        raise VerifyStepSkipped("optional: `outlast machine create` and `machine ssh` show it")

    # Waiting

    def _current(self) -> Attempt:
        state = self._state(lambda one: one.current is not None, within_s=_START_S, what="a machine")
        assert state.current is not None
        return state.current

    def _attempt(self, test: Callable[[Attempt], bool], number: int, *, within_s: float, what: str) -> Attempt:
        def found(state: RunState) -> bool:
            later = [one for one in state.attempts if one.number >= number and one.outcome != "refused"]
            return bool(later) and test(later[-1])

        state = self._state(found, within_s=within_s, what=what)
        return [one for one in state.attempts if one.number >= number and one.outcome != "refused"][-1]

    def _state(self, test: Callable[[RunState], bool], *, within_s: float, what: str) -> RunState:
        """Wait until the run has a state. Raises VerifyStepFailed if it ends or takes too long."""
        assert self.request is not None
        story = self.workspace.story(self.request.run)

        def reached() -> RunState | None:
            state = story.refresh()
            if test(state):
                return state
            if state.ending:
                raise VerifyStepFailed(f"the run {state.ending}: {state.why}", state.hint)
            return None

        try:
            return self._until(reached, within_s=within_s, what=what)
        except VerifyStepFailed as problem:
            state = story.state
            why = state.waiting or next((one.why for one in reversed(state.attempts) if one.why), "")
            raise VerifyStepFailed(
                f"{problem.text}{f' ({why})' if why and why not in problem.text else ''}", problem.fix
            ) from None

    def _until(self, reached: Callable[[], T | None], *, within_s: float, what: str) -> T:
        give_up_at = time.monotonic() + within_s
        while True:
            if value := reached():
                return value
            self.spend()
            if time.monotonic() > give_up_at:
                raise VerifyStepFailed(f"{what} did not appear within {within_s:.0f} s")
            time.sleep(_POLL_S)

    def _log(self, attempt: int) -> str:
        assert self.request is not None
        log = LogReader(self.workspace.bucket, self.request.run, attempt)
        return b"".join(log.read()).decode("utf-8", "replace")

    def _log_line(self, start: str, attempt: int) -> str:
        """Return the rest of the first line of the log that begins so."""

        def found() -> str:
            lines = self._log(attempt).splitlines()
            return next((line.partition(start)[2] for line in lines if start in line), "")

        return self._until(found, within_s=_OUTPUT_S, what=f"`{start.strip()}` in the log of attempt {attempt}")

    def _last_step(self, attempt: int) -> int:
        lines = [line.partition("verify: step ")[2] for line in self._log(attempt).splitlines()]
        return max((int(text) for text in lines if text.isdigit()), default=0)

    def _cancel(self) -> None:
        assert self.request is not None
        story, event = self.workspace.story(self.request.run), Cancelled(who="outlast verify", at=time.time())
        story.append(event, nonce=secrets.token_hex(8))
        self.workspace.wake(self.request.run)
        self._until(lambda: story.refresh().closed, within_s=_GONE_S, what="the end of the cancelled run")


def spent_usd(cloud: Cloud, workspace: Workspace, seen: dict[str, float]) -> float:
    """Return the list price of all machines so far; `seen` remembers those that are gone."""
    for machine in cloud.machines({LABEL_WORKSPACE: workspace.id}):
        seen[machine.name] = max(seen.get(machine.name, 0.0), machine.cost_usd)
    return sum(seen.values())
