"""The cloud protocol: what every cloud offers, and what nobody outside `clouds/` may ask of a vendor.

One layer retries, and it is not here: a call is tried once and answers or raises a typed error
(`errors.CloudError` and below). Vendor codes become those types in one file a cloud.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from outlast.clouds.traits import CloudTraits
from outlast.spec.requirements import Range as Range
from outlast.spec.requirements import Requirements as Requirements

# What a cloud says of a machine. `stopped` goes on billing for its disk; `broken` is a machine that is there but
# cannot run (half created, or its host process was killed): it is deleted like any other.
Status = Literal["pending", "running", "stopping", "stopped", "broken"]

# Labels that every machine of a run carries. They are how the reaper knows whose it is.
LABEL_WORKSPACE = "outlast-workspace"
LABEL_RUN = "outlast-run"
LABEL_ATTEMPT = "outlast-attempt"
# Instead of run and attempt, on a machine that no run owns: the id of its record in the workspace.
LABEL_MACHINE = "outlast-hand"
# On one of a cluster, beside it: the cluster's own id.
LABEL_CLUSTER = "ray-cluster-id"


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A machine type in a zone, spot or on demand, at a price."""

    cloud: str
    region: str
    zone: str
    type: str
    cpus: float
    memory_gb: float
    spot: bool
    price_usd_per_hour: float
    gpu: str = ""
    gpus: int = 0
    on_demand_usd_per_hour: float = 0.0

    @property
    def key(self) -> str:
        """What a cool-down applies to."""
        return f"{self.cloud}/{self.zone}/{self.type}/{'spot' if self.spot else 'on-demand'}"


class HostAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of this computer that a machine of the local cloud can use."""

    # Paths that the machine reads and writes, reads only, and gets a private copy of; each under the same path.
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    software: tuple[str, ...] = ()
    # Ports of this computer's loopback that the machine finds on its own, such as an emulator's.
    ports: tuple[int, ...] = ()
    # Databases of the cloud, by the cloud's names, to start for the machine and to reach on its loopback.
    databases: tuple[str, ...] = ()


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine is born with. Nothing in here may be a secret."""

    script: str = ""
    image: str = ""
    metadata: dict[str, str] = {}
    disk_gb: float = 10.0
    # Lines as in `authorized_keys` whose holders may log in, each to the account `Access.user` names.
    ssh_keys: tuple[str, ...] = ()
    # Access to this computer, on a cloud with `traits.shares_host_files`. Other clouds ignore it.
    host: HostAccess | None = None
    # The cloud itself ends the machine after this long, whatever happens inside: the strongest dead man's switch.
    life_max_s: float = 0.0
    # Who the machine is to its cloud: one that may end itself and no more, or one that makes and ends the others.
    rights: Literal["machine", "supervisor"] = "machine"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its cloud describes it now."""

    name: str
    cloud: str
    zone: str
    type: str
    spot: bool
    status: Status
    labels: dict[str, str]
    created_at: float
    price_usd_per_hour: float
    stopped_at: float = 0.0
    # Its last boot, when it is not the first, and how long all boots before it were billed.
    started_at: float = 0.0
    ran_before_s: float = 0.0
    # The cloud's own time when it said all this: with it, a machine's age needs no other clock.
    seen_at: float = 0.0
    address: str = ""
    why: str = ""
    image: str = ""
    disk_gb: float = 0.0
    # What its disk costs while the machine is stopped, and on top of its own price while it runs.
    disk_usd_per_hour: float = 0.0

    @property
    def ran_s(self) -> float:
        """How long it was billed for: from its creation until it stopped, or until the cloud described it."""
        now_s = max(0.0, (self.stopped_at or self.seen_at) - (self.started_at or self.created_at))
        return self.ran_before_s + now_s

    @property
    def disk_usd(self) -> float:
        """What its disk has cost, which is paid for from the first day to the last."""
        return max(0.0, self.seen_at - self.created_at) * self.disk_usd_per_hour / 3600.0

    @property
    def cost_usd(self) -> float:
        """What it has cost, its disk included."""
        return self.ran_s * self.price_usd_per_hour / 3600.0 + self.disk_usd

    @property
    def bills_usd_per_hour(self) -> float:
        """What it costs now: a stopped machine goes on paying for its disk."""
        price = 0.0 if self.status == "stopped" else self.price_usd_per_hour
        return price + self.disk_usd_per_hour


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A disk to boot from. A family stands for its newest member that is not retired."""

    name: str
    cloud: str
    family: str = ""
    created_at: float = 0.0
    bytes: int = 0
    labels: dict[str, str] = {}
    description: str = ""
    retired: bool = False


class SshAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How ssh reaches a machine, and how it knows that it is the right one."""

    host: str
    user: str
    port: int = 22
    # `ssh -o ProxyCommand=…`, where the address cannot be reached from here.
    proxy_command: str = ""
    # Lines as in `known_hosts` without the host: `ssh-ed25519 AAAA…`. From the cloud's own channel, never from the
    # network. Empty: the cloud does not know them (yet).
    host_keys: tuple[str, ...] = ()


class Cloud(Protocol):
    """A place that has machines. Calls may be repeated and may be made from many threads at once."""

    name: str
    traits: CloudTraits

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        """Every offer that fits, cheapest first. Empty when nothing fits: that is no error.

        Raises BadRequest for a type, zone or image that this cloud does not have at all.
        """

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        """Make the machine of that name, or find it: repeating a launch never doubles a machine.

        The answer may be lost after the work was done. Raises NoCapacity, OverQuota, Throttled, CloudUnreachable,
        Denied, BadRequest, NotFound (the image).
        """

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        """Every machine that carries these labels, in every status: running, stopped, half created, broken."""

    def machine(self, name: str) -> Machine:
        """One machine, as it is now. Raises NotFound."""

    def stop(self, name: str) -> None:
        """Power off, keep the disk (which goes on billing). Stopping a stopped machine is fine."""

    def start(self, name: str) -> None:
        """Boot a stopped machine from its disk; its startup script runs again. Raises NoCapacity."""

    def delete(self, name: str) -> None:
        """Machine and disks are gone when this returns. Deleting what is not there is fine."""

    def preempt(self, name: str, *, notice: bool = True) -> None:
        """Do what the cloud does when it wants a spot machine back. Raises NotFound, BadRequest."""

    def set_metadata(self, name: str, items: Mapping[str, str]) -> None:
        """Add or change instance metadata while the machine runs."""

    def serial(self, name: str) -> str:
        """What the machine printed since it was made."""

    def images(self) -> Sequence[Image]:
        """The images that machines of this cloud can boot from."""

    def put_secrets(self, name: str, values: Mapping[str, str], *, supervisors: bool = False) -> None:
        """Keep values where only machines of this cloud that know the name can read them; replaces. With `supervisors`,
        also those that were born with a supervisor's rights."""

    def drop_secrets(self, name: str) -> None:
        """Forget them. Dropping what is not there is fine."""


class InteractiveCloud(Cloud, Protocol):
    """A cloud on which people work by hand as well: log in, resize, make images. What runs need is in `Cloud`."""

    def access(self, name: str) -> SshAccess:
        """How ssh reaches the machine. Raises NotFound; BadRequest when it is not running or has no ssh server."""

    def admit(self, name: str, ssh_key: str) -> None:
        """Let the holder of this key log in, from now on and after every boot. Repeating is fine. Raises NotFound."""

    def metadata(self, name: str) -> Mapping[str, str]:
        """The machine's own metadata, as launched and as set since. Raises NotFound."""

    def resize(self, name: str, *, type: str = "", disk_gb: float = 0.0) -> None:
        """Change the type of a stopped machine, or let its disk grow (running or not). Repeating is fine.

        Raises NotFound; BadRequest for an unknown type, a machine that is not stopped, a disk that would shrink.
        """

    def image(self, name: str) -> Image:
        """The image of that name, or the newest of that family that is not retired. Raises NotFound."""

    def snapshot(
        self, machine: str, image: str, *, family: str = "", labels: Mapping[str, str] | None = None, note: str = ""
    ) -> Image:
        """Make an image of a stopped machine's disk, or find it: repeating never doubles. All or nothing.

        Raises NotFound; BadRequest when the machine is not stopped, or the image exists and has another origin.
        """

    def retire_image(self, name: str, *, retired: bool = True) -> None:
        """Take an image out of the choice of its family, or put it back. Raises NotFound."""

    def share_image(self, name: str, who: str) -> None:
        """Let another project, account or user boot from it. Raises NotFound, BadRequest, Denied."""

    def delete_image(self, name: str) -> None:
        """Deleting what is not there is fine. Machines that were made from it go on."""
