"""The protocol that every cloud implements, and its values. Other packages use nothing else of a cloud.

A call makes one attempt: it returns or raises a typed error (`errors.CloudError` and below). Callers retry. Each cloud
translates its vendor's error codes in its `errors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from outlast.clouds.traits import CloudTraits
from outlast.errors import CloudUnreachable
from outlast.spec.network import NetworkSpec
from outlast.spec.requirements import Range as Range
from outlast.spec.requirements import Requirements as Requirements

# The status of a machine. The disk of a `stopped` one is still billed. A `broken` one exists but cannot run, because it
# is half created or its host process was killed; it is deleted like any other.
Status = Literal["pending", "running", "stopping", "stopped", "broken"]

# Labels of every machine of a run, by which the reaper finds its owner.
LABEL_WORKSPACE = "outlast-workspace"
LABEL_RUN = "outlast-run"
LABEL_ATTEMPT = "outlast-attempt"
# Instead of run and attempt, on a machine that no run owns: the id of its record in the workspace.
LABEL_MACHINE = "outlast-record"
# In addition, on a machine of a cluster: the cluster's id.
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
    # Where the price comes from, and when it was true. A guessed price was derived from others.
    price_source: str = ""
    price_at: float = 0.0
    price_guessed: bool = False
    # The lifetime of a spot machine that the cloud predicts; 0: unknown.
    advised_life_s: float = 0.0
    # The price of its public IPv4 address, which is billed in addition; 0 without one.
    address_usd_per_hour: float = 0.0

    @property
    def bills_usd_per_hour(self) -> float:
        """The price of the machine with its public address."""
        return self.price_usd_per_hour + self.address_usd_per_hour

    @property
    def key(self) -> str:
        """The key of this offer's cooldown. Some types can have different GPUs."""
        gpus = f"+{self.gpu}:{self.gpus}" if self.gpu else ""
        return f"{self.cloud}/{self.zone}/{self.type}{gpus}/{'spot' if self.spot else 'on-demand'}"

    def key_for(self, nodes: int) -> str:
        """Return the key of the cooldown for so many machines at once: a zone may have room for fewer."""
        return sized_key(self.key, nodes)


def sized_key(key: str, nodes: int) -> str:
    """Return the key of a cooldown for so many machines at once."""
    return f"{key}*{nodes}" if nodes > 1 and key else key


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """A price with its source, and the time at which it was true."""

    usd_per_hour: float
    source: str
    at: float
    guessed: bool = False


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
    # Its program may have the address of any other database of the cloud.
    all_databases: bool = False


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot configuration of a machine. It must not contain secrets."""

    script: str = ""
    image: str = ""
    metadata: dict[str, str] = {}
    disk_gb: float = 10.0
    # Lines as in `authorized_keys`: their holders may log in as `SshAccess.user`.
    ssh_keys: tuple[str, ...] = ()
    # Access to this computer, on a cloud with `traits.shares_host_files`. Other clouds ignore it.
    host: HostAccess | None = None
    # The cloud deletes the machine after this long, even if no process of ours is left to do it. 0: never.
    life_max_s: float = 0.0
    # Permissions in the cloud: a `machine` may delete itself only, a `supervisor` also creates and deletes others.
    rights: Literal["machine", "supervisor"] = "machine"
    # The machine and others of outlast connect to each other: a group of runs, or a cluster.
    peers: bool = False
    # None: the network settings of this process (OUTLAST_NETWORKS), else the cloud's default network.
    network: NetworkSpec | None = None
    # The machine must be of this reservation.
    reservation: str = ""


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
    # The start of its last boot, if it is not the first, and the billed time of all boots before.
    started_at: float = 0.0
    ran_before_s: float = 0.0
    # The cloud's time of this description, so that ages need no other clock.
    seen_at: float = 0.0
    address: str = ""
    why: str = ""
    image: str = ""
    disk_gb: float = 0.0
    # The price of its disk, billed while the machine is stopped and in addition to its own price while it runs.
    disk_usd_per_hour: float = 0.0

    @property
    def ran_s(self) -> float:
        """The billed time: from its creation until it stopped, or until the cloud described it."""
        now_s = max(0.0, (self.stopped_at or self.seen_at) - (self.started_at or self.created_at))
        return self.ran_before_s + now_s

    @property
    def disk_usd(self) -> float:
        """The cost of its disk, which is billed from creation to deletion."""
        return max(0.0, self.seen_at - self.created_at) * self.disk_usd_per_hour / 3600.0

    @property
    def cost_usd(self) -> float:
        """The cost so far, including the disk."""
        return self.ran_s * self.price_usd_per_hour / 3600.0 + self.disk_usd

    @property
    def bills_usd_per_hour(self) -> float:
        """The current price: of a stopped machine, the disk's only."""
        price = 0.0 if self.status == "stopped" else self.price_usd_per_hour
        return price + self.disk_usd_per_hour


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A disk image to boot from. The name of a family stands for its newest image that is not retired."""

    name: str
    cloud: str
    family: str = ""
    created_at: float = 0.0
    bytes: int = 0
    labels: dict[str, str] = {}
    description: str = ""
    retired: bool = False


class SshAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The address and host keys for ssh to a machine."""

    host: str
    user: str
    port: int = 22
    # The value of `ssh -o ProxyCommand`, if the address cannot be reached from here.
    proxy_command: str = ""
    # Lines as in `known_hosts` without the host: `ssh-ed25519 AAAA…`. They come from the cloud's API and never from the
    # machine's network. Empty: the cloud does not have them (yet).
    host_keys: tuple[str, ...] = ()


