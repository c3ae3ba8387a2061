"""Recorded capacity that is none is refused, by file, window and reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.errors import UsageError
from outlast.policy.traces import read_traces

GOOD = {"gap_seconds": 600, "windows": {"0": "0011", "1": "1100"}}


def test_reads_a_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps(GOOD))
    (tmp_path / "a.json").write_text(json.dumps(GOOD))
    assert [trace.name for trace in read_traces(str(tmp_path))] == ["a", "b"]
    (trace,) = read_traces(str(tmp_path / "b.json"))
    assert (trace.tick_s, trace.windows["1"]) == (600.0, "1100")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "no JSON"),
        ("[]", "no `windows`"),
        ('{"gap_seconds": 600, "windows": {}}', "empty"),
        ('{"gap_seconds": 600, "windows": {"0": ""}}', "window `0` is empty"),
        ('{"gap_seconds": 600, "windows": {"0": "0012"}}', "has '2' at tick 3"),
        ('{"gap_seconds": 600, "windows": {"0": "00\\u00a0"}}', "at tick 2"),
        ('{"gap_seconds": 600, "windows": {"0": 7}}', "no text"),
        ('{"gap_seconds": 0, "windows": {"0": "01"}}', "above zero"),
        ('{"gap_seconds": -600, "windows": {"0": "01"}}', "above zero"),
        ('{"gap_seconds": NaN, "windows": {"0": "01"}}', "above zero"),
        ('{"windows": {"0": "01"}}', "above zero"),
    ],
)
def test_says_what_is_wrong_with_a_trace(tmp_path: Path, body: str, why: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(body)
    with pytest.raises(UsageError, match=r"trace\.json") as raised:
        read_traces(str(path))
    assert why in raised.value.message
    assert raised.value.hint


def test_says_that_there_is_no_such_file_or_nothing_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_traces(str(tmp_path / "nothing.json"))
    with pytest.raises(UsageError, match="holds no trace"):
        read_traces(str(tmp_path))
