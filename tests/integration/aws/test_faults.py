"""Faults of EC2, injected by the bridge: each has its own error type, and no machine is duplicated or left."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from outlast.clouds.aws.client import TRIES, AwsClient
from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.errors import from_code, from_fleet_errors
from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Boot, Machine, Offer, Requirements
from outlast.errors import BadRequest, CloudError, CloudUnreachable, Denied, NoCapacity, NotFound, OverQuota, Throttled
from tests.support.aws import Bridge
from tests.support.waiting import eventually


class Run:
    """The machines of one run."""

    def __init__(self, cloud: AwsCloud) -> None:
        self.cloud = cloud
        self.name = f"r-{secrets.token_hex(4)}"
        self.labels = {LABEL_WORKSPACE: secrets.token_hex(4), LABEL_RUN: self.name, LABEL_ATTEMPT: "1"}

    def offers(self) -> list[Offer]:
        return list(self.cloud.offers(Requirements(type="c6i.large")))

    def launch(self, offer: Offer | None = None) -> Machine:
        boot = Boot(script="sleep 1000\n", disk_gb=21)
        return self.cloud.launch(offer or self.offers()[0], self.name, boot=boot, labels=self.labels)


@pytest.fixture
def run(cloud: AwsCloud, bridge: Bridge) -> Iterator[Run]:
    own = Run(cloud)
    yield own
    bridge.rules()
    cloud.delete(own.name)
    nothing_is_left(cloud)


def nothing_is_left(cloud: AwsCloud) -> None:
    ask = cloud.client.ec2
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}]
    assert ask("describe_instances", Filters=alive)["Reservations"] == []
    assert ask("describe_volumes")["Volumes"] == []
    assert ask("describe_addresses")["Addresses"] == []
    assert ask("describe_key_pairs")["KeyPairs"] == []
    assert ask("describe_launch_templates")["LaunchTemplates"] == []
    fleets = ask("describe_fleets")["Fleets"]
    assert [one["FleetState"] for one in fleets if not one["FleetState"].startswith("deleted")] == []


def test_a_spot_machine_of_a_run_comes_from_a_fleet_and_leaves_nothing(
    run: Run, cloud: AwsCloud, bridge: Bridge
) -> None:
    offer = run.offers()[-1]
    machine = run.launch(offer)
    assert (machine.zone, machine.type, machine.spot, machine.disk_gb) == (offer.zone, offer.type, True, 21)
    assert machine.labels == run.labels
    doc = cloud.home.instances.find(run.name)
    assert doc["MetadataOptions"]["HttpTokens"] == "required"
    calls = bridge.send("calls", {})
    assert "CreateFleet" in calls
    assert "RunInstances" not in calls[len(calls) - calls[::-1].index("CreateFleet") :]
    volume = cloud.client.ec2("describe_volumes")["Volumes"][0]
    assert {tag["Key"]: tag["Value"] for tag in volume["Tags"]}.items() >= run.labels.items()


@pytest.mark.full
def test_a_stockout_in_a_successful_answer_leads_to_the_next_zone(run: Run, bridge: Bridge) -> None:
    offers = run.offers()[:3]
    full = [{"action": "CreateFleet", "zone": one.zone, "code": "InsufficientInstanceCapacity"} for one in offers[:2]]
    bridge.rules(*full)
    for offer in offers[:2]:
        with pytest.raises(NoCapacity):
            run.launch(offer)
    assert run.launch(offers[2]).zone == offers[2].zone
    assert len(run.cloud.machines(run.labels)) == 1


@pytest.mark.full
def test_throttling_on_every_second_call_delays_the_launch_of_one_machine(run: Run, bridge: Bridge) -> None:
    bridge.rules({"code": "RequestLimitExceeded", "status": 503, "every": 2})
    run.launch()
    bridge.rules()
    assert [machine.name for machine in run.cloud.machines(run.labels)] == [run.name]


@pytest.mark.parametrize("spot", [True, False])
def test_a_lost_answer_creates_no_second_machine(run: Run, bridge: Bridge, spot: bool) -> None:
    offer = run.cloud.offers(Requirements(type="c6i.large", spot=spot))[0]
    action = "CreateFleet" if spot else "RunInstances"
    bridge.rules({"action": action, "code": "InternalError", "status": 500, "times": 1, "after": True})
    with pytest.raises(CloudUnreachable):
        run.launch(offer)
    run.launch(offer)
    assert len(run.cloud.machines(run.labels)) == 1


def test_a_machine_of_a_run_that_ended_by_itself_is_stopped_until_it_is_deleted(run: Run, cloud: AwsCloud) -> None:
    run.launch()
    docs = cloud.home.instances.docs(run.labels)
    cloud.client.ec2("terminate_instances", InstanceIds=[docs[0]["InstanceId"]])
    assert [machine.name for machine in cloud.home.instances.describe(docs)] == [run.name]
    # Not gone: the supervisor would launch the same attempt again instead of reporting a loss.
    eventually(lambda: [machine.status for machine in cloud.machines(run.labels)] == ["stopped"], what="its end")
    assert run.launch().status == "stopped"
    cloud.delete(run.name)
    assert cloud.machines(run.labels) == []
    with pytest.raises(NotFound):
        cloud.machine(run.name)


def test_types_without_the_latest_console_output_show_that_of_the_last_boot(run: Run, bridge: Bridge) -> None:
    run.launch()
    bridge.rules({"action": "GetConsoleOutput", "code": "UnsupportedOperation", "times": 1})
    assert "boot 1 of" in run.cloud.serial(run.name)


def test_parameters_are_checked_against_the_services_own_model(cloud: AwsCloud) -> None:
    with pytest.raises(BadRequest, match="NoSuchParameter"):
        cloud.client.ec2("describe_instances", NoSuchParameter=1)
    assert cloud.client.service("ec2").meta.config.parameter_validation is True


@pytest.mark.full
def test_a_throttled_call_is_retried_by_us_and_not_by_boto3(cloud: AwsCloud, bridge: Bridge) -> None:
    for code, status, kind, tries in (
        ("RequestLimitExceeded", 503, Throttled, TRIES),
        ("InternalError", 500, CloudUnreachable, 1),
    ):
        bridge.rules({"action": "DescribeVolumes", "code": code, "status": status})
        before = bridge.send("calls", {}).count("DescribeVolumes")
        with pytest.raises(kind):
            cloud.client.ec2("describe_volumes")
        assert bridge.send("calls", {}).count("DescribeVolumes") == before + tries


def test_a_server_that_is_not_there_is_unreachable(monkeypatch: pytest.MonkeyPatch, bridge: Bridge) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(CloudUnreachable):
        AwsClient().ec2("describe_volumes")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", NoCapacity),
        ("UnfulfillableCapacity", NoCapacity),
        ("SpotMaxPriceTooLow", NoCapacity),
        ("Unsupported", NoCapacity),
        ("MaxSpotInstanceCountExceeded", OverQuota),
        ("VcpuLimitExceeded", OverQuota),
        ("InstanceLimitExceeded", OverQuota),
        ("RequestLimitExceeded", Throttled),
        ("UnauthorizedOperation", Denied),
        ("InvalidParameterValue", BadRequest),
        ("InvalidInstanceID.NotFound", NotFound),
        ("InternalError", CloudUnreachable),
        ("MaxFleetCountExceeded", OverQuota),
        ("PendingVerification", OverQuota),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", Denied),
        ("InvalidLaunchTemplateName.NotFoundException", NotFound),
    ],
)
def test_every_error_code_has_its_type(code: str, kind: type[CloudError]) -> None:
    assert isinstance(from_code(code, "text"), kind)


def test_the_actionable_error_of_a_fleet_is_raised() -> None:
    errors = [{"ErrorCode": "InvalidParameterValue"}, {"ErrorCode": "InsufficientInstanceCapacity"}]
    assert isinstance(from_fleet_errors(errors), NoCapacity)
    assert isinstance(from_fleet_errors([{"ErrorCode": "UnauthorizedOperation"}, *errors]), Denied)


def test_on_demand_prices_report_their_source(cloud: AwsCloud) -> None:
    assert "built-in" in cloud.home.prices.source(cloud.home.catalogue.kind("c6i.large"))


def test_an_image_is_shared_with_an_account_and_with_nothing_else(cloud: AwsCloud, run: Run) -> None:
    name = f"i-{secrets.token_hex(4)}"
    machine_record = f"h-{secrets.token_hex(4)}"
    cloud.launch(run.offers()[0], machine_record, boot=Boot(), labels={})
    cloud.stop(machine_record)
    made = cloud.snapshot(machine_record, name)
    cloud.delete(machine_record)
    with pytest.raises(BadRequest):
        cloud.share_image(made.name, "ada@example.com")
    cloud.share_image(made.name, "1111-2222-3333")
    id = cloud.image_api.describe(name)["ImageId"]
    asked = cloud.client.ec2("describe_image_attribute", ImageId=id, Attribute="launchPermission")
    assert asked["LaunchPermissions"] == [{"UserId": "111122223333"}]
    cloud.delete_image(name)