class ZonesUnreachable(CloudUnreachable):
    """Some zones did not answer a listing. `machines` are those of the other zones."""

    def __init__(self, message: str, *, zones: Sequence[str], machines: Sequence[Machine]) -> None:
        super().__init__(message, hint="it is retried later")
        self.zones = tuple(zones)
        self.machines = tuple(machines)


class Cloud(Protocol):
    """A provider of machines. All calls may be repeated, and may run in several threads at once."""

    name: str
    traits: CloudTraits

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        """Return every matching offer, cheapest first; an empty list if nothing matches.

        Raises BadRequest for a type, zone or image that this cloud does not have at all.
        """

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        """Create the machine, or return the existing one of that name: a repeated launch creates no second one.

        The machine may exist although the call failed. Raises NoCapacity, OverQuota, Throttled, CloudUnreachable,
        Denied, BadRequest, NotFound (the image).
        """

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        """Return every machine with these labels, in every status. Raises ZonesUnreachable if some zones are silent."""

    def machine(self, name: str) -> Machine:
        """Return the current description of a machine. Raises NotFound."""

    def stop(self, name: str) -> None:
        """Power off and keep the disk, which is still billed. Does nothing to a stopped machine."""

    def start(self, name: str) -> None:
        """Boot a stopped machine from its disk; its startup script runs again. Raises NoCapacity."""

    def delete(self, name: str) -> None:
        """Delete the machine and its disks, and wait until they are gone. Does nothing for an unknown name."""

    def preempt(self, name: str, *, notice: bool = True) -> None:
        """Preempt a machine as the cloud itself does. Raises NotFound, BadRequest."""

    def set_metadata(self, name: str, items: Mapping[str, str]) -> None:
        """Add or change instance metadata while the machine runs."""

    def serial(self, name: str) -> str:
        """Return the output on the serial console since the machine was created."""

    def images(self) -> Sequence[Image]:
        """Return the images that machines of this cloud can boot from."""

    def put_secrets(self, name: str, values: Mapping[str, str], *, supervisors: bool = False) -> None:
        """Store values, replacing earlier ones, so that only machines of this cloud that have the name can read them.

        With `supervisors`, machines with a supervisor's rights can read them, too.
        """

    def drop_secrets(self, name: str) -> None:
        """Delete the values. Does nothing if there are none."""


@runtime_checkable
class LaunchesTogether(Protocol):
    """A cloud that launches the machines of a distributed run; `traits.distributed` is set."""

    def launch_all(
        self, offer: Offer, names: Sequence[str], *, boot: Boot, labels: Mapping[str, str]
    ) -> Sequence[Machine]:
        """Create machines of these names in the zone of the offer: all or none. May be repeated.

        A machine that exists is not created again. If the cloud grants fewer than all, those that this call created are
        deleted before it raises NoCapacity or OverQuota. Raises like `launch`. Until an interrupted call is repeated,
        its machines may have the name of another one of them; deleting that name deletes them as well.
        """


