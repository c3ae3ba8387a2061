"""The conformance suite of the `Cloud` protocol, for every cloud.

    class TestMyCloud(CloudConformance):
        @pytest.fixture
        def cloud(self): ...

Each test labels its machines and deletes them at its end, also after a failure.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from outlast.clouds.cloud import Boot, Cloud, Machine, Offer, Range, Requirements, Status
from outlast.errors import BadRequest, NotFound

T = TypeVar("T")

# Prints the notice on the serial console as soon as the machine receives it. The second request sends the etag of the
# first response, so that a notice between the two is not missed.
_WATCH_FOR_NOTICE = """
url="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/preempted"
first="$(curl -s -i -H 'Metadata-Flavor: Google' "$url" | tr -d '\\r')"
echo "first $(printf '%s' "$first" | tail -n 1)"
etag="$(printf '%s' "$first" | sed -n 's/^ETag: //p')"
echo "then $(curl -s -H 'Metadata-Flavor: Google' "$url?wait_for_change=true&last_etag=$etag")"
sleep 1000
"""


def eventually(what: str, check: Callable[[], T], *, patience_s: float = 20.0) -> T:
    """Wait for a condition; fail the test with its description after `patience_s`."""
    give_up_at = time.monotonic() + patience_s
    while not (seen := check()):
        if time.monotonic() > give_up_at:
            pytest.fail(f"timed out after {patience_s:g} s waiting until {what}; last value: {seen!r}")
        time.sleep(0.005)
    return seen


class MachineFactory:
    """The machines of one test."""

    def __init__(self, cloud: Cloud, *, patience_s: float) -> None:
        self.cloud = cloud
        self.labels = {"outlast-test": secrets.token_hex(6)}
        self._patience_s = patience_s

    def name(self) -> str:
        return f"t-{secrets.token_hex(5)}"

    def offer(self, *, spot: bool = True) -> Offer:
        return self.cloud.offers(Requirements(cpus=Range(low=1), spot=spot))[0]

    def launch(self, name: str = "", *, script: str = "", spot: bool = True, offer: Offer | None = None) -> Machine:
        boot = Boot(script=script, metadata={"colour": "green"})
        return self.cloud.launch(
            offer or self.offer(spot=spot), name or self.name(), boot=boot, labels={**self.labels, "kind": "test"}
        )

    def wait(self, name: str, status: Status) -> Machine:
        def reached() -> Machine | None:
            machine = self.cloud.machine(name)
            return machine if machine.status == status else None

        found = eventually(f"{name} is {status}", reached, patience_s=self._patience_s)
        assert found is not None
        return found

    def wait_serial(self, name: str, text: str, *, times: int = 1) -> str:
        """Wait until the console prints a text and the machine is not `pending`: its status may lag behind."""

        def printed_text() -> str:
            serial = self.cloud.serial(name)
            printed = serial.count(text) >= times
            return serial if printed and self.cloud.machine(name).status != "pending" else ""

        return eventually(f"{name} prints `{text}` {times} times", printed_text, patience_s=self._patience_s)

    def delete_all(self) -> None:
        for machine in self.cloud.machines(self.labels):
            self.cloud.delete(machine.name)


class CloudConformance:
    """Subclass it and define a fixture `cloud`."""

    # False for a simulated cloud, whose machines run nothing.
    runs_scripts = True
    patience_s = 20.0

    @pytest.fixture
    def cloud(self) -> Iterator[Cloud]:
        pytest.fail("the subclass must define this fixture")

    @pytest.fixture
    def fleet(self, cloud: Cloud) -> Iterator[MachineFactory]:
        fleet = MachineFactory(cloud, patience_s=self.patience_s)
        yield fleet
        fleet.delete_all()
        assert cloud.machines(fleet.labels) == []

    @pytest.fixture
    def scripts(self) -> None:
        if not self.runs_scripts:
            pytest.skip("the machines of this cloud run no scripts")

    def test_offers_are_sorted_by_price_and_meet_the_requirements(self, cloud: Cloud) -> None:
        for spot in (True, False):
            offers = cloud.offers(Requirements(cpus=Range(low=4, high=16), spot=spot))
            prices = [offer.price_usd_per_hour for offer in offers]
            assert offers
            assert prices == sorted(prices)
            assert all(offer.spot == spot and 4 <= offer.cpus <= 16 and offer.cloud == cloud.name for offer in offers)
            assert offers == cloud.offers(Requirements(cpus=Range(low=4, high=16), spot=spot))

    def test_spot_is_cheaper_than_on_demand(self, cloud: Cloud) -> None:
        for offer in cloud.offers(Requirements(cpus=Range(low=1, high=8))):
            assert 0 < offer.price_usd_per_hour < offer.on_demand_usd_per_hour

    def test_offers_respect_zones_regions_and_types(self, cloud: Cloud) -> None:
        offers = cloud.offers(Requirements())
        first = offers[0]
        here = cloud.offers(Requirements(zones=(first.zone,)))
        assert {offer.zone for offer in here} == {first.zone}
        elsewhere = cloud.offers(Requirements(exclude_zones=(first.region,)))
        assert first.region not in {offer.region for offer in elsewhere}
        assert {offer.type for offer in cloud.offers(Requirements(type=first.type))} == {first.type}

    def test_impossible_requirements_have_no_offers(self, cloud: Cloud) -> None:
        assert list(cloud.offers(Requirements(cpus=Range(low=1_000_000)))) == []

    @pytest.mark.parametrize(
        "needs", [Requirements(type="no-such-type"), Requirements(zones=("no-such-zone",)), Requirements(image="none")]
    )
    def test_errors_name_unknown_types_zones_and_images_with_a_hint(self, cloud: Cloud, needs: Requirements) -> None:
        with pytest.raises(BadRequest) as refusal:
            cloud.offers(needs)
        assert (needs.type or needs.image or needs.zones[0]) in refusal.value.message
        assert refusal.value.hint

    def test_a_launched_machine_has_the_requested_properties(self, cloud: Cloud, fleet: MachineFactory) -> None:
        offer, before = fleet.offer(), time.time()
        machine = fleet.launch(offer=offer)
        assert machine.status in ("pending", "running")
        machine = fleet.wait(machine.name, "running")
        assert (machine.cloud, machine.zone, machine.type, machine.spot) == (
            cloud.name,
            offer.zone,
            offer.type,
            True,
        )
        assert machine.price_usd_per_hour == offer.price_usd_per_hour
        assert before - 60 < machine.created_at < time.time() + 60
        assert machine.labels["kind"] == "test"

    def test_a_repeated_launch_finds_the_first_machine(self, cloud: Cloud, fleet: MachineFactory) -> None:
        first = fleet.launch()
        again = fleet.launch(first.name)
        assert again.created_at == first.created_at
        assert [machine.name for machine in cloud.machines(fleet.labels)] == [first.name]

    def test_concurrent_launches_of_one_name_create_one_machine(self, cloud: Cloud, fleet: MachineFactory) -> None:
        name, launched, offer = fleet.name(), list[Machine](), fleet.offer()
        threads = [threading.Thread(target=lambda: launched.append(fleet.launch(name, offer=offer))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(launched) == 6
        assert len({machine.created_at for machine in launched}) == 1
        assert len(cloud.machines(fleet.labels)) == 1

    def test_machines_are_listed_by_their_labels_in_every_status(self, cloud: Cloud, fleet: MachineFactory) -> None:
        running, stopped = fleet.launch().name, fleet.launch().name
        for name in (running, stopped):
            fleet.wait(name, "running")
        cloud.stop(stopped)
        found = {machine.name: machine.status for machine in cloud.machines(fleet.labels)}
        assert found == {running: "running", stopped: "stopped"}
        assert {running, stopped} <= {machine.name for machine in cloud.machines()}
        assert cloud.machines({**fleet.labels, "kind": "other"}) == []

    def test_stopping_and_starting_keeps_the_disk_and_runs_the_script_again(
        self, cloud: Cloud, fleet: MachineFactory, scripts: None
    ) -> None:
        name = fleet.launch(script="echo line >> ~/kept\necho boots $(wc -l < ~/kept)\n").name
        fleet.wait_serial(name, "boots 1")
        cloud.stop(name)
        stopped = fleet.wait(name, "stopped")
        assert stopped.stopped_at >= stopped.created_at
        cloud.stop(name)
        cloud.start(name)
        fleet.wait_serial(name, "boots 2")
        assert fleet.wait(name, "running").stopped_at == 0.0
        cloud.start(name)

    def test_a_machine_that_shuts_itself_down_is_stopped(self, fleet: MachineFactory, scripts: None) -> None:
        name = fleet.launch(script="shutdown -h now\nsleep 1000\n").name
        assert fleet.wait(name, "stopped").stopped_at > 0

    def test_deleting_is_final_and_may_be_repeated(self, cloud: Cloud, fleet: MachineFactory) -> None:
        name = fleet.launch().name
        cloud.delete(name)
        assert cloud.machines(fleet.labels) == []
        cloud.delete(name)
        with pytest.raises(NotFound):
            cloud.machine(name)
        assert fleet.launch(name).created_at > 0

    def test_a_stopped_machine_can_be_deleted(self, cloud: Cloud, fleet: MachineFactory) -> None:
        name = fleet.launch().name
        cloud.stop(name)
        cloud.delete(name)
        assert cloud.machines(fleet.labels) == []

    def test_a_preempted_machine_receives_the_notice_and_is_then_stopped(
        self, cloud: Cloud, fleet: MachineFactory, scripts: None
    ) -> None:
        name = fleet.launch(script=_WATCH_FOR_NOTICE).name
        fleet.wait_serial(name, "first FALSE")
        cloud.preempt(name)
        fleet.wait_serial(name, "then TRUE")
        machine = fleet.wait(name, "stopped")
        assert "preempted" in machine.why
        assert machine.stopped_at > 0
        cloud.start(name)
        fleet.wait_serial(name, "first FALSE", times=2)

    def test_only_running_spot_machines_are_preempted(self, cloud: Cloud, fleet: MachineFactory) -> None:
        on_demand, stopped = fleet.launch(spot=False).name, fleet.launch().name
        fleet.wait(on_demand, "running")
        cloud.stop(stopped)
        for name in (on_demand, stopped):
            with pytest.raises(BadRequest):
                cloud.preempt(name)
        with pytest.raises(NotFound):
            cloud.preempt(fleet.name())

    def test_calls_on_a_missing_machine_raise_not_found(self, cloud: Cloud, fleet: MachineFactory) -> None:
        name = fleet.name()
        calls: list[Callable[[], object]] = [
            lambda: cloud.machine(name),
            lambda: cloud.stop(name),
            lambda: cloud.start(name),
            lambda: cloud.serial(name),
            lambda: cloud.set_metadata(name, {"a": "b"}),
        ]
        for call in calls:
            with pytest.raises(NotFound):
                call()

    def test_invalid_machine_names_are_refused(self, cloud: Cloud, fleet: MachineFactory) -> None:
        for name in ("", "Upper", "../up", "a/b", "-first", "x" * 64):
            with pytest.raises(BadRequest):
                cloud.launch(fleet.offer(), name, boot=Boot(), labels=fleet.labels)

    def test_an_unknown_image_is_refused(self, cloud: Cloud, fleet: MachineFactory) -> None:
        with pytest.raises((BadRequest, NotFound)) as refusal:
            cloud.launch(fleet.offer(), fleet.name(), boot=Boot(image="no-such-image"), labels=fleet.labels)
        assert "no-such-image" in refusal.value.message
        assert cloud.machines(fleet.labels) == []

    def test_images_belong_to_the_cloud(self, cloud: Cloud) -> None:
        assert all(image.cloud == cloud.name and image.name for image in cloud.images())

    def test_secrets_are_replaced_and_dropped_any_number_of_times(self, cloud: Cloud) -> None:
        name = f"test-{secrets.token_hex(6)}"
        cloud.drop_secrets(name)
        cloud.put_secrets(name, {"KEY": "one"})
        cloud.put_secrets(name, {"KEY": "two"})
        cloud.drop_secrets(name)
        cloud.drop_secrets(name)
