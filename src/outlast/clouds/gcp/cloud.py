"""Google Compute Engine behind the cloud protocol: each method shows its requests to Google, in order."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

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
)
from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp import machines, secrets, ssh_access, verify
from outlast.clouds.gcp.client import GcpClient, check_name, last
from outlast.clouds.gcp.errors import Doc, NotReady, is_missing_type
from outlast.clouds.gcp.images import GcpImages
from outlast.clouds.gcp.instances import GcpInstances
from outlast.clouds.gcp.network import bucket_location, with_network_hint, with_policy_hint
from outlast.clouds.gcp.offers import CLOUD, GcpOffers
from outlast.clouds.gcp.prices import PriceBook, series_of
from outlast.clouds.image_store import ImageStore
from outlast.clouds.traits import BUILT_IN
from outlast.errors import AlreadyExists, BadRequest, CloudUnreachable, NoCapacity, NotFound, PolicyDenied
from outlast.spec.network import NetworkSpec, network_of

if TYPE_CHECKING:
    from outlast.clouds.gcp.databases import GcpDatabases
    from outlast.clouds.gcp.volumes import GcpVolumes

STOP = "`outlast machine stop`"
_SERIAL_PAGES_MAX = 64


class GcpCloud(ImageStore):
    """A cloud of one project. Any number of processes may use it at once."""

    name = CLOUD
    traits = BUILT_IN[CLOUD]
    image_api: GcpImages

    def __init__(self, project: str = "", *, client: GcpClient | None = None, prices: PriceBook | None = None) -> None:
        self.client = client or GcpClient(project)
        self.catalogue = GcpOffers(self.client, prices or PriceBook())
        self.image_api = GcpImages(self.client)
        self.instances = GcpInstances(self.client, self._price)
        # Machine series that refused the longer notice.
        self._short_notice: set[str] = set()

    @property
    def account(self) -> str:
        """Return the service account of machines, which has few rights."""
        chosen = os.environ.get("OUTLAST_GCP_SERVICE_ACCOUNT", "")
        return chosen or f"outlast-machine@{self.client.project}.iam.gserviceaccount.com"

    @property
    def supervisor_account(self) -> str:
        """Return the service account of the supervisor machine, which may create and delete machines."""
        chosen = os.environ.get("OUTLAST_GCP_SUPERVISOR_ACCOUNT", "")
        return chosen or f"outlast-supervisor@{self.client.project}.iam.gserviceaccount.com"

    @property
    def price_note(self) -> str:
        """Return a caveat about our prices; empty if they are Google's, at most a week old."""
        book = self.catalogue.prices
        return book.source if book.built_in else ""

    def setup_checks(self, bucket: str = "") -> Sequence[SetupCheck]:
        from outlast.clouds.gcp.checks import bucket_warnings, missing, quota_warnings
        from outlast.clouds.gcp.setup import MACHINE, SUPERVISOR, default_bucket

        accounts = {self.account: MACHINE, self.supervisor_account: SUPERVISOR}
        problems = missing(self.client, accounts, bucket=bucket)
        problems += bucket_warnings(self.client, bucket or default_bucket(self.client))
        problems += quota_warnings(self.client)
        self.catalogue.prices.load(self.client, retry=True)
        fine = f"project `{self.client.project}`: credentials, APIs, roles and quotas are there"
        prices = SetupCheck(name="gcp prices", state="ok", text=self.catalogue.prices.source)
        return [*rows(self.name, problems, fine=fine), prices]

    def _price(self, doc: Doc) -> float:
        accelerator, count = machines.accelerators_of(doc)
        type, zone, spot = last(doc.get("machineType")), last(doc.get("zone")), machines.is_spot(doc)
        return self.catalogue.price(type, zone, accelerator=accelerator, count=count, spot=spot)

    @property
    def volumes(self) -> GcpVolumes:
        from outlast.clouds.gcp.volumes import GcpVolumes

        return GcpVolumes(self.client)

    @property
    def databases(self) -> GcpDatabases:
        from outlast.clouds.gcp.databases import GcpDatabases

        return GcpDatabases(self.client)

    # Verification

    last_request = property(lambda self: self.client.last_request)
    emulated = property(lambda self: self.client.emulated)

    def identity(self) -> str:
        return verify.identity(self.client)

    def verify_findings(self, area: VerifyArea, *, bucket: str, gpu: str = "") -> Sequence[tuple[str, str]]:
        from outlast.clouds.gcp.setup import MACHINE, SUPERVISOR

        accounts = {self.account: MACHINE, self.supervisor_account: SUPERVISOR}
        network = network_of(CLOUD, os.environ)
        return verify.area_findings(self.client, area, accounts=accounts, bucket=bucket, network=network, gpu=gpu)

    def default_bucket(self) -> str:
        from outlast.clouds.gcp.setup import default_bucket

        return f"gs://{default_bucket(self.client)}"

    def bucket_location(self, bucket: str) -> str:
        return bucket_location(self.client, bucket)

    def account_names(self) -> Sequence[str]:
        return (self.client.project,)

    def watch(self, sink: Callable[[ApiExchange], None] | None) -> None:
        self.client.sink = sink

    def granted_notice_s(self, name: str) -> int:
        """Return the notice that Google stored with a spot machine."""
        return machines.granted_notice_s(self.instances.find(name)[0])

    # Offers and machines

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        if needs.image:
            self._source(needs.image)
        return self.catalogue.offers(needs)

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        return self.instances.list_all(labels)

    def machine(self, name: str) -> Machine:
        return self.instances.machine(name)

    def serial(self, name: str) -> str:
        doc, _ = self.instances.find(name)
        pieces, start = [], 0
        for _ in range(_SERIAL_PAGES_MAX):
            query = {"port": 1, "start": start}
            try:
                answer = self.client.compute("GET", f"{self.instances.path_of(doc)}/serialPort", query=query).doc
            except (NotReady, BadRequest):
                break  # it has not booted yet, or is off
            if not answer.get("contents"):
                break
            pieces.append(str(answer["contents"]))
            start = int(answer["next"])
        return "".join(pieces)

    # Life cycle of a machine

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        network = boot.network or network_of(CLOUD, os.environ)
        body = self._body(offer, name, msgspec.structs.replace(boot, network=network), labels)
        try:
            # Search all zones: names are unique per zone only, and a second launch must not create a second machine.
            # An attempt of a run is placed in one zone only, so other zones may be silent.
            doc, at = self.instances.find(name, zone=offer.zone if LABEL_RUN in labels else "")
            self._correct_notice(doc)
            return self._require_labels(doc, at, labels)
        except NotFound:
            pass
        # The server remembers an id for an hour, and its machine may be deleted by now: then use a new id.
        for key in (f"insert/{name}/{offer.zone}", f"insert/{name}/{offer.zone}/{uuid.uuid4()}"):
            self._insert(offer, key, body, network)
            try:
                answer = self.instances.get(offer.zone, name)
            except NotFound:
                continue
            self._require_labels(answer.doc, answer.at, labels)
            self._correct_notice(answer.doc)
            return self._delete_duplicates(answer.doc, answer.at, labels)
        raise NoCapacity(f"Google ended machine `{name}` right after its launch, twice", hint="the next zone is tried")

    def launch_all(
        self, offer: Offer, names: Sequence[str], *, boot: Boot, labels: Mapping[str, str]
    ) -> Sequence[Machine]:
        """Launch with `bulkInsert`, whose `minCount` makes Google delete what it created if it has too few machines."""
        network = boot.network or network_of(CLOUD, os.environ)
        missing = self.instances.missing(names, offer.zone)
        body = self._body(offer, names[0], msgspec.structs.replace(boot, network=network), labels)
        # As for one machine: the server remembers an id for an hour.
        key = f"bulk/{'/'.join(missing)}/{offer.zone}"
        for request in (key, f"{key}/{uuid.uuid4()}"):
            if not (left := self.instances.missing(missing, offer.zone)):
                break
            self._insert(offer, request, body, network, names=left)
        if left := self.instances.missing(missing, offer.zone):
            raise CloudUnreachable(f"Google does not have {', '.join(left)} after their launch", hint="it is retried")
        found = [self.instances.get(offer.zone, name) for name in names]
        for one in found:
            self._correct_notice(one.doc)
            # Until lists show it, a deletion would not find it.
            self.instances.await_listed(one.doc)
        return [self._require_labels(one.doc, one.at, labels) for one in found]

    def _body(self, offer: Offer, name: str, boot: Boot, labels: Mapping[str, str]) -> Doc:
        """Return the body of the request that creates a machine."""
        check_name(name)
        if offer.cloud != self.name:
            raise BadRequest(f"cannot launch an offer of cloud `{offer.cloud}` on cloud `{self.name}`")
        image, least_gb = self._source(boot.image, gpu=bool(offer.gpu))
        # Google refuses a disk that is smaller than its image.
        boot = msgspec.structs.replace(boot, disk_gb=max(boot.disk_gb, least_gb))
        account = self.supervisor_account if boot.rights == "supervisor" else self.account
        user = ssh_access.login_name(self.client)
        return machines.insert_body(offer, name, boot=boot, labels=labels, image=image, account=account, user=user)

    def _delete_duplicates(self, doc: Doc, at: float, labels: Mapping[str, str]) -> Machine:
        """Return the oldest machine of that name, and delete the others.

        Another process may have launched the same machine in another zone at the same time. At least the later of the
        two sees both, and both would delete the younger one.
        """
        wanted = label.encode_all(labels).items()
        named = self.instances.await_listed(doc)
        same = [one for one in named if wanted <= one[0].get("labels", {}).items()]
        (oldest, seen_at), *younger = sorted(same, key=lambda one: machines.age_key(one[0])) or [(doc, at)]
        for one, _ in younger:
            self.instances.delete(one)
        self.instances.remember(str(oldest["name"]), last(oldest["zone"]))
        return self.instances.describe(oldest, seen_at)

    def _insert(self, offer: Offer, key: str, body: Doc, network: NetworkSpec, *, names: Sequence[str] = ()) -> None:
        """Create one machine, or with `names` all of these or none."""
        series, path = series_of(offer.type), f"zones/{offer.zone}/instances"
        wanted = machines.with_short_notice(body) if series in self._short_notice else body
        if names:
            path, wanted = f"{path}/bulkInsert", machines.bulk_body(wanted, names)
        try:
            self.client.change("POST", path, key=key, body=wanted)
        except AlreadyExists:
            pass  # an answer was lost, or another process launches it; the caller checks whose it is
        except BadRequest as problem:
            if machines.refuses_notice(problem.message) and series not in self._short_notice:
                self._short_notice.add(series)
                return self._insert(offer, f"{key}/short", body, network, names=names)
            if is_missing_type(problem):
                why = f"zone `{offer.zone}` has no `{offer.type}`"
                raise NoCapacity(why, hint="the next zone is tried") from problem
            raise with_network_hint(problem, self.client.project, network) from problem
        except PolicyDenied as problem:
            raise with_policy_hint(problem) from problem

    def _correct_notice(self, doc: Doc) -> None:
        """Let the agent of a spot machine use the notice that Google stored, if it differs from the requested one."""
        granted_s = machines.granted_notice_s(doc)
        if not machines.is_spot(doc) or granted_s == machines.NOTICE_S:
            return

        def corrected(before: Mapping[str, str]) -> dict[str, str]:
            return {machines.GRACE: str(granted_s)} if machines.GRACE in before else {}

        self.instances.set_metadata(str(doc["name"]), corrected)

    def _require_labels(self, doc: Doc, at: float, labels: Mapping[str, str]) -> Machine:
        """Return the machine if it has these labels. Raises BadRequest if it is another one of that name."""
        theirs = doc.get("labels", {})
        for key, value in label.encode_all(labels).items():
            if theirs.get(key) != value:
                why = f"another machine `{doc['name']}` exists in {last(doc['zone'])}"
                raise BadRequest(why, hint=f"its label `{key}` is `{theirs.get(key, '')}`, not `{value}`")
        return self.instances.describe(doc, at)

    def stop(self, name: str) -> None:
        doc, at = self.instances.find(name)
        if machines.read(doc, seen_at=at, price_usd_per_hour=0.0).status != "stopped":
            self.instances.power("stop", doc)

    def start(self, name: str) -> None:
        doc, at = self.instances.find(name)
        machine = machines.read(doc, seen_at=at, price_usd_per_hour=0.0)
        if machine.status in ("running", "pending"):
            return
        if machine.status == "broken":
            raise BadRequest(f"machine `{name}` is broken: {machine.why}", hint="delete it and launch another")
        self.instances.record_run_time(doc, machine.ran_s)
        self.instances.power("start", doc)

    def delete(self, name: str) -> None:
        try:
            doc, _ = self.instances.find(name)
        except NotFound:
            return
        self.instances.delete(doc)

    def preempt(self, name: str, *, notice: bool = True) -> None:
        doc, at = self.instances.find(name)
        machine = machines.read(doc, seen_at=at, price_usd_per_hour=0.0)
        if not machine.spot:
            raise BadRequest(f"only spot machines can be preempted: `{name}` is on demand")
        if machine.status != "running":
            raise BadRequest(f"only running machines can be preempted: `{name}` is {machine.status}")
        if notice:
            self.instances.power("simulateMaintenanceEvent", doc)
        elif LABEL_RUN in machine.labels:
            self.instances.delete(doc, query={"noGracefulShutdown": True})
        else:
            self.instances.power("stop", doc, query={"noGracefulShutdown": True})

    def set_metadata(self, name: str, items: Mapping[str, str]) -> None:
        self.instances.set_metadata(name, lambda _: items)

    # Images

    def _source(self, image: str, *, gpu: bool = False) -> tuple[str, float]:
        try:
            return self.image_api.source(image, gpu=gpu)
        except NotFound as problem:
            raise BadRequest(problem.message, hint=problem.hint) from problem

    def snapshot(
        self, machine: str, image: str, *, family: str = "", labels: Mapping[str, str] | None = None, note: str = ""
    ) -> Image:
        doc, at = self.instances.find(machine)
        status = machines.read(doc, seen_at=at, price_usd_per_hour=0.0).status
        if status != "stopped":
            raise BadRequest(f"machine `{machine}` is {status}", hint=f"stop it first: {STOP} {machine}")
        return self.image_api.create(doc, image, family=family, labels=labels, note=note)

    # Interactive use

    def access(self, name: str) -> SshAccess:
        doc, at = self.instances.find(name)
        machine = machines.read(doc, seen_at=at, price_usd_per_hour=0.0)
        if machine.status != "running":
            raise BadRequest(f"machine `{name}` is {machine.status}", hint="start it and try again")
        return ssh_access.access(self.client, doc, machine.address)

    def admit(self, name: str, ssh_key: str) -> None:
        entry = ssh_access.metadata_entry(self.client, ssh_key)

        def added(before: Mapping[str, str]) -> dict[str, str]:
            lines = [one for one in before.get("ssh-keys", "").splitlines() if one.strip()]
            return {"ssh-keys": "\n".join(lines if entry in lines else [*lines, entry])}

        self.instances.set_metadata(name, added)

    def metadata(self, name: str) -> Mapping[str, str]:
        return self.instances.metadata(name)

    def resize(self, name: str, *, type: str = "", disk_gb: float = 0.0) -> None:
        doc, at = self.instances.find(name)
        machine = machines.read(doc, seen_at=at, price_usd_per_hour=0.0)
        if disk_gb and disk_gb < machine.disk_gb:
            raise BadRequest(f"cannot shrink the disk of `{name}` from {machine.disk_gb:g} GB to {disk_gb:g} GB")
        if type and type != machine.type:
            if machine.status != "stopped":
                why = f"cannot change the type of `{name}`: it is {machine.status}, not stopped"
                raise BadRequest(why, hint=f"stop it first: {STOP} {name}")
            self._change_type(doc, machine, type)
        if disk_gb and disk_gb > machine.disk_gb:
            disk = next(disk for disk in doc["disks"] if disk.get("boot", True))
            path = f"zones/{machine.zone}/disks/{last(disk['source'])}/resize"
            size = str(int(disk_gb))
            self.client.change("POST", path, key=f"resize/{doc['id']}/{size}", body={"sizeGb": size})

    def _change_type(self, doc: Doc, machine: Machine, type: str) -> None:
        wanted = self.catalogue.offers(Requirements(type=type, zones=(machine.zone,), spot=machine.spot))
        if not wanted:
            raise BadRequest(f"zone `{machine.zone}` has no machine type `{type}`", hint="create it in another zone")
        body = {"machineType": f"zones/{machine.zone}/machineTypes/{type}"}
        self.client.change("POST", f"{self.instances.path_of(doc)}/setMachineType", body=body)
        # The label holds the price of the old type.
        price = str(round(wanted[0].price_usd_per_hour * 1e6))
        labels = {**doc.get("labels", {}), machines.LABEL_PRICE: price}
        relabel = {"labels": labels, "labelFingerprint": doc.get("labelFingerprint", "")}
        self.client.change("POST", f"{self.instances.path_of(doc)}/setLabels", body=relabel)

    # Secrets

    def put_secrets(self, name: str, values: Mapping[str, str], *, supervisors: bool = False) -> None:
        accounts = [self.account, *([self.supervisor_account] if supervisors else [])]
        secrets.put(self.client, name, values, accounts=[account for account in accounts if account])

    def drop_secrets(self, name: str) -> None:
        secrets.drop(self.client, name)
