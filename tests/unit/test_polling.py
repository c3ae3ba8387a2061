"""How often a followed run is polled, and how supervisors on the same computer notice wakeups."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.plan.worlds import placed

from outlast.cli.run.follow import Follower, next_poll_s
from outlast.runs import events as ev
from outlast.runs.logs import write_piece
from outlast.runs.state import RunState
from outlast.store import wake_file
from outlast.workspace import open_workspace


@pytest.mark.parametrize(
    ("last_s", "remote", "moved", "quiet_s", "printed", "expected_s"),
    [
        # A folder: every poll is free.
        (0.0, False, True, 0.0, False, 0.02),
        (0.04, False, False, 60.0, True, 0.05),
        # A bucket, after the first output: slower while nothing changes.
        (0.0, True, True, 0.0, True, 0.5),
        (0.5, True, False, 0.5, True, 0.75),
        (2.0, True, False, 900.0, True, 2.0),
        # A bucket, before the first output: often at first, and 5 % of the time that has passed.
        (0.5, True, True, 0.0, False, 0.1),
        (0.1, True, False, 1.0, False, 0.1),
        (0.1, True, False, 20.0, False, 1.0),
        (1.0, True, False, 600.0, False, 2.0),
    ],
)
def test_the_first_output_is_polled_for_more_often(
    last_s: float, remote: bool, moved: bool, quiet_s: float, printed: bool, expected_s: float
) -> None:
    found = next_poll_s(last_s, remote=remote, moved=moved, quiet_s=quiet_s, printed=printed)
    assert found == pytest.approx(expected_s)


def test_the_agents_own_lines_are_not_the_first_output(tmp_path: Path) -> None:
    workspace = open_workspace(str(tmp_path / "ws"))
    workspace.story("run-1").append(ev.Submitted(at=1.0, who="ada"), nonce="1")
    workspace.story("run-1").append(placed(1), nonce="2")
    workspace.story("run-1").append(ev.Started(at=3.0, attempt=1), nonce="3")
    follower = Follower(workspace, "run-1", quiet=True)
    write_piece(workspace.bucket, "run-1", 1, 1, b"outlast: environment: uv.lock\n")
    assert follower.advance()
    assert not follower.printed
    write_piece(workspace.bucket, "run-1", 1, 2, b"step 1\n")
    assert follower.advance()
    assert follower.printed


def test_the_events_of_a_silent_run_in_a_bucket_are_read_with_every_other_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("outlast.cli.run.follow.time.monotonic", lambda: now[0])
    workspace = open_workspace("memory://")
    workspace.story("run-1").append(ev.Submitted(at=1.0, who="ada"), nonce="1")
    workspace.story("run-1").append(placed(1), nonce="2")
    workspace.story("run-1").append(ev.Started(at=3.0, attempt=1), nonce="3")
    write_piece(workspace.bucket, "run-1", 1, 1, b"step 1\n")
    follower, read = Follower(workspace, "run-1", quiet=True), 0
    refresh = follower.story.refresh

    def counted() -> RunState:
        nonlocal read
        read += 1
        return refresh()

    monkeypatch.setattr(follower.story, "refresh", counted)
    assert follower.advance()
    for _ in range(10):
        now[0] += 2.0
        assert not follower.advance()
    assert read == 1 + 5 + 2, "each poll for ten seconds, then every other"
    write_piece(workspace.bucket, "run-1", 1, 2, b"step 2\n")
    now[0] += 2.0
    assert follower.advance(), "its output is read with each poll"


def test_a_wakeup_from_this_computer_changes_the_file_of_its_workspace_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wake_file.touched_at("gs://one/ws") == 0
    wake_file.touch("gs://one/ws")
    first = wake_file.touched_at("gs://one/ws")
    assert first > 0
    assert wake_file.touched_at("gs://two/ws") == 0
    while wake_file.touched_at("gs://one/ws") == first:  # a file system may count in coarse ticks
        wake_file.touch("gs://one/ws")


def test_without_write_access_to_the_home_folder_wakeups_are_only_in_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    wake_file.touch("gs://one/ws")
    assert wake_file.touched_at("gs://one/ws") == 0