# Features that machines of the local cloud may lack: a route to the internet, a network of their own, containers.
Feature = Literal["internet", "network", "containers"]


def why_missing(cloud: Cloud, feature: Feature) -> str:
    """Return why machines of a cloud lack a feature; empty if they have it, as on every public cloud."""
    method = getattr(cloud, "why_missing", None)
    return str(method(feature)) if method is not None else ""


class SetupCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a cloud's own set-up checks. An error makes outlast unusable here; a warning does not."""

    name: str
    state: Literal["ok", "warning", "error"]
    text: str
    fix: str = ""


class SetupStep(msgspec.Struct, frozen=True, kw_only=True):
    """One resource that `outlast setup` creates: its description, the equivalent commands, and how to create it."""

    what: str
    commands: tuple[str, ...]
    # May be repeated.
    apply: Callable[[], None]


@runtime_checkable
class HasSetupChecks(Protocol):
    """A cloud that `outlast doctor` can check."""

    def setup_checks(self, bucket: str = "") -> Iterable[SetupCheck]:
        """Check credentials, rights, quotas, prices, and a bucket in the cloud's own store. Raises OutlastError."""


VerifyArea = Literal["rights", "network", "bucket", "quota"]


class ApiExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a cloud's API and its answer, for `outlast verify`."""

    service: str
    what: str
    status: int
    request_id: str
    answer: Any


@runtime_checkable
class LaunchesAny(Protocol):
    """A cloud that chooses one of several offers itself, by the capacity that only it knows."""

    def launch_any(self, offers: Sequence[Offer], name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        """Launch like `launch` by one of these offers of one region; the machine's zone and type show which.

        A repeated call must have the same offers. Raises NoCapacity if none of them has capacity.
        """


@runtime_checkable
class HasVerification(Protocol):
    """A cloud whose account `outlast verify` can prove."""

    # The id of the last request, for the cloud's support.
    last_request: str

    def identity(self) -> str:
        """Return the account and the credentials in use, for people. Raises Denied."""

    def verify_findings(self, area: VerifyArea, *, bucket: str, gpu: str = "") -> Iterable[tuple[str, str]]:
        """Return the problems of an area, each with its fix; the quotas are those of a GPU if one is named."""

    def default_bucket(self) -> str:
        """Return the URL of the bucket that `outlast setup` creates."""

    def account_names(self) -> Sequence[str]:
        """Return names that must not appear in a report to others."""

    def watch(self, sink: Callable[[ApiExchange], None] | None) -> None:
        """Call `sink` with each answer of the API from now on; None ends it."""


class InteractiveCloud(Cloud, Protocol):
    """A cloud whose machines users can log in to, resize and make images of. Runs need `Cloud` only."""

    def access(self, name: str) -> SshAccess:
        """Return how ssh reaches the machine. Raises NotFound, and BadRequest if it is not running or has no sshd."""

    def admit(self, name: str, ssh_key: str) -> None:
        """Let the holder of this key log in, from now on and after every boot. Raises NotFound."""

    def metadata(self, name: str) -> Mapping[str, str]:
        """Return the machine's metadata, as launched and as set since. Raises NotFound."""

    def resize(self, name: str, *, type: str = "", disk_gb: float = 0.0) -> None:
        """Change the type of a stopped machine, or enlarge the disk of any machine.

        Raises NotFound, and BadRequest for an unknown type, a machine that is not stopped, or a smaller disk.
        """

    def image(self, name: str) -> Image:
        """Return the image of that name, or the newest of that family that is not retired. Raises NotFound."""

    def snapshot(
        self, machine: str, image: str, *, family: str = "", labels: Mapping[str, str] | None = None, note: str = ""
    ) -> Image:
        """Create an image of a stopped machine's disk, or return the existing one. A failed call leaves no image.

        Raises NotFound, and BadRequest if the machine is not stopped or the image was made from another machine.
        """

    def retire_image(self, name: str, *, retired: bool = True) -> None:
        """Exclude an image from its family, or include it again. Raises NotFound."""

    def share_image(self, name: str, who: str) -> None:
        """Let another project, account or user boot from the image. Raises NotFound, BadRequest, Denied."""

    def delete_image(self, name: str) -> None:
        """Delete the image; machines that use it are unaffected. Does nothing for an unknown name."""
