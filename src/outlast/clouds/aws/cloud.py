"""Amazon EC2 behind the cloud protocol: the regions of an account as one cloud.

A machine's name is unique in the account. Its region is remembered from launches and listings; a call for another name
searches all regions. The region of the credentials, `home`, has secrets, volumes, databases and the set-up's bucket.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from outlast.clouds.aws import machines, secrets, verify
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.images import RegionalImages
from outlast.clouds.aws.offers import CLOUD
from outlast.clouds.aws.region import AwsRegion
from outlast.clouds.aws.regions import AwsRegions
from outlast.clouds.checks import rows
from outlast.clouds.cloud import (
    LABEL_RUN,
    ApiExchange,
    Boot,
    Image,
    Machine,
    Offer,
    Requirements,
    SetupCheck,
    SshAccess,
    VerifyArea,
    ZonesUnreachable,
)
from outlast.clouds.image_store import ImageStore
from outlast.clouds.traits import BUILT_IN
from outlast.errors import BadRequest, NotFound
from outlast.spec.network import network_of

if TYPE_CHECKING:
    from outlast.clouds.aws.databases import AwsDatabases
    from outlast.clouds.aws.volumes import AwsVolumes

T = TypeVar("T")
# Metadata that name the secrets of a machine, and the one that says in which region they are.
_SECRETS = ("outlast-secrets", "outlast-store-key")
SECRETS_REGION = "outlast-secrets-region"


class AwsCloud(ImageStore):
    """A cloud of one account. Any number of processes may use it at once."""

    name = CLOUD
    traits = BUILT_IN[CLOUD]
    image_api: RegionalImages

    def __init__(self, region: str = "", *, client: AwsClient | None = None) -> None:
        self.client = client or AwsClient(region)
        self.home = AwsRegion(self.client)
        self.regions = AwsRegions(self.home)
        self.image_api = RegionalImages(self.client, self.regions)
        # Name of a machine → its region, as last seen.
        self._seen_in: dict[str, str] = {}

    @property
    def volumes(self) -> AwsVolumes:
        from outlast.clouds.aws.volumes import AwsVolumes

        return AwsVolumes(self.client)

    @property
    def databases(self) -> AwsDatabases:
        from outlast.clouds.aws.databases import AwsDatabases

        return AwsDatabases(self.client)

    @property
    def price_note(self) -> str:
        """Return a caveat about our prices; empty if they are Amazon's current ones."""
        return next((note for region in self.regions.made() if (note := region.prices.note)), "")

    def setup_checks(self, bucket: str = "") -> Sequence[SetupCheck]:
        from outlast.clouds.aws.checks import bucket_warnings, disk_key_warnings, missing, quota_warnings
        from outlast.clouds.aws.setup import AwsSetup

        problems = missing(self.client, self._profiles(), bucket=bucket)
        problems += bucket_warnings(self.client, bucket or AwsSetup(self.client).bucket)
        problems += [*disk_key_warnings(self.client), *quota_warnings(self.client)]
        fine = f"region `{self.client.region}`: credentials, rights, roles and quotas are there"
        source = self.home.prices.source(self.home.catalogue.kind("m6i.large"))
        prices = SetupCheck(name=f"{self.name} prices", state="ok", text=f"spot: price history; on demand: {source}")
        return [*rows(self.name, problems, fine=fine), prices]

    def _profiles(self) -> dict[str, str]:
        """Return the instance profiles in use, each with its description."""
        profiles = {self.home.profile: "the machines", self.home.supervisor_profile: "the supervisor machine"}
        return {name: whose for name, whose in profiles.items() if name}

    # Verification

    @property
    def last_request(self) -> str:
        return self.client.last_request

    @property
    def emulated(self) -> bool:
        return bool(os.environ.get("AWS_ENDPOINT_URL"))

    def identity(self) -> str:
        return verify.identity(self.client)

    def verify_findings(self, area: VerifyArea, *, bucket: str, gpu: str = "") -> Sequence[tuple[str, str]]:
        network = network_of(CLOUD, os.environ)
        return verify.area_findings(
            self.client, area, profiles=self._profiles(), bucket=bucket, network=network, gpu=gpu
        )

    def default_bucket(self) -> str:
        from outlast.clouds.aws.setup import AwsSetup

        return f"s3://{AwsSetup(self.client).bucket}"

    def bucket_location(self, bucket: str) -> str:
        return str(self.client.call("s3", "head_bucket", Bucket=bucket).get("BucketRegion") or "")

    def account_names(self) -> Sequence[str]:
        return (str(self.client.call("sts", "get_caller_identity")["Account"]),)

    def watch(self, sink: Callable[[ApiExchange], None] | None) -> None:
        self.client.watch(sink)

    # Offers and machines

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        """Return the offers of the regions that the request names, else of those near its data, else of `home`."""
        asked = self.regions.asked(needs)
        answers = self.regions.each(lambda region: region.offers(asked[region.name]), asked)
        found = [offer for offers in answers.answers.values() for offer in offers]
        # A region may lack the type, the image or the network, or be silent, while others have them.
        if not found and answers.problems:
            raise answers.problems.get(self.client.region) or next(iter(answers.problems.values()))
        return sorted(found, key=lambda o: (o.price_usd_per_hour, o.on_demand_usd_per_hour, o.zone, o.type))

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        answers = self.regions.each(lambda region: region.machines(labels), lists=True)
        found = [machine for there in answers.answers.values() for machine in there]
        for region, there in answers.answers.items():
            self._saw([machine.name for machine in there], region)
        if answers.problems and not answers.answers:
            raise next(iter(answers.problems.values()))
        if answers.problems:
            zones = [zone for region in answers.problems for zone in self.regions.zones(region)]
            message = "; ".join(problem.message for problem in answers.problems.values())
            raise ZonesUnreachable(message, zones=zones, machines=found)
        return found

    def _saw(self, names: Iterable[str], region: str) -> None:
        if found := dict.fromkeys(names, region):
            self._seen_in |= found
            self.regions.use(region)

    def machine(self, name: str) -> Machine:
        return self._where(name, lambda region: region.machine(name))

    def serial(self, name: str) -> str:
        return self._where(name, lambda region: region.serial(name))

    def _where(self, name: str, act: Callable[[AwsRegion], T]) -> T:
        """Act in the region of a machine. Raises NotFound if no region has it, CloudUnreachable if one is silent."""
        machines.check_name(name)
        if known := self._seen_in.get(name):
            try:
                return act(self.regions.region(known))
            except NotFound:
                self._seen_in.pop(name, None)
        wanted = {machines.TAG_NAME: name}
        answers = self.regions.each(lambda region: region.instances.docs(wanted))
        for region, docs in answers.answers.items():
            if docs:
                self._saw([name], region)
                return act(self.regions.region(region))
        if answers.problems:
            raise next(iter(answers.problems.values()))
        raise NotFound(f"no machine `{name}` in AWS {self.regions.described()}")

    # Life cycle of a machine

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        return self.launch_any([offer], name, boot=boot, labels=labels)

    def launch_any(self, offers: Sequence[Offer], name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        machines.check_name(name)
        region = self._region_of(offers)
        if LABEL_RUN not in labels:
            # An attempt of a run has one region. Another machine of this name may be in any.
            try:
                return self._where(name, lambda there: there.require(name, labels))
            except NotFound:
                pass
        machine = region.launch(offers, name, boot=self._with_secrets(boot, region), labels=labels)
        self._saw([name], region.name)
        return machine

    def launch_all(
        self, offer: Offer, names: Sequence[str], *, boot: Boot, labels: Mapping[str, str]
    ) -> Sequence[Machine]:
        """Launch with one fleet that has a minimum capacity in one zone: EC2 launches all instances or none."""
        for name in names:
            machines.check_name(name)
        region = self._region_of([offer])
        found = region.launch_all(offer, names, boot=self._with_secrets(boot, region), labels=labels)
        self._saw(names, region.name)
        return found

    def _region_of(self, offers: Sequence[Offer]) -> AwsRegion:
        """Return the region of offers, of which all are in one. Raises BadRequest."""
        for offer in offers:
            if offer.cloud != self.name:
                raise BadRequest(f"cannot launch an offer of cloud `{offer.cloud}` on cloud `{self.name}`")
        if len({offer.region for offer in offers}) > 1:
            raise BadRequest("one launch cannot use several regions of EC2")
        return self.regions.region(offers[0].region or self.client.region)

    def _with_secrets(self, boot: Boot, region: AwsRegion) -> Boot:
        """Return the boot with the region of the machine's secrets, if it is another one: parameters are regional."""
        wanted = [name for attribute in _SECRETS if (name := boot.metadata.get(attribute))]
        if not wanted or len(self.regions.names()) < 2:
            return boot
        answers = self.regions.each(lambda one: secrets.exists(one.client, wanted[0]))
        there = next((name for name, exists in answers.answers.items() if exists), "")
        if not there and answers.problems:
            raise next(iter(answers.problems.values()))
        if there in ("", region.name):
            return boot
        return msgspec.structs.replace(boot, metadata={**boot.metadata, SECRETS_REGION: there})

    def stop(self, name: str) -> None:
        self._where(name, lambda region: region.stop(name))

    def start(self, name: str) -> None:
        self._where(name, lambda region: region.start(name))

    def delete(self, name: str) -> None:
        machines.check_name(name)
        # In all regions if its own is unknown: templates and fleets of an interrupted launch may be left without it.
        known = self._seen_in.get(name)
        answers = self.regions.each(lambda region: region.delete(name), [known] if known else None)
        if answers.problems:
            raise next(iter(answers.problems.values()))
        self._seen_in.pop(name, None)

    def preempt(self, name: str, *, notice: bool = True) -> None:
        self._where(name, lambda region: region.preempt(name, notice=notice))

    def set_metadata(self, name: str, items: Mapping[str, str]) -> None:
        self._where(name, lambda region: region.set_metadata(name, items))

    # Images and interactive use

    def snapshot(
        self, machine: str, image: str, *, family: str = "", labels: Mapping[str, str] | None = None, note: str = ""
    ) -> Image:
        return self._where(
            machine, lambda region: region.snapshot(machine, image, family=family, labels=labels, note=note)
        )

    def access(self, name: str) -> SshAccess:
        return self._where(name, lambda region: region.access(name))

    def admit(self, name: str, ssh_key: str) -> None:
        self._where(name, lambda region: region.admit(name, ssh_key))

    def metadata(self, name: str) -> Mapping[str, str]:
        return self._where(name, lambda region: region.metadata(name))

    def resize(self, name: str, *, type: str = "", disk_gb: float = 0.0) -> None:
        self._where(name, lambda region: region.resize(name, type=type, disk_gb=disk_gb))

    # Secrets

    def put_secrets(self, name: str, values: Mapping[str, str], *, supervisors: bool = False) -> None:
        secrets.put(self.client, name, values)

    def drop_secrets(self, name: str) -> None:
        # Another process, whose home is another region, may have put them.
        answers = self.regions.each(lambda region: secrets.drop(region.client, name))
        if answers.problems:
            raise next(iter(answers.problems.values()))
