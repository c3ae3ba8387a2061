"""Metrics: parsing, a file that is truncated or replaced, and one curve over many attempts."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import eventually

from outlast.agent.metrics import MetricsPump
from outlast.errors import StoreUnreachable
from outlast.runs.metrics import PIECE_BYTES, Row, line_of, parsed, read, stitch, stitched, unstitched, write_piece
from outlast.runs.state import Attempt, RunState
from outlast.store.bucket import Bucket, open_bucket

# Lines


def test_keeps_the_finite_numbers_of_a_line() -> None:
    line = b'{"step": 12, "at": 5.5, "loss": 0.5, "n": 3, "name": "x", "ok": true, "list": [1], "none": null}'
    assert parsed(line) == Row(12, 5.5, {"loss": 0.5, "n": 3.0})


def test_keeps_the_other_values_of_a_line_in_which_one_is_not_a_number() -> None:
    row = Row(1, 0.0, {"rate": 0.1}, ("loss", "most"))
    assert parsed(b'{"step": 1, "loss": NaN, "most": -Infinity, "rate": 0.1}') == row
    assert parsed(line_of(row)) == row, "stored rows keep the marks"


def test_a_curve_knows_where_it_was_not_finite_and_forgets_repeated_work() -> None:
    rows = {
        1: [Row(1, 0.0, {"loss": 1.0}), Row(2, 0.0, {}, ("loss",)), Row(3, 0.0, {}, ("loss",))],
        2: [Row(3, 0.0, {"loss": 0.5})],
    }
    curves = stitch(rows, ())
    assert [point.step for point in curves.series["loss"]] == [1, 3]
    assert curves.not_finite == {"loss": (2,)}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"[1, 2]",
        b'{"loss": 1}',
        b'{"step": "1"}',
        b'{"step": true}',
        b'{"step": 1.5}',
        b'{"step": NaN}',
        b'{"step": 1e300, "loss": 1}',
        b'{"step": 1' + b"0" * 5000 + b"}",
        b'{"step": 1, "x": NaN' + b"[" * 100_000,
    ],
    ids=lambda line: line[:24].decode(errors="replace"),
)
def test_an_invalid_line_is_skipped(line: bytes) -> None:
    assert parsed(line) is None


def test_an_unprintable_name_is_skipped() -> None:
    assert parsed(b'{"step": 1, "\\u001b[2J": 1, "ok": 2}') == Row(1, 0.0, {"ok": 2.0})


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(st.none() | st.floats(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_line_is_a_row_or_skipped(line: bytes) -> None:
    row = parsed(line)
    assert row is None or parsed(line_of(row)) == row


# The file


class Shipped:
    """Where a pump writes to. Refuses while `away`; holds the writer while `slow` is not set."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.away = False
        self.slow = threading.Event()
        self.slow.set()

    def write(self, number: int, body: bytes) -> None:
        self.slow.wait(30)
        if self.away:
            raise StoreUnreachable("away")
        assert number == len(self.pieces) + 1, "pieces come in order"
        self.pieces.append(body)

    def steps(self) -> list[int]:
        return [row.step for body in self.pieces for line in body.splitlines() if (row := parsed(line))]


class Trainer:
    def __init__(self, path: Path) -> None:
        self.path = path

    def log(self, *steps: int) -> None:
        self.write("".join(json.dumps({"step": step, "at": 1.0, "loss": 1 / (1 + step)}) + "\n" for step in steps))

    def write(self, text: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text)


Start = Callable[..., MetricsPump]


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "metrics.jsonl")


@pytest.fixture
def shipped() -> Shipped:
    return Shipped()


@pytest.fixture
def start(trainer: Trainer, shipped: Shipped) -> Iterator[Start]:
    pumps: list[MetricsPump] = []

    def begin(*, every_s: float = 0.01) -> MetricsPump:
        pumps.append(MetricsPump(str(trainer.path), shipped.write, every_s=every_s))
        return pumps[-1]

    yield begin
    shipped.slow.set()
    for pump in pumps:
        pump.finish(within_s=10)


def until_shipped(shipped: Shipped, *steps: int) -> None:
    eventually(lambda: shipped.steps() == list(steps), what=f"{steps} and not {shipped.steps()}")


def test_ships_complete_lines_and_reports_the_newest_step(trainer: Trainer, shipped: Shipped, start: Start) -> None:
    pump = start()
    assert pump.step is None
    before = pump.sign()
    trainer.log(1, 2)
    until_shipped(shipped, 1, 2)
    assert pump.step == 2
    assert pump.sign() != before
    trainer.write('{"step": 3, "lo')
    trainer.write('ss": 0.1}\n')
    until_shipped(shipped, 1, 2, 3)


