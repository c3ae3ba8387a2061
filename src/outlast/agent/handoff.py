"""How long a noticed command may go on working, and the sign with which its successor reports that it could start.

runs/<run>/ready/<attempt>   written by a successor that waits for its predecessor; only a hint
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import msgspec

from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.instance import Notice
from outlast.agent.paths import AttemptPaths
from outlast.errors import OutlastError
from outlast.spec.spec import CheckpointSpec
from outlast.workspace import RunRequest, Workspace

# A save at the end of a notice competes with the upload of logs and with a busy disk.
_MARGIN = 1.5
_MARGIN_S = 3.0
_POLL_S = 0.3


class SavingMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer library measured: a step, and a save until it is on disk. In `saving.json`."""

    step_s: float = 0.0
    save_s: float = 0.0


def read_measured(folder: str) -> SavingMeasured | None:
    """Return what the trainer library measured in this attempt; None before its first save, and without it."""
    try:
        with open(os.path.join(folder, "saving.json"), "rb") as file:
            return msgspec.json.decode(file.read(), type=SavingMeasured)
    except (OSError, msgspec.DecodeError):
        return None


def needed_s(rule: CheckpointSpec, measured: SavingMeasured | None, *, commit_s: float, grace_s: float) -> float | None:
    """Return how long before the end of a notice the command must receive it; None: at once.

    `commit_s` is the duration of the last commit of the checkpoint folder, 0 if there was none.
    """
    if rule.on_notice == "save-now":
        return None
    if measured is not None:
        # Until a commit was measured, it counts like another save.
        saving_s = measured.step_s + measured.save_s + (commit_s or measured.save_s)
        return saving_s * _MARGIN + _MARGIN_S
    if rule.on_notice == "work-on":
        # How long the program needs to save is unknown: it gets a third of the time, or what a commit suggests.
        return max(grace_s / 3, 2 * commit_s * _MARGIN + _MARGIN_S)
    return None


def announce_ready(workspace: Workspace, run: str, attempt: int) -> None:
    """Report that this attempt could start now. A failure only costs the predecessor working time."""
    with suppress(OutlastError):
        workspace.bucket.put(_key(run, attempt), b"", durable=False)


def is_successor_ready(workspace: Workspace, run: str, attempt: int) -> bool:
    """Return whether an attempt after this one could start. Raises OutlastError."""
    found = workspace.bucket.list(_key(run, 0).removesuffix("0"))
    return any(int(entry.key.rpartition("/")[2]) > attempt for entry in found)


def _key(run: str, attempt: int) -> str:
    return f"runs/{run}/ready/{attempt}"


class SuccessorWatch:
    """Polls for the sign in a thread, because a store that does not respond must not use up the grace."""

    def __init__(self, workspace: Workspace, run: str, attempt: int) -> None:
        self._workspace, self._run, self._attempt = workspace, run, attempt
        self.ready = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._poll, name="successor", daemon=True).start()

    def _poll(self) -> None:
        while not self.ready.is_set():
            with suppress(OutlastError):
                if is_successor_ready(self._workspace, self._run, self._attempt):
                    self.ready.set()
            self.ready.wait(_POLL_S)


class HandoffEffects:
    """The effects of `effects.Performer` around the handoff, for the agent."""

    workspace: Workspace
    run: str
    number: int
    request: RunRequest
    paths: AttemptPaths
    checkpointer: Checkpointer
    successor: SuccessorWatch | None = None

    def announce_ready(self) -> None:
        announce_ready(self.workspace, self.run, self.number)

    def saving_s(self, notice: Notice) -> float | None:
        found = needed_s(
            self.request.spec.checkpoint,
            read_measured(os.path.dirname(self.paths.metrics_file)),
            commit_s=self.checkpointer.commit_s,
            grace_s=notice.grace_s,
        )
        if found is not None and self.successor is None:
            self.successor = SuccessorWatch(self.workspace, self.run, self.number)
            self.successor.start()
        return found

    def successor_ready(self) -> bool:
        return self.successor is not None and self.successor.ready.is_set()
