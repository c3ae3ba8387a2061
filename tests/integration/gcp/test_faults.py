"""Faults between outlast and Google: no machine is duplicated or lost, and each error is one line."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from outlast.clouds.cloud import LABEL_RUN, LABEL_WORKSPACE, Boot, Machine, Offer, Requirements, ZonesUnreachable
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.errors import from_operation
from outlast.errors import (
    BadRequest,
    CloudError,
    CloudUnreachable,
    Denied,
    NoCapacity,
    NotFound,
    OverQuota,
    Throttled,
)
from outlast_gcp_emulator.compute.refs import Ref
from outlast_gcp_emulator.faults import Fault
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse
from tests.integration.emulator.discovery import Watching
from tests.support.gcp import OTHER_ZONE, ZONE, Rehearsal
from tests.support.waiting import eventually

LABELS = {LABEL_WORKSPACE: "ab12cd34", LABEL_RUN: "census-7", "odd": "Ünter_Strich"}


@pytest.fixture
def offer(gcp: GcpCloud) -> Offer:
    return gcp.offers(Requirements(type="e2-standard-2", zones=(ZONE,)))[0]


@pytest.fixture(autouse=True)
def _clean(gcp: GcpCloud, rehearsal: Rehearsal) -> Iterator[None]:
    yield
    rehearsal.endpoint.faults.clear()
    for machine in gcp.machines():
        gcp.delete(machine.name)


def launch(gcp: GcpCloud, offer: Offer, name: str = "box") -> Machine:
    return gcp.launch(offer, name, boot=Boot(script="sleep 1000", metadata={"colour": "green"}), labels=LABELS)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Denied), (403, Denied), (429, Throttled), (500, CloudUnreachable), (503, CloudUnreachable)],
)
def test_a_refused_launch_creates_nothing_and_is_one_line(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer, status: int, kind: type[CloudError]
) -> None:
    # Two 401: the first counts as an expired token.
    fault = Fault(path="*/instances", method="POST", status=status, times=2 if status == 401 else 1)
    rehearsal.endpoint.faults.add(fault)
    with pytest.raises(kind) as refusal:
        launch(gcp, offer)
    assert "\n" not in refusal.value.message
    assert refusal.value.hint
    assert gcp.machines() == []
    assert launch(gcp, offer).status in ("pending", "running")


def test_an_expired_token_is_renewed_once(gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer) -> None:
    rehearsal.endpoint.faults.add(Fault(path="*/instances", method="POST", status=401))
    assert launch(gcp, offer).name == "box"


@pytest.mark.parametrize("step", ["*/instances", "*/operations/*/wait", "*/instances/once-*"])
def test_an_answer_lost_during_a_launch_creates_no_second_machine(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer, step: str
) -> None:
    # A name that no test had before: the server remembers requests.
    name = f"once-{secrets.token_hex(4)}"
    method = "GET" if "once" in step else "POST"
    rehearsal.endpoint.faults.add(Fault(path=step, method=method, after_work=True))
    with pytest.raises(CloudUnreachable):
        launch(gcp, offer, name)
    again = launch(gcp, offer, name)
    assert [machine.name for machine in gcp.machines()] == [name]
    eventually(lambda: gcp.machine(name).status == "running", within_s=20, what="the machine running")
    assert [machine.name for machine in rehearsal.local.machines()] == [name]
    assert again.labels == LABELS


def test_deleting_and_stopping_can_be_repeated_after_a_lost_answer(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer
) -> None:
    launch(gcp, offer)
    calls: list[tuple[str, Callable[[str], None]]] = [("POST", gcp.stop), ("POST", gcp.start), ("DELETE", gcp.delete)]
    for method, call in calls:
        rehearsal.endpoint.faults.add(Fault(path="*/instances/box*", method=method, after_work=True))
        with pytest.raises(CloudUnreachable):
            call("box")
        call("box")
    assert gcp.machines() == []
    assert list(rehearsal.local.machines()) == []


def test_a_stockout_after_the_insert_was_answered_counts_and_leaves_nothing(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer
) -> None:
    rehearsal.local.set_zone(ZONE, capacity=0)
    with pytest.raises(NoCapacity):
        launch(gcp, offer)
    rehearsal.local.set_zone(ZONE, capacity=None, quota=0)
    with pytest.raises(OverQuota):
        launch(gcp, offer)
    assert gcp.machines() == []
    # The remembered failure does not block the next attempt.
    rehearsal.local.set_zone(ZONE, quota=None)
    assert launch(gcp, offer).name == "box"


def test_a_machine_of_that_name_in_another_zone_is_found_and_not_duplicated(gcp: GcpCloud, offer: Offer) -> None:
    launch(gcp, offer)
    elsewhere = gcp.offers(Requirements(type="e2-standard-2", zones=(OTHER_ZONE,)))[0]
    assert launch(GcpCloud(gcp.client.project), elsewhere).zone == ZONE
    assert len(gcp.machines()) == 1


def test_two_launches_in_two_zones_at_once_leave_one_machine(
    gcp: GcpCloud, rehearsal: Rehearsal, watching: Watching, offer: Offer
) -> None:
    other, name = (
        gcp.offers(Requirements(type="e2-standard-2", zones=(OTHER_ZONE,)))[0],
        f"twice-{secrets.token_hex(3)}",
    )

    def meanwhile(request: HttpRequest, _: HttpResponse) -> None:
        """Let the second process launch the machine between the first one's search and launch."""
        if request.path.endswith("/aggregated/instances") and name in request.query.get("filter", ""):
            watching.then = None
            assert launch(rehearsal.cloud(), other, name).zone == OTHER_ZONE

    watching.then = meanwhile
    assert launch(gcp, offer, name).zone == OTHER_ZONE
    assert watching.then is None
    assert [machine.zone for machine in gcp.machines()] == [OTHER_ZONE]