def test_the_last_line_is_shipped_even_without_a_newline(trainer: Trainer, shipped: Shipped, start: Start) -> None:
    pump = start(every_s=1e9)
    trainer.log(1)
    until_shipped(shipped, 1)
    trainer.log(2)
    trainer.write('{"step": 3}')
    pump.finish(within_s=10)
    assert shipped.steps() == [1, 2, 3]
    assert len(shipped.pieces) == 2, "nothing is due before the end"


def test_an_incomplete_last_line_is_skipped(trainer: Trainer, shipped: Shipped, start: Start) -> None:
    pump = start()
    trainer.log(1)
    trainer.write('{"step": 2, "loss"')
    pump.finish(within_s=10)
    assert shipped.steps() == [1]


def test_continues_with_a_truncated_file(trainer: Trainer, shipped: Shipped, start: Start) -> None:
    start()
    trainer.log(1, 2, 3)
    until_shipped(shipped, 1, 2, 3)
    os.truncate(trainer.path, 0)
    trainer.log(1)
    until_shipped(shipped, 1, 2, 3, 1)


def test_continues_with_a_replaced_file(trainer: Trainer, shipped: Shipped, start: Start) -> None:
    start()
    trainer.log(1)
    trainer.write('{"step": 99, "half')
    until_shipped(shipped, 1)
    os.unlink(trainer.path)
    trainer.log(2, 3)
    until_shipped(shipped, 1, 2, 3)
    other = Trainer(trainer.path.with_name("other"))
    other.log(4)
    os.replace(other.path, trainer.path)
    until_shipped(shipped, 1, 2, 3, 4)


def test_skips_garbage_and_huge_lines(trainer: Trainer, shipped: Shipped, start: Start) -> None:
    start()
    trainer.log(1)
    trainer.write("\0\0garbage\n\n[]\n")
    trainer.write('{"step": 2, "' + "x" * (5 * PIECE_BYTES) + '": 1}\n')
    trainer.log(3)
    until_shipped(shipped, 1, 3)


def test_a_pipe_or_a_folder_at_the_files_path_is_not_read(trainer: Trainer, shipped: Shipped, start: Start) -> None:
    os.mkfifo(trainer.path)
    pump = start()
    os.unlink(trainer.path)
    os.mkdir(trainer.path)
    pump.finish(within_s=10)
    assert shipped.pieces == []


def test_pieces_consist_of_complete_lines_and_are_bounded(trainer: Trainer, shipped: Shipped, start: Start) -> None:
    trainer.log(*range(20_000))
    pump = start()
    pump.finish(within_s=30)
    assert shipped.steps() == list(range(20_000))
    assert max(map(len, shipped.pieces)) <= PIECE_BYTES
    assert all(body.endswith(b"\n") for body in shipped.pieces)


def test_a_slow_store_does_not_count_as_death_and_loses_nothing(
    trainer: Trainer, shipped: Shipped, start: Start
) -> None:
    shipped.slow.clear()
    pump = start()
    trainer.log(1)
    before = pump.sign()
    trainer.log(2)
    assert pump.sign() != before
    shipped.slow.set()
    until_shipped(shipped, 1, 2)


def test_a_refused_write_is_repeated_until_the_store_accepts_it(
    trainer: Trainer, shipped: Shipped, start: Start
) -> None:
    shipped.away = True
    pump = start()
    trainer.log(*range(10_000))
    eventually(lambda: pump.step is not None and pump.step > 500, what="some of it was read")
    shipped.away = False
    eventually(lambda: shipped.steps() == list(range(10_000)), what="all of it")


# Stitching


def attempt(number: int, **fields: object) -> Attempt:
    base = Attempt(
        number=number,
        machine=f"m{number}",
        cloud="local",
        region="r",
        zone="z",
        type="t",
        spot=True,
        price_usd_per_hour=1.0,
        on_demand_usd_per_hour=2.0,
        placed_at=number * 100.0,
        started_at=number * 100.0 + 1,
        over_at=number * 100.0 + 50,
    )
    return msgspec.structs.replace(base, **fields)


def preempted(number: int, **fields: object) -> Attempt:
    return attempt(number, preempted=True, outcome="preempted", phase="over", **fields)


def rows(*steps: int, name: str = "loss") -> list[Row]:
    return [Row(step, 1.0, {name: float(step)}) for step in steps]


def drawn(points: object) -> list[tuple[int, int]]:
    return [(point.step, point.attempt) for point in points]  # type: ignore[attr-defined]


def test_repeated_work_is_drawn_once() -> None:
    logged = {1: rows(0, 1, 2, 3, 4, 5), 2: rows(3, 4, 5, 6)}
    attempts = [preempted(1), attempt(2, resumed_from="c", resumed_step=3, outcome="finished")]
    curves = stitch(logged, attempts)
    assert drawn(curves.series["loss"]) == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]
    assert [(mark.kind, mark.step, mark.attempt) for mark in curves.marks] == [("preempted", 5, 1), ("resumed", 3, 2)]


