"""Merging outputs of several attempts: the later attempt wins."""

from __future__ import annotations

from pathlib import Path

from tests.unit.plan.worlds import placed

from outlast.cli.run.pull import pull_outputs
from outlast.runs import events as ev
from outlast.store.bucket import open_bucket
from outlast.workspace import Workspace


def test_a_file_and_a_folder_of_one_name_do_not_meet(tmp_path: Path) -> None:
    workspace = Workspace(open_bucket("memory://"))
    story = workspace.story("r")
    events: list[ev.Event] = [ev.Submitted()]
    for attempt in (1, 2):
        events += [placed(attempt), ev.Started(attempt=attempt, at=1.0)]
        events.append(ev.Stopped(attempt=attempt, outcome="preempted") if attempt == 1 else ev.Finished(attempt=2))
    for number, event in enumerate(events):
        story.append_or_raise(event, nonce=str(number))
    for key in ("1/a", "1/b/c", "1/same", "2/a/x", "2/b", "2/same"):
        workspace.bucket.put(f"runs/r/outputs/{key}", key.encode())
    assert pull_outputs(workspace, "r", str(tmp_path / "out"), quiet=True) == 3
    found = {str(p.relative_to(tmp_path / "out")): p.read_text() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found == {"a/x": "2/a/x", "b": "2/b", "same": "2/same"}