def test_another_owners_machine_of_that_name_is_kept(gcp: GcpCloud, offer: Offer) -> None:
    launch(gcp, offer)
    with pytest.raises(BadRequest, match="another machine `box` exists"):
        gcp.launch(offer, "box", boot=Boot(), labels={**LABELS, LABEL_WORKSPACE: "ff"})
    assert gcp.machine("box").labels == LABELS


def test_a_missing_machine_is_not_found_and_a_lost_page_is_an_error(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer
) -> None:
    launch(gcp, offer)
    rehearsal.endpoint.faults.add(Fault(path="*/aggregated/instances*", status=503))
    with pytest.raises(CloudUnreachable):
        gcp.machines(LABELS)
    assert [machine.name for machine in gcp.machines(LABELS)] == ["box"]
    with pytest.raises(NotFound):
        gcp.machine("other")


def test_a_silent_zone_hides_only_its_own_machines(gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer) -> None:
    launch(gcp, offer)
    there = gcp.offers(Requirements(type="e2-standard-2", zones=(OTHER_ZONE,)))[0]
    launch(gcp, there, "far")
    rehearsal.endpoint.silence(ZONE)
    try:
        with pytest.raises(ZonesUnreachable) as problem:
            gcp.machines(LABELS)
        assert problem.value.zones == (ZONE,)
        assert [machine.name for machine in problem.value.machines] == ["far"]
        assert launch(gcp, there, "third").zone == OTHER_ZONE, "a run's machine is placed in one zone only"
        with pytest.raises(CloudUnreachable, match=ZONE):
            launch(rehearsal.cloud(), offer, "fourth")
        with pytest.raises(CloudUnreachable, match=ZONE):
            rehearsal.cloud().machine("box")
    finally:
        rehearsal.endpoint.silence()
    assert len(gcp.machines(LABELS)) == 3


def test_an_unreadable_log_of_operations_does_not_fail_the_call(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer
) -> None:
    launch(gcp, offer)
    gcp.stop("box")
    rehearsal.endpoint.faults.add(Fault(path="*/aggregated/operations*", status=403))
    (machine,) = gcp.machines(LABELS)
    assert (machine.status, machine.why) == ("stopped", "")
    assert rehearsal.endpoint.faults.left() == 0


