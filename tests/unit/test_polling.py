"""How often a followed run is polled, and how supervisors on the same computer notice wakeups."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.cli.run.follow import next_poll_s
from outlast.store import wake_file


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
