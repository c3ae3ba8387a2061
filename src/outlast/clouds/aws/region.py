"""The machines of one region of EC2: each method shows its calls to Amazon, in order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from outlast.clouds.aws import machines, ssh_access, userdata
from outlast.clouds.aws.client import AwsClient, read_tags
from outlast.clouds.aws.errors import QUOTAS, Doc
from outlast.clouds.aws.fleets import FleetsOfMany
from outlast.clouds.aws.images import AwsImages
from outlast.clouds.aws.instances import AwsInstances
from outlast.clouds.aws.network import AwsNetwork
from outlast.clouds.aws.offers import CLOUD, AwsOffers
from outlast.clouds.aws.prices import AwsPrices
from outlast.clouds.cloud import LABEL_CLUSTER, Boot, Image, Machine, Offer, Requirements, SshAccess
from outlast.errors import BadRequest, NoQuota, NotFound, OverQuota
from outlast.spec.network import NetworkSpec, network_of

STOP = "`outlast machine stop`"
PROFILE, SUPERVISOR = "outlast-machine", "outlast-supervisor"
_USER = "root"
# Notice before an interruption by `preempt`; Amazon accepts no less.
_NOTICE = "PT2M"


class AwsRegion:
    """One region of one account. Any number of processes may use it at once."""

    def __init__(self, client: AwsClient) -> None:
        self.client = client
        self.prices = AwsPrices(client)
        self.catalogue = AwsOffers(client, self.prices)
        self.image_api = AwsImages(client)
        self.instances = AwsInstances(client)

    @property
    def name(self) -> str:
        return self.client.region

    @property
    def profile(self) -> str:
        """Return the instance profile of machines."""
        return os.environ.get("OUTLAST_AWS_INSTANCE_PROFILE", PROFILE)

    @property
    def supervisor_profile(self) -> str:
        """Return the instance profile of the supervisor machine."""
        return os.environ.get("OUTLAST_AWS_SUPERVISOR_PROFILE", SUPERVISOR)

    # Offers and machines

    def offers(self, needs: Requirements) -> Sequence[Offer]:
        if needs.image:
            self._image(needs.image)
        return self.catalogue.offers(needs)

    def has_network(self, settings: NetworkSpec) -> bool:
        """Return whether the network of these settings is in this region."""
        return AwsNetwork(self.client, settings).is_here()

    def machines(self, labels: Mapping[str, str] | None = None) -> Sequence[Machine]:
        return self.instances.describe(self.instances.docs(labels or {}))

    def machine(self, name: str) -> Machine:
        return self.instances.describe([self.instances.find(name)])[0]

    def serial(self, name: str) -> str:
        id = self.instances.find(name)["InstanceId"]
        try:
            answer = self.client.ec2("get_console_output", InstanceId=id, Latest=True)
        except BadRequest:
            # Only Nitro types have the latest output; others have the output of the last boot or stop.
            answer = self.client.ec2("get_console_output", InstanceId=id)
        return str(answer.get("Output") or "")

    # Life cycle of a machine

    def launch(self, offers: Sequence[Offer], name: str, *, boot: Boot, labels: Mapping[str, str]) -> Machine:
        """Launch one machine by one of the offers, of which EC2 chooses one for a spot machine of a run."""
        image = self._image(boot.image, gpu=bool(offers[0].gpu))
        try:
            # Search all zones: a second launch must not create a second machine.
            doc = self.instances.find(name)
            if doc["State"]["Name"] != "shutting-down":
                return self._with_price(self._require_labels(doc, labels), doc, offers)
            self.instances.wait(str(doc["InstanceId"]), "terminated")
        except NotFound:
            pass
        data, network = self._launch_data(offers, name, boot, labels, image)
        try:
            doc = self.instances.launch(offers[0], name, data, labels, self._pools(offers, network))
        except OverQuota as problem:
            raise self._with_quota(problem, offers[0]) from problem
        return self._with_price(self._require_labels(doc, labels), doc, offers)

    def _pools(self, offers: Sequence[Offer], network: AwsNetwork) -> list[Doc]:
        """Return the pools of offers, as a fleet names them: types in zones or subnets. Raises NoCapacity."""
        zones = list(dict.fromkeys(zone for one in offers for zone in ([one.zone] if one.zone else self.zones())))
        places = network.places(zones)
        return [
            {"InstanceType": offer.type, **place}
            for offer in offers
            for zone, place in places
            if zone == (offer.zone or zone)
        ]

    def zones(self) -> tuple[str, ...]:
        return self.catalogue.zones()

    def _with_price(self, machine: Machine, doc: Doc, offers: Sequence[Offer]) -> Machine:
        """Return the machine with the price of the pool that EC2 chose, which its tag must hold, too."""
        chosen = [one for one in offers if (one.zone or machine.zone, one.type) == (machine.zone, machine.type)]
        if not chosen or chosen[0].price_usd_per_hour == machine.price_usd_per_hour:
            return machine
        usd = chosen[0].price_usd_per_hour
        self.instances.tag(str(doc["InstanceId"]), {machines.TAG_PRICE: machines.price_text(usd)})
        return msgspec.structs.replace(machine, price_usd_per_hour=usd)

    def launch_all(
        self, offer: Offer, names: Sequence[str], *, boot: Boot, labels: Mapping[str, str]
    ) -> Sequence[Machine]:
        """Launch with one fleet that has a minimum capacity in one zone: EC2 launches all instances or none."""
        image = self._image(boot.image, gpu=bool(offer.gpu))
        data, network = self._launch_data([offer], names[0], boot, labels, image)
        together = FleetsOfMany(self.client, self.instances)
        found = together.launch(offer, names, data, labels, self._pools([offer], network)[0])
        return [self._require_labels(found[name], labels) for name in names]

    def _with_quota(self, problem: OverQuota, offer: Offer) -> OverQuota:
        """Return NoQuota if waiting does not help: for spot machines EC2 reports a quota of 0 as it does any other."""
        from outlast.clouds.aws.checks import has_no_spot_quota

        by_number = offer.spot and "MaxSpotInstanceCountExceeded" in problem.message
        if by_number and has_no_spot_quota(self.client, offer.type):
            text = f"the quota for spot machines such as {offer.type} is 0 in {self.client.region}: {problem.message}"
            return NoQuota(text, hint=f"request vCPUs at {QUOTAS}, or use another region or cloud")
        return problem

    def _launch_data(
        self, offers: Sequence[Offer], name: str, boot: Boot, labels: Mapping[str, str], image: Doc
    ) -> tuple[Doc, AwsNetwork]:
        """Return the parameters of a launch, and the network in which it may be."""
        network = AwsNetwork(self.client, boot.network or network_of(CLOUD, os.environ))
        boot = msgspec.structs.replace(boot, network=network.settings)
        keys: dict[str, str] = {}
        for key in boot.ssh_keys:
            keys |= ssh_access.key_tags(key)
        # Until the price of the chosen pool is known, the machine has the highest one.
        dearest = max(offers, key=lambda offer: offer.price_usd_per_hour)
        data = machines.launch_data(
            msgspec.structs.replace(offers[0], price_usd_per_hour=dearest.price_usd_per_hour),
            name,
            boot=boot,
            labels={**labels, **keys},
            image=image,
            groups=network.groups(peers=boot.peers or LABEL_CLUSTER in labels),
            profile=self.supervisor_profile if boot.rights == "supervisor" else self.profile,
        )
        return network.applied(data), network

    def require(self, name: str, labels: Mapping[str, str]) -> Machine:
        """Return a machine that is not about to end, if it has these labels. Raises NotFound, BadRequest."""
        doc = self.instances.find(name)
        if doc["State"]["Name"] == "shutting-down":
            raise NotFound(f"machine `{name}` ends")
        return self._require_labels(doc, labels)

    def _require_labels(self, doc: Doc, labels: Mapping[str, str]) -> Machine:
        """Return the machine if it has these labels. Raises BadRequest if it is another one of that name."""
        theirs = read_tags(doc.get("Tags"))
        for key, value in labels.items():
            if theirs.get(key) != value:
                why = f"another machine `{theirs.get(machines.TAG_NAME)}` exists in {self.client.region}"
                raise BadRequest(why, hint=f"its tag `{key}` is `{theirs.get(key, '')}`, not `{value}`")
        return self.instances.describe([doc])[0]

    def stop(self, name: str) -> None:
        doc = self.instances.find(name)
        if doc["State"]["Name"] != "stopped":
            self.client.ec2("stop_instances", InstanceIds=[doc["InstanceId"]])
            self.instances.wait(str(doc["InstanceId"]), "stopped")

    def start(self, name: str) -> None:
        doc = self.instances.find(name)
        if doc["State"]["Name"] in ("running", "pending"):
            return
        self.instances.wait(str(doc["InstanceId"]), "stopped")
        ran_s = self.machine(name).ran_s
        self.instances.tag(str(doc["InstanceId"]), {machines.TAG_RAN: f"{ran_s:.3f}"})
        self.client.ec2("start_instances", InstanceIds=[doc["InstanceId"]])

    def delete(self, name: str) -> None:
        docs = self.instances.docs({machines.TAG_NAME: name})
        for doc in docs:
            self.instances.terminate(doc)
        self.instances.delete_fleets(name)
        FleetsOfMany(self.client, self.instances).delete_unused(docs)

    def preempt(self, name: str, *, notice: bool = True) -> None:
        doc = self.instances.find(name)
        if not machines.is_spot(doc):
            raise BadRequest(f"only spot machines can be preempted: `{name}` is on demand")
        if doc["State"]["Name"] != "running":
            raise BadRequest(f"only running machines can be preempted: `{name}` is {doc['State']['Name']}")
        if notice:
            self._interrupt(doc)
        elif machines.shutdown_behavior(machines.labels_of(doc)) == "terminate":
            self.client.ec2("terminate_instances", InstanceIds=[doc["InstanceId"]])
        else:
            self.client.ec2("stop_instances", InstanceIds=[doc["InstanceId"]], Force=True)

    def _interrupt(self, doc: Doc) -> None:
        """Interrupt a spot machine through Amazon's Fault Injection Service."""
        account = str(self.client.call("sts", "get_caller_identity")["Account"])
        arn = f"arn:aws:ec2:{self.client.region}:{account}:instance/{doc['InstanceId']}"
        role = os.environ.get("OUTLAST_AWS_FIS_ROLE") or f"arn:aws:iam::{account}:role/outlast-fis"
        target = {"resourceType": "aws:ec2:spot-instance", "resourceArns": [arn], "selectionMode": "ALL"}
        action = {
            "actionId": "aws:ec2:send-spot-instance-interruptions",
            "parameters": {"durationBeforeInterruption": _NOTICE},
            "targets": {"SpotInstances": "machine"},
        }
        created = self.client.call(
            "fis",
            "create_experiment_template",
            clientToken=f"outlast-{os.urandom(12).hex()}",
            description=f"outlast preempts {doc['InstanceId']}",
            stopConditions=[{"source": "none"}],
            targets={"machine": target},
            actions={"interrupt": action},
            roleArn=role,
        )
        template = created["experimentTemplate"]["id"]
        try:
            token = f"outlast-{os.urandom(12).hex()}"
            self.client.call("fis", "start_experiment", clientToken=token, experimentTemplateId=template)
        finally:
            self.client.call("fis", "delete_experiment_template", id=template)

    def set_metadata(self, name: str, items: Mapping[str, str]) -> None:
        wanted = {f"{machines.TAG_SET}{key}": value for key, value in items.items()}
        machines.check_tags(wanted)
        self.instances.tag(str(self.instances.find(name)["InstanceId"]), wanted)

    # Images

    def _image(self, name: str, *, gpu: bool = False) -> Doc:
        try:
            return self.image_api.describe(name, gpu=gpu)
        except NotFound as problem:
            raise BadRequest(problem.message, hint=problem.hint) from problem

    def snapshot(
        self, machine: str, image: str, *, family: str = "", labels: Mapping[str, str] | None = None, note: str = ""
    ) -> Image:
        doc = self.instances.find(machine)
        if (state := doc["State"]["Name"]) != "stopped":
            raise BadRequest(f"machine `{machine}` is {state}", hint=f"stop it first: {STOP} {machine}")
        return self.image_api.create(str(doc["InstanceId"]), image, family=family, labels=labels or {}, note=note)

    # Interactive use

    def access(self, name: str) -> SshAccess:
        doc = self.instances.find(name)
        if doc["State"]["Name"] != "running":
            raise BadRequest(f"machine `{name}` is {doc['State']['Name']}", hint="start it and try again")
        proxy = ssh_access.proxy(doc, self.client.region)
        if not proxy:
            ssh_access.admit_caller(self.client)
        # Stored in a tag, because the console keeps only its latest output.
        known = read_tags(doc.get("Tags")).get(machines.TAG_HOST_KEY, "")
        found = (known,) if known else ssh_access.host_keys(self.serial(name))
        if found and not known:
            short = min(found, key=len)
            if len(short) <= 256:
                self.instances.tag(str(doc["InstanceId"]), {machines.TAG_HOST_KEY: short})
        host = str(doc.get("PublicIpAddress") or doc.get("PrivateIpAddress") or doc["InstanceId"])
        user = os.environ.get("OUTLAST_AWS_SSH_USER", _USER)
        return SshAccess(host=host, user=user, proxy_command=proxy, host_keys=found)

    def admit(self, name: str, ssh_key: str) -> None:
        self.instances.tag(str(self.instances.find(name)["InstanceId"]), ssh_access.key_tags(ssh_key))

    def metadata(self, name: str) -> Mapping[str, str]:
        doc = self.instances.find(name)
        answer = self.client.ec2("describe_instance_attribute", InstanceId=doc["InstanceId"], Attribute="userData")
        launched = userdata.metadata(str(answer.get("UserData", {}).get("Value", "")))
        changed = {
            key.removeprefix(machines.TAG_SET): value
            for key, value in read_tags(doc.get("Tags")).items()
            if key.startswith(machines.TAG_SET)
        }
        return {**launched, **changed}

    def resize(self, name: str, *, type: str = "", disk_gb: float = 0.0) -> None:
        doc, machine = self.instances.find(name), self.machine(name)
        if disk_gb and disk_gb < machine.disk_gb:
            raise BadRequest(f"cannot shrink the disk of `{name}` from {machine.disk_gb:g} GB to {disk_gb:g} GB")
        if type and type != machine.type:
            self.catalogue.kind(type)
            if machine.status != "stopped":
                why = f"cannot change the type of `{name}`: it is {machine.status}, not stopped"
                raise BadRequest(why, hint=f"stop it first: {STOP} {name}")
            self._change_type(doc, machine, type)
        if disk_gb and disk_gb > machine.disk_gb:
            volume = next(disk["Ebs"]["VolumeId"] for disk in doc["BlockDeviceMappings"] if "Ebs" in disk)
            self.client.ec2("modify_volume", VolumeId=volume, Size=int(-(-disk_gb // 1)))

    def _change_type(self, doc: Doc, machine: Machine, type: str) -> None:
        wanted = self.catalogue.offers(Requirements(type=type, zones=(machine.zone,), spot=machine.spot))
        if not wanted:
            raise BadRequest(f"zone `{machine.zone}` has no machine type `{type}`", hint="create it in another zone")
        id = str(doc["InstanceId"])
        self.client.ec2("modify_instance_attribute", InstanceId=id, InstanceType={"Value": type})
        # The tag holds the price of the old type.
        self.instances.tag(id, {machines.TAG_PRICE: machines.price_text(wanted[0].price_usd_per_hour)})
