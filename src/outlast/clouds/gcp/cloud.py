"""Google Compute Engine as a cloud of ours: each method says what is asked of Google, and in which order."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from outlast.clouds.cloud import LABEL_RUN, Boot, Image, Machine, Offer, Requirements, SshAccess
from outlast.clouds.gcp import labels as label
from outlast.clouds.gcp import machines, secrets, ssh_access
from outlast.clouds.gcp.client import GcpClient, check_name, last
from outlast.clouds.gcp.errors import AlreadyExists, Doc, NotReady, no_type_here
from outlast.clouds.gcp.images import GcpImages
from outlast.clouds.gcp.instances import Instances
from outlast.clouds.gcp.offers import CLOUD, GcpOffers
from outlast.clouds.gcp.prices import PriceBook
from outlast.clouds.image_store import ImageStore
from outlast.clouds.traits import BUILT_IN
from outlast.errors import BadRequest, NoCapacity, NotFound

if TYPE_CHECKING:
    from outlast.clouds.gcp.databases import GcpDatabases
    from outlast.clouds.gcp.volumes import GcpVolumes

STOP = "`outlast machine stop`"
_SERIAL_PAGES_MAX = 64


class GcpCloud(ImageStore):
    """One project. Any number of processes may use it at once."""

    name = CLOUD
    traits = BUILT_IN[CLOUD]
    pictures: GcpImages

    def __init__(self, project: str = "", *, client: GcpClient | None = None, prices: PriceBook | None = None) -> None:
        self.client = client or GcpClient(project)
        self.catalogue = GcpOffers(self.client, prices or PriceBook())
        self.pictures = GcpImages(self.client)
        self.fleet = Instances(self.client, self._price)

    @property
    def account(self) -> str:
        """Who the machines are: an account of their own, which may little."""
        chosen = os.environ.get("OUTLAST_GCP_SERVICE_ACCOUNT", "")
        return chosen or f"outlast-machine@{self.client.project}.iam.gserviceaccount.com"

    @property
    def supervisor_account(self) -> str:
        """Who the machine is that supervises: it may make and end machines, and be nobody else but them."""
        chosen = os.environ.get("OUTLAST_GCP_SUPERVISOR_ACCOUNT", "")
        return chosen or f"outlast-supervisor@{self.client.project}.iam.gserviceaccount.com"

    @property
    def price_note(self) -> str:
        """What whoever reads our prices should know of them; nothing, where they are Google's own of this week."""
        book = self.catalogue.prices
        return book.source if book.built_in else ""

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

    # What there is

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        if needs.image:
            self._link(needs.image)
        return self.catalogue.offers(needs)

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        return self.fleet.every(labels)

    def machine(self, name: str) -> Machine:
        return self.fleet.machine(name)

    def serial(self, name: str) -> str:
        doc, _ = self.fleet.find(name)
        pieces, start = [], 0
        for _ in range(_SERIAL_PAGES_MAX):
            query = {"port": 1, "start": start}
            try:
                answer = self.client.compute("GET", f"{self.fleet.place(doc)}/serialPort", query=query).doc
            except (NotReady, BadRequest):
                break  # it has not come so far, or is off
            if not answer.get("contents"):
                break
            pieces.append(str(answer["contents"]))
            start = int(answer["next"])
        return "".join(pieces)

    # A machine's life

    def launch(self, offer: Offer, name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        check_name(name)
        if offer.cloud != self.name:
            raise BadRequest(f"an offer of the cloud `{offer.cloud}` cannot be launched on `{self.name}`")
        image = self._link(boot.image)
        account = self.supervisor_account if boot.rights == "supervisor" else self.account
        user = ssh_access.login_name(self.client)
        body = machines.insert_body(offer, name, boot=boot, labels=labels, image=image, account=account, user=user)
        try:
            # In another zone, as well: to Google that would be another machine.
            return self._checked(*self.fleet.find(name), labels)
        except NotFound:
            pass
        # What the server remembers of an hour ago may be a machine that was deleted since: then the next id is taken.
        for key in (f"insert/{name}/{offer.zone}", f"insert/{name}/{offer.zone}/{uuid.uuid4()}"):
            self._insert(offer, key, body)
            try:
                answer = self.fleet.get(offer.zone, name)
            except NotFound:
                continue
            self._checked(answer.doc, answer.at, labels)
            return self._alone(answer.doc, answer.at, labels)
        raise NotFound(f"machine `{name}` was gone as soon as it was made")

    def _alone(self, doc: Doc, at: float, labels: Mapping[str, str]) -> Machine:
        """The machine, and no other of that name: somebody may have launched it in another zone at the same time.

        Whoever sees two deletes the younger, whosoever it is; who was first with looking has seen one, and the other
        sees both.
        """
        told = label.encode_all(labels).items()
        same = [one for one in self.fleet.namesakes(str(doc["name"])) if told <= one[0].get("labels", {}).items()]
        (oldest, seen_at), *younger = sorted(same, key=lambda one: machines.birth(one[0])) or [(doc, at)]
        for one, _ in younger:
            self.fleet.delete(one)
        self.fleet.remember(str(oldest["name"]), last(oldest["zone"]))
        return self.fleet.described(oldest, seen_at)

    def _insert(self, offer: Offer, key: str, body: Doc) -> None:
        try:
            self.client.change("POST", f"zones/{offer.zone}/instances", key=key, body=body)
        except AlreadyExists:
            pass  # an answer was lost, or somebody launches it at the same time; whose it is, is seen next
        except BadRequest as problem:
            if no_type_here(problem):
                why = f"zone `{offer.zone}` has no `{offer.type}`"
                raise NoCapacity(why, hint="the next zone is tried") from problem
            raise

    def _checked(self, doc: Doc, at: float, labels: Mapping[str, str]) -> Machine:
        """The machine, if it is the one that we asked for and not somebody else's of that name. Raises BadRequest."""
        theirs = doc.get("labels", {})
        for key, value in label.encode_all(labels).items():
            if theirs.get(key) != value:
                why = f"there is a machine `{doc['name']}` in {last(doc['zone'])} already, and it is not this one's"
                raise BadRequest(why, hint=f"its label `{key}` is `{theirs.get(key, '')}` and not `{value}`")
        return self.fleet.described(doc, at)

    def stop(self, name: str) -> None:
        doc, at = self.fleet.find(name)
        if machines.read(doc, seen_at=at, price_usd_per_hour=0.0).status != "stopped":
            self.fleet.power("stop", doc)

    def start(self, name: str) -> None:
        doc, at = self.fleet.find(name)
        machine = machines.read(doc, seen_at=at, price_usd_per_hour=0.0)
        if machine.status in ("running", "pending"):
            return
        if machine.status == "broken":
            raise BadRequest(f"machine `{name}` is broken: {machine.why}", hint="delete it and launch another")
        self.fleet.keep_account(doc, machine.ran_s)
        self.fleet.power("start", doc)

    def delete(self, name: str) -> None:
        try:
            doc, _ = self.fleet.find(name)
        except NotFound:
            return
        self.fleet.delete(doc)

    def preempt(self, name: str, *, notice: bool = True) -> None:
        doc, at = self.fleet.find(name)
        machine = machines.read(doc, seen_at=at, price_usd_per_hour=0.0)
        if not machine.spot:
            raise BadRequest(f"only spot machines are preempted, and `{name}` is none")
        if machine.status != "running":
            raise BadRequest(f"only running machines are preempted: `{name}` is {machine.status}")
        if notice:
            self.fleet.power("simulateMaintenanceEvent", doc)
        elif LABEL_RUN in machine.labels:
            self.fleet.delete(doc, query={"noGracefulShutdown": True})
        else:
            self.fleet.power("stop", doc, query={"noGracefulShutdown": True})

    def set_metadata(self, name: str, items: Mapping[str, str]) -> None:
        self.fleet.set_metadata(name, lambda _: items)

    # Images

    def _link(self, image: str) -> str:
        try:
            return self.pictures.link(image)
        except NotFound as problem:
            raise BadRequest(problem.message, hint=problem.hint) from problem

    def snapshot(
        self, machine: str, image: str, *, family: str = "", labels: Mapping[str, str] | None = None, note: str = ""
    ) -> Image:
        doc, at = self.fleet.find(machine)
        status = machines.read(doc, seen_at=at, price_usd_per_hour=0.0).status
        if status != "stopped":
            raise BadRequest(f"machine `{machine}` is {status}", hint=f"stop it first: {STOP} {machine}")
        return self.pictures.make(doc, image, family=family, labels=labels, note=note)

    # Work by hand

    def access(self, name: str) -> SshAccess:
        doc, at = self.fleet.find(name)
        machine = machines.read(doc, seen_at=at, price_usd_per_hour=0.0)
        if machine.status != "running":
            raise BadRequest(f"machine `{name}` is {machine.status}", hint="start it, and try again")
        return ssh_access.access(self.client, doc, machine.address)

    def admit(self, name: str, ssh_key: str) -> None:
        line = ssh_key.strip()
        if "\n" in line or len(line.split()) < 2 or "\0" in line:
            raise BadRequest("this is no public ssh key", hint="it is one line, as in `id_ed25519.pub`")
        told = f"{ssh_access.login_name(self.client)}:{line}"

        def added(before: Mapping[str, str]) -> dict[str, str]:
            lines = [one for one in before.get("ssh-keys", "").splitlines() if one.strip()]
            return {"ssh-keys": "\n".join(lines if told in lines else [*lines, told])}

        self.fleet.set_metadata(name, added)

    def metadata(self, name: str) -> Mapping[str, str]:
        return self.fleet.metadata(name)

    def resize(self, name: str, *, type: str = "", disk_gb: float = 0.0) -> None:
        doc, at = self.fleet.find(name)
        machine = machines.read(doc, seen_at=at, price_usd_per_hour=0.0)
        if disk_gb and disk_gb < machine.disk_gb:
            raise BadRequest(f"the disk of `{name}` has {machine.disk_gb:g} GB, and a disk never shrinks")
        if type and type != machine.type:
            if machine.status != "stopped":
                why = f"the type of `{name}` changes only while it is stopped, and it is {machine.status}"
                raise BadRequest(why, hint=f"stop it first: {STOP} {name}")
            self._retype(doc, machine, type)
        if disk_gb and disk_gb > machine.disk_gb:
            disk = next(disk for disk in doc["disks"] if disk.get("boot", True))
            path = f"zones/{machine.zone}/disks/{last(disk['source'])}/resize"
            size = str(int(disk_gb))
            self.client.change("POST", path, key=f"resize/{doc['id']}/{size}", body={"sizeGb": size})

    def _retype(self, doc: Doc, machine: Machine, type: str) -> None:
        wanted = self.catalogue.offers(Requirements(type=type, zones=(machine.zone,), spot=machine.spot))
        if not wanted:
            raise BadRequest(f"zone `{machine.zone}` has no machine type `{type}`", hint="make it in another zone")
        body = {"machineType": f"zones/{machine.zone}/machineTypes/{type}"}
        self.client.change("POST", f"{self.fleet.place(doc)}/setMachineType", body=body)
        # The price that it was launched for is not its own any more.
        price = str(round(wanted[0].price_usd_per_hour * 1e6))
        labels = {**doc.get("labels", {}), machines.LABEL_PRICE: price}
        told = {"labels": labels, "labelFingerprint": doc.get("labelFingerprint", "")}
        self.client.change("POST", f"{self.fleet.place(doc)}/setLabels", body=told)

    # Secrets

    def put_secrets(self, name: str, values: Mapping[str, str], *, supervisors: bool = False) -> None:
        accounts = [self.account, *([self.supervisor_account] if supervisors else [])]
        secrets.put(self.client, name, values, accounts=[account for account in accounts if account])

    def drop_secrets(self, name: str) -> None:
        secrets.drop(self.client, name)
