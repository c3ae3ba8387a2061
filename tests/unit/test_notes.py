"""Notes and tags on runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.app.notes import annotate
from outlast.code.record import CodeRecord
from outlast.errors import NoSuchRun, UsageError
from outlast.runs.notes import NO_NOTE, NoteReader, note_key, read_note
from outlast.spec.parse import parse
from outlast.workspace import Workspace, open_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = open_workspace(str(tmp_path))
    made.reserve(parse({"name": "x", "command": "true"}), CodeRecord(), who="ada", version="0", run="run-1")
    return made


def test_tags_are_added_and_removed_and_the_text_stays(workspace: Workspace) -> None:
    annotate(workspace, "run-1", text="the baseline ", tags=["good", "paper"])
    found = annotate(workspace, "run-1", tags=["good", "seed/3"], untag=["paper"])
    assert (found.tags, found.text) == (("good", "seed/3"), "the baseline")
    assert found.by
    assert annotate(workspace, "run-1") == found, "without a change nothing is written"
    assert annotate(workspace, "run-1", text="").text == ""


def test_wrong_tags_and_unknown_runs_are_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="invalid tag 'a b'"):
        annotate(workspace, "run-1", tags=["a b"])
    with pytest.raises(UsageError, match="at most 10000 characters"):
        annotate(workspace, "run-1", text="x" * 10_001)
    with pytest.raises(NoSuchRun):
        annotate(workspace, "run-2", tags=["good"])


def test_all_notes_are_read_once_and_a_damaged_one_is_empty(workspace: Workspace) -> None:
    reader = NoteReader(workspace.bucket)
    assert reader.read() == {}
    annotate(workspace, "run-1", tags=["good"])
    assert reader.read()["run-1"].tags == ("good",)
    workspace.bucket.put(note_key("run-1"), b"{broken")
    assert reader.read() == {"run-1": NO_NOTE}
    assert read_note(workspace.bucket, "run-1") == NO_NOTE
    workspace.bucket.delete(note_key("run-1"))
    assert reader.read() == {}
