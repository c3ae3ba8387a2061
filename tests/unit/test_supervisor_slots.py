"""The slots of background supervisors: two per workspace, each held by a living process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.app.background import Slot, has_new_work
from outlast.code.record import CodeRecord
from outlast.runs.events import Submitted
from outlast.spec.parse import parse
from outlast.workspace import open_workspace


def test_two_supervisors_of_a_workspace_run_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    first, second = Slot.take("gs://one/ws"), Slot.take("gs://one/ws")
    assert first is not None
    assert second is not None
    assert Slot.take("gs://one/ws") is None
    assert Slot.take("gs://two/ws") is not None
    first.unlock()
    assert first.lock(), "its owner may take it again"
    first.unlock()
    third = Slot.take("gs://one/ws")
    assert third is not None
    assert not first.lock(), "another supervisor has it"
    for slot in (first, second, third):
        os.close(slot.handle)


def test_a_slot_is_free_when_the_process_that_inherited_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    slots = [Slot.take("gs://one/ws"), Slot.take("gs://one/ws")]
    handles = [slot.handle for slot in slots if slot is not None]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=handles) as process:
        for handle in handles:
            os.close(handle)
        assert Slot.take("gs://one/ws") is None
        process.kill()
    assert Slot.take("gs://one/ws") is not None


def test_a_supervisor_stays_for_a_run_that_was_submitted_while_it_left(tmp_path: Path) -> None:
    workspace = open_workspace(str(tmp_path / "workspace"))
    spec = parse({"name": "run", "command": "true"})
    request = workspace.reserve(spec, CodeRecord(), who="me", version="0")
    workspace.wake(request.run)
    assert not has_new_work(workspace), "its submission is still going on"
    workspace.story(request.run).append_or_raise(Submitted(who="me"), nonce="1")
    assert has_new_work(workspace)
