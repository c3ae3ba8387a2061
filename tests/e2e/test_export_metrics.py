"""`outlast metrics`: one unbroken curve after three preemptions, in formats that other programs read."""

from __future__ import annotations

import csv
import io
import json
import struct
from pathlib import Path

import pytest

from outlast.agent.tracker_variables import names_of
from outlast.runs import events as ev
from outlast.runs.metrics import write_piece
from outlast.runs.tensorboard import event_file
from tests.support.home import Home

# Attempt → its first and last step. Each repeats the steps after the checkpoint that it resumed from.
SPANS = {1: (1, 12), 2: (11, 25), 3: (21, 33), 4: (31, 40)}


def preempted_three_times(home: Home) -> str:
    run, story = "census-1", home.workspace.story("census-1")
    events: list[ev.Event] = [ev.Submitted(who="ada")]
    for attempt, (first, last) in SPANS.items():
        events.append(
            ev.Placed(
                attempt=attempt,
                cloud="local",
                region="r",
                zone="z",
                type="t",
                spot=True,
                price_usd_per_hour=1.0,
                machine=f"m{attempt}",
            )
        )
        resumed = {"resumed_from": f"c{attempt - 1}", "resumed_step": first - 1} if attempt > 1 else {}
        events.append(ev.Started(attempt=attempt, at=100.0 * attempt, **resumed))  # type: ignore[arg-type]
        lines = [json.dumps({"step": s, "at": 100.0 * attempt + s, "loss": 1 / s}) for s in range(first, last + 1)]
        write_piece(home.workspace.bucket, run, attempt, 1, "\n".join(lines).encode())
        if attempt < 4:
            events += [ev.Saved(attempt=attempt, checkpoint=f"c{attempt}", step=last // 10 * 10)]
            events += [ev.Lost(attempt=attempt, why="preempted", preempted=True)]
    events.append(ev.Finished(attempt=4))
    for number, event in enumerate(events):
        story.append_or_raise(event, nonce=str(number))
    return run


def test_after_three_preemptions_the_export_is_one_curve_without_repeated_steps(home: Home, tmp_path: Path) -> None:
    run = preempted_three_times(home)
    answer = home.outlast("metrics", run)
    assert answer.returncode == 0, answer.stderr
    rows = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert [int(row["step"]) for row in rows] == list(range(1, 41))
    assert [float(row["value"]) for row in rows] == [1 / step for step in range(1, 41)]
    assert {row["attempt"] for row in rows} == {"1", "2", "3", "4"}
    assert home.outlast("metrics", run, "--csv", str(tmp_path / "x.csv")).returncode == 0
    assert (tmp_path / "x.csv").read_text() == answer.stdout
    points = json.loads(home.outlast("metrics", run, "--json").stdout)
    assert [point["step"] for point in points] == list(range(1, 41))
    for _ in range(2):  # an export replaces the previous one
        assert home.outlast("metrics", run, "--tensorboard", str(tmp_path / "tb")).returncode == 0
    (path,) = (tmp_path / "tb" / run).iterdir()
    assert scalars(path.read_bytes()) == [(step, pytest.approx(1 / step)) for step in range(1, 41)]
    wrong = home.outlast("metrics", run, "--csv", "-", "--json")
    assert (wrong.returncode, "expected one of" in wrong.stderr) == (2, True)


def scalars(body: bytes) -> list[tuple[int, float]]:
    """Decode the scalars of an event file, field by field, as the format describes them."""
    found = []
    messages = []
    at = 0
    while at < len(body):
        (length,) = struct.unpack_from("<Q", body, at)
        messages.append(body[at + 12 : at + 12 + length])
        at += 12 + length + 4
    assert messages[0].endswith(b"brain.Event:2")
    for message in messages[1:]:
        fields = decoded(message)
        value = decoded(decoded(fields[5])[1])  # type: ignore[arg-type]
        assert value[1] == b"loss"
        found.append((fields[2], struct.unpack("<f", value[2])[0]))  # type: ignore[arg-type]
    return found  # type: ignore[return-value]


def decoded(message: bytes) -> dict[int, int | bytes]:
    fields: dict[int, int | bytes] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            fields[key >> 3] = varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        fields[key >> 3] = message[at : at + size]
        at += size
    return fields


def test_the_checksums_are_those_of_the_format() -> None:
    """The first record of every event file that TensorBoard writes at time 0, byte for byte."""
    body = event_file({})
    assert body[:8] == struct.pack("<Q", 24)
    assert body[8:12].hex() == "a37f4b22"


def test_trackers_continue_one_run_and_never_share_it() -> None:
    found = names_of("abcd1234", "census-7")
    assert found["WANDB_RUN_ID"] == "abcd1234-census-7"
    assert found["WANDB_RESUME"] == "allow"
    assert len(found["COMET_EXPERIMENT_KEY"]) == 40
    assert found["COMET_EXPERIMENT_KEY"].isalnum()
    others = [names_of("abcd1234", "census-8"), names_of("ffff1234", "census-7")]
    for other in others:
        assert other["WANDB_RUN_ID"] != found["WANDB_RUN_ID"]
        assert other["COMET_EXPERIMENT_KEY"] != found["COMET_EXPERIMENT_KEY"]
    assert names_of("", "census-7") == {}
