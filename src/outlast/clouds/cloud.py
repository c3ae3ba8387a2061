"""The cloud protocol: what every cloud offers, and what nobody outside `clouds/` may ask of a vendor.

One layer retries, and it is not here: a call is tried once and answers or raises a typed error
(`errors.CloudError` and below). Vendor codes become those types in one file a cloud.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from outlast.spec.needs import Needs as Needs
from outlast.spec.needs import Range as Range

# What a cloud says of a machine. `stopped` goes on billing for its disk; `broken` is a machine that is there but
# cannot run (half created, or its host process was killed): it is deleted like any other.
Status = Literal["pending", "running", "stopping", "stopped", "broken"]

# Labels that every machine of a run carries. They are how the reaper knows whose it is.
LABEL_WORKSPACE = "outlast-workspace"
LABEL_RUN = "outlast-run"
LABEL_ATTEMPT = "outlast-attempt"


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


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine is born with. Nothing in here may be a secret."""

    script: str = ""
    image: str = ""
    metadata: dict[str, str] = {}
    disk_gb: float = 10.0
    # The cloud itself ends the machine after this long, whatever happens inside: the strongest dead man's switch.
    life_max_s: float = 0.0


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
    # The cloud's own time when it said all this: with it, a machine's age needs no other clock.
    seen_at: float = 0.0
    address: str = ""
    why: str = ""

    @property
    def ran_s(self) -> float:
        """How long it was billed for: from its creation until it stopped, or until the cloud described it."""
        return max(0.0, (self.stopped_at or self.seen_at) - self.created_at)

    @property
    def cost_usd(self) -> float:
        return self.ran_s * self.price_usd_per_hour / 3600.0


class Image(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cloud: str
    family: str = ""
    created_at: float = 0.0
    bytes: int = 0


class Cloud(Protocol):
    """A place that has machines. Calls may be repeated and may be made from many threads at once."""

    name: str

    def offers(self, needs: Needs) -> Sequence[Offer]:
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

    def put_secrets(self, name: str, values: Mapping[str, str]) -> None:
        """Keep values where only machines of this cloud that know the name can read them; replaces."""

    def drop_secrets(self, name: str) -> None:
        """Forget them. Dropping what is not there is fine."""
