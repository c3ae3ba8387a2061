"""Traffic between regions and clouds: its prices, an attempt's cost, and its part of the ledger."""

from __future__ import annotations

import msgspec
import pytest

from outlast.billing.egress import (
    attempt_egress_usd,
    egress_text,
    rates,
    saving_usd_per_hour,
    start_usd,
    traffic_usd_per_gb,
)
from outlast.billing.ledger import lines_of, total
from outlast.clouds.geography import continent, distance
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import RunState, fold
from outlast.store.bucket import open_bucket
from outlast.store.counted import CountedBucket, Traffic, traffic_of

GB = 10**9


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("us-central1", "north america"),
        ("US", "north america"),
        ("NAM4", "north america"),
        ("ca-central-1", "north america"),
        ("mx-central-1", "north america"),
        ("EUR4", "europe"),
        ("eu-north-1", "europe"),
        ("europe-west4", "europe"),
        ("asia-east1", "asia"),
        ("ap-southeast-1", "asia"),
        ("ap-southeast-2", "oceania"),
        ("australia-southeast1", "oceania"),
        ("me-central1", "middle east"),
        ("sa-east-1", "south america"),
        ("southamerica-west1", "south america"),
        ("af-south-1", "africa"),
        ("local1", ""),
    ],
)
def test_every_location_has_a_continent(location: str, name: str) -> None:
    assert continent(location) == name


def test_the_distance_is_zero_where_nothing_is_known() -> None:
    assert [distance(region, "us-east-1") for region in ("us-east-1", "us-west-2", "eu-west-1")] == [0, 1, 2]
    assert [distance(region, "US") for region in ("us-central1", "europe-west4")] == [1, 2]
    assert distance("us-east-1", "") == distance("local1", "local2") == 0


@pytest.mark.parametrize(
    ("route", "usd"),
    [
        (("gcp", "us-central1", "gcp", "us-central1"), 0.0),
        (("gcp", "us-central1", "gcp", "us-east1"), 0.02),
        (("gcp", "us-central1", "gcp", "europe-west4"), 0.05),
        (("gcp", "US", "gcp", "us-central1"), 0.02),  # a bucket of several regions is billed inside them, too
        (("aws", "us-east-1", "aws", "us-east-2"), 0.01),
        (("aws", "us-east-1", "aws", "eu-west-1"), 0.02),
        (("aws", "sa-east-1", "aws", "us-east-1"), 0.138),
        (("aws", "us-east-1", "gcp", "us-east1"), 0.09),
        (("gcp", "us-east1", "aws", "us-east-1"), 0.12),
        (("aws", "us-east-1", "local", "local1"), 0.0),
        (("gcp", "", "gcp", "us-central1"), 0.0),
    ],
)
def test_the_sender_pays_its_list_price(route: tuple[str, str, str, str], usd: float) -> None:
    assert traffic_usd_per_gb(*route) == usd


def test_a_folder_and_a_bucket_in_the_same_region_cost_nothing() -> None:
    assert rates("/ws", "", "aws", "us-east-1") == (0.0, 0.0)
    assert rates("s3://box/ws", "us-east-1", "aws", "us-east-1") == (0.0, 0.0)
    assert rates("s3://box/ws", "us-east-1", "gcp", "us-central1") == (0.12, 0.09)
    assert egress_text("s3://box", "us-east-1", "aws", "us-east-1") == ""
    assert "$0.12/GB sent, $0.09/GB received" in egress_text("s3://box", "us-east-1", "gcp", "us-central1")


def far(*more: Event, nodes: int = 1) -> RunState:
    """A run whose machine sends for 0.12 and receives for 0.09 dollars per GB, at 1 dollar per hour."""
    names = tuple(f"run-1-a1-n{rank}" for rank in range(nodes))
    placed = ev.Placed(
        attempt=1, cloud="gcp", region="us-central1", zone="us-central1-a", type="n2", spot=True,
        price_usd_per_hour=1.0, machine=names[0], members=names if nodes > 1 else (), at=1000.0,
        sent_usd_per_gb=0.12, received_usd_per_gb=0.09,
    )  # fmt: skip
    return fold([ev.Submitted(at=1000.0), placed, *more])


