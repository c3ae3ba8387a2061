"""The conformance suite of the `InteractiveCloud` protocol: login, resizing, images.

class TestMyCloud(InteractiveConformance):
    @pytest.fixture
    def cloud(self): ...
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.cloud import Boot, Image, InteractiveCloud, Range, Requirements, SshAccess
from outlast.errors import BadRequest, NotFound
from outlast.testing.cloud_conformance import MachineFactory, eventually


class InteractiveConformance:
    """Subclass it and define a fixture `cloud`."""

    patience_s = 30.0

    @pytest.fixture
    def fleet(self, cloud: InteractiveCloud) -> Iterator[MachineFactory]:
        fleet = MachineFactory(cloud, patience_s=self.patience_s)
        before = {image.name for image in cloud.images()}
        yield fleet
        fleet.delete_all()
        for image in cloud.images():
            if image.name not in before:
                cloud.delete_image(image.name)
        assert cloud.machines(fleet.labels) == []
        assert {image.name for image in cloud.images()} == before

    @pytest.fixture
    def key(self, tmp_path: Path) -> Path:
        path = tmp_path / "id_ed25519"
        try:
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
            subprocess.run(command, check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("ssh-keygen is not installed: apt install openssh-client")
        return path

    def prepared(self, fleet: MachineFactory, script: str) -> str:
        """Return a stopped machine that ran this script."""
        name = fleet.launch(script=f"{script}; echo set up").name
        fleet.wait_serial(name, "set up")
        fleet.wait(name, "running")
        fleet.cloud.stop(name)
        fleet.wait(name, "stopped")
        return name

    def image(self, cloud: InteractiveCloud, machine: str, family: str = "") -> Image:
        return cloud.snapshot(machine, f"i-{secrets.token_hex(5)}", family=family, labels={"a": "b"}, note="of a test")

    def test_an_image_contains_the_disk_of_the_machine_and_boots(
        self, cloud: InteractiveCloud, fleet: MachineFactory
    ) -> None:
        made = self.image(cloud, self.prepared(fleet, "echo kept > ~/note"))
        assert cloud.image(made.name) == made
        assert (made.labels["a"], made.description) == ("b", "of a test")
        boot = Boot(script="echo found $(cat ~/note); sleep 1000", image=made.name)
        cloud.launch(fleet.offer(), name := fleet.name(), boot=boot, labels=fleet.labels)
        fleet.wait_serial(name, "found kept")

    def test_the_machine_starts_after_its_image_was_created_and_deleted(
        self, cloud: InteractiveCloud, fleet: MachineFactory
    ) -> None:
        name = self.prepared(fleet, "echo boot >> ~/boots; echo $(wc -l < ~/boots) boots")
        made = self.image(cloud, name)
        cloud.delete_image(made.name)
        cloud.delete_image(made.name)
        cloud.start(name)
        fleet.wait_serial(name, "2 boots")

    def test_a_repeated_snapshot_finds_the_first(self, cloud: InteractiveCloud, fleet: MachineFactory) -> None:
        name = self.prepared(fleet, "true")
        image = f"i-{secrets.token_hex(5)}"
        assert cloud.snapshot(name, image) == cloud.snapshot(name, image)
        other = self.prepared(fleet, "true")
        with pytest.raises(BadRequest):
            cloud.snapshot(other, image)

    def test_a_snapshot_of_a_running_machine_is_refused(self, cloud: InteractiveCloud, fleet: MachineFactory) -> None:
        name = fleet.launch(script="sleep 1000").name
        fleet.wait(name, "running")
        with pytest.raises(BadRequest):
            self.image(cloud, name)

    def test_a_family_is_its_newest_image_that_is_not_retired(
        self, cloud: InteractiveCloud, fleet: MachineFactory
    ) -> None:
        family = f"f-{secrets.token_hex(5)}"
        name = self.prepared(fleet, "true")
        old, new = self.image(cloud, name, family), self.image(cloud, name, family)
        assert cloud.image(family).name == new.name
        cloud.retire_image(new.name)
        assert cloud.image(family).name == old.name
        assert cloud.image(new.name).retired
        cloud.retire_image(new.name, retired=False)
        assert cloud.image(family).name == new.name
        for image in (old, new):
            cloud.retire_image(image.name)
        with pytest.raises(NotFound):
            cloud.image(family)

    def test_a_missing_image_is_refused(self, cloud: InteractiveCloud, fleet: MachineFactory) -> None:
        with pytest.raises(NotFound):
            cloud.image("no-such-image")
        with pytest.raises(NotFound):
            cloud.retire_image("no-such-image")
        boot = Boot(image="no-such-image")
        with pytest.raises((NotFound, BadRequest)):
            cloud.launch(fleet.offer(), fleet.name(), boot=boot, labels=fleet.labels)

    def test_a_stopped_machine_can_change_type_and_its_disk_only_grows(
        self, cloud: InteractiveCloud, fleet: MachineFactory
    ) -> None:
        name = self.prepared(fleet, "echo here > ~/note; cat ~/note")
        before = cloud.machine(name)
        more = Range(low=fleet.offer().cpus + 1)
        larger = cloud.offers(Requirements(cpus=more, zones=(before.zone,), spot=before.spot))[0].type
        assert larger != before.type
        cloud.resize(name, type=larger, disk_gb=before.disk_gb + 10)
        cloud.resize(name, type=larger, disk_gb=before.disk_gb + 10)
        after = cloud.machine(name)
        assert (after.type, after.disk_gb) == (larger, before.disk_gb + 10)
        with pytest.raises(BadRequest):
            cloud.resize(name, disk_gb=before.disk_gb)
        with pytest.raises(BadRequest):
            cloud.resize(name, type="no-such-type")
        cloud.start(name)
        fleet.wait_serial(name, "here", times=2)
        fleet.wait(name, "running")
        with pytest.raises(BadRequest):
            cloud.resize(name, type=before.type)

    def test_metadata_can_be_read_back(self, cloud: InteractiveCloud, fleet: MachineFactory) -> None:
        name = fleet.launch(script="sleep 1000").name
        cloud.set_metadata(name, {"shape": "round"})
        known = cloud.metadata(name)
        assert (known["colour"], known["shape"]) == ("green", "round")
        with pytest.raises(NotFound):
            cloud.metadata("no-such-machine")

    def test_an_admitted_key_can_log_in_and_the_host_key_is_known(
        self, cloud: InteractiveCloud, fleet: MachineFactory, key: Path
    ) -> None:
        name = fleet.launch(script="echo from the machine > ~/note; echo set up; sleep 1000").name
        fleet.wait_serial(name, "set up")
        fleet.wait(name, "running")
        public = key.with_suffix(".pub").read_text()
        cloud.admit(name, public)
        cloud.admit(name, public)
        access = cloud.access(name)
        assert access.host_keys
        answer = eventually("ssh lets us in", lambda: log_in(access, key, "cat ~/note"), patience_s=self.patience_s)
        assert answer == "from the machine\n"
        cloud.stop(name)
        with pytest.raises(BadRequest):
            cloud.access(name)
        cloud.start(name)
        fleet.wait(name, "running")
        again = cloud.access(name)
        assert eventually("ssh lets us in again", lambda: log_in(again, key, "echo in"), patience_s=self.patience_s)


def log_in(access: SshAccess, key: Path, command: str) -> str:
    """Return the output of a command on the machine; empty while ssh cannot connect."""
    known = key.with_name("known_hosts")
    known.write_text("".join(f"machine {line}\n" for line in access.host_keys))
    options = ["HostKeyAlias=machine", f"UserKnownHostsFile={known}", "StrictHostKeyChecking=yes", "BatchMode=yes"]
    if access.proxy_command:
        options.append(f"ProxyCommand={access.proxy_command}")
    argv = ["ssh", "-F", "none", "-i", str(key), *(argument for option in options for argument in ("-o", option))]
    target = ["-p", str(access.port), f"{access.user}@{access.host}", command]
    return subprocess.run([*argv, *target], capture_output=True, text=True, check=False).stdout
