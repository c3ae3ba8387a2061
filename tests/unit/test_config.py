"""The user's configuration file, `[clouds]` of a spec, and the networks of launches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.app.user_config import check, config_path, export_networks, user_config, with_defaults
from outlast.cli.config import settings
from outlast.clouds.aws.network import AwsNetwork
from outlast.clouds.gcp.errors import from_response
from outlast.clouds.gcp.network import interface, with_policy_hint
from outlast.errors import NoCapacity, PolicyDenied, SpecError, UsageError
from outlast.spec.network import NetworkSpec, network_of
from outlast.spec.parse import parse

FILE = """
workspace = "gs://acme/me"
cloud = "gcp"

[clouds.gcp]
regions = ["us-central1"]
network = "research"
external_address = false
labels = { team = "vision" }
"""


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("OUTLAST_WORKSPACE", raising=False)
    monkeypatch.delenv("OUTLAST_NETWORKS", raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    path = tmp_path / "xdg" / "outlast" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    return path


def test_the_path_follows_xdg_and_ignores_a_relative_one() -> None:
    assert config_path({"XDG_CONFIG_HOME": "/x"}) == "/x/outlast/config.toml"
    assert config_path({"XDG_CONFIG_HOME": "x"}).endswith("/.config/outlast/config.toml")


def test_a_project_and_the_environment_override_the_user_s_file(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("outlast.toml").write_text('[machine]\ncloud = "local"\n[clouds.gcp]\nnetwork = "other"\n')
    monkeypatch.setenv("OUTLAST_WORKSPACE", "/tmp/w")
    found = {one.name: (one.value, one.source) for one in settings({"OUTLAST_WORKSPACE": "/tmp/w", **_xdg(user_file)})}
    assert found["workspace"] == ("/tmp/w", "OUTLAST_WORKSPACE")
    assert found["cloud"] == ("local", "outlast.toml")
    assert found["clouds.gcp.network"] == ("other", "outlast.toml")
    assert found["clouds.gcp.external_address"] == (False, str(user_file))


def _xdg(path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(path.parent.parent)}


def test_a_spec_gets_cloud_regions_and_network_of_the_user(user_file: Path) -> None:
    spec = parse(with_defaults({"command": "true"}, user_config()))
    assert (spec.machine.cloud, spec.machine.zones) == ("gcp", ("us-central1",))
    assert spec.machine.networks["gcp"].network == "research"
    own = parse(with_defaults({"command": "true", "machine": {"zones": ["us-east1-b"]}}, user_config()))
    assert own.machine.zones == ("us-east1-b",)
    local = parse(with_defaults({"command": "true", "machine": {"cloud": "local"}}, user_config()))
    assert (local.machine.zones, local.machine.networks) == ((), {})


def test_messages_and_retention_of_the_user_apply_to_all_projects(user_file: Path) -> None:
    user_file.write_text('[notify]\nwebhook = "HOOK"\nevents = ["failed"]\n[retention]\nolder_than = "30d"\n')
    spec = parse(with_defaults({"command": "true"}, user_config()))
    assert spec.notify is not None
    assert ([one.reference for one in spec.notify.targets], spec.notify.events) == (["HOOK"], ("failed",))
    assert spec.retention is not None
    assert spec.retention.older_than_s == 30 * 86400
    own = parse(with_defaults({"command": "true", "notify": {"events": ["finished"]}}, user_config()))
    assert own.notify is not None
    assert (len(own.notify.targets), own.notify.events) == (1, ("finished",))
    found = {one.name: one.value for one in settings(_xdg(user_file))}
    assert (found["notify.webhook"], found["retention.older_than"]) == ("HOOK", "30d")
    user_file.write_text('[notify]\nwebhook = "https://hooks.example.com/secret"\n')
    with pytest.raises(SpecError, match="expected the name of an environment variable") as refused:
        user_config()
    assert "secret" not in str(refused.value)


def test_machines_without_a_run_get_the_network_by_a_variable(user_file: Path) -> None:
    environment = _xdg(user_file)
    export_networks(environment)
    found = network_of("gcp", environment)
    assert found == NetworkSpec(network="research", external_address=False, labels={"team": "vision"})
    assert network_of("aws", environment) == NetworkSpec()
    with pytest.raises(UsageError, match="OUTLAST_NETWORKS"):
        network_of("gcp", {"OUTLAST_NETWORKS": "{"})


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"cluod": "gcp"}, "did you mean `cloud`"),
        ({"clouds": {"azure": {}}}, "unknown cloud"),
        ({"clouds": {"gcp": {"external_address": "no"}}}, "expected true or false"),
        ({"clouds": {"gcp": {"labels": {"outlast-run": "x"}}}}, "reserved"),
        ({"workspace": 3}, "expected text"),
    ],
)
def test_a_wrong_field_is_named(table: dict[str, object], problem: str) -> None:
    assert problem in " ".join(check(table))


def test_a_broken_file_is_named(user_file: Path) -> None:
    user_file.write_text("cloud = ")
    with pytest.raises(SpecError) as raised:
        user_config()
    assert str(user_file) in raised.value.message


def test_the_interface_of_a_machine_on_google_cloud_follows_the_settings() -> None:
    usual = interface(NetworkSpec(), "us-central1-a")
    assert usual["network"] == "global/networks/default"
    assert usual["accessConfigs"]
    shared = "projects/host/regions/us-central1/subnetworks/ml"
    private = NetworkSpec(subnetworks=(shared,), external_address=False)
    assert interface(private, "us-central1-a") == {"subnetwork": shared}
    with pytest.raises(NoCapacity, match="europe-west4"):
        interface(private, "europe-west4-a")


@pytest.mark.parametrize(
    ("constraint", "setting"),
    [
        ("compute.vmExternalIpAccess", "external_address = false"),
        ("compute.requireShieldedVm", "image"),
        ("compute.trustedImageProjects", "image"),
        ("gcp.resourceLocations", "regions"),
    ],
)
def test_an_organisation_policy_names_the_constraint_and_the_setting(constraint: str, setting: str) -> None:
    doc = {"error": {"message": f"Constraint constraints/{constraint} violated for project p.", "errors": []}}
    problem = from_response(412, doc, "insert")
    assert isinstance(problem, PolicyDenied)
    hint = with_policy_hint(problem).hint
    assert constraint in hint
    assert setting in hint
    assert "[clouds.gcp]" in hint


class _Subnets:
    region = "us-east-1"

    def pages(self, _service: str, _operation: str, _key: str, **_: object) -> list[dict[str, str]]:
        return [
            {"SubnetId": "subnet-a", "VpcId": "vpc-1", "AvailabilityZone": "us-east-1a"},
            {"SubnetId": "subnet-b", "VpcId": "vpc-1", "AvailabilityZone": "us-east-1b"},
        ]


def test_instances_start_in_the_subnet_of_their_zone_without_an_address() -> None:
    settings = NetworkSpec(network="vpc-1", external_address=False)
    network = AwsNetwork(_Subnets(), settings)  # type: ignore[arg-type]
    assert network.places(["us-east-1b"]) == [("us-east-1b", {"SubnetId": "subnet-b"})]
    applied = network.applied({"SecurityGroupIds": ["sg-1"], "InstanceType": "m6i.large"})
    assert "SecurityGroupIds" not in applied
    [interface] = applied["NetworkInterfaces"]
    assert (interface["Groups"], interface["AssociatePublicIpAddress"]) == (["sg-1"], False)
    with pytest.raises(NoCapacity, match="us-east-1c"):
        network.places(["us-east-1c"])


def test_the_settings_are_json_without_defaults(user_file: Path) -> None:
    environment = _xdg(user_file)
    export_networks(environment)
    assert json.loads(environment["OUTLAST_NETWORKS"]) == {
        "gcp": {"network": "research", "external_address": False, "labels": {"team": "vision"}}
    }
