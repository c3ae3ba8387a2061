"""Scripts, metadata and disk of a machine, in every mode that this computer supports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlast.clouds.local.isolation import MODES
from outlast.clouds.local.probe import why_not
from tests.integration.emulator.compute import SPOT, Client, ComputeServer, compute_server, machine
from tests.integration.emulator.discovery import Watching

ASK = "curl -sf -H Metadata-Flavor:Google http://metadata.google.internal/computeMetadata/v1"


@pytest.fixture(scope="module", params=MODES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, watching: Watching
) -> Iterator[ComputeServer]:
    folder = tmp_path_factory.mktemp("compute")
    if reason := why_not(request.param, root=str(folder)):
        pytest.skip(f"mode {request.param} does not work on this computer: {reason}")
    with compute_server(folder, watching, mode=request.param) as opened:
        yield opened


def test_scripts_use_the_cloud_and_leave_an_image(server: ComputeServer) -> None:
    client = Client(server, "proj1")
    server.call.json("POST", "/storage/v1/b?project=proj1", {"name": "box-1"})
    server.call("POST", "/upload/storage/v1/b/box-1/o?uploadType=media&name=more.sh", b"echo more words")
    script = f"""
    echo zone=$({ASK}/instance/zone)
    echo endpoint=$(curl -s -o /dev/null -w '%{{http_code}}' $STORAGE_EMULATOR_HOST/storage/v1/b/box-1)
    echo precious > $HOME/kept
    """
    made = machine("one", script=script)
    made["metadata"]["items"] += [
        {"key": "startup-script-url", "value": "gs://box-1/more.sh"},
        {"key": "shutdown-script", "value": "echo last words"},
    ]
    client.do("POST Z/instances", made)
    client.prints("one", "Finished running startup scripts")
    output = client.serial("one")
    assert f"startup-script: zone=projects/{client.get('')['id']}/zones/us-central1-a" in output
    assert "startup-script: endpoint=200" in output
    assert "startup-script-url: more words" in output
    assert "last words" not in output
    client.do("POST Z/instances/one/stop")
    assert "shutdown-script: last words" in client.serial("one")
    client.do("POST global/images", {"name": "img", "sourceDisk": "zones/us-central1-a/disks/one"})
    last = "echo found $(cat $HOME/kept); sudo shutdown -h now"
    client.do("POST Z/instances", machine("two", image="global/images/img", script=last))
    client.comes("two", "TERMINATED")
    assert "found precious" in client.serial("two")


def test_a_preempted_machine_runs_its_shutdown_script(server: ComputeServer) -> None:
    client = Client(server, "proj2")
    made = machine("spot", scheduling=SPOT)
    made["metadata"]["items"].append({"key": "shutdown-script", "value": "echo last words"})
    client.do("POST Z/instances", made)
    client.do("POST Z/instances/spot/simulateMaintenanceEvent")
    client.comes("spot", "TERMINATED")
    assert "shutdown-script: last words" in client.serial("spot")
