"""IMDSv2 of an instance: its tags, the interruption notice, the rebalance recommendation."""

from __future__ import annotations

import pytest

from outlast.clouds.aws.cloud import AwsCloud
from outlast.testing.cloud_conformance import MachineFactory, eventually
from tests.support.aws import Bridge

_ASK = """
base="$AWS_EC2_METADATA_SERVICE_ENDPOINT/latest"
echo "without $(curl -s -o /dev/null -w '%{http_code}' "$base/meta-data/instance-id")"
token="$(curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$base/api/token")"
ask() { curl -s -w ' %{http_code}' -H "X-aws-ec2-metadata-token: $token" "$base/$1"; }
echo "id $(ask meta-data/instance-id)"
echo "identity $(ask dynamic/instance-identity/document)"
echo "kind $(ask meta-data/tags/instance/kind)"
echo "action $(ask meta-data/spot/instance-action)"
until ask meta-data/events/recommendations/rebalance | grep -q noticeTime; do sleep 0.1; done
echo "warned early"
until ask meta-data/spot/instance-action | grep -q '"action"'; do sleep 0.1; done
echo "noticed"
sleep 1000
"""


@pytest.mark.full
def test_an_instance_reads_its_tags_and_notices_with_a_token(cloud: AwsCloud, bridge: Bridge) -> None:
    fleet = MachineFactory(cloud, patience_s=20.0)
    try:
        name = fleet.launch(script=_ASK).name
        output = fleet.wait_serial(name, "action ")
        id = cloud.home.instances.find(name)["InstanceId"]
        assert "without 401" in output
        assert f"id {id} 200" in output
        assert f'"instanceId": "{id}"' in output
        assert "kind test 200" in output
        eventually("it asked for its end", lambda: "action  404" in cloud.serial(name))
        bridge.send("rebalance", {"instance": id})
        fleet.wait_serial(name, "warned early")
        cloud.preempt(name)
        fleet.wait_serial(name, "noticed")
        assert fleet.wait(name, "stopped").why == "preempted"
    finally:
        fleet.delete_all()
