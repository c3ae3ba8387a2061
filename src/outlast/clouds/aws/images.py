"""Images: the account's by name and family (a tag), public ones by the SSM parameters of their publishers."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from outlast.clouds.aws.client import AwsClient, read_tags, tags
from outlast.clouds.aws.errors import Doc
from outlast.clouds.cloud import Image
from outlast.errors import AlreadyExists, BadRequest, CloudError, NotFound

if TYPE_CHECKING:
    from outlast.clouds.aws.regions import AwsRegions

T = TypeVar("T")
TAG_FAMILY, TAG_RETIRED = "outlast-family", "outlast-retired"
TAG_ORIGIN, TAG_CREATED = "outlast-origin", "outlast-created"
_OWN = (TAG_FAMILY, TAG_RETIRED, TAG_ORIGIN, TAG_CREATED, "Name")
# Name in a spec → the parameter that holds the newest id.
PUBLIC = {
    "ubuntu-24.04": "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
    "ubuntu-22.04": "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
    "debian-12": "/aws/service/debian/release/12/latest/amd64",
    "amazon-linux-2023": "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
    "nvidia-ubuntu-24.04": "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
}
DEFAULT, DEFAULT_GPU = "ubuntu-24.04", "nvidia-ubuntu-24.04"
_READY_S_MAX = 1800.0


class AwsImages:
    """The images that one account can use in its region."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client

    def describe(self, image: str, *, gpu: bool = False) -> Doc:
        """Return the document of an image: the account's, a public one by name, or any by id. Raises NotFound."""
        wanted = image or (DEFAULT_GPU if gpu else DEFAULT)
        if wanted in PUBLIC:
            parameter = self._client.call("ssm", "get_parameter", Name=PUBLIC[wanted])["Parameter"]
            return self._by_id(str(parameter["Value"]))
        if re.fullmatch(r"ami-[0-9a-f]{8,17}", wanted):
            return self._by_id(wanted)
        return self._find(wanted)

    def _by_id(self, id: str) -> Doc:
        docs: list[Doc] = self._client.ec2("describe_images", ImageIds=[id])["Images"]
        if not docs:
            raise NotFound(f"no image `{id}` in {self._client.region}")
        return docs[0]

    def _own(self) -> list[Doc]:
        return list(self._client.pages("ec2", "describe_images", "Images", Owners=["self"]))

    def _find(self, name: str) -> Doc:
        docs = self._own()
        for doc in docs:
            if doc["Name"] == name:
                return doc
        members = [doc for doc in docs if _member(doc, name)]
        if not members:
            hint = f"`outlast image list` shows yours; public ones: {', '.join(PUBLIC)}, or an id `ami-…`"
            raise NotFound(f"no image or family `{name}` in {self._client.region}", hint=hint)
        return max(members, key=lambda doc: read(doc).created_at)

    def list_all(self) -> list[Image]:
        return [read(doc) for doc in self._own()]

    def image(self, name: str) -> Image:
        return read(self._find(name))

    def create(self, instance: str, image: str, *, family: str, labels: Mapping[str, str], note: str) -> Image:
        """Create an image of a stopped instance. May be repeated. Raises BadRequest if another one has the name."""
        own = {TAG_ORIGIN: instance, TAG_CREATED: f"{time.time():.6f}", **({TAG_FAMILY: family} if family else {})}
        specification = [{"ResourceType": kind, "Tags": tags({**labels, **own})} for kind in ("image", "snapshot")]
        described = {"Description": note} if note else {}
        try:
            self._client.ec2(
                "create_image", InstanceId=instance, Name=image, TagSpecifications=specification, **described
            )
        except AlreadyExists:
            pass
        doc = self._ready(image)
        if read_tags(doc.get("Tags")).get(TAG_ORIGIN) != instance:
            raise BadRequest(f"image `{image}` exists already, of another machine", hint="choose another name")
        return read(doc)

    def _ready(self, name: str) -> Doc:
        give_up_at, pause_s = time.monotonic() + _READY_S_MAX, 0.2
        while True:
            doc = self._find(name)
            if doc.get("State") == "available":
                return doc
            if doc.get("State") in ("failed", "error", "invalid") or time.monotonic() > give_up_at:
                why = str(doc.get("StateReason", {}).get("Message", doc.get("State")))
                self.delete(name)
                raise CloudError(f"could not create image `{name}`: {why}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 15.0)

    def retire(self, name: str, *, retired: bool) -> None:
        id = self._exact(name)["ImageId"]
        call = "create_tags" if retired else "delete_tags"
        self._client.ec2(call, Resources=[id], Tags=[{"Key": TAG_RETIRED, "Value": "yes"}])

    def share(self, name: str, who: str) -> None:
        account = re.sub(r"[- ]", "", who)
        if not re.fullmatch(r"\d{12}", account):
            raise BadRequest(f"invalid AWS account `{who}`", hint="expected a number of 12 digits")
        id = self._exact(name)["ImageId"]
        permission = {"Add": [{"UserId": account}]}
        self._client.ec2("modify_image_attribute", ImageId=id, LaunchPermission=permission)

    def delete(self, name: str) -> None:
        try:
            doc = self._exact(name)
        except NotFound:
            return
        disks = [disk["Ebs"].get("SnapshotId") for disk in doc.get("BlockDeviceMappings", []) if "Ebs" in disk]
        for call, parameters in [
            ("deregister_image", {"ImageId": doc["ImageId"]}),
            *(("delete_snapshot", {"SnapshotId": snapshot}) for snapshot in disks if snapshot),
        ]:
            try:
                self._client.ec2(call, **parameters)
            except NotFound:
                pass

    def _exact(self, name: str) -> Doc:
        doc = self._find(name)
        if doc["Name"] != name:
            raise NotFound(f"`{name}` is a family, not an image", hint=f"its newest image is `{doc['Name']}`")
        return doc


class RegionalImages(AwsImages):
    """The images of an account in all its regions. An image exists in the region of the machine that it was made of."""

    def __init__(self, client: AwsClient, regions: AwsRegions) -> None:
        super().__init__(client)
        self._regions = regions

    def list_all(self) -> list[Image]:
        answers = self._regions.each(lambda region: region.image_api.list_all())
        if answers.problems:
            raise next(iter(answers.problems.values()))
        return [image for images in answers.answers.values() for image in images]

    def image(self, name: str) -> Image:
        found = self._everywhere(lambda images: images.image(name))
        return max(found, key=lambda image: (image.name == name, image.created_at))

    def retire(self, name: str, *, retired: bool) -> None:
        self._everywhere(lambda images: images.retire(name, retired=retired))

    def share(self, name: str, who: str) -> None:
        self._everywhere(lambda images: images.share(name, who))

    def delete(self, name: str) -> None:
        self._everywhere(lambda images: images.delete(name))

    def _everywhere(self, act: Callable[[AwsImages], T]) -> list[T]:
        """Act in every region that has the image. Raises NotFound if none has it."""
        answers = self._regions.each(lambda region: act(region.image_api))
        lacking = [one for one in answers.problems.values() if isinstance(one, NotFound)]
        if others := [one for one in answers.problems.values() if one not in lacking]:
            raise others[0]
        if not answers.answers:
            raise lacking[0]
        return list(answers.answers.values())


def _member(doc: Doc, family: str) -> bool:
    known = read_tags(doc.get("Tags"))
    return known.get(TAG_FAMILY) == family and TAG_RETIRED not in known


def read(doc: Doc) -> Image:
    known = read_tags(doc.get("Tags"))
    created = datetime.datetime.fromisoformat(str(doc["CreationDate"]).replace("Z", "+00:00")).timestamp()
    sizes_gb = [disk["Ebs"].get("VolumeSize", 0) for disk in doc.get("BlockDeviceMappings", []) if "Ebs" in disk]
    return Image(
        name=str(doc["Name"]),
        cloud="aws",
        family=known.get(TAG_FAMILY, ""),
        created_at=float(known.get(TAG_CREATED) or created),
        bytes=sum(sizes_gb) << 30,
        labels={key: value for key, value in known.items() if key not in _OWN and not key.startswith("aws:")},
        description=str(doc.get("Description") or ""),
        retired=TAG_RETIRED in known,
    )
