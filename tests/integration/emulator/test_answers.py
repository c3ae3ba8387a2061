"""Answers of an emulated machine that scripts depend on, asked by the real curl, gcloud, ssh, su and cron's PAM."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.local.probe import why_not
from outlast.clouds.local.ssh import find_sshd
from tests.integration.emulator.compute import SPOT, Client, ComputeServer, compute_server, machine
from tests.integration.emulator.discovery import Watching
from tests.integration.emulator.test_compute_gcloud import Shell
from tests.support.emulator import Caller

pytestmark = [pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")]

_METADATA = "http://metadata.google.internal/computeMetadata/v1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[ComputeServer]:
    folder = tmp_path_factory.mktemp("compute")
    if reason := why_not("root", root=str(folder)):
        pytest.skip(f"mode root does not work on this computer: {reason}")
    with compute_server(folder, watching, mode="root") as opened:
        yield opened


@pytest.fixture(scope="module")
def shell(server: ComputeServer, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(server, tmp_path_factory.mktemp("home"))


_SCRIPT = f"""
echo "HOME=[${{HOME-unset}}] USER=[${{USER-unset}}] in $(pwd)"
echo "status $(curl -s -o page -w '%{{http_code}}' -H Metadata-Flavor:Google {_METADATA}/instance/attributes/none)"
grep -o 'Error 404 (Not Found)!!1' page | head -1
useradd --create-home --home-dir /srv/tom tom 2>/dev/null
echo "sudo-u $(sudo -u tom id -un) $(sudo -u tom sh -c 'echo $HOME')"
echo "su $(su - tom -c 'echo $GOOGLE_CLOUD_PROJECT') runuser $(runuser -l tom -c 'echo $GOOGLE_CLOUD_PROJECT')"
echo "pam $(env -i su tom -s /usr/bin/printenv GOOGLE_CLOUD_PROJECT)"
shutdown -h +5
shutdown -c
echo boot >> /var/boots
if [ $(wc -l < /var/boots) = 1 ]; then sudo shutdown -r now; sleep 1000; fi
echo "boots $(wc -l < /var/boots)"
"""


@pytest.mark.full
def test_a_script_finds_what_it_finds_on_googles_machines(server: ComputeServer) -> None:
    client = Client(server, "proj1")
    client.do("POST Z/instances", machine("one", script=_SCRIPT))
    client.prints("one", "startup-script: boots 2")
    output = client.serial("one")
    assert output.count("startup-script: HOME=[unset] USER=[unset] in /\n") == 2, "the script runs at every boot"
    assert "startup-script: status 404\n" in output
    assert "startup-script: Error 404 (Not Found)!!1\n" in output
    assert "startup-script: sudo-u tom /srv/tom\n" in output
    assert "startup-script: su proj1 runuser proj1\n" in output
    assert "startup-script: pam proj1\n" in output
    assert "startup-script: Shutdown scheduled for " in output
    assert client.get("Z/instances/one")["status"] == "RUNNING"


@pytest.mark.full
@pytest.mark.skipif(not find_sshd(), reason="sshd is not installed")
def test_a_user_who_logs_in_has_sudo_and_finds_the_cloud(shell: Shell) -> None:
    shell.run("gcloud compute instances create login --zone us-central1-a")
    ssh = "gcloud compute ssh ada@login --strict-host-key-checking=no --quiet --command"
    output = shell.run(f"""
        {ssh} 'echo as $(id -un), $(sudo id -un), $(sudo -u daemon id -un); gcloud storage buckets create gs://by-ada'
        gcloud storage buckets list --format 'value(name)'
    """)
    assert "as ada, root, daemon" in output
    assert "by-ada" in output.split()


def test_an_instance_keeps_its_internal_address(server: ComputeServer) -> None:
    client = Client(server, "proj2")
    client.do("POST Z/instances", machine("stays"))
    before = _address(client, "stays")
    client.do("POST Z/instances/stays/stop")
    assert _address(client, "stays") == before
    client.do("POST Z/instances", machine("other"))
    assert _address(client, "other") != before
    client.do("POST Z/instances/stays/start")
    assert _address(client, "stays") == before


def _address(client: Client, name: str) -> str:
    return str(client.get(f"Z/instances/{name}")["networkInterfaces"][0]["networkIP"])


def test_a_notice_lasts_until_the_shutdown_script_may_start(server: ComputeServer) -> None:
    client = Client(server, "proj3")
    ask = f"curl -s -H Metadata-Flavor:Google {_METADATA}/instance/preempted"
    script = f"echo ready; until {ask} | grep -q TRUE; do sleep 0.1; done; date +notice=%s"
    rules = {**SPOT, "preemptionNoticeDuration": {"seconds": "3"}}
    made = machine("spot", scheduling=rules, script=script)
    made["metadata"]["items"].append({"key": "shutdown-script", "value": "date +shutdown=%s"})
    client.do("POST Z/instances", made)
    client.prints("spot", "startup-script: ready")
    client.do("POST Z/instances/spot/simulateMaintenanceEvent")
    client.comes("spot", "TERMINATED")
    output = client.serial("spot")
    noticed, shut_down = (int(output.partition(f"{word}=")[2].split()[0]) for word in ("notice", "shutdown"))
    # The script waits for the time of the notice, which the clock's seconds cut.
    assert shut_down - noticed >= 2


@pytest.mark.full
@pytest.mark.parametrize(
    "test",
    [
        "zone=https://www.googleapis.com/compute/v1/projects/P/zones/us-central1-a",
        "machineType=https://www.googleapis.com/compute/v1/projects/P/zones/us-central1-a/machineTypes/n1-standard-1",
        "machineType~https.*compute/v1/projects/P/.*n1-standard-1",
        "machineType:n1-standard-1 AND zone:us-central1-a",
    ],
)
def test_gcloud_filters_by_full_links(shell: Shell, test: str) -> None:
    if "kept" not in shell.run("gcloud compute instances list --format 'value(name)'"):
        shell.run("gcloud compute instances create kept --zone us-central1-a --machine-type n1-standard-1")
    test = test.replace("/P/", f"/{shell.client.project}/")
    found = shell.run(f"gcloud compute instances list --filter '{test}' --format 'value(name)'")
    assert "kept" in found.split()


def test_a_request_filters_by_links_in_every_form(server: ComputeServer) -> None:
    client = Client(server, "proj4")
    client.do("POST Z/instances", machine("found"))
    path = "projects/proj4/zones/us-central1-a"
    own = client.get("Z/instances/found")["zone"]
    for link in (
        own,
        f"https://www.googleapis.com/compute/v1/{path}",
        f"https://compute.googleapis.com/compute/beta/{path}",
    ):
        for text in (f'zone="{link}"', f"zone={link}", f"zone:{link}", f'zone eq "{link}"'):
            assert [doc["name"] for doc in client.get("Z/instances", filter=text)["items"]] == ["found"], text
        assert not client.get("Z/instances", filter=f'zone != "{link}"').get("items")


@pytest.mark.full
def test_gcloud_gets_a_refusal_for_a_service_that_is_not_emulated(shell: Shell) -> None:
    done = shell.try_to("gcloud container clusters list")
    assert done.returncode != 0
    assert "not emulated: `outlast local serve` has no service `container`" in done.stderr
    assert "outlast@" in shell.run("gcloud auth list --format 'value(account)'")
    assert "compute.googleapis.com" in shell.run("gcloud services list --enabled --format 'value(config.name)'")


def test_the_effective_firewalls_of_a_network_are_its_rules(server: ComputeServer) -> None:
    client = Client(server, "proj5")
    names = [rule["name"] for rule in client.get("global/networks/default/getEffectiveFirewalls")["firewalls"]]
    assert "default-allow-ssh" in names


def test_a_glob_of_folders_matches_none_as_well(call: Caller, tmp_path: Path) -> None:
    for name in ("x", "a/x", "a/b/x", "a/y", "ax"):
        call("POST", f"/upload/storage/v1/b/box-1/o?uploadType=media&name={name.replace('/', '%2F')}", b"1")
    for glob, expected in {
        "**/x": ["a/b/x", "a/x", "x"],
        "a/**/x": ["a/b/x", "a/x"],
        "**x": ["a/b/x", "a/x", "ax", "x"],
        "**/b/**": ["a/b/x"],
    }.items():
        found = call.json("GET", f"/storage/v1/b/box-1/o?matchGlob={glob}")
        assert [doc["name"] for doc in found["items"]] == expected, glob


def test_no_address_translation_stays_after_many_machines_end_together(server: ComputeServer) -> None:
    client = Client(server, "proj6")
    for number in range(6):
        client.do("POST Z/instances", machine(f"m{number}"))
    names = [found.name for found in server.cloud.machines()]
    for name in names:
        # A request only: all end at the same time.
        server.cloud._folder(name).request("stop")
    for name in names:
        server.cloud.stop(name)
    tables = subprocess.run(["nft", "-j", "list", "tables"], capture_output=True, text=True, check=True).stdout
    from outlast.clouds.local.network import _table

    assert _table(server.cloud.root) not in json.dumps(json.loads(tables))
