"""Every call's parameters are checked against Amazon's own model, and none is of CloudFormation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.cloud import AwsCloud
from outlast.errors import BadRequest
from tests.conventions.sources import PACKAGE, ROOT
from tests.support.aws import Bridge

SOURCES = [*PACKAGE.rglob("*.py")]
# A service that outlast calls, and a call with an unknown parameter.
PLANTED = {
    "ec2": "describe_instances",
    "efs": "describe_file_systems",
    "fis": "list_experiments",
    "iam": "list_roles",
    "kms": "list_grants",
    "pricing": "get_products",
    "rds": "describe_db_instances",
    "s3": "list_buckets",
    "service-quotas": "get_service_quota",
    "ssm": "get_parameter",
    "sts": "get_caller_identity",
}


def services_in_our_code() -> set[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES if "clouds/aws" in path.as_posix()]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1]
    return {
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("call", "pages")
        and isinstance(call.args[0], ast.Constant)
    }


def test_every_service_has_a_call_with_a_wrong_parameter() -> None:
    assert services_in_our_code() == set(PLANTED)


@pytest.mark.parametrize("service", sorted(PLANTED))
def test_a_wrong_parameter_is_refused_before_it_is_sent(service: str, bridge: Bridge) -> None:
    client = AwsClient()
    assert client.service(service).meta.config.parameter_validation is True
    before = bridge.send("calls", {})
    with pytest.raises(BadRequest, match="NoSuchParameter"):
        client.call(service, PLANTED[service], NoSuchParameter=1)
    assert bridge.send("calls", {}) == before


def test_clients_are_created_in_one_place_with_validation() -> None:
    making = re.compile(r"boto3\.(client|resource)|\.client\(|parameter_validation")
    places = {
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if making.search(path.read_text(encoding="utf-8")) and "boto" in path.read_text(encoding="utf-8")
    }
    assert places == {"clouds/aws/client.py"}
    off = re.compile(r"parameter_validation\W{0,3}=\W{0,3}(False|0)")
    everything = [*SOURCES, *Path(ROOT / "tests").rglob("*.py")]
    assert [path for path in everything if off.search(path.read_text(encoding="utf-8"))] == []


def test_no_call_is_of_cloudformation(cloud: AwsCloud, bridge: Bridge) -> None:
    assert not any("cloudformation" in path.read_text(encoding="utf-8").lower() for path in SOURCES)
    cloud.put_secrets("unused", {"KEY": "value"})
    cloud.drop_secrets("unused")
    calls = bridge.send("calls", {})
    assert any(call.startswith("ssm ") for call in calls)
    assert not any("cloudformation" in call.lower() for call in calls)
