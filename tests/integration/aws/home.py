"""A user's computer whose cloud is EC2 and whose workspace is in S3, and a check for leftovers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.cloud import AwsCloud
from outlast.workspace import open_workspace
from tests.support.aws import Bridge
from tests.support.home import COUNTER, Home

RUN = ("run", "--cloud", "aws", "--type", "c6i.large", "--name", "count", "--checkpoint", "ckpt")


class AwsHome(Home):
    def __init__(self, root: Path, bridge: Bridge) -> None:
        super().__init__(root)
        url = f"s3://{bridge.new_bucket()}/ws"
        self.environment |= {**bridge.variables, "OUTLAST_WORKSPACE": url}
        self.workspace = open_workspace(url)
        self.write("count.py", COUNTER)


@contextmanager
def at_home(root: Path, bridge: Bridge, cloud: AwsCloud) -> Iterator[AwsHome]:
    """A separate home; its faults, processes and machines are removed afterwards."""
    own = AwsHome(root, bridge)
    yield own
    bridge.rules()
    own.clean()
    for machine in cloud.machines():
        cloud.delete(machine.name)


def left(client: AwsClient) -> dict[str, Any]:
    """Return every resource that is left in the account."""
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}]
    fleets = client.ec2("describe_fleets")["Fleets"]
    requests = client.ec2("describe_spot_instance_requests")["SpotInstanceRequests"]
    own = [{"Name": "group-name", "Values": ["outlast-*"]}]
    found = {
        "instances": client.ec2("describe_instances", Filters=alive)["Reservations"],
        "volumes": client.ec2("describe_volumes")["Volumes"],
        "addresses": client.ec2("describe_addresses")["Addresses"],
        "key pairs": client.ec2("describe_key_pairs")["KeyPairs"],
        "launch templates": client.ec2("describe_launch_templates")["LaunchTemplates"],
        "fleets": [one for one in fleets if not one["FleetState"].startswith("deleted")],
        "spot requests": [one for one in requests if one["State"] in ("open", "active")],
        "security groups of machines": client.ec2("describe_security_groups", Filters=own)["SecurityGroups"],
        "secrets": client.call("ssm", "describe_parameters")["Parameters"],
    }
    return {what: things for what, things in found.items() if things}