def test_a_refused_longer_notice_is_left_out_and_remembered(gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer) -> None:
    message = "Invalid value for field 'resource.scheduling.preemptionNoticeDuration': not supported."
    rehearsal.endpoint.faults.add(
        Fault(path="*/instances", method="POST", status=400, reason="invalid", message=message)
    )
    for name in ("box", "second"):
        launch(gcp, offer, name)
        doc = gcp.instances.get(ZONE, name, "scheduling,metadata").doc
        assert "preemptionNoticeDuration" not in doc["scheduling"]
        assert "outlast-grace-s" not in gcp.metadata(name)
    assert rehearsal.endpoint.faults.left() == 0


def test_the_agent_uses_the_notice_that_google_granted(gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer) -> None:
    launch(gcp, offer)
    assert gcp.metadata("box")["outlast-grace-s"] == "120"
    rehearsal.endpoint.grant_notice(60)
    try:
        launch(gcp, offer, "second")
        assert gcp.metadata("second")["outlast-grace-s"] == "60"
        launch(gcp, offer, "second")
    finally:
        rehearsal.endpoint.grant_notice(120)


@pytest.mark.full
def test_a_paged_list_is_complete_and_a_lost_page_is_an_error(
    gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer
) -> None:
    launch(gcp, offer)
    store = rehearsal.endpoint._compute.context.store
    model = store.get(Ref(gcp.client.project, f"zones/{ZONE}", "instances", "box"))
    assert model is not None
    # Records only: the test is about the listing.
    many = [Ref(gcp.client.project, f"zones/{ZONE}", "instances", f"many-{number}") for number in range(600)]
    for number, ref in enumerate(many):
        store.put(ref, {**model, "name": ref.name, "id": str(10**15 + number), "_creating": True})
    try:
        before = gcp.client.sent
        assert len(gcp.machines(LABELS)) == 601
        assert gcp.client.sent - before == 2
        rehearsal.endpoint.faults.add(Fault(path="*pageToken=*", status=500))
        with pytest.raises(CloudUnreachable):
            gcp.machines(LABELS)
    finally:
        for ref in many:
            store.drop(ref)


def test_concurrent_changes_of_metadata_are_not_lost(gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer) -> None:
    launch(gcp, offer)
    rehearsal.endpoint.faults.add(Fault(path="*/setMetadata", status=412, reason="conditionNotMet"))
    gcp.set_metadata("box", {"shape": "round"})
    assert gcp.metadata("box") | {"colour": "green", "shape": "round"} == gcp.metadata("box")


def test_no_secret_is_in_metadata_labels_or_errors(gcp: GcpCloud, rehearsal: Rehearsal, offer: Offer) -> None:
    gcp.put_secrets("outlast-ab-run-1", {"KEY": "hunter2-very-secret"})
    launch(gcp, offer)
    token = gcp.client.token()
    shown = str(gcp.client.compute("GET", f"zones/{ZONE}/instances/box").doc)
    rehearsal.endpoint.faults.add(Fault(path="*:addVersion", status=403))
    with pytest.raises(Denied) as refusal:
        gcp.put_secrets("outlast-ab-run-1", {"KEY": "hunter2-very-secret"})
    shown_text = str(refusal.value) + refusal.value.hint + shown
    assert "hunter2" not in shown_text
    assert f"Bearer {token}" not in shown_text
    gcp.drop_secrets("outlast-ab-run-1")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoCapacity),
        ("QUOTA_EXCEEDED", OverQuota),
        ("RATE_LIMIT_EXCEEDED", Throttled),
        ("PERMISSIONS_ERROR", Denied),
        ("RESOURCE_NOT_FOUND", NotFound),
        ("INTERNAL_ERROR", CloudUnreachable),
        ("INVALID_USAGE", BadRequest),
    ],
)
def test_an_operation_that_ends_in_error_is_classified_by_its_code(code: str, kind: type[CloudError]) -> None:
    operation = {"error": {"errors": [{"code": code, "message": "text"}]}, "httpErrorStatusCode": 400}
    assert type(from_operation(operation, "launch")) is kind
