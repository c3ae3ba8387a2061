"""The local cloud: machines made of this computer's processes, behind the protocol of the real clouds.

No daemon runs. All state is files below the root, and each running machine has one shim process.
"""

from __future__ import annotations

import os
import re
import secrets as random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Unpack

from outlast import private
from outlast.clouds.cloud import Boot, Image, Machine, Offer, Requirements, SshAccess
from outlast.clouds.local import catalog, guest_attributes, images, power, probe, secrets, ssh
from outlast.clouds.local.describe import billed, describe, facts_of
from outlast.clouds.local.files import wait_lock, write_json
from outlast.clouds.local.folder import SUSPENDED, Folder
from outlast.clouds.local.metadata_server import ATTRIBUTE_TOKEN
from outlast.clouds.local.os_errors import with_os_errors
from outlast.clouds.local.settings import ZoneChanges, ZoneSettings
from outlast.clouds.local.setup import HostSetup
from outlast.clouds.local.shared_resources import SharedResources
from outlast.clouds.traits import BUILT_IN
from outlast.errors import BadRequest, CloudError, NotFound, UsageError

# GCE's rules, so that a name that is valid here is valid there.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_ENDING_S_MAX = 5.0
STOP = "`outlast machine stop`"


class LocalCloud(HostSetup, SharedResources):
    """A cloud in a folder. Any number of processes may use the same folder at once."""

    name = catalog.CLOUD
    traits = BUILT_IN[catalog.CLOUD]

    def __init__(
        self, root: str | None = None, *, mode: str | None = None, base: str = "", base_names: bool = False
    ) -> None:
        """Machines of mode `root` boot from the root file system `base` instead of this computer's software.

        They can look up names of other computers only with `base_names`.
        """
        self.base, self.base_names = os.path.abspath(base) if base else "", base_names
        chosen = root or os.environ.get("OUTLAST_LOCAL_CLOUD") or "~/.outlast/local"
        self.root = os.path.abspath(os.path.expanduser(chosen))
        self._mode = mode or os.environ.get("OUTLAST_LOCAL_MODE") or ""
        if self._mode and self._mode not in probe.MODES:
            modes = " or ".join(probe.MODES)
            raise UsageError(f"OUTLAST_LOCAL_MODE: unknown mode `{self._mode}`", hint=f"use {modes}, or unset it")
        self._zones = ZoneSettings(self.root)

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        if needs.image:
            images.check(self.root, needs.image)
        return catalog.offers(needs)

    @with_os_errors
    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        self._check_launch(offer, name, boot)
        boot = self.with_database_ports(boot)
        # Retry: the machine may be deleted between the launch and `describe`.
        for _ in range(3):
            folder = self._folder(name)
            with self._locked():
                lock = self._claim(folder, offer, boot, labels)
            if lock is not None:
                self._switch_on(folder, lock)
            if (machine := describe(folder)) is not None:
                return machine
        raise CloudError(f"could not launch `{name}`: another process deletes it after every launch")

    @with_os_errors
    def launch_all(
        self, offer: Offer, names: Sequence[str], *, boot: Boot, labels: Mapping[str, str]
    ) -> Sequence[Machine]:
        for name in names:
            self._check_launch(offer, name, boot)
        boot = self.with_database_ports(boot)
        with self._locked():
            new = [name for name in names if not self._folder(name).exists()]
            self._zones.check_capacity(offer.zone, chain(self._counts(offer.zone), new[1:]), spot=offer.spot)
            locks = {name: self._claim(self._folder(name), offer, boot, labels) for name in new}
        for name, lock in ((name, lock) for name, lock in locks.items() if lock is not None):
            self._switch_on(self._folder(name), lock)
        return [self.machine(name) for name in names]

    @with_os_errors
    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        try:
            names = sorted(os.listdir(f"{self.root}/machines"))
        except FileNotFoundError:
            return []
        found = (describe(Folder(f"{self.root}/machines/{name}")) for name in names if not name.startswith("."))
        wanted = set((labels or {}).items())
        return [machine for machine in found if machine is not None and wanted <= set(machine.labels.items())]

    @with_os_errors
    def machine(self, name: str) -> Machine:
        if (machine := describe(self._folder(name))) is None:
            raise NotFound(f"the local cloud has no machine `{name}`")
        return machine

    @with_os_errors
    def stop(self, name: str) -> None:
        if self.machine(name).status != "stopped" and (lock := power.switch_off(self._folder(name))) is not None:
            os.close(lock)

    @with_os_errors
    def start(self, name: str) -> None:
        folder, give_up_at = self._folder(name), time.monotonic() + _ENDING_S_MAX
        while (machine := self.machine(name)).status not in ("running", "pending"):
            if machine.status == "broken":
                raise BadRequest(f"machine `{name}` is broken: {machine.why}", hint="delete it and launch another")
            with self._locked():
                self._zones.check_capacity(machine.zone, self._counts(machine.zone), spot=machine.spot)
                if (lock := folder.take_lock()) is not None:
                    folder.clear_requests()
                    folder.set_state(phase="starting", why="", stopped_at=0.0, shim_pid=None, **billed(machine))
            if lock is not None:
                self._switch_on(folder, lock)
                return
            # Its shim is about to exit. Do not wait for it under the cloud's lock.
            if time.monotonic() > give_up_at:
                raise BadRequest(f"machine `{name}` is not stopped yet", hint="try again in a moment")
            time.sleep(0.01)

    @with_os_errors
    def suspend(self, name: str) -> None:
        """Stop all processes of a machine, keeping their memory, until `resume`. May be repeated."""
        machine = self.machine(name)
        if machine.status != "running" or machine.why not in ("", SUSPENDED):
            raise BadRequest(f"only running machines can be suspended: `{name}` is {machine.why or machine.status}")
        power.suspend(self._folder(name))

    @with_os_errors
    def resume(self, name: str) -> None:
        if (machine := self.machine(name)).why != SUSPENDED or machine.status != "running":
            raise BadRequest(f"only suspended machines can be resumed: `{name}` is {machine.status}")
        power.resume(self._folder(name))

    @with_os_errors
    def delete(self, name: str) -> None:
        folder = self._folder(name)
        if folder.exists() and (lock := power.switch_off(folder)) is not None:
            try:
                folder.discard()  # from here on it is not listed, and its name is free
            finally:
                os.close(lock)
            images.collect(self.root)
        power.empty_trash(self.root, name)

    @with_os_errors
    def preempt(self, name: str, *, notice: bool = True, grace_s: float | None = None) -> None:
        """Preempt a spot machine, as in the protocol. `grace_s` overrides the zone's setting."""
        machine = self.machine(name)
        if not machine.spot:
            raise BadRequest(f"only spot machines can be preempted: `{name}` is on demand")
        if machine.status != "running" or machine.why == SUSPENDED:
            raise BadRequest(f"only running machines can be preempted: `{name}` is {machine.why or machine.status}")
        self._folder(name).request("preempt", notice=notice, grace_s=grace_s)

    @with_os_errors
    def set_metadata(self, name: str, items: Mapping[str, str]) -> None:
        self.machine(name)
        folder = self._folder(name)
        with self._locked():
            try:
                write_json(folder.metadata_path, {**folder.attributes(), **items})
            except FileNotFoundError as error:
                raise NotFound(f"machine `{name}` was deleted meanwhile") from error
        folder.wake()

    @with_os_errors
    def serial(self, name: str) -> str:
        self.machine(name)
        try:
            with open(self._folder(name).serial_path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def last_address(self, name: str) -> str:
        """Return the internal address of a machine, which it keeps while it is stopped. Empty before its first boot."""
        return str((self._folder(name).state() or {}).get("address", ""))

    @with_os_errors
    def images(self) -> Sequence[Image]:
        return images.list_all(self.root)

    @with_os_errors
    def image(self, name: str) -> Image:
        return images.find(self.root, name)

    @with_os_errors
    def snapshot(
        self,
        machine: str,
        image: str,
        *,
        family: str = "",
        labels: Mapping[str, str] | None = None,
        note: str = "",
        live: bool = False,
    ) -> Image:
        """Create an image, as in the protocol. `live` also copies the disk of a running machine."""
        draft = images.Draft(name=image, family=family, labels=dict(labels or {}), note=note)
        described = self.machine(machine)
        if live and described.status in ("running", "stopping"):
            return images.snapshot(self.root, self._folder(machine), draft, live=True)
        if described.status != "stopped":
            raise BadRequest(f"machine `{machine}` is {described.status}", hint=f"stop it first: {STOP} {machine}")
        folder = self._folder(machine)
        if (lock := folder.take_lock(timeout_s=_ENDING_S_MAX)) is None:
            raise BadRequest(f"machine `{machine}` is being started or deleted", hint="try again in a moment")
        try:
            return images.snapshot(self.root, folder, draft)
        finally:
            os.close(lock)

    @with_os_errors
    def retire_image(self, name: str, *, retired: bool = True) -> None:
        with self._locked():
            images.change(self.root, name, retired=retired)

    @with_os_errors
    def share_image(self, name: str, who: str) -> None:
        with self._locked():
            images.share(self.root, name, who)

    @with_os_errors
    def delete_image(self, name: str) -> None:
        with self._locked():
            images.delete(self.root, name)
        images.collect(self.root)

    @with_os_errors
    def resize(self, name: str, *, type: str = "", disk_gb: float = 0.0, spot: bool | None = None) -> None:
        machine, folder = self.machine(name), self._folder(name)
        if disk_gb and disk_gb < machine.disk_gb:
            raise BadRequest(f"cannot shrink the disk of `{name}` from {machine.disk_gb:g} GB to {disk_gb:g} GB")
        changes: dict[str, Any] = {"disk_gb": disk_gb} if disk_gb else {}
        type, spot = type or machine.type, machine.spot if spot is None else spot
        if (type, spot) != (machine.type, machine.spot):
            if machine.status != "stopped":
                why = f"cannot change the type of `{name}`: it is {machine.status}, not stopped"
                raise BadRequest(why, hint=f"stop it first: {STOP} {name}")
            wanted = catalog.offers(Requirements(type=type, zones=(machine.zone,), spot=spot))[0]
            size = {"type": type, "spot": spot, "cpus": wanted.cpus, "memory_gb": wanted.memory_gb}
            changes |= {**size, "price_usd_per_hour": wanted.price_usd_per_hour}
        with self._locked():
            folder.change_facts(changes)

    @with_os_errors
    def metadata(self, name: str) -> Mapping[str, str]:
        self.machine(name)
        hidden = {ATTRIBUTE_TOKEN}
        return {key: value for key, value in self._folder(name).attributes().items() if key not in hidden}

    @with_os_errors
    def guest_attributes(self, name: str) -> guest_attributes.GuestAttributes:
        """Return the guest attributes that the machine's programs wrote."""
        self.machine(name)
        return guest_attributes.read(self._folder(name))

    @with_os_errors
    def admit(self, name: str, ssh_key: str) -> None:
        self.machine(name)
        with self._locked():
            ssh.admit(self._folder(name), ssh_key)
        self._folder(name).wake()

    @with_os_errors
    def access(self, name: str) -> SshAccess:
        machine = self.machine(name)
        if machine.status != "running" or machine.why == SUSPENDED:
            verb = "resume" if machine.status == "running" else "start"
            why = f"machine `{name}` is {SUSPENDED if verb == 'resume' else machine.status}"
            raise BadRequest(why, hint=f"{verb} it, and try again")
        with self._locked():
            return ssh.access(self._folder(name))

    @with_os_errors
    def put_secrets(self, name: str, values: Mapping[str, str], *, supervisors: bool = False) -> None:
        if not secrets.is_name(name):
            raise BadRequest(f"invalid secret name `{name}`", hint="use letters, digits, `-`, `_` and `.`")
        secrets.put(self.root, name, values)

    @with_os_errors
    def drop_secrets(self, name: str) -> None:
        if secrets.is_name(name):
            secrets.drop(self.root, name)

    def metadata_host(self, name: str) -> str:
        """Return `address:port` of the machine's metadata server, for programs of this computer.

        Empty if the machine is off, or if only the machine can reach its server.
        """
        state = self._folder(name).state() or {}
        if self.machine(name).status not in ("running", "stopping") or state.get("ssh_port") is None:
            return ""
        address, port = state["metadata"]
        return "" if address.startswith("169.254.") else f"{address}:{port}"

    def disk_path(self, name: str) -> str:
        """Return the folder that holds the machine's boot disk."""
        return self._folder(name).disk_path

    def home_path(self, name: str) -> str:
        """Return the path on this computer of the machine's home folder."""
        folder = self._folder(name)
        realistic = (folder.facts() or {}).get("mode") in ("root", "userns")
        return f"{folder.disk_path}/top/root" if realistic else f"{folder.disk_path}/home"

    @with_os_errors
    def set_zone(self, zone: str, **changes: Unpack[ZoneChanges]) -> None:
        """Change the conditions of a zone. Omitted settings stay; None removes a setting."""
        with self._locked():
            self._zones.change(zone, changes)
        for machine in self.machines():
            if machine.zone == zone:
                self._folder(machine.name).wake()

    @with_os_errors
    def zone_settings(self) -> dict[str, dict[str, Any]]:
        """Return zone → its settings, for every zone."""
        return self._zones.all()

    @with_os_errors
    def check_room(self, zone: str, *, spot: bool) -> None:
        """Raise NoCapacity or OverQuota if a launch in that zone would now fail with it."""
        self._zones.check_capacity(zone, self._counts(zone), spot=spot)

    def _folder(self, name: str) -> Folder:
        if not _NAME.fullmatch(name):
            raise BadRequest(
                f"invalid machine name `{name}`",
                hint="use lower-case letters, digits and `-`, at most 63, a letter first",
            )
        return Folder(f"{self.root}/machines/{name}")

    def _claim(self, folder: Folder, offer: Offer, boot: Boot, labels: Mapping[str, str]) -> int | None:
        """Return the lock of a machine that this process must boot: a new one, or one whose launcher died.

        None if the machine exists already.
        """
        if folder.exists():
            never_booted = (folder.state() or {}).get("phase") == "created"
            return folder.take_lock() if never_booted else None
        self._zones.check_allowed(offer.zone)
        self._zones.check_capacity(offer.zone, self._counts(offer.zone), spot=offer.spot)
        attributes = {ATTRIBUTE_TOKEN: random.token_urlsafe(24), **boot.metadata}
        if boot.script:
            attributes["startup-script"] = boot.script
        mode = self.mode
        layers = images.layers_for(self.root, boot.image, mode=mode)
        other = {"base": self.base, "base_names": self.base_names} if self.base else {}
        facts = {**facts_of(folder.name, offer, boot, labels, mode=mode, layers=layers), **other}
        return power.create(folder, facts, attributes)

    def _switch_on(self, folder: Folder, lock: int) -> None:
        try:
            power.switch_on(folder, lock, mode=(folder.facts() or {}).get("mode") or self.mode)
        finally:
            os.close(lock)

    def _counts(self, zone: str) -> Iterator[None]:
        """Yield one item for each machine that uses capacity of the zone; a generator, so that it is counted lazily."""
        for machine in self.machines():
            if machine.zone == zone and machine.status in ("pending", "running", "stopping"):
                yield None

    def _check_launch(self, offer: Offer, name: str, boot: Boot) -> None:
        self._folder(name)
        if offer.cloud != self.name:
            raise BadRequest(f"cannot launch an offer of cloud `{offer.cloud}` on cloud `{self.name}`")
        catalog.check_type(offer.type)
        catalog.check_zone(offer.zone)
        if boot.image:
            images.check(self.root, boot.image)
        if why := probe.why_not(self.mode, root=self.root):
            hint = "unset OUTLAST_LOCAL_MODE to use the best mode that works"
            raise BadRequest(f"mode `{self.mode}` does not work on this computer: {why}", hint=hint)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the cloud's lock, briefly. Its folders are private because they hold tokens and disks."""
        for folder in (private.prepare(self.root), f"{self.root}/machines"):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = wait_lock(f"{self.root}/cloud.lock")
        try:
            yield
        finally:
            os.close(descriptor)
