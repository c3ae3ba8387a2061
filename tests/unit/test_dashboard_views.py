"""Contents of the dashboard's pages as values: timelines, curves, previews, log windows, rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.app.limit_usage import LimitUsage
from outlast.billing.limits import Limits
from outlast.cli.run.listing import listing_text
from outlast.code.record import CodeRecord
from outlast.errors import NoSuchRun, WorkspaceError
from outlast.runs import events as ev
from outlast.runs.ended import EndedRuns, record_of
from outlast.runs.logs import write_piece
from outlast.runs.metrics import Point, thinned
from outlast.runs.state import fold
from outlast.spec.parse import parse
from outlast.store.folder import FolderBucket
from outlast.ui.files import checked_name
from outlast.ui.format import printable
from outlast.ui.logs import LogIndex
from outlast.ui.reader import ENDED_SHOWN, RunReader
from outlast.ui.views.preview import preview
from outlast.ui.views.spend import gauges
from outlast.ui.views.timeline import KINDS, timeline
from outlast.workspace import Heartbeat, Workspace, open_workspace


def placed(attempt: int, zone: str, at: float) -> ev.Placed:
    return ev.Placed(
        attempt=attempt, cloud="local", region="r", zone=zone, type="t", spot=True, price_usd_per_hour=3.6, at=at
    )


STORY: list[ev.Event] = [
    ev.Submitted(who="ada", at=100.0),
    placed(1, "a", 101.0),
    ev.Started(attempt=1, at=105.0),
    ev.Saved(attempt=1, checkpoint="c1", step=4, at=110.0),
    ev.Noticed(attempt=1, why="preempted", grace_s=30.0, at=120.0),
    placed(2, "a", 121.0),
    ev.Saved(attempt=1, checkpoint="c2", step=9, at=124.0),
    ev.Stopped(attempt=1, outcome="preempted", at=125.0),
    ev.Started(attempt=2, resumed_from="c2", resumed_step=9, at=127.0),
    ev.Lost(attempt=2, why="no sign of life", at=140.0),
    placed(3, "b", 141.0),
    ev.Started(attempt=3, at=145.0),
]


def test_attempts_that_overlap_in_a_zone_have_a_lane_each() -> None:
    drawn = timeline(fold(STORY), tuple(STORY), 150.0)
    assert drawn.lanes == ("a", "a", "b")
    assert {bar.attempt: bar.lane for bar in drawn.bars} == {1: 0, 2: 1, 3: 2}
    assert (drawn.begin, drawn.end) == (100.0, 150.0)


def test_bars_show_boot_work_loss_and_shutdown() -> None:
    drawn = timeline(fold(STORY), tuple(STORY), 150.0)
    spans = [(bar.attempt, KINDS[bar.kind], bar.begin, bar.end) for bar in drawn.bars]
    assert (1, "boot", 101.0, 105.0) in spans
    assert (1, "work kept", 105.0, 120.0) in spans
    assert (1, "shutdown", 120.0, 125.0) in spans
    assert (2, "work lost", 127.0, 140.0) in spans
    assert (3, "work kept", 145.0, 150.0) in spans


def test_marks_and_handoffs_are_where_they_happened() -> None:
    drawn = timeline(fold(STORY), tuple(STORY), 150.0)
    assert [(mark.kind, mark.at) for mark in drawn.marks] == [
        ("save", 110.0),
        ("save", 124.0),
        ("notice", 120.0),
        ("loss", 125.0),
        ("loss", 140.0),
    ]
    assert [(one.from_at, one.to_at, one.text.partition(" after")[0]) for one in drawn.handoffs] == [
        (120.0, 127.0, "handed over"),
        (140.0, 145.0, "recovered"),
    ]


def test_a_thinned_curve_keeps_outliers_and_the_newest_point() -> None:
    points = [Point(step, 1000.0 if step == 77_777 else float(step % 7), 0.0, 1) for step in range(100_000)]
    found = thinned(points, 750)
    assert len(found) <= 1501
    assert points[77_777] in found
    assert found[-1] == points[-1]
    assert [point.step for point in found] == sorted({point.step for point in found})
    assert thinned(points[:50], 750) == points[:50]


@pytest.mark.parametrize(
    ("name", "body", "kind"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n....", "image"),
        ("picture.txt", b"\xff\xd8\xff\xe0", "image"),
        ("a.svg", b"<svg onload=alert(1)>", "text"),
        ("a.html", b"<script>alert(1)</script>", "text"),
        ("a.csv", b"x,y\n1,2\n", "table"),
        ("one-column.csv", b"x\n1\n", "text"),
        ("a.jsonl", b'{"x": 1}\n{"y": [2]}\n', "table"),
        ("broken.jsonl", b"{\n", "text"),
        ("a.bin", b"ab\0cd", "bytes"),
        ("empty", b"", "text"),
    ],
)
def test_previews_depend_on_the_content(name: str, body: bytes, kind: str) -> None:
    assert preview(name, body, len(body)).kind == kind


def test_a_table_of_lines_has_every_column() -> None:
    found = preview("a.jsonl", b'{"x": 1}\n{"y": [2]}\n', 20)
    assert found.header == ("x", "y")
    assert found.rows == (("1", ""), ("", "[2]"))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(str(tmp_path / "workspace"))


@pytest.fixture
def index(workspace: Workspace) -> LogIndex:
    for number in range(40):
        body = b"".join(b"%05d words\n" % line for line in range(number * 100, number * 100 + 100))
        write_piece(workspace.bucket, "r-1", 1, number + 1, body)
    made = LogIndex(workspace.bucket, "r-1", 1)
    made.refresh()
    return made


def test_a_log_is_read_in_windows_that_join(index: LogIndex) -> None:
    text, at = "", 0
    while at < index.size:
        window = index.window(begin=at, limit=1000)
        assert window.begin == at
        assert window.end > at
        text, at = text + window.text, window.end
    assert text.splitlines() == [f"{line:05d} words" for line in range(4000)]
    last = index.window(limit=1000)
    assert last.end == index.size
    before = index.window(end=last.begin, limit=1000)
    assert before.end == last.begin
    assert (before.text + last.text).splitlines()[-1] == "03999 words"


def test_a_line_longer_than_a_window_does_not_stop_the_reader(workspace: Workspace) -> None:
    write_piece(workspace.bucket, "r-1", 1, 1, b"x" * 5000 + b"\nend\n")
    index = LogIndex(workspace.bucket, "r-1", 1)
    index.refresh()
    at, seen = 0, ""
    while at < index.size:
        window = index.window(begin=at, limit=1000)
        assert window.end > at
        seen, at = seen + window.text, window.end
    assert seen.endswith("end\n")


def test_a_search_ignores_case_and_continues_where_it_ended(index: LogIndex) -> None:
    found = index.search("03777 WORDS")
    assert [hit.line for hit in found.hits] == ["03777 words"]
    assert index.window(begin=found.hits[0].at).text.startswith("03777 words")
    hits, begin = [], 0
    while True:
        part = index.search("words", begin=begin)
        hits += part.hits
        if part.next is None:
            break
        begin = part.next
    assert [hit.line for hit in hits] == [f"{line:05d} words" for line in range(4000)]
    assert index.search("").hits == ()


def test_new_output_is_found(workspace: Workspace, index: LogIndex) -> None:
    before = index.size
    write_piece(workspace.bucket, "r-1", 1, 41, b"new\n")
    index.poll(over=False)
    assert index.size == before + 4
    assert index.window().text.endswith("new\n")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "x" * 300])
def test_names_that_could_lead_outside_runs_are_refused(name: str) -> None:
    with pytest.raises(NoSuchRun):
        checked_name(name)


def test_limits_are_bars() -> None:
    standings = [
        LimitUsage(limits=Limits(cost_usd=50.0, per="month"), used_usd=45.0, used_hours=1.0),
        LimitUsage(limits=Limits(who="ada", cost_usd=1.0, max_hours=2.0, per="day"), used_usd=3.0, used_hours=1.0),
    ]
    assert [(one.percent, one.tone) for one in gauges(standings, "month", "total")] == [(90.0, "ol-near")]
    assert [(one.percent, one.tone) for one in gauges(standings, "day")] == [(100.0, "ol-over"), (50.0, "")]


def submitted(workspace: Workspace, name: str) -> str:
    request = workspace.reserve(parse({"name": name, "command": "true"}), CodeRecord(), who="ada", version="0")
    workspace.story(request.run).append_or_raise(ev.Submitted(who="ada", at=100.0), nonce="s")
    return request.run


def test_the_reader_reports_only_changes(workspace: Workspace) -> None:
    one, other = submitted(workspace, "one"), submitted(workspace, "other")
    workspace.write_heartbeat(one, Heartbeat(length=1))
    reader = RunReader(workspace)
    assert reader.read()
    assert reader.complete
    seen = reader.round
    assert {run: row.state for run, row in reader.rows.items()} == {one: "waiting", other: "waiting"}
    assert not reader.read()
    workspace.story(other).append_or_raise(ev.Cancelled(who="ada", at=101.0), nonce="c")
    workspace.write_heartbeat(one, Heartbeat(length=1, step=7))
    assert reader.read()
    assert {run for run, number in reader.changed.items() if number > seen} == {one, other}
    assert reader.rows[other].state == "cancelled"
    assert reader.rows[one].step == 7
    assert not reader.read()


def test_the_reader_shows_the_newest_ended_runs_and_more_on_demand(workspace: Workspace) -> None:
    live = submitted(workspace, "live")
    workspace.write_heartbeat(live, Heartbeat(length=1))
    index = EndedRuns(workspace)
    index.rebuild()
    states = [fold([ev.Submitted(at=1.0), ev.Cancelled(at=2.0 + number)]) for number in range(ENDED_SHOWN + 20)]
    index.write_page([record_of(f"old-{number}", state) for number, state in enumerate(states)])
    reader = RunReader(workspace)
    assert reader.read()
    assert len(reader.rows) == ENDED_SHOWN + 1
    assert reader.has_more
    assert "old-0" not in reader.rows
    assert not reader.read()
    reader.more()
    assert reader.read()
    assert len(reader.rows) == ENDED_SHOWN + 21
    assert not reader.has_more
    assert reader.rows["old-0"].state == "cancelled"


def test_the_reader_reports_vanished_runs(workspace: Workspace, tmp_path: Path) -> None:
    submitted(workspace, "one")
    reader = RunReader(workspace)
    reader.read()
    (tmp_path / "workspace").rename(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError, match="no runs any more"):
        reader.read()
    (tmp_path / "elsewhere").rename(tmp_path / "workspace")
    reader.read()
    assert len(reader.rows) == 1


def test_a_damaged_story_is_shown_in_its_row(workspace: Workspace, tmp_path: Path) -> None:
    run = submitted(workspace, "one")
    (tmp_path / "workspace" / "runs" / run / "story" / "00000002.json").write_text("{")
    reader = RunReader(workspace)
    reader.read()
    assert reader.rows[run].state == "damaged"
    assert "damaged" in reader.rows[run].why


def test_a_repaired_story_is_shown_again_although_nothing_was_appended(workspace: Workspace, tmp_path: Path) -> None:
    run = submitted(workspace, "one")
    workspace.write_heartbeat(run, Heartbeat(length=1))
    reader = RunReader(workspace)
    reader.read()
    damaged = tmp_path / "workspace" / "runs" / run / "story" / "00000002.json"
    damaged.write_text("{")
    reader.read()
    assert reader.rows[run].state == "damaged"
    damaged.unlink()
    reader.read()
    assert reader.rows[run].state == "waiting"


def test_vanished_stories_are_reported_although_agents_still_write_heartbeats(
    workspace: Workspace, tmp_path: Path
) -> None:
    run = submitted(workspace, "one")
    workspace.write_heartbeat(run, Heartbeat(length=1))
    reader = RunReader(workspace)
    reader.read()
    (tmp_path / "workspace" / "runs").rename(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError, match="stories of live runs are gone"):
        reader.read()


def test_refusals_do_not_count_as_attempts(workspace: Workspace) -> None:
    run = submitted(workspace, "one")
    story = workspace.story(run)
    for number in (1, 2):
        placed = ev.Placed(
            attempt=number, cloud="c", region="r", zone="z", type="t", spot=True, price_usd_per_hour=1.0, at=101.0
        )
        story.append_or_raise(placed, nonce=f"p{number}")
        if number == 1:
            story.append_or_raise(ev.LaunchRefused(attempt=1, why="no capacity", until=200.0, at=102.0), nonce="r1")
    reader = RunReader(workspace)
    reader.read()
    assert reader.rows[run].attempts == 1


class RefusingBucket(FolderBucket):
    """A folder that refuses access to one prefix."""

    refused = ""

    def get(self, key: str) -> bytes:
        if self.refused and key.startswith(self.refused):
            raise WorkspaceError(f"workspace: Permission denied: {key}")
        return super().get(key)


@pytest.mark.parametrize("over", [False, True], ids=["live", "over"])
def test_a_temporarily_unreadable_story_is_not_damaged_and_is_read_again(tmp_path: Path, over: bool) -> None:
    bucket = RefusingBucket(str(tmp_path / "workspace"))
    workspace = Workspace(bucket)
    run = submitted(workspace, "one")
    if over:
        workspace.story(run).append_or_raise(ev.Cancelled(who="ada", at=101.0), nonce="c")
    reader = RunReader(workspace)
    bucket.refused = f"runs/{run}/"
    reader.read()
    assert (reader.rows[run].state, reader.rows[run].tone) == ("unreadable", "warn")
    assert "Permission denied" in reader.rows[run].why
    bucket.refused = ""
    reader.read()
    assert reader.rows[run].state == ("cancelled" if over else "waiting")


def test_ps_lists_a_run_with_a_temporarily_unreadable_story_as_unreadable(tmp_path: Path) -> None:
    bucket = RefusingBucket(str(tmp_path / "workspace"))
    workspace = Workspace(bucket)
    run, other = submitted(workspace, "one"), submitted(workspace, "two")
    bucket.refused = f"runs/{run}/"
    damaged: dict[str, str] = {}
    rows = {row["run"]: row for row in json.loads(listing_text(workspace, damaged, everything=True, as_json=True))}
    assert (rows[run]["state"], rows[run]["ending"]) == ("unreadable", "")
    assert rows[other]["state"] == "waiting"
    assert list(damaged) == [run], "the listing is marked as incomplete"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a b/ü<i>.png", "a b/ü<i>.png"), ("é\u202egnp.exe", "é\\u202egnp.exe"), ("\x1b[2J\n", "\\x1b[2J\\n")],
)
def test_invisible_characters_in_names_are_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown
