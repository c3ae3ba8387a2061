"""Alternative GPUs on Google Cloud: their offers, and the order in which a run requests them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.clouds.cloud import LABEL_RUN, Boot, Requirements
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.spec.gpus import GpuChoice
from outlast_gcp_emulator.conditions import REAL
from tests.integration.gcp.home import at_home
from tests.support.gcp import ZONE, Rehearsal
from tests.support.home import Home
from tests.support.waiting import eventually


@pytest.fixture
def home(rehearsal: Rehearsal, gcp: GcpCloud, tmp_path: Path) -> Iterator[Home]:
    with at_home(tmp_path, rehearsal, gcp) as own:
        yield own


@pytest.mark.full
def test_each_alternative_is_offered_with_its_own_number_of_gpus(gcp: GcpCloud, rehearsal: Rehearsal) -> None:
    others = (GpuChoice("T4", 2), GpuChoice("24GB+"), GpuChoice("T4"))
    offers = gcp.offers(Requirements(gpu="A100-80GB", gpus=1, other_gpus=others, zones=(ZONE,), spot=False))
    kinds = {(offer.gpu, offer.gpus) for offer in offers}
    assert {("A100-80GB", 1), ("T4", 2), ("T4", 1), ("L4", 1)} <= kinds
    prices = [offer.price_usd_per_hour for offer in offers]
    assert prices == sorted(prices)
    assert len({(offer.type, offer.gpu, offer.gpus) for offer in offers}) == len(offers), "none is listed twice"
    rehearsal.endpoint.surroundings.now = replace(REAL, quotas={})
    pair = next(offer for offer in offers if (offer.gpu, offer.gpus) == ("T4", 2))
    gcp.launch(pair, "pair", boot=Boot(reservation="week"), labels={LABEL_RUN: "run-1"})
    found = gcp.client.call("compute", "GET", gcp.client.below(f"zones/{ZONE}/instances/pair")).doc
    assert [one["acceleratorCount"] for one in found["guestAccelerators"]] == [2]
    assert found["reservationAffinity"]["values"] == ["week"], "Google's description has the field"
    gcp.delete("pair")


def test_a_run_requests_the_next_alternative_where_it_has_no_quota_for_the_first(home: Home) -> None:
    home.write("outlast.toml", f'[machine]\ncloud = "gcp"\ngpu = ["A100-80GB", "T4:2"]\nzones = ["{ZONE}"]\n')
    listed = home.outlast("prices", "--cloud", "gcp", "--gpu", "A100-80GB,T4:2", "--zone", ZONE, "--spot", "--json")
    assert {(one["gpu"], one["gpus"]) for one in json.loads(listed.stdout)["offers"]} == {("A100-80GB", 1), ("T4", 2)}
    runner = home.start("run", "--yes", "--name", "either", "--", "true")
    story = home.workspace.story("either-1")
    # The quota of the project is 0 for all GPUs.
    eventually(lambda: len(story.refresh().attempts) == 2 and story.state.waiting, within_s=90, what="two refusals")
    first, second = story.state.attempts
    assert [(one.gpu, one.gpus, one.outcome) for one in (first, second)] == [
        ("A100-80GB", 1, "refused"),
        ("T4", 2, "refused"),
    ]
    assert first.price_usd_per_hour > second.price_usd_per_hour
    assert story.state.alive, "one kind of GPU without quota would have ended it"
    assert home.outlast("cancel", "either-1").returncode == 0
    runner.communicate(timeout=600)
