"""Invalid traces are refused with file, window and reason."""

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


def test_reads_the_traces_that_count_machines(tmp_path: Path) -> None:
    """As SkyPilot's spot-traces: `data` is how many machines there were."""
    (tmp_path / "many.json").write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 4, 1, 16, 0]}))
    (tmp_path / "one.json").write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 1, 1, 1, 0]}))
    many, one = read_traces(str(tmp_path), ones="machines")
    assert many.windows == one.windows == {"0": "10001"}
    assert many.tick_s == 300.0
    assert read_traces(str(tmp_path / "one.json"), ones="none")[0].windows == {"0": "01110"}
    # What counts beyond one cannot mean outages.
    assert read_traces(str(tmp_path / "many.json"), ones="none")[0].windows == {"0": "10001"}


def test_each_of_our_trace_files_is_one_zone(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(GOOD | {"generator": "mine", "windows": {"7": "01"}}))
    assert [(trace.name, trace.windows) for trace in read_traces(str(tmp_path))] == [
        ("a", {"7": "01"}),
        ("b", {"7": "01"}),
    ]


def test_a_folder_with_windows_of_one_zone_is_one_trace(tmp_path: Path) -> None:
    """As the can't-be-late benchmark keeps them: a file a window, and a 1 is an outage."""
    place = tmp_path / "us-west-2a_k80_8"
    place.mkdir()
    for number in (0, 1, 10):
        window = {
            "generator": "random_start_time",
            "metadata": {"gap_seconds": 600, "start_time": number, "end_time": number + 3},
            "data": [0, 1, number % 2],
        }
        (place / f"{number}.json").write_text(json.dumps(window))
    (trace,) = read_traces(str(place))
    assert (trace.name, trace.tick_s) == ("us-west-2a_k80_8", 600.0)
    assert trace.windows == {"0": "010", "1": "011", "10": "010"}
    (place / "2.json").write_text(json.dumps({"metadata": {"gap_seconds": 300, "start_time": 2}, "data": [1]}))
    with pytest.raises(UsageError, match="different lengths"):
        read_traces(str(place))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "not valid JSON"),
        ("[]", "expected `windows` or `data`"),
        ('{"metadata": {"gap_seconds": 600}, "data": []}', "`data` contains no ticks"),
        ('{"metadata": {"gap_seconds": 600}, "data": [0, 1, 0]}', "whether a 1 is a machine or an outage"),
        ('{"metadata": {"gap_seconds": 600}, "data": [0, 4, -1]}', "at tick 2: expected a count of machines, got -1"),
        ('{"metadata": {"gap_seconds": 600}, "data": [0, 0.5]}', "got 0.5"),
        ('{"metadata": {"gap_seconds": 600}, "data": [Infinity]}', "got inf"),
        ('{"metadata": {"gap_seconds": 600}, "data": ["1"]}', "got '1'"),
        ('{"metadata": [], "data": [0, 2]}', "above zero"),
        (f'{{"metadata": {{"gap_seconds": 600}}, "data": [1{"0" * 400}]}}', "at tick 0"),
        (f'{{"gap_seconds": 1{"0" * 400}, "windows": {{"0": "01"}}}}', "above zero"),
        ('{"gap_seconds": 600, "windows": {}}', "empty"),
        ('{"gap_seconds": 600, "windows": {"0": ""}}', "expected text that is not empty, got ''"),
        ('{"gap_seconds": 600, "windows": {"0": "0012"}}', "at tick 3: expected `0` or `1`, got '2'"),
        ('{"gap_seconds": 600, "windows": {"0": "00\\u00a0"}}', "at tick 2"),
        ('{"gap_seconds": 600, "windows": {"0": 7}}', "got 7"),
        ('{"gap_seconds": 0, "windows": {"0": "01"}}', "above zero"),
        ('{"gap_seconds": -600, "windows": {"0": "01"}}', "above zero"),
        ('{"gap_seconds": NaN, "windows": {"0": "01"}}', "above zero"),
        ('{"windows": {"0": "01"}}', "above zero"),
    ],
)
def test_problems_of_a_trace_are_reported(tmp_path: Path, body: str, why: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(body)
    with pytest.raises(UsageError, match=r"trace\.json") as raised:
        read_traces(str(path))
    assert why in raised.value.message
    assert raised.value.hint


def test_a_missing_file_or_an_empty_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_traces(str(tmp_path / "nothing.json"))
    with pytest.raises(UsageError, match="contains no trace"):
        read_traces(str(tmp_path))