STARTED = ev.Started(attempt=1, at=1100.0, received_bytes=2 * GB)
SAVED = ev.Saved(attempt=1, checkpoint="c1", bytes=5 * GB, sent_bytes=GB, at=1900.0)


def test_an_attempt_pays_for_the_bytes_in_each_direction() -> None:
    assert attempt_egress_usd(far(), far().attempts[0]) == 0.0
    state = far(STARTED, SAVED)
    # Only a part of the checkpoint is new.
    assert attempt_egress_usd(state, state.attempts[0]) == pytest.approx(2 * 0.09 + 1 * 0.12)
    ended = far(STARTED, SAVED, ev.Finished(attempt=1, sent_bytes=3 * GB, received_bytes=2 * GB, at=2000.0))
    assert attempt_egress_usd(ended, ended.attempts[0]) == pytest.approx(2 * 0.09 + 3 * 0.12)


def test_every_machine_of_a_distributed_run_receives_what_the_leader_does() -> None:
    state = far(STARTED, SAVED, nodes=2)
    assert attempt_egress_usd(state, state.attempts[0]) == pytest.approx(4 * 0.09 + 5 * 0.12)


def test_the_ledgers_total_is_the_sum_of_its_causes() -> None:
    running = far(STARTED, SAVED)
    (line,) = lines_of("run-1", running, 4600.0)
    assert line.estimated
    assert line.causes["egress"] == pytest.approx(0.3)
    assert line.cost_usd == pytest.approx(1.3)
    released = ev.Released(
        attempt=1, cost_usd=1.5, seconds=3600.0, disk_usd=0.1, address_usd=0.1, egress_usd=0.3, at=4700.0
    )
    lost = ev.Lost(attempt=1, why="gone", at=4600.0)
    for state in (running, far(STARTED, SAVED, lost, released)):
        found = total(lines_of("run-1", state, 4600.0))
        assert sum(found.causes.values()) == pytest.approx(found.cost_usd)
        assert found.causes["egress"] == pytest.approx(0.3)


def test_the_next_start_is_expected_to_cost_what_the_last_one_did() -> None:
    here = rates("s3://box/ws", "us-east-1", "gcp", "us-central1")
    assert start_usd(far(), here) == saving_usd_per_hour(far(), here) == 0.0
    state = far(STARTED, SAVED)
    assert start_usd(state, here) == pytest.approx(5 * 0.09), "the checkpoint is larger than the first download"
    assert saving_usd_per_hour(state, here) == pytest.approx(0.12 * 3600 / 800)


def test_a_bucket_counts_what_goes_through_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain = open_bucket(str(tmp_path / "ws"))
    bucket, traffic = CountedBucket(plain), Traffic()
    bucket.put("a", b"12345")
    bucket.create("b", b"123")
    bucket.write("c", memoryview(b"12"))
    (tmp_path / "file").write_bytes(b"1234567")
    bucket.upload("d", str(tmp_path / "file"))
    assert traffic_of(bucket).sent == 17
    assert bucket.get("a") + bucket.get_range("b", 1, 2) == b"1234523"
    bucket.download("d", str(tmp_path / "back"))
    room = memoryview(bytearray(2))
    bucket.read_into("c", room)
    assert (traffic_of(bucket).received, traffic_of(plain).received) == (16, 0)
    other = CountedBucket(plain, traffic)
    other.get("a")
    assert traffic.received == 5
    assert sorted(entry.key for entry in bucket.list("")) == ["a", "b", "c", "d"]


def test_old_stories_without_traffic_can_be_read() -> None:
    text = b'{"event":"released","attempt":1,"cost_usd":1.0}'
    assert msgspec.structs.asdict(ev.decode(text))["egress_usd"] == 0.0
