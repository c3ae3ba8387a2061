"""The conditions of the real AWS: the bridge really behaves so, and outlast copes or says the next step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.security_groups import group_of_machines, named_group, remove
from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE, Boot, Machine, Requirements
from outlast.clouds.local.probe import why_not
from outlast.errors import BadRequest, Denied, NoQuota, NotFound, OverQuota
from outlast.testing.motoconditions import REAL, MotoConditions
from tests.integration.aws.home import RUN, at_home
from tests.support.aws import Bridge, run_bridge
from tests.support.waiting import eventually

# Prints whether it reaches a server at an address, forever.
_CONNECT = """
while true; do
    curl -s -m 1 -o /dev/null http://{}:8000 && echo "peer reached" || echo "peer lost"
    sleep 0.1
done
"""


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest, bridge: Bridge, cloud: AwsCloud) -> Iterator[None]:
    yield
    bridge.conditions()
    for machine in cloud.machines():
        cloud.delete(machine.name)


def launch(cloud: AwsCloud, *, type: str = "c6i.large", spot: bool = False, run: bool = False, **boot: Any) -> Machine:
    offer = cloud.offers(Requirements(type=type, spot=spot))[0]
    name = f"c-{secrets.token_hex(4)}"
    labels = {LABEL_WORKSPACE: "ab12", **({LABEL_RUN: name, LABEL_ATTEMPT: "1"} if run else {})}
    return cloud.launch(offer, name, boot=Boot(**{"script": "sleep 1000\n", "disk_gb": 21, **boot}), labels=labels)


def image_id(cloud: AwsCloud) -> str:
    return str(cloud.image_api.describe("")["ImageId"])


def run_instances(cloud: AwsCloud, **options: Any) -> Any:
    options = {"ImageId": image_id(cloud), "InstanceType": "c6i.large", "MinCount": 1, "MaxCount": 1, **options}
    return cloud.client.ec2("run_instances", **options)


def test_every_condition_of_the_real_cloud_is_on() -> None:
    kind, real = msgspec.structs.asdict(MotoConditions()), msgspec.structs.asdict(REAL)
    # Single tests switch these on: an account without its default network, a zone without room for all machines.
    assert {name for name in kind if kind[name] == real[name]} == {"default_vpc", "room"}


def test_a_deleted_machine_is_gone_though_ec2_takes_long_to_end_it(cloud: AwsCloud, bridge: Bridge) -> None:
    bridge.conditions(ending_delay=1000)
    machine = launch(cloud, spot=True, run=True)
    id = str(cloud.home.instances.find(machine.name)["InstanceId"])
    cloud.delete(machine.name)
    answer = cloud.client.ec2("describe_instances", InstanceIds=[id])
    assert answer["Reservations"][0]["Instances"][0]["State"]["Name"] == "shutting-down"
    # Another process has not seen the deletion, but its tag.
    for other in (cloud, AwsCloud()):
        with pytest.raises(NotFound):
            other.machine(machine.name)
        assert machine.name not in {one.name for one in other.machines()}


def test_lists_lack_a_new_instance_that_its_id_finds_earlier(cloud: AwsCloud) -> None:
    id = str(run_instances(cloud)["Instances"][0]["InstanceId"])
    ask, mine = cloud.client.ec2, [{"Name": "instance-id", "Values": [id]}]
    with pytest.raises(NotFound, match="does not exist"):
        ask("describe_instances", InstanceIds=[id])
    assert len(ask("describe_instances", InstanceIds=[id])["Reservations"]) == 1

    def listed() -> bool:
        found = ask("describe_instances", Filters=mine)["Reservations"]
        return any(one["InstanceId"] == id for reservation in found for one in reservation["Instances"])

    assert [listed() for _ in range(3)] == [False, False, True]
    ask("terminate_instances", InstanceIds=[id])


@pytest.mark.parametrize("run", [True, False])
def test_a_launched_machine_is_listed_for_every_process(cloud: AwsCloud, run: bool) -> None:
    machine = launch(cloud, spot=run, run=run)
    assert [one.name for one in AwsCloud().machines()] == [machine.name]
    assert AwsCloud().machine(machine.name).zone == machine.zone


def test_a_new_security_group_is_missing_in_a_list_and_still_created_once(cloud: AwsCloud) -> None:
    name, ask = f"g-{secrets.token_hex(4)}", cloud.client.ec2
    ask("create_security_group", GroupName=name, Description="raw")
    wanted = [{"Name": "group-name", "Values": [name]}]
    assert [len(ask("describe_security_groups", Filters=wanted)["SecurityGroups"]) for _ in range(2)] == [0, 1]
    remove(cloud.client, name)
    ask("create_security_group", GroupName=name, Description="by another process")
    assert named_group(cloud.client, name, note="ours")["Description"] == "by another process"
    remove(cloud.client, name)


@pytest.mark.parametrize("spot", [True, False])
def test_a_new_instance_profile_is_unknown_to_a_launch_and_outlast_tries_again(
    cloud: AwsCloud, bridge: Bridge, monkeypatch: pytest.MonkeyPatch, spot: bool
) -> None:
    name = f"p-{secrets.token_hex(4)}"
    cloud.client.call("iam", "create_instance_profile", InstanceProfileName=name)
    with pytest.raises(BadRequest, match="Invalid IAM Instance Profile name"):
        run_instances(cloud, IamInstanceProfile={"Name": name})
    name = f"p-{secrets.token_hex(4)}"
    cloud.client.call("iam", "create_instance_profile", InstanceProfileName=name)
    monkeypatch.setenv("OUTLAST_AWS_INSTANCE_PROFILE", name)
    machine = launch(cloud, spot=spot, run=spot)
    assert [one.name for one in cloud.machines()] == [machine.name]


def test_a_new_launch_template_is_unknown_to_a_fleet_and_outlast_tries_again(cloud: AwsCloud, bridge: Bridge) -> None:
    ask, name = cloud.client.ec2, f"t-{secrets.token_hex(4)}"
    ask("create_launch_template", LaunchTemplateName=name, LaunchTemplateData={"ImageId": image_id(cloud)})
    of_one = {"LaunchTemplateName": name, "Version": "$Latest"}
    config = [{"LaunchTemplateSpecification": of_one, "Overrides": [{"InstanceType": "c6i.large"}]}]
    with pytest.raises(NotFound, match="does not exist"):
        ask(
            "create_fleet",
            Type="instant",
            LaunchTemplateConfigs=config,
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
        )
    ask("delete_launch_template", LaunchTemplateName=name)
    machine = launch(cloud, spot=True, run=True)
    assert [one.name for one in cloud.machines()] == [machine.name]
    assert ask("describe_launch_templates")["LaunchTemplates"] == []


def test_an_account_that_may_have_no_fleets_gets_its_spot_machine_in_another_way(
    cloud: AwsCloud, bridge: Bridge
) -> None:
    bridge.rules({"action": "CreateFleet", "code": "MaxFleetCountExceeded"})
    machine = launch(cloud, spot=True, run=True)
    assert (machine.spot, machine.status in ("pending", "running")) == (True, True)
    bridge.rules()
    fleets = bridge.send("calls", {}).count("CreateFleet")
    launch(cloud, spot=True, run=True)
    assert bridge.send("calls", {}).count("CreateFleet") == fleets, "the account is asked once"


@pytest.mark.full
def test_a_machine_waits_until_it_may_read_its_bucket(cloud: AwsCloud, bridge: Bridge, tmp_path: Path) -> None:
    bridge.conditions(grant_delay=3)
    with at_home(tmp_path, bridge, cloud) as home:
        answer = home.outlast(*RUN, "--", "python3", "count.py", "3", "0.05", timeout_s=240.0)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert [one.outcome for one in home.state("count-1").attempts] == ["finished"]


def test_a_machines_key_is_refused_at_first_and_a_users_key_is_not(
    cloud: AwsCloud, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"box-{secrets.token_hex(4)}"
    cloud.client.call("s3", "create_bucket", Bucket=bucket)
    cloud.client.call("s3", "list_objects_v2", Bucket=bucket)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIATESTING")
    machine = AwsCloud().client
    for _ in range(REAL.grant_delay):
        with pytest.raises(Denied, match="AccessDenied"):
            machine.call("s3", "list_objects_v2", Bucket=bucket)
    assert machine.call("s3", "list_objects_v2", Bucket=bucket)["KeyCount"] == 0


@pytest.mark.parametrize(
    ("spot", "text"),
    [(False, "your current vCPU limit of 0"), (True, "Max spot instance count exceeded")],
)
def test_an_account_without_quota_for_gpus_refuses_them(cloud: AwsCloud, spot: bool, text: str) -> None:
    if not spot:
        with pytest.raises(OverQuota, match="VcpuLimitExceeded"):
            run_instances(cloud, InstanceType="g4dn.xlarge")
    with pytest.raises(NoQuota, match=text) as problem:
        launch(cloud, type="g4dn.xlarge", spot=spot, run=spot)
    assert "request" in problem.value.hint
    assert cloud.machines() == []


def test_a_spot_quota_that_is_used_up_may_be_free_later(cloud: AwsCloud, bridge: Bridge) -> None:
    bridge.conditions(gpu_quota=8)
    bridge.rules({"action": "CreateFleet", "code": "MaxSpotInstanceCountExceeded"})
    with pytest.raises(OverQuota) as problem:
        launch(cloud, type="g4dn.xlarge", spot=True, run=True)
    assert not isinstance(problem.value, NoQuota)
    bridge.rules()


@pytest.mark.parametrize("spot", [True, False])
def test_an_account_without_a_default_vpc_gets_the_command_that_creates_it(
    cloud: AwsCloud, bridge: Bridge, spot: bool
) -> None:
    bridge.conditions(default_vpc=False)
    with pytest.raises(BadRequest, match="VPCIdNotSpecified"):
        cloud.client.ec2("create_security_group", GroupName=f"g-{secrets.token_hex(4)}", Description="raw")
    with pytest.raises(BadRequest, match="No default VPC for this user") as problem:
        launch(cloud, spot=spot, run=spot)
    assert "aws ec2 create-default-vpc" in problem.value.hint


def test_terminated_instances_are_listed_for_an_hour(cloud: AwsCloud, bridge: Bridge) -> None:
    machine = launch(cloud, spot=True, run=True)
    id = str(cloud.home.instances.find(machine.name)["InstanceId"])
    ask = cloud.client.ec2
    ask("terminate_instances", InstanceIds=[id])

    def state() -> str:
        return str(ask("describe_instances", InstanceIds=[id])["Reservations"][0]["Instances"][0]["State"]["Name"])

    assert [state() for _ in range(3)] == ["shutting-down", "shutting-down", "terminated"]
    assert [one.status for one in cloud.machines()] == ["stopped"]
    bridge.send("clock", {"seconds": 3500})
    assert state() == "terminated"
    # Its tags are gone long before: the supervisor remembers that it has seen the machine.
    assert cloud.machines() == []
    bridge.send("clock", {"seconds": 200})
    ask("describe_instances")
    with pytest.raises(NotFound):
        ask("describe_instances", InstanceIds=[id])
    assert cloud.machines() == []
    cloud.delete(machine.name)


def test_a_group_or_a_cluster_lets_machines_connect_to_each_other(cloud: AwsCloud) -> None:
    id = group_of_machines(cloud.client)

    def pairs() -> list[str]:
        group = cloud.client.ec2("describe_security_groups", GroupIds=[id])["SecurityGroups"][0]
        rules = [rule for rule in group["IpPermissions"] if rule["IpProtocol"] == "-1"]
        return [pair["GroupId"] for rule in rules for pair in rule["UserIdGroupPairs"]]

    if pairs():
        # moto compares the description as well.
        own = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id, "Description": "machines of outlast"}]}
        cloud.client.ec2("revoke_security_group_ingress", GroupId=id, IpPermissions=[own])
    launch(cloud)
    assert pairs() == []
    for _ in range(2):
        launch(cloud, peers=True)
        assert pairs() == [id]


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can isolate the ports of a switch")
def test_packets_between_machines_need_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_not("root", root=str(tmp_path)):
        pytest.skip(f"machines of mode root do not work here: {reason}")
    with run_bridge(str(tmp_path), mode="root") as bridge, monkeypatch.context() as patch:
        for name, value in bridge.variables.items():
            patch.setenv(name, value)
        cloud = AwsCloud()
        server = launch(cloud, script="cd /tmp && python3 -m http.server 8000\n")
        id = str(cloud.home.instances.find(server.name)["InstanceId"])
        eventually(lambda: bridge.local.machine(id).address, within_s=60, what="its address")
        client = launch(cloud, script=_CONNECT.format(bridge.local.machine(id).address))

        def ends_with(text: str) -> bool:
            lines = [line for line in cloud.serial(client.name).splitlines() if "peer " in line][-3:]
            return len(lines) == 3 and all(line.endswith(text) for line in lines)

        eventually(lambda: ends_with("peer lost"), within_s=90, what="no connection without the rule")
        launch(cloud, peers=True)
        eventually(lambda: ends_with("peer reached"), within_s=90, what="a connection with the rule")