def test_the_point_of_the_checkpoint_stays_if_its_step_is_not_repeated() -> None:
    curves = stitch({1: rows(1, 2, 3, 4), 2: rows(4, 5)}, [preempted(1), attempt(2, resumed_from="c", resumed_step=3)])
    assert drawn(curves.series["loss"]) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


def test_lost_work_is_omitted_before_the_next_attempt_logs() -> None:
    curves = stitch({1: rows(1, 2, 3, 4)}, [preempted(1), attempt(2, resumed_from="c", resumed_step=2)])
    assert drawn(curves.series["loss"]) == [(1, 1), (2, 1)]


def test_a_checkpoint_without_a_step_is_placed_by_the_next_logged_step() -> None:
    curves = stitch({1: rows(1, 2, 3, 4), 2: rows(3, 4)}, [preempted(1), attempt(2, resumed_from="c")])
    assert drawn(curves.series["loss"]) == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert curves.marks[-1].step == 3


def test_an_attempt_that_started_over_replaces_everything() -> None:
    curves = stitch({1: rows(0, 1, 2), 2: rows(0)}, [preempted(1), attempt(2)])
    assert drawn(curves.series["loss"]) == [(0, 2)]


def test_a_metric_that_is_logged_seldom_loses_only_its_own_lost_points() -> None:
    first = [*rows(1, 2, 3, 4), *rows(2, 4, name="accuracy")]
    curves = stitch({1: first, 2: rows(3, 4)}, [preempted(1), attempt(2, resumed_from="c", resumed_step=2)])
    assert drawn(curves.series["accuracy"]) == [(2, 1)]


def test_crashed_and_lost_attempts_are_marked_as_such_and_those_that_never_started_are_not() -> None:
    attempts = [
        attempt(1, outcome="crashed"),
        attempt(2, outcome="lost", resumed_step=1),
        preempted(3, started_at=0.0),
        attempt(4, outcome="finished", preempted=True, resumed_step=1),
    ]
    marks = stitch({1: rows(1)}, attempts).marks
    assert [(m.kind, m.attempt) for m in marks] == [("crashed", 1), ("resumed", 2), ("lost", 2), ("resumed", 4)]


STEPS = st.lists(st.integers(-5, 30), max_size=20)
ATTEMPTS = st.lists(st.tuples(STEPS, st.none() | st.integers(0, 30), st.booleans()), max_size=6)


@given(ATTEMPTS)
def test_a_curve_has_increasing_steps(tries: list[tuple[list[int], int | None, bool]]) -> None:
    logged = {n: [*rows(*steps), *rows(*steps[::3], name="rare")] for n, (steps, _, _) in enumerate(tries, 1)}
    attempts = [
        preempted(n, resumed_step=resumed, started_at=1.0 if began else 0.0)
        for n, (_, resumed, began) in enumerate(tries, 1)
    ]
    for points in stitch(logged, attempts).series.values():
        steps = [point.step for point in points]
        assert steps == sorted(set(steps))
        numbers = [point.attempt for point in points]
        assert numbers == sorted(numbers), "a later attempt is never overtaken by an earlier one"
    last = tries[-1][0] if tries else []
    if last:
        kept = stitch(logged, attempts).series["loss"]
        assert {p.step for p in kept if p.attempt == len(tries)} == set(last), "the newest attempt loses nothing"


# The workspace


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(str(tmp_path / "workspace"))


def test_reads_the_pieces_in_order_and_over_damage(bucket: Bucket) -> None:
    for number in range(1, 13):
        write_piece(bucket, "r-1", 1, number, line_of(Row(number, 1.0, {"loss": 0.1})))
    write_piece(bucket, "r-1", 1, 3, b"a second time")  # the answer was lost
    write_piece(bucket, "r-1", 1, 13, b"\xff\n" + line_of(Row(13, 1.0, {"loss": 0.1})) + b'{"st')
    assert [row.step for row in read(bucket, "r-1", 1)] == list(range(1, 14))
    assert [row.step for row in read(bucket, "r-1", 1, newest=2)] == [12, 13]


def test_unstitched_curves_include_lost_work(bucket: Bucket) -> None:
    for number, steps in ((1, (1, 2, 3)), (2, (2, 3))):
        write_piece(bucket, "r-1", number, 1, b"".join(map(line_of, rows(*steps))))
    state = RunState(attempts=(preempted(1), attempt(2, resumed_from="c", resumed_step=2)))
    assert drawn(stitched(bucket, "r-1", state).series["loss"]) == [(1, 1), (2, 2), (3, 2)]
    assert drawn(unstitched(bucket, "r-1", state).series["loss"]) == [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)]
    assert stitched(bucket, "r-2", RunState()).series == {}
