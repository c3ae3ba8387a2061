"""A machine that was made for spot becomes one on demand, and the other way, as scripts do that tire of preemption."""

from __future__ import annotations

from pathlib import Path

from tests.integration.emulator.compute import Client, place
from tests.integration.emulator.discovery import Watching

SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}


def test_a_stopped_machine_changes_between_spot_and_on_demand(tmp_path: Path, watching: Watching) -> None:
    with place(tmp_path, watching) as here:
        client = Client(here, "proj1")
        here.cloud.set_zone("us-central1-a", grace_s=1.0)
        client.create("one", scheduling=SPOT)
        [spot] = here.cloud.machines()
        refused = client.refused("POST Z/instances/one/setScheduling", {"provisioningModel": "STANDARD"})
        assert refused[0] == 400
        client.do("POST Z/instances/one/stop")
        client.comes("one", "TERMINATED")
        client.do("POST Z/instances/one/setScheduling", {"provisioningModel": "STANDARD"})
        rules = client.get("Z/instances/one")["scheduling"]
        assert (rules["provisioningModel"], rules["preemptible"]) == ("STANDARD", False)
        assert "instanceTerminationAction" not in rules
        [standard] = here.cloud.machines()
        assert (standard.spot, standard.price_usd_per_hour > spot.price_usd_per_hour) == (False, True)
        both = {"provisioningModel": "STANDARD", "automaticRestart": True, "onHostMaintenance": "MIGRATE"}
        client.do("POST Z/instances/one/setScheduling", both)
        assert client.get("Z/instances/one")["scheduling"]["automaticRestart"] is True
        client.do("POST Z/instances/one/setScheduling", {"preemptible": True})
        rules = client.get("Z/instances/one")["scheduling"]
        assert (rules["provisioningModel"], rules["automaticRestart"]) == ("SPOT", False)
        client.do("POST Z/instances/one/start")
        client.comes("one", "RUNNING")
        assert [machine.spot for machine in here.cloud.machines()] == [True]
        client.do("POST Z/instances/one/simulateMaintenanceEvent")
        client.comes("one", "TERMINATED")
